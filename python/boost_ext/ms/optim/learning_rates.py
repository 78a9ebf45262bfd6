"""The learning rates of an optimizer, as Python reads them between two steps."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from boost_ext.ms.optim.adoption import whole_of

__all__ = ["innermost", "learning_rates", "scheduled_steps"]

_WITH_AN_END = (nn.CosineDecayLR, nn.PolynomialDecayLR)


def learning_rates(optimizer: Any) -> tuple[float, ...]:
    """The learning rates of the last update: one, or one for each group that has its own.

    Args:
        optimizer: of mindspore.nn, of boost_ext, or with ``param_groups``.

    Returns:
        tuple[float]: before the first update those of the first one; empty for an optimizer without learning rates.
    """
    optimizer = innermost(optimizer)
    groups = getattr(optimizer, "param_groups", None)  # of mindspore.experimental.optim
    if isinstance(groups, list):
        return tuple(_value(group["lr"]) for group in groups)
    if not isinstance(optimizer, nn.Optimizer):
        return ()
    last = np.maximum(optimizer.global_step.asnumpy() - 1, 0)
    if getattr(optimizer, "relative_step", False):
        return (_value(optimizer.relative_rate(Tensor(last))),) if hasattr(optimizer, "relative_rate") else ()
    each = optimizer.learning_rate if optimizer.is_group_lr else (optimizer.learning_rate,)
    rates = {id(rate): rate for rate in each}.values()  # of each parameter: those of a group are the same object
    return tuple(_value(rate(Tensor(last, ms.int32)) if optimizer.dynamic_lr else rate) for rate in rates)


def innermost(optimizer: Any) -> Any:
    """The optimizer that has the learning rates: that of a FreezeOpt, the one inside of LARS or weight averaging."""
    optimizer = whole_of(optimizer)
    while isinstance(inner := getattr(optimizer, "opt", None), nn.Optimizer):  # LARS, weight averaging
        optimizer = inner
    return optimizer


def scheduled_steps(optimizer: Any) -> int:
    """The number of updates that the learning rates of an optimizer were made for; 0 if it is not known.

    A list of rates has one for each; MindSpore's cosine and polynomial schedules end after their ``decay_steps``.
    """
    optimizer = innermost(optimizer)
    if not isinstance(optimizer, nn.Optimizer) or not optimizer.dynamic_lr:
        return 0
    rates = optimizer.learning_rate if optimizer.is_group_lr else (optimizer.learning_rate,)
    return max((_steps_of(rate) for rate in rates), default=0)


def _steps_of(rate: Any) -> int:
    if not isinstance(rate, nn.Cell):
        return 0
    listed = getattr(rate, "learning_rate", None)
    if isinstance(listed, Tensor) and listed.ndim == 1:
        return int(listed.size)
    ends = [cell for _, cell in rate.cells_and_names() if isinstance(cell, _WITH_AN_END)]
    return max((int(end.decay_steps) for end in ends if not getattr(end, "update_decay_steps", False)), default=0)


def _value(rate: Any) -> float:
    return float(rate.asnumpy().reshape(())) if isinstance(rate, Tensor) else float(rate)
