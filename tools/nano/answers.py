"""Greedy answers of the target itself, many prompts at a time: what its drafters learn from, and its scores."""
from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import formats
from shape import AUDIO_END, END_OF_TEXT, HEAD_QK, HEAD_V, ROTARY, TURN_END, WINDOW
from target import COMPUTE, Attention, Layer, Target, bf16, rms_norm, rope_angles

STOPS = (END_OF_TEXT, TURN_END, AUDIO_END)
ENOUGH = 0.998  # share of a batch that has ended before the rest is cut
# Of a forward pass over prompts: bounds what the experts hold in fp32.
MOST_ROWS = 1 << 20
TOKENS = 4064  # ids of the tokenizer; the rest of the head is padding


class Cache:
    """Keys and values of one layer, [B, heads, T, dim]; prompts are padded on the left, so all rows share columns."""

    def __init__(self, layer: Attention, batch: int, length: int, device: torch.device):
        self.k = torch.zeros(batch, layer.kv_heads, length, HEAD_QK, dtype=COMPUTE, device=device)
        self.v = torch.zeros(batch, layer.kv_heads, length, HEAD_V, dtype=COMPUTE, device=device)


def attend(layer: Attention, q: Tensor, cache: Cache, begin: int, end: int, starts: Tensor) -> Tensor:
    """q [B, n, heads, 192] at columns begin..end; row b's sequence starts at column starts[b]."""
    low = max(0, begin - WINDOW + 1) if layer.kind else 0
    k, v = cache.k[:, :, low:end], cache.v[:, :, low:end]
    batch, rows, heads, _ = q.shape
    q = q.view(batch, rows, layer.kv_heads, heads // layer.kv_heads, HEAD_QK).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(q.flatten(2, 3), k.transpose(2, 3)).float() * HEAD_QK**-0.5
    scores = scores.view(batch, layer.kv_heads, -1, rows, end - low)
    query = torch.arange(begin, end, device=q.device)[:, None]
    key = torch.arange(low, end, device=q.device)
    visible = (key <= query) & (key[None, None] >= starts[:, None, None])
    if layer.kind:
        visible = visible & (query - key < WINDOW)
    visible = visible | (key == query)  # padding rows see themselves, so that they stay finite
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    if layer.kind:
        sink = bf16(layer.sinks).view(1, layer.kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    out = torch.matmul(weights.to(COMPUTE).flatten(2, 3), v).view(batch, layer.kv_heads, -1, rows, HEAD_V)
    return out.permute(0, 3, 1, 2, 4).reshape(batch, rows, heads * HEAD_V)


def layer_step(layer: Layer, x: Tensor, cache: Cache, begin: int, starts: Tensor,
               angles: tuple[Tensor, Tensor]) -> Tensor:
    end = begin + x.shape[1]
    q, k, v = layer.attention.project(rms_norm(x, layer.input_norm, layer.eps), angles, None)
    cache.k[:, :, begin:end], cache.v[:, :, begin:end] = k.transpose(1, 2), v.transpose(1, 2)
    x = x + layer.attention.output(attend(layer.attention, q, cache, begin, end, starts))
    return layer.feed(x, None)[0]


@torch.no_grad()
def rounded(target: Target) -> Target:
    """A copy whose weights are the stored values, so that no step rounds again."""
    result = copy.deepcopy(target)
    for layer in result.layers:
        layer.attention.qkv.copy_(formats.fp8_rounded(layer.attention.qkv))
        for name in ("gate", "up", "down"):
            weight = getattr(layer.mlp, name)
            weight.copy_(formats.mxfp4_rounded(weight) if weight.ndim == 3 else formats.fp8_rounded(weight))
    result.rounding = None
    return result


@torch.no_grad()
def answer(target: Target, prompts: list[np.ndarray], max_tokens: int) -> list[np.ndarray]:
    """Greedy continuations, ended by a stop token, max_tokens, or the end of nearly all others. `target` comes from
    rounded()."""
    device = target.embed.device
    batch, longest = len(prompts), max(len(p) for p in prompts)
    tokens = np.full((batch, longest), END_OF_TEXT, np.int64)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt):] = prompt
    starts = torch.tensor([longest - len(p) for p in prompts], device=device)
    caches = [Cache(layer.attention, batch, longest + max_tokens, device) for layer in target.layers]
    stops = torch.tensor(STOPS, device=device)

    def run(ids: Tensor, begin: int) -> Tensor:
        x = F.embedding(ids, target.embed).to(torch.bfloat16).float()
        positions = (torch.arange(begin, begin + ids.shape[1], device=device) - starts[:, None]).clamp(min=0)
        angles = [rope_angles(positions, theta, ROTARY) for theta in (target.shape.full_theta,
                                                                     target.shape.window_theta)]
        for layer, cache in zip(target.layers, caches, strict=True):
            x = layer_step(layer, x, cache, begin, starts, angles[layer.attention.kind])
        return target.logits(rms_norm(x[:, -1:], target.norm, target.shape.eps))[:, 0, :TOKENS].argmax(-1)

    prompt = torch.from_numpy(tokens).to(device)
    width = max(1, min(256, MOST_ROWS // batch))  # a batch of many short prompts is as wide as one of few long ones
    for begin in range(0, longest, width):
        following = run(prompt[:, begin : begin + width], begin)
    out = torch.full((batch, max_tokens), END_OF_TEXT, dtype=torch.int64, device=device)
    done = torch.zeros(batch, dtype=torch.bool, device=device)
    lengths = torch.full((batch,), max_tokens, device=device)
    for step in range(max_tokens):
        out[:, step] = following
        stopped = torch.isin(following, stops) & ~done
        lengths[stopped] = step + 1
        done |= stopped
        if step + 1 == max_tokens:
            break
        if step % 16 == 15 and int(done.sum()) >= ENOUGH * batch:
            lengths[~done] = step + 1
            break
        following = run(following[:, None], longest + step)
    out_host, lengths_host = out.cpu().numpy(), lengths.cpu().numpy()
    return [out_host[row, : lengths_host[row]] for row in range(batch)]

