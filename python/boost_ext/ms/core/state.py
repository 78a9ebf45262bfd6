"""Parameters that no optimizer trains: what moves from step to step, written by graphs and held by checkpoints."""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.common import initializer

__all__ = ["filled", "hold_state", "state"]


def filled(shape: tuple[int, ...], value: float, dtype: Any) -> Tensor:
    """What a large Parameter starts with. It takes no memory yet, unless it is empty, which initializer() refuses."""
    if 0 in shape:
        return Tensor(np.empty(shape, np.float32), dtype)
    return initializer.initializer(initializer.Constant(value), shape, dtype)


def state(name: str, value: Any, dtype: Any = None) -> Parameter:
    """A Parameter of this name that starts at ``value``, with the dtype of ``value`` if none is given."""
    return Parameter(Tensor(value, dtype), name=name, requires_grad=False)


def hold_state(cell: nn.Cell) -> None:
    """Give the cell ``all_state``, every Parameter in it, for an ``ops.depend`` at the root of its ``construct``.

    What only a branch of a graph reads keeps the storage of the first run: after ``set_data`` or
    ``load_param_into_net`` the graph works on the old values, and Python sees the new ones, which never move. The last
    act of a constructor. A plain tuple: a ParameterTuple would ask for different names.
    """
    cell.__dict__["all_state"] = tuple(cell.get_parameters())  # not by assignment, which would register them again
