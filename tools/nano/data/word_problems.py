"""Grade-school word problems with one worked solution each; see word_templates.py for the templates.

A template is a set of fact sentences in several wordings, a question in several wordings, and steps. The steps copy the facts as they
stand in the question, so that the worked text is a function of the question alone.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from .names import held_out_words, person, similar
from .problem import Problem, Reject, add, div, in_split, mul, percent, sub
from .word_lists import (FILLERS, NOUNS, PRONOUNS, TEST_BOYS, TEST_GIRLS, TRAIN_BOYS, TRAIN_GIRLS, WORDS, plural)
from .word_templates import SPECS, Spec

__all__ = ["Problem", "TEMPLATES", "make_problem"]

_PEOPLE = {"train": [(n, g) for names, g in ((TRAIN_GIRLS, "girl"), (TRAIN_BOYS, "boy")) for n in names if n not in held_out_words()],
           "test": [(n, "girl") for n in TEST_GIRLS] + [(n, "boy") for n in TEST_BOYS]}
_WRITERS: dict[str, Callable[..., tuple[str, int]]] = {"+": add, "-": sub, "*": mul, "/": div, "%": percent}
_EQUATION = re.compile(r"<([^=<>]+)=([^<>]+)>")

# Sentences that do not matter for the answer.
_ASIDES = ("{N} is {aside_year} old.", "{N} lives at number {aside} on Oak Street.", "It is {aside} degrees outside.", "The sun is shining.",
           "{N} takes bus number {aside} to school.", "The favorite number of {N} is {aside}.", "{N} likes music.", "Today is a holiday.",
           "The bakery opens at {clock} o'clock.", "{N} gets up at {clock} o'clock.")
_ASIDE_SHARE = 0.12
# Of the people in training problems: any name has to be copied, not only those of the lists, which are mostly one token.
_INVENTED_SHARE = 0.45
_SIMILAR_SHARE = 0.25  # of the invented ones that are not first


class _Values(dict[str, object]):
    """{a_more_thing} -> '7 more apples': a number, words as they are or from slots, and a noun that agrees with the number."""

    def __missing__(self, key: str) -> str:
        name, *middle, noun = key.split("_")
        count = self[name]
        slot = self.get(noun)
        if count == 1:
            last = slot.one if slot is not None else noun  # type: ignore[attr-defined]
        else:
            last = slot if slot is not None else plural(noun)
        return " ".join([str(count), *(str(self.get(word, word)) for word in middle), str(last)])


@dataclass(frozen=True)
class _Equation:
    operator: str
    operands: tuple[str, ...]
    result: str

    def write(self, values: _Values) -> str:
        numbers = (int(o) if o.isdigit() else values[o] for o in self.operands)
        text, values[self.result] = _WRITERS[self.operator](*numbers)
        return text


@dataclass(frozen=True)
class Template:
    id: str
    names: tuple[str, ...]  # of the drawn numbers
    draw: Callable[..., tuple[int, ...]]
    facts: tuple[tuple[str, ...], ...]
    asks: tuple[str, ...]
    equations: tuple[_Equation, ...]
    steps: str
    slots: tuple[tuple[str, str], ...]  # (slot, list it is filled from)
    people: int
    shuffle: bool
    asides: tuple[str, ...]

    @property
    def wordings(self) -> int:
        count = len(self.asks)
        for variants in self.facts:
            count *= len(variants)
        return count


def _compile(spec: Spec) -> Template:
    assignments = [part.split("=", 1) for part in spec.draw.split()]
    source = ", ".join(f"{name} := {expression}" for name, expression in assignments)
    facts = tuple(tuple(v.strip() for v in fact.split("|")) for fact in spec.facts)
    asks = tuple(v.strip() for v in spec.ask.split("|"))
    equations: list[_Equation] = []

    def keep(match: re.Match[str]) -> str:
        tokens = match[1].split()
        equations.append(_Equation(tokens[1], tuple(tokens[::2]), match[2].strip()))
        return f"{{e{len(equations) - 1}}}"

    steps = _EQUATION.sub(keep, "\n".join(spec.steps))
    fields = set(re.findall(r"[a-zA-Z0-9]+", " ".join(re.findall(r"\{([^}]+)\}", " ".join([*spec.facts, spec.ask, steps])))))
    slots = tuple(sorted((s, s.rstrip("2")) for s in fields if s.rstrip("2") in NOUNS or s.rstrip("2") in WORDS))
    people = 3 if "P" in fields else 2 if "M" in fields else 1
    asides = tuple(a for a in _ASIDES if not (spec.aside_without and re.search(spec.aside_without, a)))
    if "N" not in fields:
        asides = tuple(a for a in asides if "{N}" not in a)
    return Template(spec.id, tuple(name for name, _ in assignments), eval(f"lambda r, pick: ({source},)"), facts, asks,
                    tuple(equations), steps, slots, people, spec.shuffle, asides)


TEMPLATES: tuple[Template, ...] = tuple(map(_compile, SPECS))


def _people(rng: random.Random, split: str, count: int) -> list[tuple[str, str]]:
    """Different names, each with a gender."""
    people = rng.sample(_PEOPLE[split], count)
    if split == "train":
        for i in range(count):
            if rng.random() < _INVENTED_SHARE:
                name = similar(rng, people[i - 1][0]) if i and rng.random() < _SIMILAR_SHARE else person(rng)
                if all(name != other for other, _ in people):
                    people[i] = name, "girl" if rng.random() < 0.5 else "boy"
    return people


def _fill(template: Template, rng: random.Random, split: str) -> Problem:
    def between(low: int, high: int) -> int:
        if high < low:
            raise Reject
        return low + int(rng.random() * (high - low + 1))

    def pick(*options: int) -> int:
        return options[int(rng.random() * len(options))]

    numbers = template.draw(between, pick)
    if min(numbers) <= 0 or not in_split(template.id, numbers, split):
        raise Reject
    values = _Values(zip(template.names, numbers))
    written = {f"e{i}": equation.write(values) for i, equation in enumerate(template.equations)}
    answer = values[template.equations[-1].result]
    assert isinstance(answer, int)

    people = _people(rng, split, template.people)
    for letter, (name, gender) in zip("NMP", people):
        values[letter] = name
        if letter == "N":
            values["he"], values["He"], values["his"], values["His"] = PRONOUNS[gender]
    used: set[str] = set()
    for slot, kind in template.slots:
        options = FILLERS[split][kind]
        while (word := options[int(rng.random() * len(options))]) in used:
            pass
        used.add(word)
        values[slot] = word

    facts = [variants[int(rng.random() * len(variants))].format_map(values) for variants in template.facts]
    ask = template.asks[int(rng.random() * len(template.asks))].format_map(values)
    told = facts.copy()
    if template.shuffle:
        rng.shuffle(told)
    if rng.random() < _ASIDE_SHARE:
        values["aside"], values["clock"] = between(7, 30), between(6, 9)
        aside = template.asides[int(rng.random() * len(template.asides))].format_map(values)
        told.insert(pick(0, len(told)), aside)
    values.update(written)
    values.update((f"f{i}", fact) for i, fact in enumerate(facts))
    return Problem(" ".join([*told, ask]), template.steps.format_map(values), answer, template.id, tuple(name for name, _ in people))


def make_problem(rng: random.Random, split: str) -> Problem:
    """A random problem of `split` ('train' or 'test'); the same generator state gives the same problem."""
    template = TEMPLATES[int(rng.random() * len(TEMPLATES))]
    while True:
        try:
            return _fill(template, rng, split)
        except Reject:
            continue
