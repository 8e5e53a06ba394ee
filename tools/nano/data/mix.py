"""The training mix: which documents are made, in which shares."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .arithmetic import make_arithmetic
from .dialogue import make_dialogue
from .gsm import load_gsm, make_gsm, problem_sample
from .json_answers import make_json
from .needle import make_copy, make_drill, make_lookup, make_needle
from .problem import Problem
from .prose import Corpus
from .sample import Prose, Sample
from .tools_calls import make_tool_sample
from .word_problems import make_problem

Document = Sample | Prose

EVALUATION = Path(__file__).resolve().parents[3] / "models/nano/eval"
# Share of the tokens of short rows. Conversations think in 70% of the samples.
SHARES = {
    "word": 0.43,
    "arithmetic": 0.14,
    "tools": 0.15,
    "recall": 0.08,
    "json": 0.05,
    "dialogue": 0.06,
    "prose": 0.08,
    "gsm": 0.01,
}
THINKING_SHARE = 0.7
# Tokens a document, for the first choice of kinds in a shard; measured.
MEAN_TOKENS = {
    "word": 128,
    "arithmetic": 61,
    "tools": 350,
    "recall": 270,
    "json": 82,
    "dialogue": 55,
    "prose": 500,
    "gsm": 190,
}
# Characters a token of running English text, for sizing haystacks; measured with the tokenizer of models/nano.
PROSE_CHARS_PER_TOKEN = 3.6


def from_problem(kind: str, problem: Problem, thinking: bool) -> Sample:
    return problem_sample(kind, problem.question, problem.steps, str(problem.answer), thinking)


@dataclass
class Mix:
    """Makes documents of every kind; `gsm` and `corpus` are read-only and shared."""

    corpus: Corpus
    gsm: list[tuple[str, str, str]]
    held_out: frozenset[str] = frozenset()  # questions of the evaluation, never asked in training
    makers: dict[str, Callable[[random.Random], Document]] = field(init=False)

    def __post_init__(self) -> None:
        self.makers = {
            "word": lambda rng: from_problem("word", self._word_problem(rng), thinking(rng)),
            "arithmetic": lambda rng: from_problem("arithmetic", make_arithmetic(rng, "train"), thinking(rng)),
            "tools": lambda rng: make_tool_sample(rng, thinking(rng)),
            "recall": self._recall,
            "json": lambda rng: make_json(rng, thinking(rng)),
            "dialogue": lambda rng: make_dialogue(rng, thinking(rng)),
            "prose": lambda rng: self.corpus.prose(rng, rng.choice((400, 800, 1500, 2500, 3200))),
            "gsm": lambda rng: make_gsm(rng, self.gsm, thinking(rng)),
        }

    @classmethod
    def load(cls, folder: Path, evaluation: Path = EVALUATION) -> Mix:
        """`folder` is the corpus, `evaluation` may be missing as long as it has not been written."""
        path = evaluation / "nano_gsm.jsonl"
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        held_out = frozenset(json.loads(line)["question"] for line in lines)
        return cls(Corpus.load(folder), load_gsm(folder / "gsm8k_train.jsonl"), held_out)

    def make(self, rng: random.Random, kind: str) -> Document:
        return self.makers[kind](rng)

    def _word_problem(self, rng: random.Random) -> Problem:
        # The splits have other numbers, but a few wordings can come to the same text all the same.
        problem = make_problem(rng, "train")
        while problem.question in self.held_out:
            problem = make_problem(rng, "train")
        return problem

    def _recall(self, rng: random.Random) -> Sample:
        """Needle, table, copy or spelling drill within a short row."""
        form = rng.random()
        if form < 0.3:
            return make_needle(rng, self.corpus.sentences, rng.randint(100, 3000), thinking(rng))
        if form < 0.55:
            return make_lookup(rng, thinking(rng))
        if form < 0.8:
            return make_drill(rng, self.corpus.words, thinking(rng))
        return make_copy(rng, self.corpus.sentences, thinking(rng))

    def long(self, rng: random.Random, tokens: int) -> Sample:
        """A document of about `tokens` tokens: usually needles in prose, else a table in prose."""
        chars = int(tokens * PROSE_CHARS_PER_TOKEN)
        if rng.random() < 0.15:
            return make_lookup(rng, thinking(rng), sentences=self.corpus.sentences, chars=max(chars - 600, 1))
        return make_needle(rng, self.corpus.sentences, chars, thinking(rng))


def thinking(rng: random.Random) -> bool:
    return rng.random() < THINKING_SHARE


def balanced(rng: random.Random, shares: dict[str, float], made: dict[str, int]) -> Iterator[str]:
    """Endless kinds to make next, each time one drawn from those that lag behind their share of the tokens `made`."""
    kinds = list(shares)
    while True:
        total = sum(made.values()) + 1
        lag = [max(shares[kind] - made.get(kind, 0) / total, 0.0) for kind in kinds]
        yield (
            rng.choices(kinds, weights=lag)[0] if sum(lag) > 0 else rng.choices(kinds, weights=list(shares.values()))[0]
        )
