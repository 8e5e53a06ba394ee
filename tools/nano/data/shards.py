"""Training shards: packed rows that depend only on (seed, kind, number)."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .encode import Encoded, encode_documents
from .mix import MEAN_TOKENS, SHARES, Document, Mix, balanced
from .packing import Rows, pack
from .tokenizer import PAD

SHAPES = {"short": (512, 1024), "long": (16, 8192)}  # rows, tokens a row
BATCH = 256  # documents made and encoded at a time


def _short_documents(
    rng: random.Random, mix: Mix, tokenizer: Tokenizer, budget: int, limit: int, made: Counter[str]
) -> list[Encoded]:
    """Documents of the mix with `budget` tokens in all. Longer ones than `limit` are dropped, prose is cut."""
    out: list[Encoded] = []
    goal = sum(made.values()) + budget
    while sum(made.values()) < goal:
        planned: Counter[str] = Counter(made)
        by_kind: dict[str, list[Document]] = {}
        choose = balanced(rng, SHARES, planned)
        for _ in range(BATCH):
            kind = next(choose)
            by_kind.setdefault(kind, []).append(mix.make(rng, kind))
            planned[kind] += MEAN_TOKENS[kind]
        for kind, documents in by_kind.items():
            encoded = encode_documents(tokenizer, documents, kind)
            for document in encoded:
                if kind == "prose":
                    document = document.cut(limit)
                if len(document) <= limit:
                    out.append(document)
                    made[kind] += len(document)
    return out


def make_rows(mix: Mix, tokenizer: Tokenizer, kind: str, number: int, seed: int) -> tuple[Rows, Counter[str]]:
    """The rows of one shard, and the tokens made by kind."""
    rng = random.Random(f"{seed}/{kind}/{number}")
    rows, length = SHAPES[kind]
    made: Counter[str] = Counter()
    fixed: list[Encoded] = []
    if kind == "long":
        while len(fixed) < rows:
            # Half of the documents are near the row's end, the others of any size from 2K.
            tokens = rng.randint(7000, 8000) if rng.random() < 0.5 else rng.randint(2000, 7500)
            document = encode_documents(tokenizer, [mix.long(rng, tokens)], "long")[0]
            if len(document) <= length:
                fixed.append(document)
    budget = rows * length - sum(map(len, fixed))
    documents = _short_documents(rng, mix, tokenizer, int(budget * 1.01), 1024, made)
    fillers = encode_documents(tokenizer, [mix.corpus.prose(rng, 3000) for _ in range(rows)], "prose")
    if kind == "long":
        made["long"] = sum(map(len, fixed))
    return pack(documents, rows, length, PAD, fillers, fixed), made


def write_shard(folder: Path, kind: str, number: int, rows: Rows) -> Path:
    """Appears under its name only when complete."""
    path = folder / f"{kind}-{number:05d}.npz"
    temporary = folder / f".{path.name}.{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        np.savez(file, tokens=rows.tokens, flags=rows.flags, doc=rows.doc)
    temporary.replace(path)
    return path
