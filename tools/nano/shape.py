"""Shapes of MiMo-Nano and of the toy that the smoke test trains."""
from __future__ import annotations

from dataclasses import dataclass

HEAD_QK, HEAD_V, ROTARY = 192, 128, 64
WINDOW = 128
DRAFT_HEAD, DRAFT_ROTARY, DRAFT_WINDOW, BLOCK = 128, 64, 1024, 8
VALUE_SCALE, DRAFT_VALUE_SCALE = 0.707, 0.612
END_OF_TEXT, TURN_START, TURN_END, AUDIO_END = 4032, 4033, 4034, 4061
MASK_TOKEN = 4064
VOCAB = 4096


@dataclass(frozen=True)
class Shape:
    hidden: int = 256
    pattern: tuple[int, ...] = (0, 1, 1, 0, 1, 1, 0, 1, 1, 0)  # 0: full attention, 1: window
    intermediate: int = 768  # of layer 0 and the MTP heads
    experts: int = 16
    top_k: int = 4
    expert_intermediate: int = 128
    q_heads: int = 4
    full_kv_heads: int = 1
    window_kv_heads: int = 2
    full_theta: float = 5e6
    window_theta: float = 1e4
    eps: float = 1e-5
    mtp_heads: int = 3
    draft_layers: int = 3
    draft_intermediate: int = 768
    draft_q_heads: int = 4
    draft_kv_heads: int = 2
    draft_theta: float = 1e4
    draft_eps: float = 1e-6
    max_positions: int = 40960

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers whose output the drafter reads: the full-attention ones, as in the family."""
        return tuple(i for i, kind in enumerate(self.pattern) if kind == 0)

    def kv_heads(self, kind: int) -> int:
        return self.window_kv_heads if kind else self.full_kv_heads


NANO = Shape()
TOY = Shape(hidden=128, pattern=(0, 1, 0), intermediate=128, experts=4, top_k=2, expert_intermediate=64, mtp_heads=2,
            draft_layers=2, draft_intermediate=128)
