"""Checks the generated problems from their text: python -m pytest tools/nano/data/test_word_problems.py"""

from __future__ import annotations

import random
import re
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tools.nano.data.arithmetic import make_arithmetic  # noqa: E402
from tools.nano.data.names import held_out_words  # noqa: E402
from tools.nano.data.problem import Problem, Reject, add, div, in_split, mul, percent, sub  # noqa: E402
from tools.nano.data.word_lists import FILLERS, NOUNS, TEST_BOYS, TEST_GIRLS, TRAIN_BOYS, TRAIN_GIRLS  # noqa: E402
from tools.nano.data.word_problems import TEMPLATES, make_problem  # noqa: E402

Maker = Callable[[random.Random, str], Problem]
MAKERS = [make_problem, make_arithmetic]
CHAIN = re.compile(r"\d+(?: [-+*/] \d+)*(?: = \d+(?: [-+*/] \d+)*)+")
ASIDE = re.compile(r"[^.?]*(?:\d years old|Oak Street|degrees outside|sun is shining|bus number \d+ to school|favorite number of \w+ is \d+"
                   r"|likes music|is a holiday|o'clock)\. ?")
ASIDE_NO_AGE = re.compile(ASIDE.pattern.replace(r"\d years old|", ""))
TEST_NAMES, TRAIN_NAMES = set(TEST_GIRLS + TEST_BOYS), set(TRAIN_GIRLS + TRAIN_BOYS)


@cache
def sample(maker: Maker, split: str, count: int = 5_000) -> list[Problem]:
    rng = random.Random(f"{maker.__name__}/{split}")
    return [maker(rng, split) for _ in range(count)]


def value(side: str) -> int:
    """Products and quotients first, left to right; every quotient must be exact."""
    total = 0
    for sign, term in re.findall(r"(^|[-+]) ?([\d */]+)", side):
        tokens = term.split()
        product = int(tokens[0])
        for operator, operand in zip(tokens[1::2], tokens[2::2]):
            if operator == "/":
                assert product % int(operand) == 0, side
                product //= int(operand)
            else:
                product *= int(operand)
        total += -product if sign == "-" else product
    return total


def test_value_reads_precedence() -> None:
    assert value("2 + 3 * 4 - 10 / 5") == 12
    assert value("7") == 7


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("split", ["train", "test"])
def test_equations_hold(maker: Maker, split: str) -> None:
    for problem in sample(maker, split):
        chains = CHAIN.findall(problem.steps)
        if maker is make_problem:
            assert len(chains) == problem.steps.count("=") - sum(c.count(" = ") - 1 for c in chains), problem
            assert chains, problem
            assert value(chains[-1].split(" = ")[-1]) == problem.answer, problem
        for chain in chains:
            sides = chain.split(" = ")
            assert len({value(side) for side in sides}) == 1, (chain, problem)
            assert sides[-1].isdigit(), chain
        assert re.search(rf"\b{problem.answer}\b", problem.steps), problem
        assert 0 <= problem.answer < 10_000
        assert problem.worked.endswith(f"\nThe answer is \\boxed{{{problem.answer}}}.")


AGES = {"older", "younger", "twice_age", "age_sum"}


def asideless(problem: Problem) -> str:
    return (ASIDE_NO_AGE if problem.template in AGES else ASIDE).sub("", problem.question).strip()


def numbers(text: str) -> set[int]:
    return {int(n) for n in re.findall(r"\d+", text)}


@pytest.mark.parametrize("split", ["train", "test"])
def test_numbers_have_a_source(split: str) -> None:
    """Numbers of the steps stand in the facts that matter, are results, or are constants such as the legs of a cow."""
    constants = {"third_rest": {3}, "third_less": {3}, "quarter_then": {4}, "average": {3}, "points": {2, 3}, "wheels": {2, 4},
                 "legs": {2, 4}, "dozen": {12}, "coins": {5, 10}}
    for problem in sample(make_problem, split):
        told = asideless(problem)
        known = numbers(told) | constants.get(problem.template, {2})
        rest = CHAIN.sub("", problem.steps)
        for chain in CHAIN.findall(problem.steps):
            first, *sides = chain.split(" = ")
            given = numbers(first) - known
            assert not given or problem.template == "left_over" or "%" in problem.question, problem
            known |= numbers(" ".join(sides))
        assert numbers(rest) <= known | ({10, 25} if "%" in told else set()) | numbers(problem.steps.split(" gets ")[-1]), problem


# What the numbers of the question, in the order in which they stand there, must give. Written apart from the templates.
SOLUTIONS: dict[str, Callable[..., int]] = {
    "gain": lambda a, b: a + b, "lose": lambda a, b: a - b, "gain_lose": lambda a, b, c: a + b - c,
    "lose_lose": lambda a, b, c: a - b - c, "two_totals": lambda a, b: a + b, "three_totals": lambda a, b, c: a + b + c,
    "colors": lambda a, b, c: a + b - c, "missing_start": lambda b, c: b + c, "missing_gain": lambda a, c: c - a,
    "difference": lambda a, b: abs(a - b), "more_than": lambda a, b: a + b, "fewer_than": lambda a, b: abs(a - b),
    "fewer_total": lambda a, b: 2 * max(a, b) - min(a, b), "times": lambda a, k: a * k, "half_as_many": lambda a: a // 2,
    "half_total": lambda a: a + a // 2, "three_people": lambda a, b: a + (a + b) + 2 * (a + b), "groups": lambda a, b: a * b,
    "two_groups": lambda a, b, c, d: a * b + c * d, "groups_loose": lambda a, b, c: a * b + c,
    "groups_eaten": lambda a, b, c: a * b - c, "share": lambda t, k: t // k, "pack": lambda t, k: t // k,
    "left_over": lambda t, k: t % k, "share_after_gain": lambda a, b, k: (a + b) // k,
    "share_after_keep": lambda t, b, k: (t - b) // k, "regroup": lambda a, b, k: a * b // k, "chairs": lambda a, b, c: a * b - c,
    "library": lambda a, b, c, d: a * b - c + d, "buy_same": lambda a, p: a * p, "buy_change": lambda p, a, t: t - a * p,
    "buy_two": lambda p, s: p + s, "budget": lambda t, p, s: t - p - s, "how_many_items": lambda t, s, p: (t - s) // p,
    "price_scale": lambda a, t, b: t // a * b, "dearer": lambda p, d: 2 * p + d,
    "coins": lambda a, ten, b, five: a * ten + b * five, "tickets": lambda p, s, a, b: a * p + b * s,
    "bill": lambda t, b, k: (t + b) // k, "save_weeks": lambda a, b, k: a + b * k, "save_goal": lambda t, a, b: (t - a) // b,
    "wage": lambda p, h, d: p * h * d, "wage_spend": lambda p, h, b: p * h - b, "wage_compare": lambda p, s, h: (p - s) * h,
    "sell": lambda a, p, c: a * p - c, "chores": lambda p, s, a, b: a * p + b * s, "club": lambda p, a, k: p * k + a,
    "distance": lambda v, h: v * h, "two_legs": lambda v, h, w, g: v * h + w * g, "travel_time": lambda t, v: max(t, v) // min(t, v),
    "commute": lambda a, k: 2 * a * k, "practice": lambda a, k, b: a * k + b, "machine": lambda a, k, b: a * k - b,
    "together_rate": lambda a, b, h: (a + b) * h, "fill": lambda t, a, b: (t - a) // b, "leak": lambda t, b, h: t - b * h,
    "growth": lambda a, b, k: a + b * k, "older": lambda a, b, c: a + b + c, "age_sum": lambda a, k, b: a + a * k + a + b,
    "half_class": lambda t: t // 2, "third_rest": lambda t: t - t // 3, "quarter_then": lambda t, b: t - t // 4 - b,
    "half_half": lambda t: t // 4, "double_day": lambda a, b: 2 * a + b, "percent_of": lambda t, p: t * p // 100,
    "percent_rest": lambda t, p: t * (100 - p) // 100, "discount": lambda t, p: t * (100 - p) // 100,
    "three_days": lambda a, b, c: a + b + c, "more_next_day": lambda a, b: 2 * a + b, "twice_fewer_day": lambda a, b: 5 * a - b,
    "read_left": lambda t, a, k: t - a * k, "read_days": lambda t, a, b: (t - a) // b, "eat_days": lambda a, b, c, k: a * b - c * k,
    "hens": lambda a, k, carton, b: a * k * b // carton, "bake_pack": lambda a, b, c, d: (a * b - c) // d,
    "bus": lambda a, b, c: a - b + c, "bus_two": lambda a, b, c, d: a + b - c + d, "legs": lambda a, b: 2 * a + 4 * b,
    "wheels": lambda a, b: 2 * a + 4 * b, "points": lambda a, x, b, y: a * x + b * y, "fence": lambda a, b: 2 * (a + b),
    "tiles": lambda a, b, p: a * b * p, "average": lambda a, b, c: (a + b + c) // 3, "garden": lambda a, b, c: a * b * c,
    "album": lambda a, b, c: a * b - c, "trip_buses": lambda t, b, k: (t + b) // k, "windows": lambda a, b, c: a * b - c,
    "socks": lambda a, b: 2 * a - b, "dozen": lambda a, b: 12 * a - b, "recipe": lambda k, b, t: t // k * b,
    "weights": lambda a, b, c: a * b + c, "boys_girls": lambda a, b: 2 * a + b, "teams": lambda a, b, k: (a + b) // k,
}


@pytest.mark.parametrize("split", ["train", "test"])
def test_answers_by_another_way(split: str) -> None:
    seen = set()
    for problem in sample(make_problem, split):
        solve = SOLUTIONS.get(problem.template)
        if solve is None:
            continue
        given = [int(n) for n in re.findall(r"\d+", asideless(problem))]
        if problem.template == "two_legs":  # '2 hours at 60' and '60 an hour for 2 hours' give the same products
            given = [max(given[:2]), min(given[:2]), max(given[2:]), min(given[2:])]
        assert solve(*given) == problem.answer, problem
        seen.add(problem.template)
    assert seen == set(SOLUTIONS)


def test_order_of_steps_follows_from_the_question() -> None:
    """Questions of the same form copy their sentences in the same order: the facts that are shuffled are told apart by form."""
    nouns = {w for kind in FILLERS["train"].values() for noun in kind for w in (noun, getattr(noun, "one", noun))}
    mask = re.compile(rf"\b(?:{'|'.join(sorted(nouns, key=len, reverse=True))}|\d+)\b")
    orders: dict[str, list[int]] = {}
    repeated = 0
    for problem in sample(make_problem, "train", 30_000):
        if problem.template == "difference":  # there the larger number comes first
            continue
        told = asideless(problem)
        sentences = [s for s in re.split(r"(?<=[.?]) ", told) if s in problem.steps]
        order = sorted(range(len(sentences)), key=lambda i: problem.steps.index(sentences[i]))
        for name in problem.people:
            told = re.sub(rf"\b{name}\b", "#", told)
        key = problem.template + mask.sub("#", told)
        repeated += key in orders
        assert orders.setdefault(key, order) == order, problem
    assert repeated > 20_000


@pytest.mark.parametrize("maker", MAKERS)
def test_text_is_clean(maker: Maker) -> None:
    for split in ("train", "test"):
        for problem in sample(maker, split):
            for text in (problem.question, problem.steps):
                assert not re.search(r"[{}<|]|  |_|None|\.\.(?!\.)(?<!\.\.\.)", text), text
                assert text == text.strip()
            if maker is make_problem:
                assert problem.question.endswith("?")
                assert all(line.endswith(".") for line in problem.steps.split("\n")), problem
                assert len(problem.worked) < 480, problem


def test_grammar() -> None:
    singular = {noun.one for kind in NOUNS for noun in FILLERS["train"][kind]}  # type: ignore[attr-defined]
    singular |= {"page", "day", "week", "hour", "student", "egg", "photo", "year", "minute", "person", "book", "chair"}
    counted = re.compile(rf"(?<![\d$] )(?<![*/+=-] )\b(\d+) (?:(?:more|fewer|red|blue|green|big|small|loose) )?"
                         rf"({'|'.join(sorted(singular, key=len, reverse=True))})(?=[.?,]| left| in | on | for | to | from | each)")
    for problem in sample(make_problem, "train"):
        for text in (problem.question, problem.steps):
            assert not re.search(r"\b[Tt]here are 1 \w", text), text
            assert not re.search(r"\b1 (?:more |fewer )?\w+s\b(?<!bus)(?<!dress)", text), text
            assert not re.search(r"\b[Aa] [aeio]\w+|\b[Aa]n (?!hour)[^aeiou]", text), text
            assert all(sentence[0].isupper() or sentence[0].isdigit() for sentence in re.split(r"(?<=[.?])\s", text)), text
            assert all(int(n) == 1 for n, _ in counted.findall(text)), text


def test_the_question_decides_the_steps() -> None:
    """Two problems that differ only in names, nouns and numbers have the same shape of steps: no random paraphrase."""
    steps: dict[str, str] = {}
    for maker in MAKERS:
        for problem in sample(maker, "train"):
            assert steps.setdefault(problem.question, problem.steps) == problem.steps


def test_steps_copy_the_question() -> None:
    copied = total = 0
    for problem in sample(make_problem, "test"):
        sentences = re.split(r"(?<=[.?]) ", problem.question)[:-1]
        copied += sum(len(s) for s in sentences if s in problem.steps)
        total += len(problem.steps)
    assert copied / total > 0.4


def test_splits_are_disjoint() -> None:
    assert len(TRAIN_NAMES) >= 100 and len(TEST_NAMES) >= 20
    assert not TRAIN_NAMES & TEST_NAMES
    for maker in MAKERS:
        train, test = ({p.question for p in sample(maker, split)} for split in ("train", "test"))
        assert not train & test
        # The numbers of the question, in any order of names and facts, with the template.
        keys = [Counter((p.template, p.steps) for p in sample(maker, split)) for split in ("train", "test")]
        assert not keys[0].keys() & keys[1].keys()
    for split, wrong in (("train", held_out_words()), ("test", TRAIN_NAMES)):
        for problem in sample(make_problem, split):
            words = set(re.findall(r"[A-Z][a-z]+", problem.question))
            assert not words & wrong, problem


def test_people_of_training_are_many() -> None:
    """Lists alone would teach the names and not the copying."""
    rng = random.Random(1)
    people = Counter(name for _ in range(50_000) for name in make_problem(rng, "train").people)
    assert len(people) >= 5_000 and not people.keys() & held_out_words()
    listed = sum(people[name] for name in TRAIN_NAMES) / people.total()
    assert 0.5 < listed < 0.65, listed


def test_people_are_told_apart() -> None:
    alike = 0
    for split in ("train", "test"):
        for problem in sample(make_problem, split):
            assert len(set(problem.people)) == len(problem.people)
            words = set(re.findall(r"[A-Z][a-z]+", problem.question))
            stated = set(re.findall(r"[A-Z][a-z]+", problem.steps)) & set(problem.people)
            assert stated <= words, problem
            alike += split == "train" and len({name[:2] for name in problem.people}) < len(problem.people)
    assert alike > 100


def test_the_test_split_keeps_to_its_words() -> None:
    for kind, words in FILLERS["train"].items():
        assert set(FILLERS["test"][kind]) <= set(words) and len(words) == len(set(words))


def test_equations_of_a_template_are_disjoint() -> None:
    """Where the first equation holds all drawn numbers, the same equation never occurs in both splits."""
    for template in ("gain", "lose", "more_than", "fewer_than", "two_totals", "three_totals", "times", "share", "pack"):
        seen = {split: {CHAIN.findall(p.steps)[0] for p in sample(make_problem, split) if p.template == template}
                for split in ("train", "test")}
        assert seen["train"] and seen["test"]
        assert not seen["train"] & seen["test"]


def test_split_rule() -> None:
    numbers = [(a, b) for a in range(100) for b in range(100)]
    share = sum(in_split("gain", n, "test") for n in numbers) / len(numbers)
    assert 0.08 < share < 0.12
    assert all(in_split("gain", n, "test") != in_split("gain", n, "train") for n in numbers[:500])
    with pytest.raises(ValueError, match="'dev'"):
        in_split("gain", (1, 2), "dev")


@pytest.mark.parametrize("maker", MAKERS)
def test_seed_decides(maker: Maker) -> None:
    def first(seed: int) -> list[Problem]:
        rng = random.Random(seed)
        return [maker(rng, "train") for _ in range(50)]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_templates() -> None:
    assert len(TEMPLATES) >= 60
    assert len({t.id for t in TEMPLATES}) == len(TEMPLATES)
    assert all(t.wordings >= 4 for t in TEMPLATES)
    assert {len(t.equations) for t in TEMPLATES} >= {1, 2, 3, 4}
    for split in ("train", "test"):
        assert {p.template for p in sample(make_problem, split)} == {t.id for t in TEMPLATES}


def test_written_arithmetic() -> None:
    assert add(3, 4, 5) == ("3 + 4 + 5 = 7 + 5 = 12", 12)
    assert mul(23, 14) == ("23 * 14 = 23 * 10 + 23 * 4 = 230 + 92 = 322", 322)
    assert mul(47, 8)[0] == "47 * 8 = 40 * 8 + 7 * 8 = 320 + 56 = 376"
    assert div(276, 4)[0] == "276 / 4 = 240 / 4 + 36 / 4 = 60 + 9 = 69"
    assert percent(75, 80) == ("25% of 80 is 80 / 4 = 20. 75% of 80 is 20 * 3 = 60", 60)
    for bad in (lambda: sub(3, 5), lambda: div(7, 2), lambda: div(7, 0), lambda: mul(200, 90)):
        with pytest.raises(Reject):
            bad()
