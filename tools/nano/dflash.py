"""The DFlash drafter: a block of one known token and masks, denoised in one pass that reads the target's states."""
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from shape import BLOCK, DRAFT_HEAD, DRAFT_ROTARY, DRAFT_VALUE_SCALE, DRAFT_WINDOW, Shape
from target import COMPUTE, Packed, Target, bf16, matrix, rms_norm, rope_angles, rotate


def project(x: Tensor, weight: Tensor) -> Tensor:
    return F.linear(x.to(COMPUTE), weight.to(COMPUTE))


class DraftLayer(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.q_heads, self.kv_heads, self.eps = shape.draft_q_heads, shape.draft_kv_heads, shape.draft_eps
        self.theta = shape.draft_theta
        self.input_norm, self.post_norm = (nn.Parameter(torch.ones(shape.hidden)) for _ in range(2))
        self.q_norm, self.k_norm = (nn.Parameter(torch.ones(DRAFT_HEAD)) for _ in range(2))
        self.q = matrix(self.q_heads * DRAFT_HEAD, shape.hidden)
        self.k = matrix(self.kv_heads * DRAFT_HEAD, shape.hidden)
        self.v = matrix(self.kv_heads * DRAFT_HEAD, shape.hidden)
        self.o = matrix(shape.hidden, self.q_heads * DRAFT_HEAD, gain=0.3)
        self.sinks = nn.Parameter(torch.zeros(self.q_heads))
        self.gate = matrix(shape.draft_intermediate, shape.hidden)
        self.up = matrix(shape.draft_intermediate, shape.hidden)
        self.down = matrix(shape.hidden, shape.draft_intermediate, gain=0.3)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x [B, N, H] -> k, v [B, N, kv_heads, 128]."""
        k = project(x, self.k).unflatten(-1, (self.kv_heads, DRAFT_HEAD))
        k = rotate(rms_norm(k, self.k_norm, self.eps), rope_angles(positions, self.theta, DRAFT_ROTARY), DRAFT_ROTARY)
        v = project(x, self.v).unflatten(-1, (self.kv_heads, DRAFT_HEAD)).float() * DRAFT_VALUE_SCALE
        return k.to(COMPUTE), v.to(COMPUTE)

    def forward(self, x: Tensor, context: Tensor, positions: Tensor, context_positions: Tensor,
                visible: Tensor) -> Tensor:
        """x [B, A*8, H] block rows, context [B, T, H], visible [B, A*8, T]."""
        batch, rows, _ = x.shape
        blocks, groups = rows // BLOCK, self.q_heads // self.kv_heads
        normed = rms_norm(x, self.input_norm, self.eps)
        q = project(normed, self.q).unflatten(-1, (self.q_heads, DRAFT_HEAD))
        q = rotate(rms_norm(q, self.q_norm, self.eps), rope_angles(positions, self.theta, DRAFT_ROTARY), DRAFT_ROTARY)
        q = q.to(COMPUTE).view(batch, rows, self.kv_heads, groups, DRAFT_HEAD)
        k_block, v_block = self.keys_values(normed, positions)
        k_context, v_context = self.keys_values(context, context_positions)
        scale = DRAFT_HEAD**-0.5
        q = q.permute(0, 2, 3, 1, 4)  # [B, kv, g, rows, d]
        far = torch.matmul(q.flatten(2, 3), k_context.permute(0, 2, 3, 1)).float() * scale
        far = far.view(batch, self.kv_heads, groups, rows, -1).masked_fill(~visible[:, None, None], float("-inf"))
        q_block = q.reshape(batch, self.kv_heads, groups, blocks, BLOCK, DRAFT_HEAD)
        k_block = k_block.view(batch, blocks, BLOCK, self.kv_heads, DRAFT_HEAD).permute(0, 3, 1, 4, 2)
        near = torch.matmul(q_block, k_block[:, :, None]).float() * scale  # [B, kv, g, blocks, 8, 8]
        sink = bf16(self.sinks).view(1, self.kv_heads, groups, 1, 1).expand(batch, -1, -1, rows, 1)
        scores = torch.cat((far, near.reshape(batch, self.kv_heads, groups, rows, BLOCK), sink), -1)
        weights = torch.softmax(scores, -1).to(COMPUTE)
        length = far.shape[-1]
        out = torch.matmul(weights[..., :length].flatten(2, 3), v_context.permute(0, 2, 1, 3))
        out = out.view(batch, self.kv_heads, groups, rows, DRAFT_HEAD)
        v_block = v_block.view(batch, blocks, BLOCK, self.kv_heads, DRAFT_HEAD).permute(0, 3, 1, 2, 4)
        inside = weights[..., length : length + BLOCK].view(batch, self.kv_heads, groups, blocks, BLOCK, BLOCK)
        out = out + torch.matmul(inside, v_block[:, :, None]).reshape(out.shape)
        attended = out.permute(0, 3, 1, 2, 4).reshape(batch, rows, -1)
        x = x + project(attended, self.o).float()
        normed = rms_norm(x, self.post_norm, self.eps)
        inner = F.silu(project(normed, self.gate).float()) * project(normed, self.up).float()
        return x + project(inner, self.down).float()


class Dflash(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.fc = matrix(shape.hidden, len(shape.taps) * shape.hidden)
        self.hidden_norm, self.norm = (nn.Parameter(torch.ones(shape.hidden)) for _ in range(2))
        self.mask = nn.Parameter(torch.randn(shape.hidden))
        self.layers = nn.ModuleList(DraftLayer(shape) for _ in range(shape.draft_layers))

    def forward(self, target: Target, tokens: Tensor, taps: Tensor, packed: Packed, anchors: Tensor) -> Tensor:
        """tokens [B, T], taps [B, T, n*H], anchors [B, A] row indices -> states [B, A, 8, H] for the output head."""
        batch, count = anchors.shape
        context = rms_norm(project(taps, self.fc), self.hidden_norm, self.shape.draft_eps)
        index = anchors.long()
        positions = (packed.positions.gather(1, index)[..., None]
                     + torch.arange(BLOCK, device=tokens.device)).flatten(1)  # [B, A*8]
        anchor_token = tokens.gather(1, index).long()
        first = F.embedding(anchor_token, target.embed).to(torch.bfloat16).float()[:, :, None]
        rest = bf16(self.mask).expand(batch, count, BLOCK - 1, -1)
        x = torch.cat((first, rest), 2).flatten(1, 2)
        column = torch.arange(tokens.shape[1], device=tokens.device)
        same = packed.doc.gather(1, index)[..., None] == packed.doc[:, None]  # [B, A, T]
        before = same & (column < anchors[..., None])
        reach = packed.positions[:, None] >= positions[..., None] - (DRAFT_WINDOW - 1)
        visible = before.repeat_interleave(BLOCK, 1) & reach
        for layer in self.layers:
            x = layer(x, context, positions, packed.positions, visible)
        return rms_norm(x, self.norm, self.shape.draft_eps).view(batch, count, BLOCK, -1)


def block_labels(tokens: Tensor, doc: Tensor, supervised: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [B, A, 8] at the rows of each block, and which of them count: answers of the anchor's document."""
    index = anchors.long()[..., None] + torch.arange(BLOCK, device=tokens.device)
    inside = index < tokens.shape[1]
    flat = index.clamp(max=tokens.shape[1] - 1).flatten(1)
    shape = index.shape
    labels = tokens.gather(1, flat).view(shape)
    same = doc.gather(1, flat).view(shape) == doc.gather(1, anchors.long())[..., None]
    answer = supervised.gather(1, flat).view(shape)
    return labels, inside & same & answer


def draft_loss(target: Target, states: Tensor, labels: Tensor, valid: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """Loss with weights falling along the block, and the mean accept length of these blocks (bonus included)."""
    logits = target.logits(states[:, :, 1:])
    weights = torch.exp(-torch.arange(BLOCK - 1, device=states.device) / gamma) * valid[:, :, 1:]
    loss = F.cross_entropy(logits.float().flatten(0, -2), labels[:, :, 1:].long().flatten(), reduction="none")
    loss = (loss * weights.flatten()).sum() / weights.sum().clamp(min=1e-6)
    whole = valid.all(-1)  # blocks cut by the end of the document would be counted short
    right = (logits.argmax(-1) == labels[:, :, 1:]) & valid[:, :, 1:]
    accepted = right.long().cumprod(-1).sum(-1)
    return loss, 1 + (accepted * whole).sum() / whole.sum().clamp(min=1)
