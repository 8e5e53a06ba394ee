"""What bench/nano_identity.py and bench/nano_widths.py share: running `mimo eval` and writing down what came out."""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def add_common_arguments(parser):
    parser.add_argument("--mimo", type=Path, default=ROOT / "build" / "mimo", help="the program")
    parser.add_argument("--model", type=Path, default=ROOT / "models" / "nano", help="checkpoint directory")
    parser.add_argument("--limit", type=int, default=0, help="only the first N problems (0: all)")
    parser.add_argument("--threads", type=int, default=0, help="threads (0: one per CPU)")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")


class Nano:
    def __init__(self, arguments):
        self.arguments = arguments

    def word_problems(self, *flags):
        given = self.arguments
        return self._run("nano-gsm", "--model", given.model, "--limit", given.limit, "--threads", given.threads, *flags)

    def compare(self, a, b):
        return self._run("compare", a, b)

    def _run(self, *arguments):
        command = [self.arguments.mimo, "eval", *map(str, arguments), "--json"]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"mimo eval {arguments[0]} ended with status {done.returncode}:\n{done.stderr.strip()}")
        return json.loads(done.stdout.splitlines()[-1])

    @staticmethod
    def figures(out):
        """What is kept of a run: no paths, no texts."""
        kept = {key: out[key] for key in ("problems", "accuracy", "accuracy_low", "accuracy_high", "truncated", "invalid",
                                          "accept_length", "generated_tokens", "wall_seconds", "tokens_per_second",
                                          "backend", "kv_cache_dtype", "concurrency", "chunked_prefill_size")}
        counters = out.get("speculation") or {}
        kept["speculation"] = {key: counters[key] for key in ("verify_steps", "plain_steps", "proposed", "accepted", "failures",
                                                              "accepted_histogram") if key in counters}
        return kept


def number(value, digits):
    return "-" if value is None else f"{value:,.{digits}f}"


def table(head, lines):
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]

    def row(cells):
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths)) + " |"

    return "\n".join([row(head), row(["-" * width for width in widths]), *map(row, lines)])


def write_json(arguments, value):
    if arguments.output:
        arguments.output.write_text(json.dumps(value, indent=1) + "\n")
