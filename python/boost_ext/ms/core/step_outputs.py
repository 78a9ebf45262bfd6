"""What can be read from any training cell and its outputs."""

from __future__ import annotations

import numbers
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, nn

__all__ = ["loss_of", "number_of", "overflow_of", "scale_of", "weights_of"]


def weights_of(target: nn.Cell) -> Any:
    """What is trained; the trainable parameters of a training cell include the state of many an optimizer."""
    weights = getattr(target, "weights", None)
    return weights if isinstance(weights, ParameterTuple) else getattr(target, "network", target).trainable_params()


def loss_of(outputs: Any) -> float | None:
    value = outputs[0] if isinstance(outputs, (tuple, list)) and outputs else outputs
    if isinstance(value, Tensor):
        return float(value.asnumpy().mean(dtype=np.float64)) if value.size else None
    return float(value) if isinstance(value, numbers.Real) else None


def number_of(value: Any) -> float | None:
    """A number, or an array of one element; None for anything else."""
    if isinstance(value, (Tensor, np.ndarray, np.generic)):
        return float(value.item()) if value.size == 1 else None
    return float(value) if isinstance(value, numbers.Real) else None


def overflow_of(outputs: Any) -> bool | None:
    """The second output of a cell with loss scaling."""
    if isinstance(outputs, (tuple, list)) and len(outputs) == 3:
        flag = outputs[1]
        if isinstance(flag, Tensor) and flag.size == 1 and flag.dtype == ms.bool_:
            return bool(flag.asnumpy())
    return None


def scale_of(outputs: Any) -> float | None:
    """The third output of a cell with loss scaling."""
    return float(outputs[2].asnumpy().reshape(())) if overflow_of(outputs) is not None else None
