"""The native ops of Kronecker-factored curvature; their schemas in csrc/ops list their arguments in order."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from .cell import GraphOp, NativeFunction, PackedCell, new_like, one_or_all


class Covariance(PackedCell):
    """``cell(step, layer, batch, x, dout, A, G)``: the factors of one layer, written in the steps that are due."""

    symbol = "covariance"


class DampedInverse(PackedCell):
    """``cell(step, skip, frequency, own_scale, scale, damping, A..., G..., A_inv..., G_inv...)``: in the steps that are
    due, and not skipped; False if some matrix could not be inverted."""

    symbol = "damped_inverse"


# MindSpore asks for shapes and dtypes one after the other, and remembers the functions by the op's name: so each must
# find the gradients by its arguments alone. They come after the layout, the only array of six axes, and of integers.
def _shapes(*shapes: Any) -> Any:
    first = next(i for i, shape in enumerate(shapes) if len(shape) == 6) + 1
    return one_or_all(list(shapes[first:]))


def _dtypes(*dtypes: Any) -> Any:  # as TensorType
    first = next(i for i, dtype in enumerate(dtypes) if dtype.element_type() == ms.int32) + 1
    return one_or_all([ms.float32] * (len(dtypes) - first))


class Preconditioned(NativeFunction):
    """``cell(scale, A_inv..., G_inv..., layout, grads...)``: the new gradients, float32; the given ones are only read.

    ``layout`` is int32 of shape (1, 1, 1, 1, 1, len(grads)).
    """

    symbol = "precondition"
    primitive = GraphOp(_shapes, _dtypes)

    def new_outputs(self, *arrays: Any) -> Any:
        first = next(i for i, a in enumerate(arrays) if a.dtype == ms.int32) + 1
        return one_or_all(new_like(arrays[first:], ms.float32))
