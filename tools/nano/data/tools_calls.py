"""Conversations with declared functions: one call, several calls, no call, and answers from results."""

from __future__ import annotations

import random
import re
from typing import Any

from .dialogue import make_fact
from .pools import NOUNS, join_and
from .sample import Message, Sample, Tool, assistant, user
from .tool_specs import FUNCTIONS, Function, Parameter

SKY = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear")
NO_TOOL = "I have no tool for that."


# Training renames functions and arguments freely, so that they are read and not guessed.
EXTRA_NAME_SHARE = 0.12
FUNCTION_ENDS = ("v2", "api", "now", "tool", "service", "please", "fast", "home")
ARGUMENT_ENDS = ("name", "value", "arg", "text", "input", "field", "given", "wanted", "param")


class Declared:
    """A function as one prompt declares it: some of its alternatives, and optional arguments that may be missing."""

    def __init__(self, rng: random.Random, function: Function, split: str) -> None:
        train = split == "train"

        # The first alternative is the usual one; renamed ones make the model read the declaration.
        def pick(values: tuple[str, ...], ends: tuple[str, ...]) -> str:
            chosen = values[0] if rng.random() < (0.3 if train else 0.5) else rng.choice(values)
            if train and rng.random() < EXTRA_NAME_SHARE:
                extra = rng.choice(ends) if rng.random() < 0.6 else rng.choice(NOUNS)
                return f"{chosen}_{extra}" if rng.random() < 0.7 else f"{extra}_{chosen}"
            return chosen

        self.function = function
        self.name = pick(function.names, FUNCTION_ENDS)
        self.parameters: list[tuple[str, Parameter]] = []
        properties: dict[str, Any] = {}
        used: set[str] = set()
        for parameter in function.parameters:
            if not parameter.required and rng.random() < (0.15 if train else 0.3):
                continue
            key = pick(parameter.names, ARGUMENT_ENDS)
            if key in used:
                key = next(other for other in parameter.names if other not in used)
            used.add(key)
            self.parameters.append((key, parameter))
            properties[key] = {**parameter.schema, "description": rng.choice(parameter.descriptions)}
        required = [key for key, parameter in self.parameters if parameter.required]
        self.tool: Tool = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": rng.choice(function.descriptions),
                "parameters": {"type": "object", "properties": properties, "required": required},
            },
        }


Call = tuple[str, dict[str, Any]]


def _finish(rng: random.Random, request: str) -> str:
    """Ends a request as people do: a question mark or a full stop, sometimes a polite word."""
    question = re.match(r"(What|How|Is|Which|When)\b", request) is not None
    if rng.random() < 0.15:
        request = rng.choice(("Hi! ", "Hello! ", "Please help me. ", "Now: ")) + request
    return request + ("?" if question else rng.choice((".", ".", "", ", please.")))


def _single(rng: random.Random, declared: Declared, split: str) -> tuple[str, list[Call], list[str]]:
    """(request, calls, words of the required arguments)."""
    words: list[str] = []
    clauses = ""
    arguments: dict[str, Any] = {}
    for key, parameter in declared.parameters:
        if not parameter.required and rng.random() < 0.5:
            continue
        text, value = parameter.make(rng, split)
        # Two currencies, two cities: the same word twice would be an odd request.
        while text in words:
            text, value = parameter.make(rng, split)
        arguments[key] = value
        if parameter.required:
            words.append(text)
        else:
            clauses += rng.choice(parameter.clauses).format(text)
    request = rng.choice(declared.function.requests).format(*words) + clauses
    return _finish(rng, request), [(declared.name, arguments)], words


def _several(rng: random.Random, declared: Declared, split: str) -> tuple[str, list[Call]]:
    key, parameter = declared.parameters[0]
    values: list[str] = []
    count = rng.randint(2, 3)
    while len(values) < count:
        text = parameter.make(rng, split)[0]
        if text not in values:
            values.append(text)
    request = rng.choice(declared.function.many).format(join_and(values))
    common: dict[str, Any] = {}
    clauses = ""
    for other, optional in declared.parameters[1:]:
        if optional.schema.get("enum") and rng.random() < 0.4:
            text, value = optional.make(rng, split)
            common[other] = value
            clauses += rng.choice(optional.clauses).format(text)
    return _finish(rng, request + clauses), [(declared.name, {key: value, **common}) for value in values]


def call_messages(calls: list[Call]) -> list[Message]:
    return [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]


def _thought(calls: list[Call], thinking: bool) -> str:
    """One line that settles the choice, the same words every time."""
    if not thinking:
        return ""
    if not calls:
        return "No tool is needed."
    return f"I will use {calls[0][0]}." if len(calls) == 1 else f"I will use {calls[0][0]} {len(calls)} times."


def _result_turns(rng: random.Random, declared: Declared, words: list[str]) -> list[Message]:
    """The result of the one call and the answer made from it."""
    content, answer = rng.choice(declared.function.results)
    slots = {
        "n": rng.randint(-9, 35) if "weather" in declared.function.names[0] else rng.randint(1, 9999),
        "w": rng.choice(SKY),
        "t": f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}",
    }
    return [{"role": "tool", "content": content.format(*words, **slots)}, assistant(answer.format(*words, **slots))]


def _exchange(rng: random.Random, form: str, declarations: list[Declared], thinking: bool, split: str) -> list[Message]:
    if form == "none" and rng.random() < 0.35:
        # The request needs a function that is not declared.
        present = [d.function for d in declarations]
        missing = Declared(rng, rng.choice([f for f in FUNCTIONS if f not in present]), split)
        return [
            user(_single(rng, missing, split)[0]),
            assistant(NO_TOOL, reasoning="No tool fits." if thinking else ""),
        ]
    if form == "none":
        question, answer = make_fact(rng)
        return [user(question), assistant(answer, reasoning=_thought([], thinking))]
    declared = rng.choice([d for d in declarations if _suits(d.function, form)])
    if form == "many":
        request, calls = _several(rng, declared, split)
        return [user(request), assistant("", _thought(calls, thinking), call_messages(calls))]
    request, calls, words = _single(rng, declared, split)
    messages = [user(request), assistant("", _thought(calls, thinking), call_messages(calls))]
    return messages + _result_turns(rng, declared, words) if form == "result" else messages


def _suits(function: Function, form: str) -> bool:
    return bool(function.many or form != "many") and bool(function.results or form != "result")


def make_tool_sample(rng: random.Random, thinking: bool, split: str = "train") -> Sample:
    """Last exchanges: 55% one call, 15% several, 12% no call (small talk or no tool that fits), 18% call, result and
    answer. In a third of the conversations one or two exchanges that end in text come before."""
    last = rng.choices(("single", "many", "none", "result"), weights=(55, 15, 12, 18))[0]
    target = rng.choice([f for f in FUNCTIONS if _suits(f, last)])
    others = rng.sample([f for f in FUNCTIONS if f is not target], rng.choice((0, 0, 1, 2, 3)))
    declarations = [Declared(rng, function, split) for function in (target, *others)]
    rng.shuffle(declarations)
    messages: list[Message] = []
    for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
        can_call = any(d.function.results for d in declarations)
        messages += _exchange(
            rng, "result" if can_call and rng.random() < 0.8 else "none", declarations, thinking, split
        )
    messages += _exchange(rng, last, declarations, thinking, split)
    return Sample("tools", messages, thinking, [d.tool for d in declarations])


def expected_calls(sample: Sample) -> list[dict[str, Any]]:
    """The calls of the last assistant turn, as the evaluation files give them."""
    return [
        {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in sample.messages[-1].get("tool_calls", [])
    ]
