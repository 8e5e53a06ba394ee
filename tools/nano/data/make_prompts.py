#!/usr/bin/env python3
"""Writes prompts of the training split as one .npz.

    python3 tools/nano/data/make_prompts.py --out prompts.npz --count 20000 --seed 7 --corpus .nano/corpus

Arrays: ids uint16 [all tokens], offsets int64 [count + 1], kinds uint8 [count]; meta: JSON text as uint8 bytes with
"kinds" (names of the codes) and "answers" (a text or null for each prompt).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.encode import load_tokenizer  # noqa: E402
from data.mix import Mix  # noqa: E402
from data.prompts import PROMPT_SHARES, prompts  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--corpus", type=Path, default=Path(".nano/corpus"))
    parser.add_argument(
        "--model",
        type=Path,
        default=Path(__file__).resolve().parents[3] / "models/nano",
        help="folder of tokenizer.json",
    )
    options = parser.parse_args()
    made = prompts(Mix.load(options.corpus), load_tokenizer(options.model), options.seed, options.count)
    names = list(PROMPT_SHARES)
    meta = json.dumps({"kinds": names, "answers": [prompt["answer"] for prompt in made]}).encode()
    temporary = options.out.with_name(f".{options.out.name}.tmp")
    with temporary.open("wb") as file:
        np.savez(
            file,
            ids=np.concatenate([np.array(prompt["prompt_ids"], np.uint16) for prompt in made]),
            offsets=np.cumsum([0, *(len(prompt["prompt_ids"]) for prompt in made)], dtype=np.int64),
            kinds=np.array([names.index(prompt["kind"]) for prompt in made], np.uint8),
            meta=np.frombuffer(meta, np.uint8),
        )
    temporary.replace(options.out)
    print(f"{options.out}: {len(made)} prompts")


if __name__ == "__main__":
    main()
