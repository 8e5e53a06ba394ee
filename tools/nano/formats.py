"""The stored number formats: exact codes for the checkpoint, and the same rounding inside the training loop.

The training loop multiplies with `stored(...)`, so what it optimises is the model that ships; gradients pass the
rounding unchanged (straight through).
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

FP8_MAX = 448.0
BLOCK = 128  # FP8 weights: one scale per 128 x 128
GROUP = 32  # MXFP4: one power-of-two scale per 32 of a row


def fp8_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [rows, cols] -> E4M3 [rows, cols] and fp32 scales [ceil(rows/128), ceil(cols/128)] that multiply."""
    rows, cols = weight.shape
    padded = F.pad(weight.float(), (0, -cols % BLOCK, 0, -rows % BLOCK))
    tiles = padded.view(padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK)
    scale = tiles.abs().amax(dim=(1, 3)).clamp(min=1e-12) / FP8_MAX
    codes = (tiles / scale[:, None, :, None]).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
    return codes.view(padded.shape)[:rows, :cols].contiguous(), scale


def fp8_rounded(weight: Tensor) -> Tensor:
    codes, scale = fp8_codes(weight)
    rows, cols = weight.shape
    wide = scale.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :cols]
    return codes.float() * wide


def mxfp4_scaled(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [..., cols] -> values divided by their group's scale, [..., cols/32, 32], and exponents [..., cols/32].

    The exponent is the smallest that keeps the largest element at 6 or below, or one less when clamping it loses less
    than half a step (round(max / 2^e) <= 6).
    """
    groups = weight.float().unflatten(-1, (-1, GROUP))
    high = groups.abs().amax(dim=-1).clamp(min=2.0**-100)
    exponent = torch.ceil(torch.log2(high / 7.0))
    return groups / torch.exp2(exponent)[..., None], exponent


def e2m1_round(x: Tensor) -> Tensor:
    """Nearest of 0, 0.5, 1, 1.5, 2, 3, 4, 6; ties to the even code; larger values become 6."""
    size = x.abs().clamp(max=6.0)
    step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
    return torch.copysign(torch.round(size / step) * step, x)


def mxfp4_rounded(weight: Tensor) -> Tensor:
    scaled, exponent = mxfp4_scaled(weight)
    return (e2m1_round(scaled) * torch.exp2(exponent)[..., None]).flatten(-2)


def mxfp4_codes(weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight [rows, cols] -> packed codes [rows, cols/2] (low nibble first) and E8M0 bytes [rows, cols/32]."""
    scaled, exponent = mxfp4_scaled(weight)
    values = e2m1_round(scaled).flatten(-2)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], device=weight.device)
    code = torch.searchsorted(magnitudes, values.abs().contiguous()).to(torch.uint8)
    code = code | (torch.signbit(values).to(torch.uint8) << 3)
    return (code[:, 0::2] | (code[:, 1::2] << 4)).contiguous(), (exponent + 127).to(torch.uint8)


def fp8_activations(x: Tensor) -> Tensor:
    """The activation rule of the family: E4M3 with one scale per token and 128 channels."""
    groups = x.float().unflatten(-1, (-1, BLOCK))
    scale = groups.abs().amax(dim=-1, keepdim=True).clamp(min=1e-10) / FP8_MAX
    return ((groups / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


def straight_through(value: Tensor, rounded: Tensor, amount: Tensor) -> Tensor:
    """value moved `amount` (0 to 1) of the way to its rounding; the gradient is that of value."""
    return value + amount * (rounded - value).detach()
