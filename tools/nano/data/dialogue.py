"""Short factual dialogue in plain English: small talk, who the model is, facts, spelling, counting."""

from __future__ import annotations

import random

from .facts import CAPITALS, COLOURS, IDENTITY, LEGS, OPPOSITES, SCIENCE, SMALL_TALK, SOUNDS, YOUNG
from .pools import ADJECTIVES, MONTHS, NOUNS, WEEKDAYS
from .sample import Message, Sample, assistant, user

Fact = tuple[str, str]
ORDINALS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)


def _capital(rng: random.Random) -> Fact:
    country, city = rng.choice(list(CAPITALS.items()))
    if rng.random() < 0.25:
        return (
            rng.choice((f"Which country has the capital {city}?", f"{city} is the capital of which country?")),
            f"{city} is the capital of {country}.",
        )
    question = rng.choice(
        (
            "What is the capital of {0}?",
            "Which city is the capital of {0}?",
            "Name the capital of {0}.",
            "capital of {0}",
            "Tell me the capital of {0}.",
        )
    )
    return question.format(country), f"The capital of {country} is {city}."


def _colour(rng: random.Random) -> Fact:
    thing, colour = rng.choice(list(COLOURS.items()))
    question = rng.choice(("What colour is {0}?", "What is the colour of {0}?", "Which colour does {0} have?"))
    return question.format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}."


def _opposite(rng: random.Random) -> Fact:
    word, other = rng.choice(list(OPPOSITES.items()))
    question = rng.choice(("What is the opposite of {0}?", "Give me the opposite of {0}.", "opposite of {0}"))
    return question.format(word), f"The opposite of {word} is {other}."


def _animal(rng: random.Random) -> Fact:
    form = rng.randrange(3)
    if form == 0:
        animal, sound = rng.choice(list(SOUNDS.items()))
        return rng.choice((f"What sound does a {animal} make?", f"What does a {animal} do?")), f"A {animal} {sound}."
    if form == 1:
        animal, young = rng.choice(list(YOUNG.items()))
        return rng.choice(
            (f"What is a young {animal} called?", f"What do you call a baby {animal}?")
        ), f"A young {animal} is called a {young}."
    animal, legs = rng.choice(list(LEGS.items()))
    return rng.choice(
        (f"How many legs does a {animal} have?", f"How many legs has a {animal}?")
    ), f"A {animal} has {legs} legs."


def _calendar(rng: random.Random) -> Fact:
    units, kind = rng.choice(((WEEKDAYS, "day"), (MONTHS, "month")))
    at = rng.randrange(len(units))
    after, before = units[(at + 1) % len(units)], units[at - 1]
    form = rng.randrange(3)
    if form == 0:
        return rng.choice(
            (f"Which {kind} comes after {units[at]}?", f"What {kind} is after {units[at]}?")
        ), f"{after} comes after {units[at]}."
    if form == 1:
        return rng.choice(
            (f"Which {kind} comes before {units[at]}?", f"What {kind} is before {units[at]}?")
        ), f"{before} comes before {units[at]}."
    whole = "week" if kind == "day" else "year"
    return (
        f"What is the {ORDINALS[at]} {kind} of the {whole}?",
        f"{units[at]} is the {ORDINALS[at]} {kind} of the {whole}.",
    )


def _spelling(rng: random.Random) -> Fact:
    word = rng.choice(NOUNS + ADJECTIVES)
    letters = "-".join(word)
    question = rng.choice(("Spell the word {0}.", "How do you spell {0}?", "Spell {0}."))
    return question.format(word), f"The word {word} is spelled {letters}."


def _counting(rng: random.Random) -> Fact:
    start = rng.choice((1, 1, rng.randint(2, 90)))
    step = rng.choice((1, 1, 1, 2, 5, 10))
    numbers = [start + step * k for k in range(rng.randint(4, 12))]
    words = "" if step == 1 else f" in steps of {step}"
    if rng.random() < 0.25:
        numbers.reverse()
    question = rng.choice(
        ("Count from {0} to {1}{2}.", "Please count from {0} to {1}{2}.", "Can you count from {0} to {1}{2}?")
    )
    return question.format(numbers[0], numbers[-1], words), ", ".join(map(str, numbers)) + "."


def _fixed(rng: random.Random, table: list[tuple[tuple[str, ...], str]]) -> Fact:
    questions, answer = rng.choice(table)
    return rng.choice(questions), answer


def make_fact(rng: random.Random) -> Fact:
    """A question and its answer."""
    form = rng.choices(range(9), weights=(14, 9, 12, 9, 10, 10, 8, 16, 12))[0]
    if form == 7:
        return _fixed(rng, SCIENCE)
    if form == 8:
        return _fixed(rng, IDENTITY if rng.random() < 0.6 else SMALL_TALK)
    makers = (_capital, _colour, _opposite, _animal, _calendar, _spelling, _counting)
    return makers[form](rng)


def fact_count() -> int:
    """Different answers known, without spelling and counting."""
    return (
        len(CAPITALS)
        + len(COLOURS)
        + len(OPPOSITES)
        + len(SOUNDS)
        + len(YOUNG)
        + len(LEGS)
        + len(SCIENCE)
        + len(IDENTITY)
        + len(SMALL_TALK)
        + 3 * (len(WEEKDAYS) + len(MONTHS))
    )


def make_dialogue(rng: random.Random, thinking: bool) -> Sample:
    """One to four exchanges; a greeting may come first and thanks last."""
    facts: list[Fact] = []
    if rng.random() < 0.15:
        facts.append(_fixed(rng, SMALL_TALK[:4]))
    facts += [make_fact(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    if rng.random() < 0.1:
        facts.append(_fixed(rng, SMALL_TALK[4:6]))
    messages: list[Message] = []
    for question, answer in facts:
        messages += [user(question), assistant(answer)]
    return Sample("dialogue", messages, thinking)
