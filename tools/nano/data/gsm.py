"""GSM8K training problems as conversations.

Their steps are in another style than those of the generated problems. No name may tell the two apart, so the names that
the evaluation uses give way to others, drawn anew each time.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from .names import held_out_words, person, pick
from .sample import Sample, assistant, user
from .word_lists import TRAIN_BOYS, TRAIN_GIRLS

MARK = re.compile(r"<<.*?>>")
HELD_OUT = re.compile(rf"\b(?:{'|'.join(sorted(held_out_words()))})\b")
# Held-out words that GSM8K uses as words; a handful of problems.
NOT_NAMES = re.compile(r"\b(?:White|Nice|Lane)\b")
WOMEN = frozenset(
    """
    Adelaide Alice Anna Bella Bianca Clara Cora Daphne Dorothy Elise Ella Ellen Emily Emma Farah Flora Florence Gina
    Grace Greta Hazel Heidi Helen Helga Jane Janet Jessica Karen Kate Lara Lucy Mary Megan Mila Nina Rebecca Rose Sarah
    Shirley Susan Tara Ursula Victoria Willa
    """.split()
)
_OTHERS = {
    True: [name for name in TRAIN_GIRLS if name not in held_out_words()],
    False: [name for name in TRAIN_BOYS if name not in held_out_words()],
}
INVENTED_SHARE = 0.35


def load_gsm(path: Path) -> list[tuple[str, str, str]]:
    """(question, steps, answer) of every problem; the calculator marks are removed."""
    problems = []
    for line in path.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if NOT_NAMES.search(entry["question"] + entry["answer"]):
            continue
        steps, answer = entry["answer"].split("####")
        problems.append((entry["question"].strip(), MARK.sub("", steps).strip(), answer.strip().replace(",", "")))
    return problems


def problem_sample(kind: str, question: str, steps: str, answer: str, thinking: bool) -> Sample:
    """With thinking the steps are reasoning, without it they stand in the answer."""
    final = f"The answer is \\boxed{{{answer}}}."
    turn = assistant(final, reasoning=steps) if thinking else assistant(f"{steps}\n{final}" if steps else final)
    return Sample(kind, [user(question), turn], enable_thinking=thinking, answer=answer)


def rename(rng: random.Random, question: str, steps: str) -> tuple[str, str]:
    """The same problem with other names for those of the evaluation, one for one and of the same gender."""
    found = sorted(set(HELD_OUT.findall(question)) | set(HELD_OUT.findall(steps)))
    if not found:
        return question, steps
    taken = set(re.findall(r"[A-Z][a-z]+", f"{question} {steps}"))
    names: dict[str, str] = {}
    for old in found:
        while (new := person(rng) if rng.random() < INVENTED_SHARE else pick(rng, _OTHERS[old in WOMEN])) in taken:
            pass
        taken.add(new)
        names[old] = new
    return tuple(HELD_OUT.sub(lambda match: names[match[0]], text) for text in (question, steps))  # type: ignore[return-value]


def make_gsm(rng: random.Random, problems: list[tuple[str, str, str]], thinking: bool) -> Sample:
    question, steps, answer = rng.choice(problems)
    return problem_sample("gsm", *rename(rng, question, steps), answer, thinking)
