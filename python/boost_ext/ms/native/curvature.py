"""The native ops of Kronecker-factored curvature. Their arguments, in order, are in csrc/doors/packed_curvature.h."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import nn

from boost_ext import _core

from .cell import GraphOp, PackedCell, calls_by_pointer, contiguous, new_like, one_or_all


class Covariance(PackedCell):
    """``cell(step, layer, batch, x, dout, A, G)``: the factors of one layer, written in the steps that are due."""

    symbol, packed = "covariance", staticmethod(_core.packed_covariance)


class DampedInverse(PackedCell):
    """``cell(step, skip, layout, own_scale, scale, damping, A..., G..., A_inv..., G_inv...)``: in the steps that are
    due, and not skipped; False if some matrix could not be inverted."""

    symbol, packed = "damped_inverse", staticmethod(_core.packed_inverse)


# MindSpore asks for shapes and dtypes one after the other, and remembers the functions by the op's name: so each must
# find the gradients by its arguments alone. They come after the layout, the only array of six axes, and of integers.
def _shapes(*shapes: Any) -> Any:
    first = next(i for i, shape in enumerate(shapes) if len(shape) == 6) + 1
    return one_or_all(list(shapes[first:]))


def _dtypes(*dtypes: Any) -> Any:  # as TensorType
    first = next(i for i, dtype in enumerate(dtypes) if dtype.element_type() == ms.int32) + 1
    return one_or_all([ms.float32] * (len(dtypes) - first))


class Preconditioned(nn.Cell):
    """``cell(scale, A_inv..., G_inv..., layout, grads...)``: the new gradients, float32; the given ones are only read.

    ``layout`` is int32 of shape (1, 1, 1, 1, 1, len(grads)).
    A pure function: the graph compiler may drop, merge and reorder it.
    """

    symbol = "precondition"
    primitive = GraphOp(_shapes, _dtypes)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, *arrays: Any) -> Any:
        return self.primitive(*arrays)

    def __call__(self, *arrays: Any) -> Any:
        if not calls_by_pointer(self.symbol):
            return super().__call__(*arrays)
        first = next(i for i, a in enumerate(arrays) if a.dtype == ms.int32) + 1
        out = new_like(arrays[first:], ms.float32)
        _core.packed_precondition((*contiguous(arrays), *out))
        return one_or_all(out)
