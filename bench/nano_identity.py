#!/usr/bin/env python3
"""Runs all problems of nano-gsm with every drafter, alone and in mixed batches, and counts equal answers.

    bench/nano_identity.py [--mimo build/mimo] [--model models/nano] [--limit N] [--output FILE.json]

Every run is compared by token ids (`mimo eval compare`) with the run of one request at a time without speculation and
with the same KV format. Prints a table in Markdown; --output also keeps the numbers as JSON. Exit status 1 if an answer
differs. Speeds mean something only on an otherwise idle machine.
"""
import argparse
import sys
import tempfile
from pathlib import Path

from nano_eval import Nano, add_common_arguments, number, table, write_json

ONE = ("--concurrency", "1")
MIXED = ("--concurrency", "16", "--chunked-prefill-size", "64")
FP8 = ("--kv-cache-dtype", "fp8")

# What runs, how, and the run whose token ids it must have.
RUNS = [
    ("NONE, one at a time", ("NONE", *ONE), None),
    ("DFLASH, one at a time", ("DFLASH", *ONE), "NONE, one at a time"),
    ("MTP, one at a time", ("MTP", *ONE), "NONE, one at a time"),
    ("NONE, 16 at a time", ("NONE", *MIXED), "NONE, one at a time"),
    ("DFLASH, 16 at a time", ("DFLASH", *MIXED), "NONE, one at a time"),
    ("MTP, 16 at a time", ("MTP", *MIXED), "NONE, one at a time"),
    ("NONE, one at a time, FP8 KV", ("NONE", *ONE, *FP8), None),
    ("DFLASH, one at a time, FP8 KV", ("DFLASH", *ONE, *FP8), "NONE, one at a time, FP8 KV"),
    ("DFLASH, 16 at a time, FP8 KV", ("DFLASH", *MIXED, *FP8), "NONE, one at a time, FP8 KV"),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    arguments = parser.parse_args()
    nano = Nano(arguments)
    rows, lines, different = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for place, (name, (algorithm, *flags), base) in enumerate(RUNS):
            files[name] = Path(folder) / f"{place}.jsonl"
            out = nano.word_problems("--speculative-algorithm", algorithm, *flags, "--output", files[name])
            row = {"run": name, "flags": ["--speculative-algorithm", algorithm, *flags], **nano.figures(out)}
            same = "-"
            if base:
                compared = nano.compare(files[base], files[name])
                row |= {"compared_with": base, "identical": compared["identical_token_ids"],
                        "first_differences": compared["differences"][:3]}
                different += compared["problems"] - compared["identical_token_ids"]
                same = f"{row['identical']} of {compared['problems']}"
            rows.append(row)
            lines.append([name, f"{100 * row['accuracy']:.2f}%", number(row["accept_length"], 3),
                          number(row["tokens_per_second"], 0), same])
            print(f"{name}: done, identical: {same}", file=sys.stderr, flush=True)
    print(table(["run", "accuracy", "accept length", "tokens/s", "identical ids"], lines))
    write_json(arguments, {"problems": rows[0]["problems"], "runs": rows, "different_answers": different})
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
