"""Parameters that no optimizer trains: what moves from step to step, written by graphs and held by checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor
from mindspore.common import initializer

__all__ = ["filled", "state"]


def filled(shape: tuple[int, ...], value: float, dtype: Any) -> Tensor:
    """What a large Parameter starts with. It takes no memory yet, unless it is empty, which initializer() refuses."""
    if 0 in shape:
        return Tensor(np.empty(shape, np.float32), dtype)
    return initializer.initializer(initializer.Constant(value), shape, dtype)


def state(name: str, value: Any, dtype: Any = None) -> Parameter:
    """A Parameter of this name that starts at ``value``, with the dtype of ``value`` if none is given."""
    return Parameter(Tensor(value, dtype), name=name, requires_grad=False)
