"""MiMo-Nano in PyTorch, for training: the forward pass of the family over packed rows.

Written for speed on one GPU with plain operations: all experts run on every token (two matrix products) and are
weighted by the router, window layers attend in chunks of one window. tests compare it with transformers' own
implementation on the exported checkpoint.
"""
from __future__ import annotations

import math
from typing import Callable, NamedTuple, Optional

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

import formats
from shape import HEAD_QK, HEAD_V, ROTARY, VALUE_SCALE, VOCAB, WINDOW, Shape

COMPUTE = torch.bfloat16
Amount = Optional[Tensor]  # how far weights are moved to their stored values: 0 to 1; None: they are stored values


class Packed(NamedTuple):
    """Where each token of a packed row stands. Row length is a multiple of the window."""

    positions: Tensor  # [B, T] int32, from 0 in every document
    doc: Tensor  # [B, T] int16, 0: padding
    single: bool  # rows are treated as one document by full layers (long rows)
    full_angles: tuple[Tensor, Tensor]  # of full layers, see rope_angles
    window_angles: tuple[Tensor, Tensor]

    def rows(self, part: slice) -> Packed:
        return Packed(self.positions[part], self.doc[part], self.single,
                      (self.full_angles[0][part], self.full_angles[1][part]),
                      (self.window_angles[0][part], self.window_angles[1][part]))


def pack_rows(positions: Tensor, doc: Tensor, single: bool, shape: Shape) -> Packed:
    return Packed(positions, doc, single, rope_angles(positions, shape.full_theta, ROTARY),
                  rope_angles(positions, shape.window_theta, ROTARY))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * bf16(weight)


def bf16(weight: Tensor) -> Tensor:
    """A parameter as it is stored (BF16), in fp32."""
    return weight.to(torch.bfloat16).float()


def rope_angles(positions: Tensor, theta: float, dims: int) -> tuple[Tensor, Tensor]:
    """cos and sin [B, T, 1, dims/2]."""
    steps = torch.arange(0, dims, 2, device=positions.device, dtype=torch.float32) / dims
    angle = positions.float()[..., None, None] * theta**-steps
    return angle.cos(), angle.sin()


def rotate(x: Tensor, angles: tuple[Tensor, Tensor], dims: int) -> Tensor:
    """Half-split rotation of the leading `dims` of each head; x [B, T, heads, dim]."""
    cos, sin = angles
    x = x.float()
    a, b, rest = x[..., : dims // 2], x[..., dims // 2 : dims], x[..., dims:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def window_attention(q: Tensor, k: Tensor, v: Tensor, packed: Packed, sinks: Tensor) -> Tensor:
    """q [B, T, Hq, 192], k [B, T, Hkv, 192], v [B, T, Hkv, 128]; 128 keys, the query's own included."""
    batch, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    chunks = length // WINDOW
    position = packed.positions.view(batch, chunks, WINDOW)
    doc = packed.doc.view(batch, chunks, WINDOW)

    def with_previous(x: Tensor) -> Tensor:
        previous = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), 1)
        return torch.cat((previous, x), 2)

    key_position, key_doc = with_previous(position), with_previous(doc)
    distance = position[:, :, :, None] - key_position[:, :, None, :]
    visible = (distance >= 0) & (distance < WINDOW) & (doc[:, :, :, None] == key_doc[:, :, None, :])
    # Padding tokens are a document of their own (0), so every row sees at least itself.
    visible = visible & ((torch.arange(chunks, device=q.device)[None, :, None, None] > 0)
                         | (torch.arange(2 * WINDOW, device=q.device) >= WINDOW))
    q = q.reshape(batch, chunks, WINDOW, kv_heads, heads // kv_heads, HEAD_QK).permute(0, 1, 3, 4, 2, 5)
    k = with_previous(k.reshape(batch, chunks, WINDOW, kv_heads, HEAD_QK)).permute(0, 1, 3, 4, 2)
    v = with_previous(v.reshape(batch, chunks, WINDOW, kv_heads, HEAD_V)).permute(0, 1, 3, 2, 4)
    scores = torch.matmul(q.flatten(3, 4), k).float() * HEAD_QK**-0.5
    scores = scores.view(batch, chunks, kv_heads, heads // kv_heads, WINDOW, 2 * WINDOW)
    scores = scores.masked_fill(~visible[:, :, None, None], float("-inf"))
    sink = bf16(sinks).view(1, 1, kv_heads, heads // kv_heads, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat((scores, sink), -1), -1)[..., :-1].to(v.dtype)
    out = torch.matmul(weights.flatten(3, 4), v).view(batch, chunks, kv_heads, heads // kv_heads, WINDOW, HEAD_V)
    return out.permute(0, 1, 4, 2, 3, 5).reshape(batch, length, heads * HEAD_V)


def full_attention(q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
    batch, length, heads, _ = q.shape
    groups = heads // k.shape[2]
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(groups, 1) for x in (k, v))
    if packed.single:  # one value width for the fused kernel
        out = F.scaled_dot_product_attention(q, k, F.pad(v, (0, HEAD_QK - HEAD_V)), is_causal=True)[..., :HEAD_V]
    else:
        same = packed.doc[:, None, :, None] == packed.doc[:, None, None, :]
        causal = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=same & causal)
    return out.transpose(1, 2).reshape(batch, length, heads * HEAD_V)


def stored(value: Tensor, rounding: Callable[[Tensor], Tensor], amount: Amount) -> Tensor:
    """A weight or activation as the products see it. Without an amount it is used as it is."""
    if amount is not None:
        value = formats.straight_through(value, rounding(value), amount)
    return value.to(COMPUTE)


def matrix(*size: int, gain: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.randn(*size) * (gain / math.sqrt(size[-1])))


class Attention(nn.Module):
    """Fused QKV rows [Q | K | V] in FP8, output projection in BF16."""

    def __init__(self, shape: Shape, kind: int):
        super().__init__()
        self.kind, self.q_heads, self.kv_heads = kind, shape.q_heads, shape.kv_heads(kind)
        rows = self.q_heads * HEAD_QK + self.kv_heads * (HEAD_QK + HEAD_V)
        self.qkv = matrix(rows, shape.hidden)
        self.o_proj = matrix(shape.hidden, self.q_heads * HEAD_V, gain=0.3)
        if kind:
            self.sinks = nn.Parameter(torch.zeros(self.q_heads))

    def project(self, x: Tensor, angles: tuple[Tensor, Tensor], amount: Amount) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, H] normed -> q, k rotated and v scaled, in the compute type."""
        weight = stored(self.qkv, formats.fp8_rounded, amount)
        q, k, v = F.linear(x.to(COMPUTE), weight).split(
            (self.q_heads * HEAD_QK, self.kv_heads * HEAD_QK, self.kv_heads * HEAD_V), -1)
        q = rotate(q.unflatten(-1, (self.q_heads, HEAD_QK)), angles, ROTARY).to(COMPUTE)
        k = rotate(k.unflatten(-1, (self.kv_heads, HEAD_QK)), angles, ROTARY).to(COMPUTE)
        v = (v.unflatten(-1, (self.kv_heads, HEAD_V)).float() * VALUE_SCALE).to(COMPUTE)
        return q, k, v

    def output(self, attended: Tensor) -> Tensor:
        return F.linear(attended, self.o_proj.to(COMPUTE)).float()

    def forward(self, x: Tensor, packed: Packed, amount: Amount) -> Tensor:
        q, k, v = self.project(x, packed.window_angles if self.kind else packed.full_angles, amount)
        if self.kind:
            return self.output(window_attention(q, k, v, packed, self.sinks))
        return self.output(full_attention(q, k, v, packed))


class DenseMlp(nn.Module):
    """Gated MLP in FP8."""

    def __init__(self, hidden: int, intermediate: int):
        super().__init__()
        self.gate, self.up = matrix(intermediate, hidden), matrix(intermediate, hidden)
        self.down = matrix(hidden, intermediate, gain=0.3)

    def forward(self, x: Tensor, amount: Amount) -> Tensor:
        gate, up, down = (stored(w, formats.fp8_rounded, amount) for w in (self.gate, self.up, self.down))
        x = x.to(COMPUTE)
        inner = F.silu(F.linear(x, gate).float()) * F.linear(x, up).float()
        return F.linear(inner.to(COMPUTE), down).float()


class Experts(nn.Module):
    """Mixture of MXFP4 experts: sigmoid scores, the correction bias joins the choice and not the weight."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.top_k = shape.top_k
        self.router = matrix(shape.experts, shape.hidden)
        self.gate = matrix(shape.experts, shape.expert_intermediate, shape.hidden)
        self.up = matrix(shape.experts, shape.expert_intermediate, shape.hidden)
        self.down = matrix(shape.experts, shape.hidden, shape.expert_intermediate, gain=0.3)
        self.register_buffer("bias", torch.zeros(shape.experts))

    def route(self, x: Tensor) -> Tensor:
        """x [B, T, H] -> weights [B, T, experts], 0 where not chosen."""
        scores = torch.sigmoid(F.linear(x.float(), bf16(self.router)))
        chosen = torch.topk(scores.detach() + self.bias, self.top_k, -1).indices
        mask = torch.zeros_like(scores).scatter(-1, chosen, 1.0)
        weights = scores * mask
        return weights / (weights.sum(-1, keepdim=True) + 1e-20)

    def forward(self, x: Tensor, amount: Amount) -> tuple[Tensor, Tensor]:
        weights = self.route(x)
        gate, up, down = (stored(w, formats.mxfp4_rounded, amount) for w in (self.gate, self.up, self.down))
        x = stored(x, formats.fp8_activations, amount)
        inner = F.silu(F.linear(x, gate.flatten(0, 1)).float()) * F.linear(x, up.flatten(0, 1)).float()
        inner = inner.unflatten(-1, gate.shape[:2]) * weights[..., None]
        out = F.linear(inner.flatten(-2).to(COMPUTE), down.transpose(0, 1).flatten(1))
        return out.float(), weights


class Layer(nn.Module):
    def __init__(self, shape: Shape, index: int):
        super().__init__()
        self.eps = shape.eps
        self.input_norm = nn.Parameter(torch.ones(shape.hidden))
        self.post_norm = nn.Parameter(torch.ones(shape.hidden))
        self.attention = Attention(shape, shape.pattern[index])
        self.mlp = DenseMlp(shape.hidden, shape.intermediate) if index == 0 else Experts(shape)

    def forward(self, x: Tensor, packed: Packed, amount: Amount) -> tuple[Tensor, Tensor | None]:
        x = x + self.attention(rms_norm(x, self.input_norm, self.eps), packed, amount)
        return self.feed(x, amount)

    def feed(self, x: Tensor, amount: Amount) -> tuple[Tensor, Tensor | None]:
        normed = rms_norm(x, self.post_norm, self.eps)
        if isinstance(self.mlp, DenseMlp):
            return x + self.mlp(normed, amount), None
        out, weights = self.mlp(normed, amount)
        return x + out, (weights > 0).float().sum((0, 1))


class Target(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embed = nn.Parameter(torch.randn(VOCAB, shape.hidden))
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(len(shape.pattern)))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.head = nn.Parameter(torch.zeros(VOCAB, shape.hidden))
        self.rounding: Amount
        self.register_buffer("rounding", torch.zeros(()))

    def hidden(self, tokens: Tensor, packed: Packed) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The state after the final norm [B, T, H] fp32, the tapped states, and the load of every MoE layer."""
        x = F.embedding(tokens.long(), self.embed).to(torch.bfloat16).float()
        taps, loads = [], []
        for index, layer in enumerate(self.layers):
            x, load = layer(x, packed, self.rounding)
            if index in self.shape.taps:
                taps.append(x)
            if load is not None:
                loads.append(load)
        return rms_norm(x, self.norm, self.shape.eps), taps, loads

    def logits(self, normed: Tensor) -> Tensor:
        return F.linear(normed.to(COMPUTE), self.head.to(COMPUTE))

    @torch.no_grad()
    def balance(self, loads: list[Tensor], rate: float) -> None:
        """Moves the correction bias of each router towards equal loads."""
        moe = [layer.mlp for layer in self.layers if isinstance(layer.mlp, Experts)]
        for experts, load in zip(moe, loads, strict=True):
            experts.bias += rate * torch.sign(load.mean() - load)


def weighted_loss(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    loss = F.cross_entropy(logits.float().flatten(0, -2), labels.long().flatten(), reduction="none")
    weights = weights.flatten()
    return (loss * weights).sum() / weights.sum().clamp(min=1.0)
