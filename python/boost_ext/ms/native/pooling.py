"""Max pooling of graphs: a native function for each size of windows and images (csrc/ops/max_pool.h).

Its gradient is linear. The gradient of that takes what lies at the places of the maxima, by MindSpore's operators, for
whoever differentiates twice or more.
"""

from __future__ import annotations

import functools
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from .cell import custom
from .shapes import Ints, Shape, of_shapes

__all__ = ["pooled"]


def pooled(x: Tensor, out: Ints, windows: Ints) -> Tensor:
    """The maxima (..., \\*out) of float32 images x (..., height, width), in a graph. ``windows`` are constant: height
    and width, their distances, how far the first ones stand out."""
    return _max_pool(x, out, windows)(x, _numbers(windows))[0]


@ops.constexpr  # type: ignore[untyped-decorator]
def _numbers(windows: Ints) -> Tensor:
    return Tensor(np.array(windows, np.int32))


# Alone: the graph compiler does not always take a primitive out of a tuple.
@of_shapes
def _max_pool(x: Shape, out: Ints, windows: Ints) -> ops.Custom:
    return _max_pool_primitive(x[-2:], out, windows)


@ops.constexpr  # type: ignore[untyped-decorator]
def _max_pool_gradient(image: Ints, out: Ints, windows: Ints) -> ops.Custom:
    return _max_pool_gradient_primitive(image, out, windows)


@functools.cache
def _max_pool_primitive(image: Ints, out: Ints, windows: Ints) -> ops.Custom:
    def shape(x: Any, *others: Any) -> Any:
        y = (*x[:-2], *out)
        return y, y

    def bprop(x: Tensor, numbers: Tensor, found: Any, dfound: Any) -> tuple[Tensor, Tensor]:
        return _max_pool_gradient(image, out, windows)(dfound[0], found[1], numbers), numbers

    primitive = custom("max_pool", shape, _dtypes, bprop=bprop)
    primitive.add_prim_attr("pooling", (*image, *out, *windows))  # MindSpore takes those of equal attributes for one
    return primitive


def _dtypes(*inputs: Any) -> Any:
    return ms.float32, ms.uint8


@functools.cache
def _max_pool_gradient_primitive(image: Ints, out: Ints, windows: Ints) -> ops.Custom:
    def shape(dy: Any, *others: Any) -> Any:
        return (*dy[:-2], *image)

    def bprop(dy: Tensor, places: Tensor, numbers: Tensor, dx: Tensor, ddx: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at = ops.cast(places, ms.int32).reshape((-1, out[0] * out[1]))
        at = _firsts(image, out, windows) + at // windows[1] * image[1] + at % windows[1]
        taken = ops.gather_elements(ddx.reshape((-1, image[0] * image[1])), 1, at)
        return taken.reshape(dy.shape), places, numbers

    primitive = custom("max_pool_gradient", shape, _dtype, bprop=bprop)
    primitive.add_prim_attr("pooling", (*image, *out, *windows))
    return primitive


def _dtype(*inputs: Any) -> Any:
    return ms.float32


@ops.constexpr  # type: ignore[untyped-decorator]
def _firsts(image: Ints, out: Ints, windows: Ints) -> Tensor:
    """The place of the first element of each window in its image, less than 0 where it stands out."""
    rows = np.arange(out[0]) * windows[2] - windows[4]
    columns = np.arange(out[1]) * windows[3] - windows[5]
    return Tensor((rows[:, None] * image[1] + columns).reshape(1, -1).astype(np.int32))
