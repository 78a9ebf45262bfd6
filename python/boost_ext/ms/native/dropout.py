"""Dropout: a mask that is drawn again in the backward pass."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from boost_ext import _core

from .cell import GraphOp, calls_by_pointer, contiguous, new_like


class DropoutKey(nn.Cell):
    """``cell(state)``: the key of this pass, int32 (4,), from the state (4,) of a layer, which counts it.

    Args:
        stream (int): whose masks: the rank.
    """

    symbol = "dropout_key"
    primitive = GraphOp((4,), ms.int32, writes=True)

    def __init__(self, stream: int) -> None:
        super().__init__(auto_prefix=False)
        self.number, self.stream = stream, Tensor([stream], ms.int32)

    def construct(self, state: Tensor) -> Tensor:
        return self.primitive(state, self.stream)

    def __call__(self, state: Tensor) -> Tensor:
        if not calls_by_pointer(self.symbol):
            return super().__call__(state)
        key = Tensor(np.empty(4, np.int32))
        _core.dropout_key(state, self.number, key)
        return key


def _as_first(*inputs: Any) -> Any:
    return inputs[0]


class DroppedOut(nn.Cell):
    """``cell(x, key)``: x with the mask of the key. See :func:`boost_ext.ops.dropout`. A pure function.

    Args:
        p (float): what share is dropped.
        rows (bool): whether rows are dropped, not elements.
    """

    symbol = "dropout"
    primitive = GraphOp(_as_first, _as_first)

    def __init__(self, p: float, rows: bool) -> None:
        super().__init__(auto_prefix=False)
        self.p, self.rows = p, rows
        self.settings = Tensor([p, float(rows)], ms.float64)

    def construct(self, x: Tensor, key: Tensor) -> Tensor:
        return self.primitive(x, key, self.settings)

    def __call__(self, x: Tensor, key: Tensor) -> Tensor:
        if not calls_by_pointer(self.symbol):
            return super().__call__(x, key)
        (y,) = new_like((x,))
        _core.dropout_by_key(contiguous((x,))[0], self.p, key, self.rows, y)
        return y
