"""The drafters' data: prompts with the target's own answers, packed into rows."""
from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from answers import answer
from journal import say
from shape import TURN_END
from target import Target


class Prompt(NamedTuple):
    ids: np.ndarray
    expected: str | None
    kind: str


def read_prompts(path: Path) -> list[Prompt]:
    """The file of data/make_prompts.py."""
    with np.load(path) as file:
        ids, offsets, kinds = file["ids"], file["offsets"], file["kinds"]
        meta = json.loads(bytes(file["meta"]).decode())
    return [Prompt(ids[offsets[i] : offsets[i + 1]].astype(np.int64), expected, meta["kinds"][kinds[i]])
            for i, expected in enumerate(meta["answers"])]


def answer_all(target: Target, prompts: list[Prompt], max_tokens: int, budget: int) -> list[np.ndarray]:
    """Greedy answers in the order of the prompts. Prompts of one kind and similar length share a batch; `budget` is
    the most positions of its caches."""
    order = sorted(range(len(prompts)), key=lambda i: (prompts[i].kind, len(prompts[i].ids)))
    out: list[np.ndarray] = [np.empty(0, np.int64)] * len(prompts)
    while order:
        count, longest = 0, 0
        while count < len(order) and prompts[order[count]].kind == prompts[order[0]].kind:
            longest = max(longest, len(prompts[order[count]].ids))
            if count > 0 and (count + 1) * (longest + max_tokens) > budget:
                break
            count += 1
        part, order = order[:count], order[count:]
        for index, tokens in zip(part, answer(target, [prompts[i].ids for i in part], max_tokens), strict=True):
            out[index] = tokens
    say(f"answered {len(prompts)} prompts, {sum(len(o) for o in out)} tokens")
    return out


def pack(prompts: list[Prompt], answers: list[np.ndarray], length: int, seed: int) -> dict[str, np.ndarray]:
    """Rows of whole documents, first fit in random order."""
    rng = np.random.default_rng(seed)
    rows: list[list[int]] = []
    open_rows: list[tuple[int, int]] = []  # (free, row)
    for i in rng.permutation(len(prompts)):
        size = len(prompts[i].ids) + len(answers[i])
        if size > length or len(answers[i]) < 2:
            continue
        for slot, (free, row) in enumerate(open_rows):
            if size <= free:
                rows[row].append(int(i))
                open_rows[slot] = (free - size, row)
                break
        else:
            rows.append([int(i)])
            open_rows.append((length - size, len(rows) - 1))
        if len(open_rows) > 32:
            open_rows.sort()
            open_rows.pop(0)
    shape = (len(rows), length)
    result = {"tokens": np.zeros(shape, np.uint16), "flags": np.zeros(shape, np.uint8),
              "doc": np.zeros(shape, np.uint16)}
    for r, members in enumerate(rows):
        at = 0
        for number, i in enumerate(members):
            prompt, reply = prompts[i].ids, answers[i]
            end = at + len(prompt) + len(reply)
            result["tokens"][r, at:end] = np.concatenate((prompt, reply))
            result["flags"][r, at + len(prompt) : end] = 1
            result["doc"][r, at:end] = number + 1
            at = end
    return result


def finished(tokens: np.ndarray) -> bool:
    return len(tokens) > 0 and int(tokens[-1]) == TURN_END
