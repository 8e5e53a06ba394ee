#!/usr/bin/env python3
"""Writes training shards DIR/short-00000.npz (512 rows of 1024) or DIR/long-00000.npz (16 rows of 8192).

    python3 tools/nano/data/make_shards.py --out DIR --shards 0:64 --workers 12 --seed 1 --corpus .nano/corpus

Arrays: tokens uint16, flags uint8 (1 = supervised), doc uint16 (1, 2, .. in each row, 0 = padding), all [rows, length].
A shard depends on (seed, kind, number) only and appears under its name when it is complete, in about rising order.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one process a core already
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.encode import load_tokenizer  # noqa: E402
from data.mix import Mix  # noqa: E402
from data.shards import SHAPES, make_rows, write_shard  # noqa: E402

Job = tuple[str, int, int, Path]  # kind, number, seed, folder
_mix: Mix
_tokenizer_folder: Path


def _run(job: Job) -> str:
    kind, number, seed, folder = job
    if (folder / f"{kind}-{number:05d}.npz").exists():
        return f"{kind}-{number:05d} is there"
    start = time.process_time()
    rows, made = make_rows(_mix, load_tokenizer(_tokenizer_folder), kind, number, seed)
    path = write_shard(folder, kind, number, rows)
    total = sum(made.values())
    shares = " ".join(f"{name} {count / total:.3f}" for name, count in sorted(made.items()))
    speed = rows.tokens.size / (time.process_time() - start)
    counts = f"padding {rows.padding:.4f}, supervised {rows.flags.mean():.3f}"
    return f"{path.name}: {counts}, {speed / 1000:.0f}K tokens/s; {shares}"


def main() -> None:
    global _mix, _tokenizer_folder
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shards", default="0:1", help="first and last-but-one number, as A:B")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=list(SHAPES), default="short")
    parser.add_argument("--corpus", type=Path, default=Path(".nano/corpus"))
    parser.add_argument(
        "--model",
        type=Path,
        default=Path(__file__).resolve().parents[3] / "models/nano",
        help="folder of tokenizer.json",
    )
    options = parser.parse_args()
    first, last = map(int, options.shards.split(":"))
    options.out.mkdir(parents=True, exist_ok=True)
    # Loaded once, before the fork; the sentences too, since they are made on first use.
    _mix, _tokenizer_folder = Mix.load(options.corpus), options.model
    _ = _mix.corpus.sentences, _mix.corpus.by_source, _mix.corpus.words
    jobs: list[Job] = [(options.kind, number, options.seed, options.out) for number in range(first, last)]
    with multiprocessing.get_context("fork").Pool(options.workers) as pool:
        for line in pool.imap(_run, jobs):
            print(line, flush=True)


if __name__ == "__main__":
    main()
