"""Bare arithmetic questions: they teach the sums, differences, products and quotients that the word problems use."""

from __future__ import annotations

import random
from collections.abc import Callable

from .problem import Problem, Reject, add, div, in_split, mul, percent, sub

Parts = tuple[str, str, int, tuple[int, ...]]  # question, steps, answer, the numbers that decide the split

_WORDS = """apple bread chair cloud dance eagle flower garden house island jacket kitten lemon market night ocean paper queen river
school table under valley window yellow zebra ant bee cat dog egg fish goat hat ink jam king lion milk nest owl pig rain sun tree cup
ball book bird farm frog gold hand lamp moon park ring road rock rose ship snow star wind wood banana butter candle doctor family
finger hammer letter monkey orange pencil pocket rabbit silver spider summer tiger tomato turtle winter""".split()
_UNITS = [("hour", "minutes", 60), ("minute", "seconds", 60), ("day", "hours", 24), ("week", "days", 7), ("year", "months", 12),
          ("meter", "centimeters", 100), ("kilometer", "meters", 1000), ("kilogram", "grams", 1000), ("foot", "inches", 12),
          ("yard", "feet", 3), ("dollar", "cents", 100), ("dozen", "pieces", 12), ("centimeter", "millimeters", 10)]


def _say(rng: random.Random, text: str) -> str:
    """A bare expression as a question."""
    return rng.choice(("What is {}?", "Compute {}.", "Calculate {}.", "How much is {}?", "{} = ?", "Find the value of {}.")).format(text)


def _number(rng: random.Random, digits: int) -> int:
    return rng.randint(1 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def _digits(rng: random.Random) -> int:
    return rng.choice((1, 2, 2, 2, 3, 3, 3, 4))


def _carries(a: int, b: int) -> int:
    """Columns of a + b that carry."""
    count, carry = 0, 0
    while a or b:
        carry = int(a % 10 + b % 10 + carry > 9)
        count += carry
        a, b = a // 10, b // 10
    return count


def _pair(rng: random.Random) -> tuple[int, int]:
    """Two terms; half of the time the pair of two draws that carries more."""
    first, second = ((_number(rng, _digits(rng)), _number(rng, _digits(rng))) for _ in range(2))
    if rng.random() < 0.5:
        return max(first, second, key=lambda pair: _carries(*pair))
    return first


def _add(rng: random.Random) -> Parts:
    a, b = _pair(rng)
    text, c = add(a, b)
    question = _say(rng, f"{a} + {b}") if rng.random() < 0.8 else f"What is the sum of {a} and {b}?"
    return question, f"{text}.", c, (a, b)


def _sub(rng: random.Random) -> Parts:
    b, c = _pair(rng)
    text, c = sub(b + c, b)
    a = b + c
    question = _say(rng, f"{a} - {b}") if rng.random() < 0.8 else f"What is the difference between {a} and {b}?"
    return question, f"{text}.", c, (a, b)


def _add_many(rng: random.Random) -> Parts:
    numbers = [rng.randint(2, rng.choice((20, 100, 200))) for _ in range(rng.randint(3, 5))]
    text, c = add(*numbers)
    question = rng.choice((_say(rng, " + ".join(map(str, numbers))), f"Add these numbers: {', '.join(map(str, numbers))}."))
    return question, f"{text}.", c, tuple(numbers)


def _product(rng: random.Random) -> tuple[int, int]:
    kind = rng.random()
    if kind < 0.2:
        a, b = rng.randint(1, 12), rng.randint(1, 12)
    elif kind < 0.65:
        a, b = rng.randint(10, 99), rng.randint(2, 9)
    elif kind < 0.75:
        a, b = rng.randint(2, 99), 10 * rng.randint(1, 9)
    elif kind < 0.85:
        a, b = rng.randint(101, 999), rng.randint(2, 9)
    elif kind < 0.9:
        a, b = 100 * rng.randint(1, 9), rng.randint(2, 12)
    else:
        a, b = rng.randint(11, 60), rng.randint(11, 60)
    return (a, b) if rng.random() < 0.6 else (b, a)


def _mul(rng: random.Random) -> Parts:
    a, b = _product(rng)
    text, c = mul(a, b)
    question = _say(rng, f"{a} * {b}") if rng.random() < 0.8 else rng.choice((f"What is {a} times {b}?", f"Multiply {a} by {b}."))
    return question, f"{text}.", c, (a, b)


def _div(rng: random.Random) -> Parts:
    b = rng.choice((2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 10 * rng.randint(1, 9), rng.randint(2, 9)))
    a = b * rng.randint(1, rng.choice((12, 99)))
    text, c = div(a, b)
    question = _say(rng, f"{a} / {b}") if rng.random() < 0.8 else f"What is {a} divided by {b}?"
    return question, f"{text}.", c, (a, b)


def _chain(rng: random.Random) -> Parts:
    a, b, c = rng.randint(2, 99), rng.randint(2, 40), rng.randint(2, 9)
    product, p = mul(b, c)
    form = rng.randint(0, 3)
    if form == 0:
        text, value = add(a, p)
        return _say(rng, f"{a} + {b} * {c}"), f"{product}. {text}.", value, (form, a, b, c)
    if form == 1:
        text, value = sub(p, a)
        return _say(rng, f"{b} * {c} - {a}"), f"{product}. {text}.", value, (form, a, b, c)
    if form == 2:
        total, s = add(a, b)
        text, value = mul(s, c)
        return _say(rng, f"({a} + {b}) * {c}"), f"{total}. {text}.", value, (form, a, b, c)
    total, s = sub(a + b, a)
    text, value = mul(s, c)
    return _say(rng, f"({a + b} - {a}) * {c}"), f"{total}. {text}.", value, (form, a, b, c)


def _percent(rng: random.Random) -> Parts:
    p, n = rng.choice((10, 20, 25, 30, 40, 50, 60, 70, 75, 80, 90)), 20 * rng.randint(1, 40)
    text, c = percent(p, n)
    return rng.choice((f"What is {p}% of {n}?", f"Compute {p}% of {n}.", f"Find {p} percent of {n}.")), f"{text}.", c, (p, n)


def _fraction(rng: random.Random) -> Parts:
    word, k = rng.choice((("half", 2), ("a third", 3), ("a quarter", 4), ("a fifth", 5), ("a tenth", 10)))
    n = k * rng.randint(2, 90)
    text, c = div(n, k)
    return rng.choice((f"What is {word} of {n}?", f"Find {word} of {n}.", f"How much is {word} of {n}?")), f"{text}.", c, (k, n)


def _double(rng: random.Random) -> Parts:
    word, k = rng.choice((("double", 2), ("twice", 2), ("three times", 3), ("triple", 3)))
    n = rng.randint(3, 200)
    text, c = mul(n, k)
    return rng.choice((f"What is {word} {n}?", f"How much is {word} {n}?")), f"{text}.", c, (k, n)


def _units(rng: random.Random) -> Parts:
    i = rng.randrange(len(_UNITS))
    big, small, factor = _UNITS[i]
    n = rng.randint(2, min(40, 9_999 // factor))
    bigs = {"foot": "feet", "dozen": "dozen"}.get(big, big + "s")
    if rng.random() < 0.7 or big == "dozen":
        text, c = mul(n, factor)
        question = rng.choice((f"How many {small} are in {n} {bigs}?", f"Convert {n} {bigs} to {small}."))
    else:
        text, c = div(n * factor, factor)
        question = rng.choice((f"How many {bigs} are {n * factor} {small}?", f"Convert {n * factor} {small} to {bigs}."))
    one = "A" if big != "hour" else "An"
    return question, f"{one} {big} has {factor} {small}. {text}.", c, (i, n)


def _sequence(rng: random.Random) -> Parts:
    d, a, count = rng.randint(2, 25), rng.randint(1, 60), rng.randint(4, 6)
    terms = [a + i * d for i in range(count)]
    if rng.random() < 0.3:
        terms.reverse()
        if terms[-1] <= d:
            raise Reject
        step, (text, c) = sub(terms[0], terms[1])[0], sub(terms[-1], d)
    else:
        step, (text, c) = sub(terms[1], terms[0])[0], add(terms[-1], d)
    listed = ", ".join(map(str, terms))
    question = rng.choice((f"What comes next: {listed}, ...?", f"What is the next number in {listed}?", f"Continue the sequence {listed}."))
    return question, f"The step is {step}. The next number is {text}.", c, (terms[0], terms[1], count)


def _order(rng: random.Random) -> Parts:
    numbers = rng.sample(range(1, rng.choice((30, 100, 1000))), rng.randint(3, 5))
    ordered = sorted(numbers)
    word, c = rng.choice((("smallest", ordered[0]), ("largest", ordered[-1]), ("second smallest", ordered[1])))
    listed = ", ".join(map(str, numbers))
    question = rng.choice((f"What is the {word} of these numbers: {listed}?", f"Which number is the {word}: {listed}?"))
    return question, f"In order: {', '.join(map(str, ordered))}. The {word} is {c}.", c, tuple(numbers)


def _larger(rng: random.Random) -> Parts:
    a, b = _pair(rng)
    if a == b:
        raise Reject
    word, c = rng.choice((("larger", max(a, b)), ("smaller", min(a, b))))
    return f"Which number is {word}, {a} or {b}?", f"{max(a, b)} > {min(a, b)}. The {word} number is {c}.", c, (a, b)


def _how_much_more(rng: random.Random) -> Parts:
    b, c = rng.randint(2, 500), rng.randint(2, 300)
    text, c = sub(b + c, b)
    return rng.choice((f"How much more is {b + c} than {b}?", f"By how much is {b} less than {b + c}?")), f"{text}.", c, (b + c, b)


def _missing(rng: random.Random) -> Parts:
    a, x = rng.randint(2, 300), rng.randint(2, 300)
    form = rng.randint(0, 2)
    if form == 0:
        text, c = sub(a + x, a)
        sentence = f"{a} + x = {a + x}"
    elif form == 1:
        text, c = add(x, a)
        sentence = f"x - {a} = {x}"
    else:
        a = rng.randint(2, 12)
        text, c = div(a * x, a)
        sentence = f"{a} * x = {a * x}"
    return rng.choice(("What is x if {}?", "Solve {}.", "Find x: {}")).format(sentence), f"x = {text}.", c, (form, a, x)


def _average(rng: random.Random) -> Parts:
    count = rng.randint(2, 5)
    numbers = [rng.randint(2, 99) for _ in range(count - 1)]
    last = count * rng.randint(5, 90) - sum(numbers)
    if not 0 < last < 200:
        raise Reject
    numbers.append(last)
    total, s = add(*numbers)
    text, c = div(s, count)
    listed = ", ".join(map(str, numbers[:-1])) + f" and {last}"
    question = rng.choice((f"What is the average of {listed}?", f"Find the mean of {listed}."))
    return question, f"{total}. There are {count} numbers. {text}.", c, tuple(numbers)


def _remainder(rng: random.Random) -> Parts:
    k, q = rng.randint(3, 9), rng.randint(2, 12)
    r = rng.randint(1, k - 1)
    n = k * q + r
    product, s = mul(q, k)
    text, c = sub(n, s)
    question = rng.choice((f"What is the remainder of {n} divided by {k}?", f"{n} is divided by {k}. What is left over?"))
    return question, f"{product}. {text}.", c, (n, k)


def _letters(rng: random.Random) -> Parts:
    i = rng.randrange(len(_WORDS))
    word = _WORDS[i]
    question = rng.choice((f"How many letters are in the word {word}?", f"Count the letters of {word}."))
    return question, ", ".join(f"{letter} {n}" for n, letter in enumerate(word, 1)) + ".", len(word), (i,)


def _list(rng: random.Random) -> Parts:
    picked = rng.sample(range(len(_WORDS)), rng.randint(3, 12))
    words = [_WORDS[i] for i in picked]
    question = rng.choice(("How many words are in this list: {}?", "Count these words: {}.")).format(", ".join(words))
    return question, ", ".join(f"{word} {n}" for n, word in enumerate(words, 1)) + ".", len(words), tuple(picked)


_KINDS: list[tuple[Callable[[random.Random], Parts], int]] = [
    (_add, 10), (_sub, 10), (_mul, 14), (_div, 9), (_add_many, 5), (_chain, 8), (_percent, 4), (_fraction, 3), (_double, 2), (_units, 4),
    (_sequence, 3), (_order, 2), (_larger, 1), (_how_much_more, 2), (_missing, 4), (_average, 3), (_remainder, 2), (_letters, 1), (_list, 1)]
_SCHEDULE = [(kind, f"arithmetic{kind.__name__}") for kind, weight in _KINDS for _ in range(weight)]


def make_arithmetic(rng: random.Random, split: str) -> Problem:
    """A random question of `split` ('train' or 'test'); the same generator state gives the same question."""
    kind, template = _SCHEDULE[int(rng.random() * len(_SCHEDULE))]
    while True:
        try:
            question, steps, answer, numbers = kind(rng)
        except Reject:
            continue
        if in_split(template, numbers, split):
            return Problem(question, steps, answer, template)
