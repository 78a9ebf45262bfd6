"""Parameters that no optimizer trains: what moves from step to step, written by graphs and held by checkpoints."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, Tensor

__all__ = ["state"]


def state(name: str, value: Any, dtype: Any = None) -> Parameter:
    """A Parameter of this name that starts at ``value``, with the dtype of ``value`` if none is given."""
    return Parameter(Tensor(value, dtype), name=name, requires_grad=False)
