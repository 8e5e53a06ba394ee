"""Documents as token ids with their supervision flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from .chat import render
from .sample import Prose, Sample


@dataclass(frozen=True)
class Encoded:
    kind: str
    ids: NDArray[np.uint16]
    flags: NDArray[np.uint8]  # 1 = supervised

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, length: int) -> Encoded:
        return Encoded(self.kind, self.ids[:length], self.flags[:length])


def load_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode_documents(
    tokenizer: Tokenizer, documents: Sequence[Sample | Prose], group: str | None = None
) -> list[Encoded]:
    """All pieces go through the tokenizer in one batch; pieces end at added tokens, so no merge crosses a cut."""
    rendered = [render(document) for document in documents]
    texts = [text for pieces in rendered for text, _ in pieces]
    encodings = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=False))
    out = []
    for document, pieces in zip(documents, rendered):
        ids: list[int] = []
        flags = bytearray()
        for _, supervised in pieces:
            piece_ids = next(encodings).ids
            ids += piece_ids
            flags += (b"\1" if supervised else b"\0") * len(piece_ids)
        out.append(Encoded(group or document.kind, np.array(ids, np.uint16), np.frombuffer(flags, np.uint8)))
    return out
