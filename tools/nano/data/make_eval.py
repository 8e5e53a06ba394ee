#!/usr/bin/env python3
"""Writes the evaluation files of MiMo-Nano from the test split, always the same ones.

python3 tools/nano/data/make_eval.py --corpus .nano/corpus --out models/nano/eval
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from data.needle import NEEDLE, QUESTION  # noqa: E402
from data.pools import NAMES  # noqa: E402
from data.sample import Sample, split_pool  # noqa: E402
from data.tools_calls import expected_calls, make_tool_sample  # noqa: E402
from data.word_problems import make_problem  # noqa: E402

SEED = 20260
PROBLEMS = 1319
TOOL_LINES = 600


def nano_gsm() -> list[dict[str, Any]]:
    rng = random.Random(f"{SEED}/nano-gsm")
    problems: dict[str, int] = {}
    while len(problems) < PROBLEMS:
        problem = make_problem(rng, "test")
        problems.setdefault(problem.question, int(problem.answer))
    return [
        {"id": f"nano-gsm-{number:04d}", "question": question, "answer": str(answer)}
        for number, (question, answer) in enumerate(problems.items(), 1)
    ]


def openai_messages(sample: Sample) -> list[dict[str, Any]]:
    """The messages before the last assistant turn. Earlier calls have ids and arguments as JSON text, as in the API."""
    out: list[dict[str, Any]] = []
    for message in sample.messages[:-1]:
        message = dict(message)
        if "tool_calls" in message:
            message["tool_calls"] = [
                {
                    "id": f"call_{index}",
                    "type": "function",
                    "function": {
                        "name": call["function"]["name"],
                        "arguments": json.dumps(call["function"]["arguments"]),
                    },
                }
                for index, call in enumerate(message["tool_calls"])
            ]
        if message["role"] == "tool":
            message["tool_call_id"] = "call_0"
        out.append(message)
    return out


def toolcall() -> list[dict[str, Any]]:
    rng = random.Random(f"{SEED}/toolcall")
    lines: list[dict[str, Any]] = []
    seen: set[str] = set()
    while len(lines) < TOOL_LINES:
        thinking = len(lines) % 2 == 0
        sample = make_tool_sample(rng, thinking, "test")
        messages = openai_messages(sample)
        key = json.dumps([sample.tools, messages])
        if key in seen:
            continue
        seen.add(key)
        lines.append(
            {
                "id": f"toolcall-{len(lines) + 1:04d}",
                "tools": sample.tools,
                "messages": messages,
                "expected": expected_calls(sample),
                "enable_thinking": thinking,
            }
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="folder with the held-out haystack.txt")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, lines in (("nano_gsm", nano_gsm()), ("toolcall", toolcall())):
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        (options.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
    needle = {"needle": NEEDLE, "question": QUESTION, "names": split_pool(NAMES, "test")}
    (options.out / "needle.json").write_text(json.dumps(needle, indent=1) + "\n", encoding="utf-8")
    shutil.copyfile(options.corpus / "haystack.txt", options.out / "haystack.txt")


if __name__ == "__main__":
    main()
