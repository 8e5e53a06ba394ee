"""Multi-token-prediction heads: head k reads the target's final state of a position and the token k + 1 further on,
and predicts the token k + 2 further on."""
from __future__ import annotations

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor

from shape import Shape
from target import COMPUTE, Amount, Attention, DenseMlp, Packed, Target, matrix, rms_norm, weighted_loss


class MtpHead(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.eps = shape.eps
        self.embed_norm, self.hidden_norm, self.input_norm, self.pre_mlp_norm, self.final_norm = (
            nn.Parameter(torch.ones(shape.hidden)) for _ in range(5))
        self.eh_proj = matrix(shape.hidden, 2 * shape.hidden)
        self.attention = Attention(shape, 1)
        self.mlp = DenseMlp(shape.hidden, shape.intermediate)

    def forward(self, embedded: Tensor, hidden: Tensor, packed: Packed, amount: Amount) -> Tensor:
        """embedded, hidden [B, T, H] -> the normed state that the target's output head reads."""
        joined = torch.cat((rms_norm(embedded, self.embed_norm, self.eps),
                            rms_norm(hidden, self.hidden_norm, self.eps)), -1)
        x = F.linear(joined.to(COMPUTE), self.eh_proj.to(COMPUTE)).float()
        x = x + self.attention(rms_norm(x, self.input_norm, self.eps), packed, amount)
        x = x + self.mlp(rms_norm(x, self.pre_mlp_norm, self.eps), amount)
        return rms_norm(x, self.final_norm, self.eps)


class Mtp(nn.Module):
    def __init__(self, shape: Shape):
        super().__init__()
        self.heads = nn.ModuleList(MtpHead(shape) for _ in range(shape.mtp_heads))
        self.register_buffer("rounding", torch.ones(()))

    def loss(self, target: Target, tokens: Tensor, hidden: Tensor, packed: Packed,
             supervised: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Mean loss over heads, and the share of supervised tokens that each head gets right."""
        total, right = torch.zeros((), device=tokens.device), []
        for depth, head in enumerate(self.heads):
            shift, ahead = depth + 1, depth + 2
            inputs = torch.roll(tokens, -shift, 1)
            embedded = F.embedding(inputs.long(), target.embed).to(torch.bfloat16).float()
            out = head(embedded, hidden, packed, self.rounding)
            labels = torch.roll(tokens, -ahead, 1)
            inside = (torch.roll(packed.doc, -ahead, 1) == packed.doc) & (packed.doc > 0)
            inside[:, -ahead:] = False
            # As in use: only answers are drafted, and the first head starts when one token of it is known.
            weights = (torch.roll(supervised, -ahead, 1) & inside).float()
            logits = target.logits(out)
            total = total + weighted_loss(logits, labels, weights)
            right.append(((logits.argmax(-1) == labels).float() * weights).sum() / weights.sum().clamp(min=1))
        return total / len(self.heads), right
