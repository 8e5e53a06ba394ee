"""Names and words that training invents, and the lists of real ones without those of the evaluation.

A small model copies a name token by token only if training shows it names of every kind: a name of its lists would be
remembered instead of read. So half of the people and places of training are invented, from parts that together use every
word-like token, both after a space and at the beginning of a value.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

from .pools import ADJECTIVES, CITIES, MONTHS, NAMES, NOUNS, OBJECTS, SURNAMES, VERBS, WEEKDAYS, made_up
from .sample import is_test, split_pool
from .word_lists import TEST_BOYS, TEST_GIRLS, TRAIN_BOYS, TRAIN_GIRLS

T = TypeVar("T")
TOKENIZER = Path(__file__).resolve().parents[3] / "models/nano/tokenizer.json"
POOLS = {"names": NAMES, "surnames": SURNAMES, "cities": CITIES}


@cache
def held_out_words() -> frozenset[str]:
    """Names and places that only evaluation uses as such."""
    pooled = (name for pool in POOLS.values() for name in split_pool(pool, "test"))
    return frozenset((*pooled, *TEST_BOYS, *TEST_GIRLS))


@cache
def pool(kind: str, split: str) -> list[str]:
    """Real names of a split: 'names', 'surnames' or 'cities'. Training has none that any evaluation asks for."""
    values = split_pool(POOLS[kind], split)
    return values if split == "test" else [value for value in values if value not in held_out_words()]


# Words that open sentences of the generated texts, or are no names in any reading.
NOT_NAMES = frozenset(
    """
    About Above Add After Again All Also Always Am An And Answer Any Are As At Be Because Before Beside Both But By Can
    Children Come Could Did Do Does Each Either Every Few For From Give Had Has Have He Her Here Him His How If In Into
    Is It Its Just Less Like Make Many Me More Most Much Must My No Nor Not Now Of Off On One Only Or Other Our Out Over
    Per Please Put She Should Since So Some Such Than That The Their Them Then There These They This Those Three Through
    Thus To Today Together Two Under Until Up Very Was We Were What When Where Which While Who Whose Why Will With Would
    Yes You Your Adults Later Oak Street Tiles Tell Write Total Without Therefore First Last Second Half New Let Get Sir Mrs Miss Lady Lord
    Father Captain God Yahweh Christ Jesus Israel Jews Moses Spirit Behold Heb Ass
    """.split()
    + WEEKDAYS
    + MONTHS
)

TOWN_STARTS = """
Al Alder Amber Amster Ash Auck Bar Bath Beck Ber Birch Black Blake Bland Bram Brad Brent Bridge Bright Brook Bruns Burn
Cam Canter Carl Castle Charl Chel Ches Clay Cliff Coal Cold Cran Cross Dal Dar Dart Deer Dork Dover Dul Dun Eagle East
Edin Ed Elk Elm Ever Fair Falk Farn Fern Field Flint Ford Fox Frank Fraser Free Gates Glen Gold Gran Grave Green Grim
Guild Half Hal Ham Hamp Har Hart Hather Hast Haver Hazel Heid High Hill Holly Horn Horse Hudders Hull Ips Iron Isling
Jack Jeffer Jones Kendal Ken Kes Kid King Kirk Knights Lake Lan Lang Lei Lex Lich Lim Lin Little Liver Long Lough Lud
Mag Maid Mal Man Mans Maple Mar Mid Mill Mon Moor More Morning Mount Nor North Not Nott Oak Old Or Os Ox Park Pem Pen
Peter Pine Ply Port Pres Queen Rad Ramsey Raven Read Red Rich Ring River Rock Roch Rom Ros Rother Rush Salis Salt Sand
Scar Sea Shef Shrews Silver South Spring Staf Stam Star Stock Stone Straf Strat Stutt Summer Sun Sut Swan Taun Tam Thorn
Tor Trow Tun Up Vic Wake Wal War Water Wel West Wey White Wim Win Wind Winter Wolf Wood Wor Wren Yar York Zur
""".split()
TOWN_ENDS = """
bay berg borough bourne bridge brook brough burgh bury burn by caster chester church cliff combe cot croft dale den don
dorf ely fast feld field fleet ford furt gate gard grad grove ham hampton haven head heim hill hurst ia ing ingham ington
isle kirk la land leigh ley lin low lyn mark mere mill minster mond mont more moss mouth nau nor o over park pest point
polis pool port ridge rock rod sea sels set shaw shire side sk stad stadt stead ster stock stoke stone ston stow tal
thorpe ton town vale ver via view ville wall wark water way well wich wick wood worth
""".split()
TOWN_FIRST_WORDS = ("New", "Port", "North", "South", "Old", "Fort", "Lake", "Great", "Little")


@cache
def _tokens() -> list[str]:
    """The tokens of letters, with a leading 'Ġ' for a space; none as long as there is no tokenizer."""
    if not TOKENIZER.exists():
        return []
    vocabulary = json.loads(TOKENIZER.read_text(encoding="utf-8"))["model"]["vocab"]
    return [token for token in vocabulary if re.fullmatch("Ġ?[A-Za-z]+", token)]


@cache
def vocabulary() -> list[str]:
    """Every word-like token of two letters or more, without its space: words, beginnings and ends of words."""
    hidden = {word.lower() for word in held_out_words()}
    words = dict.fromkeys([token.removeprefix("Ġ") for token in _tokens()] or NOUNS + ADJECTIVES + VERBS)
    return [word for word in words if len(word) > 1 and word.lower() not in hidden and word[1:].islower()]


@cache
def _capitalised() -> list[str]:
    """Words that are one token with a capital after a space."""
    words = [token[1:] for token in _tokens() if re.fullmatch("Ġ[A-Z][a-z]{2,}", token)] or pool("names", "train")
    return [word for word in words if word not in NOT_NAMES]


@cache
def _plain() -> list[str]:
    """Words that are one token after a space, to be capitalised, and the words of the pools."""
    words = dict.fromkeys([token[1:] for token in _tokens() if re.fullmatch("Ġ[a-z]{3,}", token)])
    words.update(dict.fromkeys(NOUNS + ADJECTIVES + VERBS + OBJECTS))
    return [word for word in words if word.capitalize() not in NOT_NAMES]


@cache
def _starts() -> list[str]:
    """Capitalised tokens of any length, as beginnings."""
    found = dict.fromkeys(token.removeprefix("Ġ") for token in _tokens() if re.fullmatch("Ġ?[A-Z][a-z]{0,4}", token))
    return list(found) or list("ABCDEFGHIJKLMNOPRSTUVWYZ")


@cache
def _pieces() -> list[str]:
    """Tokens that go on inside a word."""
    return [token for token in _tokens() if re.fullmatch("[a-z]{1,6}", token)] or TOWN_ENDS


@cache
def _real() -> list[str]:
    """Real names and places of training, to take apart."""
    pools = (name for kind in POOLS for name in pool(kind, "train"))
    return list(dict.fromkeys(n for n in (*pools, *TRAIN_GIRLS, *TRAIN_BOYS) if n not in held_out_words()))


def pick(rng: random.Random, values: Sequence[T]) -> T:
    """rng.choice in a third of the time."""
    return values[int(rng.random() * len(values))]


def _crossed(rng: random.Random) -> str:
    """The beginning of one real name and the end of another."""
    first, second = pick(rng, _real()), pick(rng, _real())
    return first[: 1 + int(rng.random() * len(first))] + second[1 + int(rng.random() * (len(second) - 1)) :]


def _pieced(rng: random.Random) -> str:
    return pick(rng, _starts()) + "".join(pick(rng, _pieces()) for _ in range(1 + int(rng.random() * 2)))


_PEOPLE: tuple[Callable[[random.Random], str], ...] = (
    *[_crossed] * 7,
    *[_pieced] * 6,
    *[lambda rng: pick(rng, _capitalised())] * 2,
    *[lambda rng: pick(rng, _plain()).capitalize()] * 2,
    *[lambda rng: made_up(rng, 1 + int(rng.random() * 3)).capitalize()] * 3,
)
_NAME = re.compile(r"[A-Z][a-z]{2,11}")


def _allowed(name: str) -> bool:
    """One name in six is kept for evaluation, invented or not."""
    return bool(_NAME.fullmatch(name)) and name not in NOT_NAMES and name not in held_out_words() and not is_test(name)


def person(rng: random.Random) -> str:
    """An invented name of 3 to 12 letters."""
    while not _allowed(name := pick(rng, _PEOPLE)(rng)):
        pass
    return name


def similar(rng: random.Random, other: str) -> str:
    """An invented name that begins like `other`, so that the beginning does not tell who is meant."""
    while True:
        ending = pick(rng, _pieces()) if rng.random() < 0.5 else pick(rng, _real())[2:]
        name = other[: 1 + int(rng.random() * (len(other) - 1))] + ending
        if name != other and _allowed(name):
            return name


def town(rng: random.Random) -> str:
    """An invented place: two parts of English towns, or any invented name; some have two words."""
    while True:
        form = rng.random()
        name = pick(rng, TOWN_STARTS) + pick(rng, TOWN_ENDS) if form < 0.55 else person(rng)
        if not _allowed(name):
            continue
        if form > 0.94:
            name = f"{pick(rng, TOWN_FIRST_WORDS)} {name}"
            if is_test(name):
                continue
        return name


def word(rng: random.Random) -> str:
    """Any plain word of the vocabulary, for titles and lists."""
    while (found := pick(rng, _plain())).capitalize() in held_out_words():
        pass
    return found


def spelled(rng: random.Random, words: Sequence[str]) -> str:
    """A word to be copied: of `words`, a token of the vocabulary as it is, or an invented name or place."""
    form = rng.random()
    if form < 0.25:
        return pick(rng, words)
    if form < 0.5:
        return pick(rng, vocabulary())
    if form < 0.7:
        return person(rng)
    if form < 0.85:
        return town(rng)
    return made_up(rng, 1 + int(rng.random() * 3))
