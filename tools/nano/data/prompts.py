"""Prompts of the training split, for answers written by the model itself."""

from __future__ import annotations

import random
from typing import TypedDict

from tokenizers import Tokenizer

from .chat import prompt_text
from .mix import SHARES, Mix
from .sample import Sample

# Share of the prompts by kind (documents, not tokens).
PROMPT_SHARES = {kind: share for kind, share in SHARES.items() if kind != "prose"}


class Prompt(TypedDict):
    prompt_ids: list[int]
    answer: str | None  # what the reply has to contain, where that is known
    kind: str


def prompts(
    mix: Mix, tokenizer: Tokenizer, seed: int, count: int, shares: dict[str, float] | None = None
) -> list[Prompt]:
    """`count` prompts up to the generation prompt. In talks of several turns any assistant turn may be the open one."""
    rng = random.Random(f"{seed}/prompts")
    shares = shares or PROMPT_SHARES
    samples: list[Sample] = []
    kinds = rng.choices(list(shares), weights=list(shares.values()), k=count)
    for kind in kinds:
        sample = mix.make(rng, kind)
        assert isinstance(sample, Sample)
        turns = [at for at, message in enumerate(sample.messages) if message["role"] == "assistant"]
        last = rng.choice(turns)
        answer = sample.answer if last == turns[0] else None
        samples.append(Sample(sample.kind, sample.messages[: last + 1], sample.enable_thinking, sample.tools, answer))
    encodings = tokenizer.encode_batch_fast([prompt_text(sample) for sample in samples], add_special_tokens=False)
    return [
        Prompt(prompt_ids=encoding.ids, answer=sample.answer, kind=kind)
        for kind, sample, encoding in zip(kinds, samples, encodings)
    ]
