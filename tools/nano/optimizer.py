"""Muon for the matrices of the layers, Adam for everything else, behind one step()."""
from __future__ import annotations

from collections import defaultdict
from typing import Any, Iterable

import torch
from torch import Tensor

Named = Iterable[tuple[str, torch.nn.Parameter]]


def orthogonalise(update: Tensor) -> Tensor:
    """Newton-Schulz iteration (Jordan et al., 'Muon', 2024) on a batch of matrices [n, rows, cols]."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = update.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).float()


class Optimizer:
    """Learning rates are those of step(lr_scale=1). `rates` lists parameters that Adam updates although they are
    matrices, by the last part of their name."""

    def __init__(self, named: Named, matrix_rate: float, adam_rate: float, rates: dict[str, float],
                 momentum: float = 0.95):
        self.matrix_rate, self.momentum = matrix_rate, momentum
        self.matrices: dict[tuple[int, ...], list[torch.nn.Parameter]] = defaultdict(list)
        groups = []
        for name, parameter in named:
            last = name.rsplit(".", 1)[-1]
            if parameter.ndim >= 2 and last not in rates:
                self.matrices[tuple(parameter.shape[-2:])].append(parameter)
            else:
                groups.append({"params": [parameter], "lr": rates.get(last, adam_rate)})
        self.adam = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0,
                                      fused=torch.cuda.is_available())
        self.base = [group["lr"] for group in self.adam.param_groups]
        self.velocity = {shape: [torch.zeros_like(p) for p in ps] for shape, ps in self.matrices.items()}

    @torch.no_grad()
    def step(self, lr_scale: float) -> None:
        for group, base in zip(self.adam.param_groups, self.base, strict=True):
            group["lr"] = base * lr_scale
        self.adam.step()
        for shape, parameters in self.matrices.items():
            velocities = self.velocity[shape]
            gradients = [p.grad for p in parameters]
            torch._foreach_mul_(velocities, self.momentum)
            torch._foreach_add_(velocities, gradients)
            nesterov = torch._foreach_add(gradients, velocities, alpha=self.momentum)
            update = orthogonalise(torch.cat([u.reshape(-1, *shape) for u in nesterov]))
            rate = self.matrix_rate * lr_scale * max(1.0, shape[0] / shape[1]) ** 0.5
            parts = update.split([p.numel() // (shape[0] * shape[1]) for p in parameters])
            torch._foreach_add_(list(parameters), [u.view(p.shape) for u, p in zip(parts, parameters, strict=True)],
                                alpha=-rate)

    def zero_grad(self) -> None:
        self.adam.zero_grad(set_to_none=True)
        for parameters in self.matrices.values():
            for parameter in parameters:
                parameter.grad = None

    def state(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "velocity": self.velocity}

    def load(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        self.velocity = state["velocity"]


def schedule(step: int, steps: int, warmup: int, cooldown: float) -> float:
    """Linear warm-up, constant, then linear to zero over the last `cooldown` share of the steps."""
    if step < warmup:
        return (step + 1) / warmup
    left = (steps - step) / max(1.0, cooldown * steps)
    return min(1.0, left)
