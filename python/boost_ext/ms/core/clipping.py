"""Clipping by the global norm within a training step: its state, and the pass for optimizers that do not fold it in."""

from __future__ import annotations

import math
import numbers
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from boost_ext.ms import native
from boost_ext.ms.core.state import state

__all__ = ["ClipInPlace", "Clipping", "checked_clip_norm"]


def checked_clip_norm(owner: str, value: Any) -> float | None:
    """``value``, which must be None or a finite number > 0."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: clip_norm must be a number or None, got {type(value).__name__}")
    if not (float(value) > 0 and math.isfinite(float(value))):
        raise ValueError(f"{owner}: clip_norm must be finite and > 0, got {value}")
    return float(value)


class Clipping:
    """What the pipelines of a training cell share.

    Attributes:
        clip_norm, own_scale (Tensor): float32 (1,); the latter is what the optimizer takes out on its own.
        norm (Parameter): float32 (1,), ``clip.norm``: of the last gradients, without any loss scale, before clipping.
        divisor (Parameter): float32 (1,), ``clip.divisor``: what clipped them, times the loss scale.
    """

    def __init__(self, cell: Any) -> None:
        own_scale = float(getattr(cell.optimizer, "loss_scale", 1.0))
        clip_norm = cell.options.clip_norm
        self.clip_norm, self.own_scale = Tensor([clip_norm], ms.float32), Tensor([own_scale], ms.float32)
        self.norm = state("clip.norm", [0.0], ms.float32)
        self.divisor = state("clip.divisor", [1.0], ms.float32)

    def cell(self) -> ClipInPlace:
        """It clips gradients."""
        return ClipInPlace(self)


class ClipInPlace(nn.Cell):
    """``cell(grads)``: clip gradients that hold no loss scale of the cell; the result comes after the write."""

    in_place = True

    def __init__(self, clipping: Clipping) -> None:
        super().__init__(auto_prefix=False)
        self.clip_norm, self.own_scale, self.norm = clipping.clip_norm, clipping.own_scale, clipping.norm
        self.clip = native.ClipByGlobalNorm()

    def construct(self, grads: Any) -> Tensor:
        return self.clip(grads, self.clip_norm, self.own_scale, self.norm)
