"""Puts documents into rows of one length."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .encode import Encoded


@dataclass(frozen=True)
class Rows:
    tokens: NDArray[np.uint16]  # [rows, length]
    flags: NDArray[np.uint8]  # [rows, length], 1 = supervised
    doc: NDArray[np.uint16]  # [rows, length], 1, 2, .. in a row, 0 = padding

    @property
    def padding(self) -> float:
        return float((self.doc == 0).mean())


def pack(
    documents: Sequence[Encoded],
    rows: int,
    length: int,
    pad: int,
    fillers: Sequence[Encoded] = (),
    fixed: Sequence[Encoded] = (),
) -> Rows:
    """Best fit, longest first; `fixed[i]` opens row i. A document that fits nowhere is left out, never cut. Then the
    ends of rows are filled with beginnings of `fillers` (plain text, which may be cut), 24 tokens at least."""
    contents: list[list[Encoded]] = [[fixed[row]] if row < len(fixed) else [] for row in range(rows)]
    free = sorted((length - sum(map(len, content)), row) for row, content in enumerate(contents))
    for document in sorted(documents, key=len, reverse=True):
        at = bisect_left(free, (len(document), -1))
        if at == len(free):
            continue
        room, row = free.pop(at)
        contents[row].append(document)
        insort(free, (room - len(document), row))
    spare = iter(fillers)
    for room, row in free:
        if room >= 24 and (filler := next(spare, None)) is not None:
            contents[row].append(filler.cut(room))
    result = Rows(
        np.full((rows, length), pad, np.uint16), np.zeros((rows, length), np.uint8), np.zeros((rows, length), np.uint16)
    )
    for row, content in enumerate(contents):
        at = 0
        for number, document in enumerate(content, 1):
            end = at + len(document)
            result.tokens[row, at:end] = document.ids
            result.flags[row, at:end] = document.flags
            result.doc[row, at:end] = number
            at = end
    return result
