"""Long-context tasks with exact answers: needles in prose, look-up tables, copying.

Reasoning is always empty here: the answer stands in the text. Needle documents have the form that `mimo eval needle`
builds: sentences joined by single spaces, a needle between two of them, an empty line, the question.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass

from .names import held_out_words, person, pool, spelled, town
from .pools import ADJECTIVES, NOUNS, OBJECTS, digits, join_and, made_up
from .sample import Message, Sample, assistant, user

NEEDLE = "The secret code of {name} is {code}."
QUESTION = "What is the secret code of {name}?"


def _names(rng: random.Random, split: str, count: int) -> list[str]:
    """Different names; in training half of them are invented, so that any name can be looked up."""
    names = rng.sample(pool("names", split), count)
    if split == "train":
        names = list(dict.fromkeys(person(rng) if rng.random() < 0.5 else name for name in names))
    return names


def _haystack(rng: random.Random, sentences: list[str], chars: int) -> list[str]:
    """Successive sentences from a random place, `chars` characters or a little more."""
    start = rng.randrange(len(sentences))
    hay: list[str] = []
    while chars > 0 and len(hay) < len(sentences):
        hay.append(sentences[(start + len(hay)) % len(sentences)])
        chars -= len(hay[-1]) + 1
    return hay


def make_needle(rng: random.Random, sentences: list[str], chars: int, thinking: bool, split: str = "train") -> Sample:
    """A haystack of about `chars` characters with 1 to 4 needles; half of the documents ask for more than one."""
    hay = _haystack(rng, sentences, chars)
    names = _names(rng, split, rng.choice((1, 1, 2, 3, 4)))
    codes = [digits(rng, 7) for _ in names]
    for name, code in zip(names, codes):
        hay.insert(rng.randint(0, len(hay)), NEEDLE.format(name=name, code=code))
    order = rng.sample(range(len(names)), len(names) if rng.random() < 0.5 else 1)
    messages: list[Message] = []
    for turn, index in enumerate(order):
        question = QUESTION.format(name=names[index])
        messages.append(user(question if turn else " ".join(hay) + "\n\n" + question))
        messages.append(assistant(NEEDLE.format(name=names[index], code=codes[index])))
    return Sample("needle", messages, thinking, answer=codes[order[0]])


@dataclass(frozen=True)
class Table:
    """Kind of a look-up table. `value` gives the text of a value."""

    title: str
    fact: str
    question: str
    keys: str  # people, places, things or codes
    value: str  # digits4, digits7, city, noun or word


TABLES = [
    Table(
        "Phone numbers:",
        "The phone number of {key} is {value}.",
        "What is the phone number of {key}?",
        "people",
        "digits7",
    ),
    Table(
        "Locker numbers:",
        "The locker number of {key} is {value}.",
        "What is the locker number of {key}?",
        "people",
        "digits4",
    ),
    Table("Home cities:", "{key} lives in {value}.", "Where does {key} live?", "people", "city"),
    Table("Passwords:", "The password of {key} is {value}.", "What is the password of {key}?", "people", "word"),
    Table(
        "Secret codes:",
        "The secret code of {key} is {value}.",
        "What is the secret code of {key}?",
        "people",
        "digits7",
    ),
    Table(
        "Favourite things:",
        "The favourite thing of {key} is the {value}.",
        "What is the favourite thing of {key}?",
        "people",
        "noun",
    ),
    Table("Prices:", "The price of {key} is {value}.", "What is the price of {key}?", "things", "price"),
    Table("Stock:", "There are {value} {key} in stock.", "How many {key} are in stock?", "things", "digits3"),
    Table(
        "Room numbers:", "The room number of {key} is {value}.", "What is the room number of {key}?", "full", "digits3"
    ),
    Table(
        "Distances in kilometres:",
        "The distance to {key} is {value} kilometres.",
        "How far is it to {key}?",
        "places",
        "digits4",
    ),
]


def _keys(rng: random.Random, split: str, kind: str, count: int) -> list[str]:
    if kind == "places":
        places = rng.sample(pool("cities", split), min(count, 24))
        if split == "train":
            places = list(dict.fromkeys(town(rng) if rng.random() < 0.5 else place for place in places))
        return places
    if kind == "things":
        return rng.sample(OBJECTS, min(count, len(OBJECTS)))
    if kind == "full":
        surnames = pool("surnames", split)
        pairs = [f"{name} {rng.choice(surnames)}" for name in _names(rng, split, min(count, 40))]
        return list(dict.fromkeys(pairs))
    return _names(rng, split, min(count, 40))


def _value(rng: random.Random, split: str, kind: str) -> str:
    if kind == "price":
        return f"${rng.randint(1, 99)}.{rng.randint(0, 99):02d}"
    if kind == "city":
        return town(rng) if split == "train" and rng.random() < 0.5 else rng.choice(pool("cities", split))
    if kind == "noun":
        return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
    if kind == "word":
        return made_up(rng, rng.randint(2, 3))
    return digits(rng, int(kind.removeprefix("digits")))


def make_lookup(
    rng: random.Random, thinking: bool, split: str = "train", sentences: list[str] | None = None, chars: int = 0
) -> Sample:
    """A list of "key: value" lines and one to four questions about it; with `chars` it stands inside so much prose."""
    table = rng.choice(TABLES)
    keys = _keys(rng, split, table.keys, rng.randint(3, 32))
    values = [_value(rng, split, table.value) for _ in keys]
    text = "\n".join([table.title, *(f"{key}: {value}" for key, value in zip(keys, values))])
    if sentences and chars:
        hay = _haystack(rng, sentences, chars)
        at = rng.randint(0, len(hay))
        text = "\n\n".join(part for part in (" ".join(hay[:at]), text, " ".join(hay[at:])) if part)
    messages: list[Message] = []
    picked = rng.sample(range(len(keys)), rng.randint(1, min(4, len(keys))))
    for turn, index in enumerate(picked):
        question = table.question.format(key=keys[index])
        messages.append(user(question if turn else f"{text}\n\n{question}"))
        messages.append(assistant(table.fact.format(key=keys[index], value=values[index])))
    return Sample("lookup", messages, thinking, answer=values[picked[0]])


COPY_TEXT = [
    "Repeat the following text exactly:\n\n{text}",
    "Copy this text:\n\n{text}",
    "Write this again, word for word:\n\n{text}",
    "{text}\n\nRepeat the text above.",
]
COPY_CODE = ["Repeat this code: {text}", "Copy this code exactly: {text}", "Write the code {text} again."]
REVERSE = [
    "Write this list in reverse order: {text}",
    "Reverse this list: {text}",
    "Say these words backwards, last one first: {text}",
]


DRILL_LINES = (
    "Write each word on a line of its own: {text}",
    "One word a line, please: {text}",
    "Put these words under each other: {text}",
)
DRILL_ARRAY = (
    "Write these words as a JSON array: {text}",
    "Give this list as JSON: {text}",
    "Make a JSON array of {text}",
)
DRILL_TAGS = (
    "Put each word between <{tag}> and </{tag}>: {text}",
    "Write these words with the tag {tag}: {text}",
    "Tag each of these words with {tag}: {text}",
)
DRILL_ROW = ("Write these words in one line: {text}", "List the words of {text}", "One line, with commas: {text}")


def make_drill(rng: random.Random, words: list[str], thinking: bool) -> Sample:
    """A list of any words in another form. A word has other tokens after a space than after a newline, a quote or a tag;
    this teaches both spellings of every token, which tool arguments and JSON values need."""
    picked = [spelled(rng, words) for _ in range(rng.randint(2, 12))]
    capitals = rng.choice((0.0, 0.5, 1.0))
    picked = [word[0].upper() + word[1:] if rng.random() < capitals else word for word in picked]
    picked = [word for word in picked if word not in held_out_words()] or [made_up(rng)]
    form = rng.random()
    # Words without a space before them in the request and with one in the answer: the other way round.
    if form < 0.2:
        text = rng.choice(("\n".join(picked), "".join(f"<w>{word}</w>" for word in picked), json.dumps(picked)))
        request, answer = rng.choice(DRILL_ROW).format(text=text), ", ".join(picked)
    else:
        text = join_and(picked) if rng.random() < 0.5 else ", ".join(picked)
        if form < 0.45:
            request, answer = rng.choice(DRILL_LINES), "\n".join(picked)
        elif form < 0.72:
            request, answer = rng.choice(DRILL_ARRAY), json.dumps(picked)
        else:
            tag = rng.choice(("w", "item", "name", "city", "value", "parameter"))
            request = rng.choice(DRILL_TAGS).replace("{tag}", tag)
            answer = "".join(f"<{tag}>{word}</{tag}>" for word in picked)
        request = request.format(text=text)
    return Sample("drill", [user(request), assistant(answer)], thinking, answer=answer)


def make_copy(rng: random.Random, sentences: list[str], thinking: bool) -> Sample:
    """Repeat a text, a code, a list, or reverse a short list."""
    form = rng.randrange(4)
    if form == 0:
        start = rng.randrange(len(sentences) - 4)
        text = " ".join(sentences[start : start + rng.randint(1, 3)])
        request, answer = rng.choice(COPY_TEXT), text
    elif form == 1:
        alphabet = rng.choice(("0123456789", "ABCDEFGHJKLMNPQRSTUVWXYZ0123456789", "abcdefghijkmnpqrstuvwxyz"))
        parts = ["".join(rng.choices(alphabet, k=rng.randint(3, 8))) for _ in range(rng.randint(1, 4))]
        text = answer = "-".join(parts)
        request = rng.choice(COPY_CODE)
    elif form == 2:
        items = [
            rng.choice((rng.choice(NOUNS), made_up(rng), digits(rng, rng.randint(1, 4))))
            for _ in range(rng.randint(4, 24))
        ]
        text = answer = rng.choice((", ", "\n", " ")).join(items)
        request = rng.choice(COPY_TEXT)
    else:
        items = rng.sample(rng.choice((NOUNS, pool("names", "train"), [str(n) for n in range(1, 100)])), rng.randint(3, 8))
        text, answer = ", ".join(items), ", ".join(reversed(items))
        request = rng.choice(REVERSE)
    return Sample("copy", [user(request.format(text=text)), assistant(answer)], thinking, answer=answer)
