"""What a generated problem is, how train and test are kept apart, and how arithmetic is written out.

The written arithmetic is for a very small model: every number that it must produce either follows from a short table (one-digit
products, quotients up to 12), from one addition or subtraction, or from partial products that stand in the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

TEST_SHARE = 10  # one number tuple in ten is kept for the test split
LARGEST = 9_999


class Reject(Exception):
    """The drawn numbers do not make a proper problem; the caller draws again."""


@dataclass(frozen=True)
class Problem:
    question: str
    steps: str  # worked lines without the final sentence
    answer: int
    template: str
    people: tuple[str, ...] = ()  # names in the text

    @property
    def final(self) -> str:
        return f"The answer is \\boxed{{{self.answer}}}."

    @property
    def worked(self) -> str:
        """The whole answer when thinking is off."""
        return f"{self.steps}\n{self.final}"


def in_split(template: str, numbers: Sequence[int], split: str) -> bool:
    """True if this combination belongs to `split` ('train' or 'test'); each combination belongs to exactly one."""
    if split not in ("train", "test"):
        raise ValueError(f"split is {split!r}, expected 'train' or 'test'")
    digest = hashlib.blake2b(f"{template}:{','.join(map(str, numbers))}".encode(), digest_size=4).digest()
    return (int.from_bytes(digest, "little") % TEST_SHARE == 0) == (split == "test")


def _checked(value: int) -> int:
    if not 0 < value <= LARGEST:
        raise Reject
    return value


def add(*terms: int) -> tuple[str, int]:
    """'3 + 4 + 5 = 7 + 5 = 12': one addition at a time."""
    chain = [" + ".join(map(str, terms))]
    total = terms[0]
    for i, term in enumerate(terms[1:], 2):
        total += term
        chain.append(" + ".join(map(str, (total, *terms[i:]))))
    return " = ".join(chain), _checked(total)


def sub(a: int, b: int) -> tuple[str, int]:
    return f"{a} - {b} = {a - b}", _checked(a - b)


def parts(n: int) -> list[int]:
    """347 -> [300, 40, 7]; zero digits are left out."""
    digits = str(n)
    return [int(d) * 10 ** (len(digits) - 1 - i) for i, d in enumerate(digits) if d != "0"]


def mul(a: int, b: int) -> tuple[str, int]:
    """Direct for small or round operands, otherwise the longer operand is split into its digits."""
    product = _checked(a * b)
    pa, pb = parts(a), parts(b)
    if (a <= 12 and b <= 12) or (len(pa) == 1 and len(pb) == 1) or min(a, b) in (1, 10, 100):
        return f"{a} * {b} = {product}", product
    if len(pb) == 1 and (b < 10 or len(pa) > 1):  # 47 * 8 and 47 * 80: split the first operand
        terms = [(p, b) for p in pa]
    else:  # 8 * 47 and 23 * 14: split the second operand
        terms = [(a, p) for p in pb]
    written = " + ".join(f"{x} * {y}" for x, y in terms)
    return f"{a} * {b} = {written} = {add(*(x * y for x, y in terms))[0]}", product


def div(a: int, b: int) -> tuple[str, int]:
    """Direct for quotients that are small or round, otherwise split by the digits of the quotient. Exact only."""
    if b == 0 or a % b:
        raise Reject
    quotient = _checked(a // b)
    pq = parts(quotient)
    if quotient <= 12 or len(pq) == 1 or b in (1, 10, 100):
        return f"{a} / {b} = {quotient}", quotient
    written = " + ".join(f"{p * b} / {b}" for p in pq)
    return f"{a} / {b} = {written} = {add(*pq)[0]}", quotient


def percent(p: int, n: int) -> tuple[str, int]:
    """Through a half, a quarter or a tenth; p is 50, 25, 75 or a multiple of 10."""
    base, divisor = (50, 2) if p == 50 else (25, 4) if p in (25, 75) else (10, 10)
    text, unit = div(n, divisor)
    text = f"{base}% of {n} is {text}"
    if p == base:
        return text, unit
    scaled, value = mul(unit, p // base)
    return f"{text}. {p}% of {n} is {scaled}", value
