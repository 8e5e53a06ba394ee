"""Reads the packed shards that data/make_shards.py writes, in order, while it is still writing later ones."""
from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Iterator, NamedTuple

import numpy as np
import torch
from torch import Tensor

from shape import Shape
from target import Packed, pack_rows


GAP_LIMIT = 36000  # below the model's context of 40,960


class Batch(NamedTuple):
    tokens: Tensor  # [B, T] int32
    supervised: Tensor  # [B, T] bool
    packed: Packed


def positions_of(doc: np.ndarray) -> np.ndarray:
    """[B, T] position of each token in its document."""
    index = np.arange(doc.shape[1], dtype=np.int32)
    starts = np.ones(doc.shape, bool)
    starts[:, 1:] = doc[:, 1:] != doc[:, :-1]
    first = np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return np.where(doc > 0, index - first, 0).astype(np.int32)


def with_gaps(positions: np.ndarray, doc: np.ndarray, limit: int, rng: np.random.Generator) -> np.ndarray:
    """Positions of long rows with a jump somewhere in half of their first documents, so that the full layers meet
    distances beyond the row's length. No position reaches `limit`."""
    positions = positions.copy()
    for row in range(len(positions)):
        length = int((doc[row] == 1).sum())
        if length < 1024 or rng.random() < 0.5:
            continue
        at = int(rng.integers(256, length - 256))
        positions[row, at:length] += int(rng.integers(0, limit - length))
    return positions


def to_batch(tokens: np.ndarray, flags: np.ndarray, doc: np.ndarray, shape: Shape, device: torch.device,
             single: bool, rng: np.random.Generator | None = None) -> Batch:
    """`single` marks long rows; with `rng` they get gaps."""
    def send(array: np.ndarray) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor

    positions = positions_of(doc)
    if rng is not None:
        positions = with_gaps(positions, doc, GAP_LIMIT, rng)
    packed = pack_rows(send(positions), send(doc.astype(np.int16)), single, shape)
    return Batch(send(tokens.astype(np.int32)), send((flags & 1).astype(bool)), packed)


def shard_order(unique: int, repeats: int, seed: int) -> Iterator[int]:
    """Endless shard numbers. Each new shard is followed by `repeats` earlier ones, so that training can start, and
    stay ahead, while the shards are still being written; once all are known the order is random."""
    rng = np.random.default_rng(seed)
    for index in range(unique):
        yield index
        yield from (int(i) for i in rng.integers(0, index + 1, repeats))
    while True:
        yield from (int(i) for i in rng.permutation(unique))


class Shards(NamedTuple):
    """Endless batches of `rows` rows of one kind of shard."""

    folder: Path
    kind: str
    unique: int
    repeats: int  # see shard_order
    rows: int
    shape: Shape
    device: torch.device
    timeout: float = 300.0  # seconds to wait for a shard

    def load(self, visit: int, index: int) -> dict[str, np.ndarray]:
        path = self.folder / f"{self.kind}-{index:05d}.npz"
        deadline = time.monotonic() + self.timeout
        while not path.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} was not written within {self.timeout:.0f} s")
            time.sleep(0.2)
        with np.load(path) as file:
            arrays = {name: file[name] for name in ("tokens", "flags", "doc")}
        order = np.random.default_rng(visit).permutation(len(arrays["tokens"]))  # other neighbours at every visit
        return {name: array[order] for name, array in arrays.items()}

    def batches(self, seed: int, skip: int = 0) -> Iterator[Batch]:
        """The first `skip` batches are left out, to go on after a restart."""
        order = enumerate(shard_order(self.unique, self.repeats, seed))
        gaps = np.random.default_rng((seed, skip)) if self.kind == "long" else None
        with ThreadPoolExecutor(1) as reader:
            ahead = reader.submit(self.load, *next(order))
            while True:
                arrays = ahead.result()
                ahead = reader.submit(self.load, *next(order))
                for begin in range(0, len(arrays["tokens"]) - self.rows + 1, self.rows):
                    if skip > 0:
                        skip -= 1
                        continue
                    part = slice(begin, begin + self.rows)
                    yield to_batch(arrays["tokens"][part], arrays["flags"][part], arrays["doc"][part], self.shape,
                                   self.device, self.kind == "long", gaps)
