"""Reads the prose corpus that build_corpus.py writes."""

from __future__ import annotations

import json
import lzma
import random
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from .names import POOLS, held_out_words, pool
from .sample import Prose as ProseDocument

# A sentence ends at . ! or ? (and a closing quote) before a space and a capital, a digit or an opening quote.
SENTENCE_END = re.compile(r"(?<=[.!?])(?<!Mr\.)(?<!Mrs\.)(?<!Dr\.)(?<!St\.)(?<! [A-Z]\.)([\"']?) (?=[\"'A-Z0-9])")


def sentences_of(text: str) -> list[str]:
    return [part.strip() for part in SENTENCE_END.sub(r"\1\n", " ".join(text.split())).split("\n") if part.strip()]


# Share of each source in the prose of the mix: running text first, the glosses for their plain words.
SHARES = {"austen": 0.4, "web": 0.25, "wordnet": 0.35}


@dataclass
class Corpus:
    documents: list[tuple[str, str]]  # (source, text)

    @classmethod
    def load(cls, folder: Path) -> Corpus:
        with lzma.open(folder / "corpus.jsonl.xz", "rt", encoding="utf-8") as file:
            return cls([(entry["source"], entry["text"]) for entry in map(json.loads, file)])

    @cached_property
    def sentences(self) -> list[str]:
        """Sentences of running text in order (haystacks of training); glosses are too much alike to hide things in. Those
        with a name that evaluation asks for are left out: in a conversation it must mean nothing yet."""
        hidden = re.compile(rf"\b(?:{'|'.join(sorted(held_out_words()))})\b")
        out: list[str] = []
        for source, text in self.documents:
            if source in ("austen", "web"):
                out += [s for s in sentences_of(text) if 15 <= len(s) <= 600 and not hidden.search(s)]
        return out

    @cached_property
    def words(self) -> list[str]:
        """Words of the corpus, each once, rare ones too, without the names and places of the test split."""
        found: dict[str, None] = {}
        for _, text in self.documents:
            found.update(dict.fromkeys(re.findall(r"[A-Za-z]{2,12}", text)))
        for kind in POOLS:
            found.update(dict.fromkeys(pool(kind, "train")))
        hidden = {word.lower() for word in held_out_words()}
        return sorted(word for word in found if word.lower() not in hidden)

    @cached_property
    def by_source(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for source, text in self.documents:
            out.setdefault(source, []).append(text)
        return out

    def prose(self, rng: random.Random, chars: int) -> ProseDocument:
        """A document, or a run of whole lines of it, of about `chars` characters."""
        source = rng.choices(list(SHARES), weights=list(SHARES.values()))[0]
        text = rng.choice(self.by_source[source])
        if len(text) <= chars:
            return ProseDocument(text)
        start = rng.randrange(len(text) - chars)
        start = text.rfind("\n", 0, start) + 1
        end = text.find("\n", start + chars)
        return ProseDocument(text[start : end if end > 0 else len(text)].strip())
