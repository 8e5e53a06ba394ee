"""Values of tool arguments: what the request says and what the call has to carry."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .names import held_out_words, person, pool, town, word
from .pools import ADJECTIVES, MONTHS, NOUNS, OBJECTS, VERBS, WEEKDAYS, digits, join_and
from .sample import is_test

# (words of the request, JSON value)
Value = tuple[str, Any]
ValueMaker = Callable[[random.Random, str], Value]


def in_split(make: ValueMaker) -> ValueMaker:
    """Draws again until the words belong to the split: a test value is in no training request."""

    def draw(rng: random.Random, split: str) -> Value:
        value = make(rng, split)
        while is_test(value[0]) != (split == "test"):
            value = make(rng, split)
        return value

    return draw


def same(text: str) -> Value:
    return text, text


def invents(rng: random.Random, split: str, share: float) -> bool:
    """Whether a value is made up, which only training does. Nothing is drawn for the test split."""
    return split == "train" and rng.random() < share


def city(rng: random.Random, split: str) -> Value:
    return same(town(rng) if invents(rng, split, 0.65) else rng.choice(pool("cities", split)))


def _first(rng: random.Random, split: str) -> str:
    return person(rng) if invents(rng, split, 0.65) else rng.choice(pool("names", split))


def _last(rng: random.Random, split: str) -> str:
    return person(rng) if invents(rng, split, 0.65) else rng.choice(pool("surnames", split))


def name(rng: random.Random, split: str) -> Value:
    return same(_first(rng, split))


def full_name(rng: random.Random, split: str) -> Value:
    return same(f"{_first(rng, split)} {_last(rng, split)}")


def names(rng: random.Random, split: str) -> Value:
    picked = rng.sample(pool("names", split), rng.randint(2, 4))
    if split == "train":
        picked = list(dict.fromkeys(person(rng) if rng.random() < 0.65 else given for given in picked))
    return join_and(picked), picked


def items(rng: random.Random, split: str) -> Value:
    picked = rng.sample(OBJECTS, rng.randint(2, 5))
    if split == "train":
        picked = list(dict.fromkeys(word(rng) if rng.random() < 0.3 else item for item in picked))
    return join_and(picked), picked


def integer(low: int, high: int) -> ValueMaker:
    def make(rng: random.Random, split: str) -> Value:
        value = rng.randint(low, high)
        return str(value), value

    return in_split(make) if high - low >= 20 else make


def number(low: int, high: int) -> ValueMaker:
    """Whole, or with one or two digits after the point (the last not zero, so that the text is the JSON text)."""

    def make(rng: random.Random, split: str) -> Value:
        whole = rng.randint(low, high)
        form = rng.randrange(3)
        if form == 0:
            return str(whole), whole
        text = f"{whole}.{rng.randint(1, 9)}" if form == 1 else f"{whole}.{rng.randint(0, 9)}{rng.randint(1, 9)}"
        return text, float(text)

    return in_split(make)


def one_of(*values: str) -> ValueMaker:
    return lambda rng, split: same(rng.choice(values))


def yes_no(yes: str, no: str) -> ValueMaker:
    def make(rng: random.Random, split: str) -> Value:
        flag = rng.random() < 0.5
        return (yes if flag else no), flag

    return make


@in_split
def clock(rng: random.Random, split: str) -> Value:
    return same(f"{rng.randint(0, 23):02d}:{rng.choice((0, 5, 10, 15, 20, 30, 40, 45, 50)):02d}")


@in_split
def date(rng: random.Random, split: str) -> Value:
    return same(f"{rng.randint(2024, 2031)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}")


def weekday(rng: random.Random, split: str) -> Value:
    return same(rng.choice(WEEKDAYS))


def month(rng: random.Random, split: str) -> Value:
    return same(rng.choice(MONTHS))


@in_split
def phone(rng: random.Random, split: str) -> Value:
    return same(f"{digits(rng, 3)}-{digits(rng, 4)}")


@in_split
def symbol(rng: random.Random, split: str) -> Value:
    return same("".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=rng.randint(3, 4))))


@in_split
def phrase(rng: random.Random, split: str) -> Value:
    """Two or three words, as a title."""
    words = [rng.choice(ADJECTIVES), rng.choice(NOUNS)]
    if rng.random() < 0.4:
        words.append(rng.choice(NOUNS))
    if split == "train":
        words = [word(rng) if rng.random() < 0.25 else given for given in words]
        if rng.random() < 0.2:
            words = [given.capitalize() for given in words]
        if any(given in held_out_words() for given in words):
            return phrase(rng, split)
    return same(" ".join(words))


@in_split
def sentence(rng: random.Random, split: str) -> Value:
    """A short message to carry over word for word."""
    who = _first(rng, split)
    noun, other = rng.choice(NOUNS), rng.choice(NOUNS)
    return same(
        rng.choice(
            (
                f"I will be {rng.randint(2, 59)} minutes late",
                f"The {noun} is near the {other}",
                f"{who} {rng.choice(VERBS)} the {rng.choice(ADJECTIVES)} {noun}",
                f"Please bring the {noun} and the {other}",
                f"Meet me at the {noun} at {clock(rng, split)[0]}",
                f"Happy birthday, {who}!",
                f"The code is {digits(rng, 4)}",
                f"Did you see the {rng.choice(ADJECTIVES)} {noun}?",
                f"See you on {rng.choice(WEEKDAYS)}",
                f"We need {rng.randint(2, 40)} more {rng.choice(OBJECTS)}",
            )
        )
    )


def contact(rng: random.Random, split: str) -> Value:
    """A nested object."""
    who, number_text = name(rng, split)[0], phone(rng, split)[0]
    return f"{who}, phone {number_text}", {"name": who, "phone": number_text}


def address(rng: random.Random, split: str) -> Value:
    number = rng.randint(1, 99)
    road = person(rng) if invents(rng, split, 0.4) else rng.choice(NOUNS).capitalize()
    if split == "train" and road in held_out_words():
        road = person(rng)
    street = f"{number} {road} Street"
    town = city(rng, split)[0]
    return f"{street}, {town}", {"street": street, "city": town}
