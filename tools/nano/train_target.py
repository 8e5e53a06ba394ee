"""Trains the target model; the second part of the run with the stored formats in the loop."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import torch

from batches import Batch, Shards
from journal import Journal, say
from optimizer import Optimizer, schedule
from shape import Shape
from target import Target, weighted_loss


@dataclass(frozen=True)
class TargetPlan:
    steps: int
    long_every: int = 8  # one step in so many is of long rows
    long_from: float = 0.15  # share of the run before the first
    rounding_from: float = 0.5  # share of the run after which weights are used as they are stored
    warmup: int = 100
    cooldown: float = 0.5
    prompt_weight: float = 0.05  # of tokens that are not answers
    matrix_rate: float = 0.02
    adam_rate: float = 0.003
    embed_rate: float = 0.02
    head_rate: float = 0.004
    balance_rate: float = 1e-3
    save_every: int = 1000
    log_every: int = 50


def language_loss(target: Target, batch: Batch, prompt_weight: float, compute: Callable) -> tuple[torch.Tensor, list]:
    hidden, _, loads = target.hidden(batch.tokens, batch.packed)
    labels = torch.roll(batch.tokens, -1, 1)
    doc = batch.packed.doc
    inside = (torch.roll(doc, -1, 1) == doc) & (doc > 0)
    inside[:, -1] = False
    answer = torch.roll(batch.supervised, -1, 1)
    weights = inside.float() * torch.where(answer, 1.0, prompt_weight)
    return compute(target, hidden, labels, weights), loads


def head_loss(target: Target, hidden: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    return weighted_loss(target.logits(hidden), labels, weights)


def train_target(shape: Shape, plan: TargetPlan, short: Shards, long: Shards, work: Path, device: torch.device,
                 seed: int, compile_layers: bool, probe: Callable[[Target, int], None]) -> Target:
    torch.manual_seed(seed)
    target = Target(shape).to(device)
    optimizer = Optimizer(target.named_parameters(), plan.matrix_rate, plan.adam_rate,
                          {"embed": plan.embed_rate, "head": plan.head_rate, "router": plan.adam_rate})
    state_file = work / "target.pt"
    step = 0
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=False)
        target.load_state_dict(state["target"])
        optimizer.load(state["optimizer"])
        step = state["step"]
        say(f"target: going on from step {step}")
    compute = head_loss
    if compile_layers:
        for layer in target.layers:
            layer.compile(dynamic=False)
        compute = torch.compile(head_loss, dynamic=False)

    is_long = [s >= plan.long_from * plan.steps and s % plan.long_every == 0 for s in range(plan.steps)]
    longs_done = sum(is_long[:step])
    short_batches = short.batches(seed, skip=step - longs_done)
    long_batches = long.batches(seed + 1, skip=longs_done)
    journal = Journal(work, "target", ("loss_short", "loss_long", "imbalance", "rate"))
    losses: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    last = {False: 0.0, True: 0.0}
    while step < plan.steps:
        target.rounding.fill_(1.0 if step >= plan.rounding_from * plan.steps else 0.0)
        batch = next(long_batches if is_long[step] else short_batches)
        rate = schedule(step, plan.steps, plan.warmup, plan.cooldown)
        optimizer.zero_grad()
        loss, loads = language_loss(target, batch, plan.prompt_weight, compute)
        loss.backward()
        optimizer.step(rate)
        target.balance(loads, plan.balance_rate * min(1.0, 2 * rate))
        losses[is_long[step]].append(loss.detach())
        step += 1
        if step % plan.log_every == 0:
            for kind, values in losses.items():
                if values:
                    last[kind] = float(torch.stack(values).mean())
                values.clear()
            worst = max(float(load.max() / load.mean()) for load in loads)
            journal.add(step, last[False], last[True], worst, rate)
        if step % plan.save_every == 0 or step == plan.steps:
            state = {"target": target.state_dict(), "optimizer": optimizer.state(), "step": step}
            torch.save(state, state_file.with_suffix(".tmp"))
            state_file.with_suffix(".tmp").replace(state_file)
            probe(target, step)
    target.rounding.fill_(1.0)
    return target
