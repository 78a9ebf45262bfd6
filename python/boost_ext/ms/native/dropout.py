"""Dropout: a mask that is drawn again in the backward pass."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor

from .cell import GraphOp, NativeFunction, as_first, new_like, new_tensor


class DropoutKey(NativeFunction):
    """``cell(state)``: the key of this pass, int32 (4,), from the state (4,) of a layer, which counts it.

    Args:
        stream (int): whose masks: the rank.
    """

    symbol = "dropout_key"
    primitive = GraphOp((4,), ms.int32, writes=True)

    def __init__(self, stream: int) -> None:
        super().__init__()
        self.constants = (np.array([stream], np.int32),)
        self.stream = Tensor(self.constants[0])

    def new_outputs(self, state: Tensor) -> Tensor:
        return new_tensor((4,), ms.int32)

    def construct(self, state: Tensor) -> Tensor:
        return self.primitive(state, self.stream)


class DroppedOut(NativeFunction):
    """``cell(x, key)``: x with the mask of the key. See :func:`boost_ext.ops.dropout`. A pure function.

    Args:
        p (float): what share is dropped.
        rows (bool): whether rows are dropped, not elements.
    """

    symbol = "dropout"
    primitive = GraphOp(as_first, as_first)

    def __init__(self, p: float, rows: bool) -> None:
        super().__init__()
        self.constants = np.array([p], np.float64), np.array([rows])
        self.p, self.rows = map(Tensor, self.constants)

    def new_outputs(self, x: Tensor, key: Tensor) -> Tensor:
        return new_like((x,))[0]

    def construct(self, x: Tensor, key: Tensor) -> Tensor:
        return self.primitive(x, key, self.p, self.rows)
