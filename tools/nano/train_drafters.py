"""Trains the DFlash drafter and the MTP heads together on the target's own answers; the target is frozen."""
from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, NamedTuple

import numpy as np
import torch
from torch import Tensor

from batches import Batch, Shards, to_batch
from dflash import Dflash, block_labels, draft_loss
from journal import Journal, say
from mtp import Mtp
from optimizer import Optimizer, schedule
from shape import Shape
from target import Packed, Target, pack_rows


@dataclass(frozen=True)
class DrafterPlan:
    steps: int
    rows: int = 62  # of the target's answers, in a step
    long_rows: int = 2  # ends of long documents, in a step
    anchors: int = 64  # blocks of a row, drawn anew at every step
    mtp_rows: int = 32  # rows of the batch that the MTP heads see
    gamma: float = 7.0  # the loss weight falls as exp(-i / gamma) along the block
    warmup: int = 100
    cooldown: float = 0.6
    matrix_rate: float = 0.02
    adam_rate: float = 0.003
    save_every: int = 1000
    log_every: int = 50


def row_batches(rows: dict[str, np.ndarray], count: int, seed: int, shape: Shape, device: torch.device,
                skip: int) -> Iterator[Batch]:
    """Endless batches in a new random order at every pass."""
    total = len(rows["tokens"])
    if total < count:
        raise ValueError(f"{total} rows of answers, at least one batch of {count} is needed")
    epoch = 0
    while True:
        order = np.random.default_rng((seed, epoch)).permutation(total)
        epoch += 1
        for begin in range(0, total - count + 1, count):
            if skip > 0:
                skip -= 1
                continue
            index = np.sort(order[begin : begin + count])
            yield to_batch(rows["tokens"][index], rows["flags"][index], rows["doc"][index], shape, device, False)


class Features(NamedTuple):
    """What the drafters read of rows of 1024 tokens, and the target's states there."""

    tokens: Tensor  # [B, T]
    supervised: Tensor  # [B, T]
    packed: Packed
    hidden: Tensor  # [B, T, H]
    taps: Tensor  # [B, T, n*H]


@torch.no_grad()
def features(target: Target, batch: Batch) -> Features:
    hidden, taps, _ = target.hidden(batch.tokens, batch.packed)
    return Features(batch.tokens, batch.supervised, batch.packed, hidden, torch.cat(taps, -1))


def crop(source: Features, shape: Shape, length: int) -> Features:
    """The `length` tokens that end each row's first document: all that a drafter's window holds of it."""
    ends = (source.packed.doc == 1).sum(1).clamp(min=length)
    columns = ends[:, None] - length + torch.arange(length, device=ends.device)

    def take(x: Tensor) -> Tensor:
        index = columns if x.ndim == 2 else columns[..., None].expand(-1, -1, x.shape[-1])
        return x.gather(1, index)

    packed = pack_rows(take(source.packed.positions), take(source.packed.doc), False, shape)
    return Features(take(source.tokens), take(source.supervised), packed, take(source.hidden), take(source.taps))


def join(a: Features, b: Features, shape: Shape) -> Features:
    def both(x: Tensor, y: Tensor) -> Tensor:
        return torch.cat((x, y))

    packed = pack_rows(both(a.packed.positions, b.packed.positions), both(a.packed.doc, b.packed.doc), False, shape)
    return Features(both(a.tokens, b.tokens), both(a.supervised, b.supervised), packed, both(a.hidden, b.hidden),
                    both(a.taps, b.taps))


def draw_anchors(supervised: Tensor, doc: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """[B, count] random columns whose token and next token are answers; columns of other tokens where a row has
    too few (their labels do not count)."""
    following = torch.roll(supervised, -1, 1) & (torch.roll(doc, -1, 1) == doc)
    following[:, -1] = False
    score = torch.rand(supervised.shape, generator=generator, device=supervised.device)
    score = score + (supervised & following).float()
    return torch.topk(score, count, 1).indices.sort(1).values


def train_drafters(target: Target, shape: Shape, plan: DrafterPlan, rows: dict[str, np.ndarray], long: Shards,
                   work: Path, device: torch.device, seed: int, compile_layers: bool) -> tuple[Dflash, Mtp]:
    """`rows` are packed answers of the target; documents of `long` teach the drafters to work at far positions (their
    answers are copies of a value, which the target gives as written)."""
    torch.manual_seed(seed)
    drafter, mtp = Dflash(shape).to(device), Mtp(shape).to(device)
    with torch.no_grad():
        drafter.mask.copy_(target.embed.mean(0) + 0.02 * torch.randn_like(drafter.mask))
    target.requires_grad_(False)
    named = [(f"dflash.{n}", p) for n, p in drafter.named_parameters()]
    named += [(f"mtp.{n}", p) for n, p in mtp.named_parameters()]
    optimizer = Optimizer(named, plan.matrix_rate, plan.adam_rate, {})
    state_file = work / "drafters.pt"
    step = 0
    if state_file.exists():
        state = torch.load(state_file, map_location=device, weights_only=False)
        drafter.load_state_dict(state["dflash"])
        mtp.load_state_dict(state["mtp"])
        optimizer.load(state["optimizer"])
        step = state["step"]
        say(f"drafters: going on from step {step}")
    if compile_layers:
        for layer in [*target.layers, *drafter.layers, *mtp.heads]:
            layer.compile(dynamic=False)
    generator = torch.Generator(device).manual_seed(seed + step)
    batches = row_batches(rows, plan.rows, seed, shape, device, step)
    long_batches = long._replace(rows=plan.long_rows).batches(seed + 2, skip=step)
    journal = Journal(work, "drafters", ("loss_dflash", "accept", "loss_mtp", "mtp1", "mtp2", "mtp3", "rate"))
    history: list[Tensor] = []
    while step < plan.steps:
        rate = schedule(step, plan.steps, plan.warmup, plan.cooldown)
        near, far = features(target, next(batches)), features(target, next(long_batches))
        batch = join(crop(far, shape, near.tokens.shape[1]), near, shape)
        anchors = draw_anchors(batch.supervised, batch.packed.doc, plan.anchors, generator)
        labels, valid = block_labels(batch.tokens, batch.packed.doc, batch.supervised, anchors)
        valid = valid & batch.supervised.gather(1, anchors)[..., None]
        optimizer.zero_grad()
        states = drafter(target, batch.tokens, batch.taps, batch.packed, anchors)
        loss, accept = draft_loss(target, states, labels, valid, plan.gamma)
        loss.backward()
        part = slice(0, plan.mtp_rows)
        mtp_loss, right = mtp.loss(target, batch.tokens[part], batch.hidden[part], batch.packed.rows(part),
                                   batch.supervised[part])
        mtp_loss.backward()
        optimizer.step(rate)
        shown = [right[min(i, len(right) - 1)].detach() for i in range(3)]
        history.append(torch.stack([loss.detach(), accept.detach(), mtp_loss.detach(), *shown]))
        step += 1
        if step % plan.log_every == 0:
            journal.add(step, *torch.stack(history).mean(0).tolist(), rate)
            history.clear()
        if step % plan.save_every == 0 or step == plan.steps:
            state = {"dflash": drafter.state_dict(), "mtp": mtp.state_dict(), "optimizer": optimizer.state(),
                     "step": step}
            torch.save(state, state_file.with_suffix(".tmp"))
            state_file.with_suffix(".tmp").replace(state_file)
    return drafter, mtp
