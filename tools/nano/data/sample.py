"""One training document: a conversation in OpenAI form, or plain prose."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

Message = dict[str, Any]
Tool = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """A conversation whose assistant turns are to be learned. `answer` is the checkable result, where there is one."""

    kind: str
    messages: list[Message]
    enable_thinking: bool = True
    tools: list[Tool] | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Prose:
    """Plain text for language modelling; every token is supervised, and <|endoftext|> closes it."""

    text: str
    kind: str = "prose"


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str, reasoning: str = "", tool_calls: list[Message] | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = tool_calls
    return message


def is_test(value: str) -> bool:
    """Whether a name, city or other value belongs to the test split: one in six, by a stable hash."""
    return zlib.crc32(value.encode()) % 6 == 0


def split_pool(values: Sequence[str], split: str) -> list[str]:
    return [value for value in dict.fromkeys(values) if is_test(value) == (split == "test")]
