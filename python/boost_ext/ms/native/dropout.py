"""Dropout: a mask that is drawn again in the backward pass."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn

from boost_ext import _core

from .cell import contiguous, in_pynative_mode, new_like, pure_primitive


class DropoutKey(nn.Cell):
    """``cell(state, stream)``: the key of this pass, int32 (4,), from the state (4,) of a layer, which counts it.

    ``stream`` is one int32.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.primitive = pure_primitive("dropout_key", (4,), ms.int32)
        self.primitive.add_prim_attr("side_effect_mem", True)

    def construct(self, state: Tensor, stream: Tensor) -> Tensor:
        return self.primitive(state, stream)

    def __call__(self, state: Tensor, stream: Tensor) -> Tensor:
        if not in_pynative_mode():
            return super().__call__(state, stream)
        (key,) = new_like((state,))
        _core.dropout_key(state, int(stream.item()), key)
        return key


class DroppedOut(nn.Cell):
    """``cell(x, key, settings)``: x with the mask of the key. See :func:`boost_ext.ops.dropout`.

    ``settings`` is float64 (2,): p, and whether whole rows are dropped. A pure function.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.primitive = pure_primitive("dropout", _as_first, _as_first)

    def construct(self, x: Tensor, key: Tensor, settings: Tensor) -> Tensor:
        return self.primitive(x, key, settings)

    def __call__(self, x: Tensor, key: Tensor, settings: Tensor) -> Tensor:
        if not in_pynative_mode():
            return super().__call__(x, key, settings)
        (y,) = new_like((x,))
        p, rows = settings.asnumpy().tolist()
        _core.dropout_by_key(contiguous((x,))[0], p, key, bool(rows), y)
        return y


def _as_first(*inputs: Any) -> Any:
    return inputs[0]
