"""The V2.6 chat format as text pieces, each marked as supervised or not.

A conversation is cut only beside added tokens, so encoding the pieces one by one gives the ids of the whole text.
"""

from __future__ import annotations

import json
from typing import Any

from .sample import Message, Prose, Sample, Tool

Piece = tuple[str, bool]


def to_json(value: Any) -> str:
    """Keys in input order, `", "` and `": "`, characters outside ASCII as they are."""
    return json.dumps(value, ensure_ascii=False)


def tool_turn(tools: list[Tool]) -> str:
    lines = "".join("\n" + to_json(tool) for tool in tools)
    return f"<|im_start|>system\nYou are provided with the following tools:\n\n<tools>{lines}\n</tools><|im_end|>"


def call_text(call: Message) -> str:
    function = call.get("function", call)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    parameters = "".join(
        f"<parameter={key}>{value if isinstance(value, str) else to_json(value)}</parameter>"
        for key, value in arguments.items()
    )
    return f"<tool_call><function={function['name']}>{parameters}</function></tool_call>"


def render(sample: Sample | Prose) -> list[Piece]:
    """Pieces in order; neighbours differ in their flag. Assistant output up to its <|im_end|> is supervised."""
    if isinstance(sample, Prose):
        return [(sample.text + "<|endoftext|>", True)]
    pieces: list[Piece] = []
    prompt = tool_turn(sample.tools) if sample.tools else ""
    for message in sample.messages:
        if message["role"] != "assistant":
            prompt += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>"
            continue
        prompt += "<|im_start|>assistant\n"
        reasoning = message.get("reasoning_content", "")
        output = message.get("content") or ""
        output += "".join(call_text(call) for call in message.get("tool_calls") or []) + "<|im_end|>"
        if sample.enable_thinking:
            output = f"<think>{reasoning}</think>{output}"
        else:
            assert not reasoning, "reasoning in a conversation without thinking"
            prompt += "<think></think>"
        pieces += [(prompt, False), (output, True)]
        prompt = ""
    if prompt:
        pieces.append((prompt, False))
    return pieces


def full_text(sample: Sample | Prose) -> str:
    return "".join(text for text, _ in render(sample))


def prompt_text(sample: Sample) -> str:
    """The text up to and with the generation prompt of the last assistant turn."""
    return "".join(text for text, _ in render(sample)[:-1])
