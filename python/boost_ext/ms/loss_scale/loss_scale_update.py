"""The update cells of the loss scale managers: where the state lives.

Rule: :func:`boost_ext.ops.loss_scale_update`; Micikevicius et al., "Mixed precision training",
ICLR 2018, section 3.2. The state is Parameters, so that a compiled graph can write it and a
checkpoint of the training cell holds it. :mod:`boost_ext.ms.loss_scale.managers` has the managers.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.ms import native
from boost_ext.ms.core.state import state

__all__ = [
    "DynamicLossScaleUpdateCell",
    "FixedLossScaleUpdateCell",
    "Rule",
    "check_int",
    "check_scale",
]

_FLOAT32_MAX = float(np.finfo(np.float32).max)
# The rule reaches a compiled graph as float32, which counts exactly up to here.
_MAX_WINDOW = 2**24


def check_scale(owner: str, name: str, value: Any, high: float = _FLOAT32_MAX) -> float:
    """``value``, which must be a number from 1 to ``high``, as the float32 that the state holds."""
    number = _number(owner, name, value)
    if not 1 <= number <= high:  # nan is refused too
        raise ValueError(f"{owner}: {name} must be finite, >= 1 and <= {high:g}, got {value}")
    return float(np.float32(number))


def check_int(owner: str, name: str, value: Any, low: int, high: int = 2**31 - 1) -> int:
    """``value``, which must be an int from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{owner}: {name} must be an int, got {type(value).__name__}")
    if not low <= int(value) <= high:
        raise ValueError(f"{owner}: {name} must be from {low} to {high}, got {value}")
    return int(value)


def _number(owner: str, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return math.inf


class Rule(NamedTuple):
    """How a loss scale moves. Factor and bound are rounded to float32, so that eager and compiled
    steps compute with the same bits."""

    factor: float
    window: int
    maximum: float

    @classmethod
    def checked(cls, owner: str, factor: Any, window: Any, maximum: Any) -> Rule:
        """Refuse an invalid rule, naming ``owner`` and the argument."""
        number = _number(owner, "scale_factor", factor)
        rounded = float(np.float32(number)) if abs(number) <= _FLOAT32_MAX else math.nan
        if not rounded > 1:
            raise ValueError(f"{owner}: scale_factor must be a finite float32 > 1, got {factor}")
        return cls(
            rounded,
            check_int(owner, "scale_window", window, 1, _MAX_WINDOW),
            check_scale(owner, "max_loss_scale", maximum),
        )


class DynamicLossScaleUpdateCell(nn.DynamicLossScaleUpdateCell):  # type: ignore[misc]
    r"""Adapts a loss scale after each step.

    Its own state is the truth. A training cell that uses :attr:`scale_sense` as its loss scale
    shares it; ``BoostTrainOneStepWithLossScaleCell`` does. One that keeps a Parameter of its own,
    as ``nn.TrainOneStepWithLossScaleCell`` does, gets the new value written into that after each
    step, over the old value.

    Args:
        loss_scale_value (float), scale_factor (float), scale_window (int), max_loss_scale (float):
            see :class:`boost_ext.amp.DynamicLossScaleManager`. Its ``get_update_cell()`` makes
            this cell.

    Inputs:
        - **loss_scale** (Parameter) - float32 of shape () or (1,); written.
        - **overflow** (Union[Tensor, bool]) - bool of shape () or (1,).

    Outputs:
        `overflow`, as it came.

    Raises:
        TypeError, ValueError: for arguments that the manager refuses.
        RuntimeError: at the 1001st overflow in a row, when called.

    Attributes:
        scale_sense (Parameter): the loss scale, float32 of shape ().
        counters (Parameter): int32 of shape (3,): iteration (from 1), iteration of the last
            change, overflows in a row.
        reported (Parameter): int32 of shape (): the iteration up to which the manager's
            ``update_loss_scale`` has heard of the steps.
    """

    def __init__(
        self,
        loss_scale_value: float,
        scale_factor: float,
        scale_window: int,
        *,
        max_loss_scale: float = 2.0**64,
    ) -> None:
        # Not the parent's: it makes Parameters that nothing here would update, and that would go
        # into every checkpoint.
        nn.Cell.__init__(self)
        owner = type(self).__name__
        self.rule = Rule.checked(owner, scale_factor, scale_window, max_loss_scale)
        scale = check_scale(owner, "loss_scale_value", loss_scale_value, self.rule.maximum)
        self.scale_sense = state("loss_scale.value", scale, ms.float32)
        self.counters = state("loss_scale.counters", [1, 0, 0], ms.int32)
        self.reported = state("loss_scale.reported", 1, ms.int32)
        self.update = native.LossScaleUpdate(*self.rule)

    def get_loss_scale(self) -> float:
        """The loss scale of the next step."""
        return float(self.scale_sense.asnumpy())

    def __call__(self, loss_scale: Parameter, overflow: Tensor | bool) -> Tensor | bool:
        if native.in_pynative_mode() and loss_scale is self.scale_sense:
            # By pointer only: an eager assign would cost thirty times the update.
            self.update(self.scale_sense, self.counters, _as_tensor(overflow))
            return overflow
        return super().__call__(loss_scale, overflow)

    def construct(self, loss_scale: Parameter, overflow: Tensor | bool) -> Tensor | bool:
        self.update(self.scale_sense, self.counters, _as_tensor(overflow))
        ops.assign(loss_scale, ops.reshape(self.scale_sense, ops.shape(loss_scale)))
        return overflow


def _as_tensor(overflow: Tensor | bool) -> Tensor:
    return Tensor(overflow, ms.bool_) if isinstance(overflow, bool) else overflow


class FixedLossScaleUpdateCell(nn.FixedLossScaleUpdateCell):  # type: ignore[misc]
    """Holds a fixed loss scale, and updates nothing.

    Args:
        loss_scale_value (float): see :class:`boost_ext.amp.FixedLossScaleManager`. Its
            ``get_update_cell()`` makes this cell.

    Inputs and Outputs: as :class:`DynamicLossScaleUpdateCell`; `loss_scale` is not written.

    Attributes:
        scale_sense (Parameter): the loss scale, float32 of shape (), for a training cell to use.
    """

    def __init__(self, loss_scale_value: float) -> None:
        value = check_scale(type(self).__name__, "loss_scale_value", loss_scale_value)
        super().__init__(value)
        self.scale_sense = state("loss_scale.value", value, ms.float32)

    def get_loss_scale(self) -> float:
        """The loss scale."""
        return float(self.scale_sense.asnumpy())
