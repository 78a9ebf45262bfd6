"""What ``scale_sense`` stands for: the Parameter that holds the loss scale, and who updates it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import mindspore as ms
from mindspore import Parameter, Tensor, nn

from boost_ext.ms.core.state import state
from boost_ext.ms.loss_scale.group_loss_scale import (
    GroupLossScaleManager,
    GroupLossScaleUpdateCell,
    GroupUnscaleAndCheck,
)

__all__ = ["ScaleSense", "scale_barriers", "scale_parameter", "scale_sense_of"]


@dataclass(frozen=True)
class ScaleSense:
    """The loss scale of a training cell.

    Attributes:
        parameter: float32, what the loss is multiplied with.
        manager: updates it after each step, or None.
        guard: makes the guard slot for some weights, with a scale for each group of layers; or None.
    """

    parameter: Parameter
    manager: nn.Cell | None = None
    guard: Callable[[Sequence[Parameter]], nn.Cell] | None = None


def scale_parameter(value: float | Tensor) -> Parameter:
    """The Parameter of a loss scale that nobody shares."""
    return state("scale_sense", value, ms.float32)


def scale_barriers() -> tuple[Parameter, ...]:
    """The two ones that a :class:`boost_ext.ms.step.pipeline.Pipeline` multiplies the loss scale with."""
    return tuple(state(name, 1.0, ms.float32) for name in ("scale_in", "scale_out"))


def scale_sense_of(owner: str, scale_sense: Tensor | nn.Cell, network: nn.Cell) -> ScaleSense:
    """What the argument of a training cell means."""
    if isinstance(scale_sense, GroupLossScaleManager):
        scale_sense.require_in(network)
        guard = partial(GroupUnscaleAndCheck, scale_sense)
        return ScaleSense(scale_parameter(1.0), GroupLossScaleUpdateCell(scale_sense), guard)
    if isinstance(scale_sense, nn.Cell):
        shared = getattr(scale_sense, "scale_sense", None)  # ours hold the scale: one state for manager and cell
        own = shared if isinstance(shared, Parameter) else scale_parameter(scale_sense.get_loss_scale())
        return ScaleSense(own, scale_sense)
    if isinstance(scale_sense, Tensor):
        if tuple(scale_sense.shape) not in {(), (1,)}:
            raise ValueError(f"{owner}: scale_sense must have shape () or (1,), got {tuple(scale_sense.shape)}")
        return ScaleSense(scale_parameter(scale_sense))
    raise TypeError(f"{owner}: scale_sense must be a Cell or a Tensor, got {type(scale_sense).__name__}")
