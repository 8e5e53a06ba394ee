#!/usr/bin/env python3
"""Trains MiMo-Nano, its MTP heads and its DFlash drafter, and writes the checkpoint: one command, seeded, resumable.

    python3 tools/nano/train.py --corpus CORPUS --work WORK --out models/nano

Stages: data (in the background), target, the target's own answers, drafters, export and scores. A finished stage is
not run again; an interrupted one goes on from its last save. `--toy` trains a model of 1/50 the size for a few steps
on a CPU: it says nothing, but runs every line.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import own_answers  # noqa: E402
import scores  # noqa: E402
from answers import rounded  # noqa: E402
from batches import Shards  # noqa: E402
from export import export_drafter, export_target  # noqa: E402
from journal import say  # noqa: E402
from shape import NANO, TOY  # noqa: E402
from target import Target  # noqa: E402
from train_drafters import DrafterPlan, train_drafters  # noqa: E402
from train_target import TargetPlan, train_target  # noqa: E402


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder of data/build_corpus.py")
    parser.add_argument("--work", type=Path, required=True, help="shards, saves and curves; keep it to resume")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "models" / "nano",
                        help="checkpoint directory with tokenizer.json and eval/ (default: models/nano)")
    parser.add_argument("--seed", type=int, default=26)
    parser.add_argument("--steps", type=int, default=12000, help="of the target")
    parser.add_argument("--drafter-steps", type=int, default=3500)
    parser.add_argument("--short-shards", type=int, default=700, help="distinct shards of short rows")
    parser.add_argument("--long-shards", type=int, default=240)
    parser.add_argument("--prompts", type=int, default=150000, help="answered by the target for its drafters")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--toy", action="store_true")
    return parser.parse_args()


def start_data(options: argparse.Namespace, workers: int) -> list[subprocess.Popen]:
    """Writers of short rows, long rows and prompts. Each skips what exists."""
    data = HERE / "data"
    shards = options.work / "shards"
    long_workers = max(1, workers // 6)
    common = ["--seed", str(options.seed), "--corpus", str(options.corpus), "--model", str(options.out)]
    commands = [
        [data / "make_shards.py", "--out", shards, "--kind", "short", "--shards", f"0:{options.short_shards}",
         "--workers", max(1, workers - long_workers)],
        [data / "make_shards.py", "--out", shards, "--kind", "long", "--shards", f"0:{options.long_shards}",
         "--workers", long_workers],
    ]
    return [subprocess.Popen([sys.executable, *map(str, command), *common]) for command in commands]


def make_prompts(options: argparse.Namespace) -> Path:
    path = options.work / "prompts.npz"
    if not path.exists():
        # Another seed than the shards': the target answers problems it was not trained on.
        subprocess.run([sys.executable, str(HERE / "data" / "make_prompts.py"), "--out", str(path), "--count",
                        str(options.prompts), "--seed", str(options.seed + 1), "--corpus", str(options.corpus),
                        "--model", str(options.out)], check=True)
    return path


def main() -> None:
    options = arguments()
    shape = TOY if options.toy else NANO
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 64
    compile_layers = not options.no_compile and device.type == "cuda"
    options.work.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    writers = start_data(options, options.workers)
    row_scale = 64 if not options.toy else 2
    short = Shards(options.work / "shards", "short", options.short_shards, 2, row_scale, shape, device)
    long = Shards(options.work / "shards", "long", options.long_shards, 2, max(1, row_scale // 8), shape,
                  device)
    results: dict = {"seed": options.seed, "steps": options.steps, "drafter_steps": options.drafter_steps}

    probes: list = []

    def probe(target: Target, step: int) -> None:
        if step % (4 * plan.save_every) and step != plan.steps:
            return
        target.rounding.fill_(1.0)
        share, _, _ = scores.gsm_accuracy(rounded(target), options.out, 16 if options.toy else 256)
        probes.append([step, share])
        say(f"target: step {step}, nano-gsm {share:.1%} of the first problems (weights as stored)")

    plan = TargetPlan(options.steps)
    if options.toy:
        plan = TargetPlan(options.steps, long_every=4, warmup=2, save_every=max(1, options.steps // 2), log_every=2)
    target = train_target(shape, plan, short, long, options.work, device, options.seed, compile_layers, probe)
    results["target_seconds"] = time.monotonic() - begun
    results["nano_gsm_while_training"] = probes
    for writer in writers:
        if writer.wait() != 0:
            raise SystemExit(f"data writer failed: {writer.args}")

    answers_file = options.work / "answers.npz"
    frozen = rounded(target)
    if not answers_file.exists():
        prompts = own_answers.read_prompts(make_prompts(options))
        limit = 48 if options.toy else 400
        prompts = [p for p in prompts if len(p.ids) <= 1024 - limit]
        replies = own_answers.answer_all(frozen, prompts, limit, 8_000 if options.toy else 4_000_000)
        by_kind: dict[str, list[bool]] = {}
        for p, reply in zip(prompts, replies, strict=True):
            by_kind.setdefault(p.kind, []).append(own_answers.finished(reply))
        for kind, ended in sorted(by_kind.items()):
            say(f"answers: {kind}: {len(ended)}, {sum(ended) / len(ended):.1%} ended by themselves")
        np.savez(answers_file, **own_answers.pack(prompts, replies, 1024, options.seed))
    with np.load(answers_file) as file:
        rows = {name: file[name] for name in ("tokens", "flags", "doc")}
    say(f"drafters: {len(rows['tokens'])} rows of 1024, {int(rows['flags'].sum())} answer tokens")

    drafter_plan = DrafterPlan(options.drafter_steps)
    if options.toy:
        drafter_plan = DrafterPlan(options.drafter_steps, rows=1, long_rows=1, anchors=8, mtp_rows=1, warmup=2, log_every=2,
                                   save_every=max(1, options.drafter_steps // 2))
    drafter, mtp = train_drafters(frozen, shape, drafter_plan, rows, long, options.work, device, options.seed,
                                  compile_layers)
    export_target(target, mtp, options.out)
    export_drafter(drafter, options.out / "dflash")

    limit = 16 if options.toy else 1319
    results["nano_gsm_thinking"], prompts, replies = scores.gsm_accuracy(frozen, options.out, limit)
    results["nano_gsm_direct"], _, _ = scores.gsm_accuracy(frozen, options.out, limit, thinking=False)
    results["dflash_accept_length"] = dict(
        zip(range(1, 8), scores.accept_lengths(frozen, drafter, prompts, replies, device), strict=True))
    results["total_seconds"] = time.monotonic() - begun
    results["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    (options.work / "scores.json").write_text(json.dumps(results, indent=1) + "\n")
    say(json.dumps(results))


if __name__ == "__main__":
    main()
