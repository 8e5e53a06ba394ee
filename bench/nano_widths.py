#!/usr/bin/env python3
"""Accept length and tokens a second of the bundled model by the number of drafts, one request at a time.

    bench/nano_widths.py [--mimo build/mimo] [--model models/nano] [--limit N] [--output FILE.json]

In one go: no speculation first and last (how much the machine drifted), DFlash with 1 to 7 drafts and with the width that
finds itself, MTP with 1 to 3, and the two switches of DFlash that its description leaves open. Speed-ups are over the mean
of the two runs without speculation, and mean something only on an otherwise idle machine. Prints a table in Markdown;
--output also keeps the numbers as JSON.
"""
import argparse
import sys

from nano_eval import Nano, add_common_arguments, number, table, write_json

RUNS = [
    ("no speculation, before", ("NONE",)),
    *((f"DFLASH, {n} draft{'s' * (n > 1)}", ("DFLASH", "--speculative-num-draft-tokens", str(n))) for n in range(1, 8)),
    ("DFLASH, adaptive", ("DFLASH",)),
    *((f"MTP, {n} draft{'s' * (n > 1)}", ("MTP", "--speculative-num-draft-tokens", str(n))) for n in range(1, 4)),
    ("DFLASH, 7 drafts, last tap after the norm",
     ("DFLASH", "--speculative-num-draft-tokens", "7", "--speculative-dflash-final-tap", "post_norm")),
    ("DFLASH, 7 drafts, window by anchor",
     ("DFLASH", "--speculative-num-draft-tokens", "7", "--speculative-dflash-window", "anchor")),
    ("no speculation, after", ("NONE",)),
]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common_arguments(parser)
    parser.set_defaults(limit=200)
    arguments = parser.parse_args()
    nano = Nano(arguments)
    rows, answers = [], []
    for name, (algorithm, *flags) in RUNS:
        out = nano.word_problems("--speculative-algorithm", algorithm, *flags, "--concurrency", "1")
        rows.append({"run": name, "flags": ["--speculative-algorithm", algorithm, *flags], **nano.figures(out)})
        answers.append([item["token_ids"] for item in out["items"]])
        print(f"{name}: done", file=sys.stderr, flush=True)
    plain = (rows[0]["tokens_per_second"] + rows[-1]["tokens_per_second"]) / 2
    lines = []
    for row, ids in zip(rows, answers):
        row["speed_up"] = row["tokens_per_second"] / plain
        row["identical"] = sum(a == b for a, b in zip(ids, answers[0]))
        lines.append([row["run"], number(row["accept_length"], 3), number(row["tokens_per_second"], 0),
                      f"{row['speed_up']:.2f}x", f"{row['identical']} of {row['problems']}"])
    print(table(["run", "accept length", "tokens/s", "speed-up", "identical ids"], lines))
    write_json(arguments, {"problems": rows[0]["problems"], "runs": rows})
    return 0 if all(row["identical"] == row["problems"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
