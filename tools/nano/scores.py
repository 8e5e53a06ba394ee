"""Scores of a trained checkpoint: right answers on the test problems, and what the drafter's blocks are worth."""
from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from batches import to_batch
from dflash import Dflash, block_labels
from own_answers import Prompt, answer_all, pack
from shape import BLOCK, VOCAB
from target import Target

BOXED = re.compile(r"\\boxed\{(-?[0-9]+)\}")


def boxed(text: str) -> str | None:
    found = BOXED.findall(text)
    return found[-1] if found else None


def test_prompts(folder: Path, limit: int, thinking: bool = True) -> list[Prompt]:
    """The nano-gsm problems as prompts, in the chat format."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    prompts = []
    with (folder / "eval" / "nano_gsm.jsonl").open() as file:
        for line in list(file)[:limit]:
            item = json.loads(line)
            text = f"<|im_start|>user\n{item['question']}<|im_end|><|im_start|>assistant\n"
            ids = tokenizer.encode(text + ("" if thinking else "<think></think>"), add_special_tokens=False).ids
            prompts.append(Prompt(np.array(ids, np.int64), item["answer"], "nano-gsm"))
    return prompts


def accuracy(prompts: list[Prompt], answers: list[np.ndarray], folder: Path) -> float:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    right = 0
    for prompt, tokens in zip(prompts, answers, strict=True):
        right += boxed(tokenizer.decode(tokens.tolist(), skip_special_tokens=True)) == prompt.expected
    return right / max(1, len(prompts))


def gsm_accuracy(target: Target, folder: Path, limit: int, thinking: bool = True,
                 max_tokens: int = 320) -> tuple[float, list[Prompt], list[np.ndarray]]:
    """`target` comes from answers.rounded()."""
    prompts = test_prompts(folder, limit, thinking)
    answers = answer_all(target, prompts, max_tokens, 2_000_000)
    return accuracy(prompts, answers, folder), prompts, answers


@torch.no_grad()
def accept_lengths(target: Target, drafter: Dflash, prompts: list[Prompt], answers: list[np.ndarray],
                   device: torch.device) -> list[float]:
    """Mean accept length for 1 to 7 drafts a step, walking each answer as the engine does."""
    rows = pack(prompts, answers, 1024, 0)
    committed, steps = np.zeros(BLOCK, np.int64), np.zeros(BLOCK, np.int64)
    for begin in range(0, len(rows["tokens"]), 16):
        part = {name: array[begin : begin + 16] for name, array in rows.items()}
        batch = to_batch(part["tokens"], part["flags"], part["doc"], target.shape, device, False)
        _, taps, _ = target.hidden(batch.tokens, batch.packed)
        joined = torch.cat(taps, -1)
        accepted = []
        for column in range(0, 1024, 128):
            anchors = torch.arange(column, column + 128, device=device).expand(len(part["tokens"]), -1).contiguous()
            labels, valid = block_labels(batch.tokens, batch.packed.doc, batch.supervised, anchors)
            states = drafter(target, batch.tokens, joined, batch.packed, anchors)
            right = (target.logits(states[:, :, 1:])[..., :VOCAB].argmax(-1) == labels[:, :, 1:]) & valid[:, :, 1:]
            accepted.append(right.long().cumprod(-1).sum(-1))
        chain = torch.cat(accepted, 1).cpu().numpy()
        for r in range(len(chain)):
            answer = part["flags"][r] == 1
            for number in range(1, int(part["doc"][r].max()) + 1):
                columns = np.flatnonzero(answer & (part["doc"][r] == number))
                for width in range(1, BLOCK):
                    at, end = columns[0], columns[-1]
                    while at < end:
                        gained = min(int(chain[r, at]), width) + 1
                        steps[width] += 1
                        committed[width] += gained
                        at += gained
    return [float(committed[w] / max(1, steps[w])) for w in range(1, BLOCK)]
