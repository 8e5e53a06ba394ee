"""Extraction tasks: a short text, and an answer that is one JSON object with the keys asked for."""

from __future__ import annotations

import json
import random
from typing import Any

from . import tool_values as v
from .pools import ADJECTIVES, NOUNS, join_and
from .sample import Sample, assistant, user

Record = dict[str, Any]
ASK = (
    "Answer in JSON with the keys {keys}.",
    "Give the answer as JSON with keys {keys}.",
    "Write a JSON object with the keys {keys}.",
    "Extract {keys} as JSON.",
)
JOBS = (
    "teacher",
    "doctor",
    "farmer",
    "baker",
    "painter",
    "driver",
    "nurse",
    "writer",
    "singer",
    "cook",
    "pilot",
    "lawyer",
)


def _person(rng: random.Random, split: str) -> tuple[str, Record]:
    name, age, city, job = v.full_name(rng, split)[0], rng.randint(18, 95), v.city(rng, split)[0], rng.choice(JOBS)
    text = rng.choice(
        (
            "{name} is {age} years old, lives in {city} and works as a {job}.",
            "I met {name} in {city}. {name} is a {job} and {age} years old.",
            "Our {job} is {name}, aged {age}, from {city}.",
        )
    )
    return text.format(name=name, age=age, city=city, job=job), {"name": name, "age": age, "city": city, "job": job}


def _order(rng: random.Random, split: str) -> tuple[str, Record]:
    name, (words, items), (price_text, price) = v.name(rng, split)[0], v.items(rng, split), v.number(1, 300)(rng, split)
    paid = rng.random() < 0.5
    text = rng.choice(
        (
            "{name} ordered {items} for {price} dollars and {paid}.",
            "Order of {name}: {items}. Total {price} dollars. {name} {paid}.",
        )
    )
    said = "has paid" if paid else "has not paid yet"
    return (
        text.format(name=name, items=words, price=price_text, paid=said),
        {"customer": name, "items": items, "total": price, "paid": paid},
    )


def _meeting(rng: random.Random, split: str) -> tuple[str, Record]:
    title, date, time, (words, people) = (
        v.phrase(rng, split)[0],
        v.date(rng, split)[0],
        v.clock(rng, split)[0],
        v.names(rng, split),
    )
    text = rng.choice(
        (
            'The meeting "{title}" is on {date} at {time} with {people}.',
            '{people} meet on {date} at {time} to talk about "{title}".',
        )
    )
    return (
        text.format(title=title, date=date, time=time, people=words),
        {"title": title, "date": date, "time": time, "people": people},
    )


def _product(rng: random.Random, split: str) -> tuple[str, Record]:
    product, (price_text, price), count = v.phrase(rng, split)[0], v.number(1, 900)(rng, split), rng.randint(0, 500)
    text = rng.choice(
        (
            "The {product} costs {price} dollars and we have {count} of them.",
            "We have {count} pieces of the {product} at {price} dollars each.",
        )
    )
    return text.format(product=product, price=price_text, count=count), {
        "product": product,
        "price": price,
        "count": count,
    }


def _trip(rng: random.Random, split: str) -> tuple[str, Record]:
    start, end, day, hours = v.city(rng, split)[0], v.city(rng, split)[0], v.weekday(rng, split)[0], rng.randint(2, 20)
    text = rng.choice(
        (
            "The train from {start} to {end} leaves on {day} and takes {hours} hours.",
            "On {day} we travel {hours} hours from {start} to {end}.",
        )
    )
    return (
        text.format(start=start, end=end, day=day, hours=hours),
        {"from": start, "to": end, "day": day, "hours": hours},
    )


def _address(rng: random.Random, split: str) -> tuple[str, Record]:
    name, phone = v.full_name(rng, split)[0], v.phone(rng, split)[0]
    words, place = v.address(rng, split)
    text = rng.choice(
        ("{name} lives at {address}. The phone number is {phone}.", "Contact: {name}, {address}, phone {phone}.")
    )
    return text.format(name=name, address=words, phone=phone), {"name": name, "address": place, "phone": phone}


def _pet(rng: random.Random, split: str) -> tuple[str, Record]:
    owner, pet, colour, age = v.name(rng, split)[0], v.name(rng, split)[0], rng.choice(ADJECTIVES), rng.randint(1, 15)
    animal = rng.choice(NOUNS)
    text = f"{owner} has a {colour} {animal} called {pet}. It is {age} years old."
    return text, {"owner": owner, "animal": animal, "name": pet, "age": age}


MAKERS = (_person, _order, _meeting, _product, _trip, _address, _pet)


def make_json(rng: random.Random, thinking: bool, split: str = "train") -> Sample:
    """Keys in the order of the request, which is shuffled half of the time and may leave some out."""
    text, record = rng.choice(MAKERS)(rng, split)
    keys = list(record)
    if rng.random() < 0.5:
        rng.shuffle(keys)
        keys = keys[: rng.randint(2, len(keys))]
    ask = rng.choice(ASK).format(keys=join_and(keys))
    prompt = f"{text}\n\n{ask}" if rng.random() < 0.5 else f"{ask}\n\n{text}"
    answer = json.dumps({key: record[key] for key in keys})
    return Sample("json", [user(prompt), assistant(answer)], thinking, answer=answer)
