"""What stands for max pooling in compiled training steps (:mod:`boost_ext.ms.core.fast_functions`)."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F
from mindspore.ops.function import nn_func

from boost_ext.ms.core.fast_convolutions import same_padding
from boost_ext.ms.core.substitutes import plain
from boost_ext.ms.native.pooling import pooled
from boost_ext.ms.native.shapes import Ints, Shape, of_shapes

__all__ = ["max_pool", "max_pool2d"]

_plain_max_pool, _plain_max_pool2d = plain(nn.MaxPool2d.construct), plain(nn_func.max_pool2d)


def max_pool(self: nn.MaxPool2d, x: Tensor) -> Any:
    if not self.return_indices:
        out, windows = windows_of(x, self.max_pool)
        if out:
            return pooled(x, out, windows)
    return _plain_max_pool(self, x)


def max_pool2d(
    x: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    return_indices: bool = False,
    ceil_mode: bool = False,
) -> Any:
    if (
        not return_indices
        and not ceil_mode
        and dilation in (1, (1, 1))
        and F.isconstant(kernel_size)
        and F.isconstant(stride)
        and F.isconstant(padding)
    ):
        out, windows = padded_windows(x, kernel_size, stride, padding)
        if out:
            return pooled(x, out, windows)
    return _plain_max_pool2d(x, kernel_size, stride, padding, dilation, return_indices, ceil_mode)


@of_shapes
def windows_of(x: Shape | None, pool: ops.Primitive) -> tuple[Ints, Ints]:
    """The size of the result, and what :func:`pooled` takes; () for each where MindSpore pools, or finds an error."""
    if x is None or len(x) not in (3, 4):
        return (), ()
    if not isinstance(pool, ops.MaxPool):
        if pool.ceil_mode or any(d != 1 for d in pool.dilation):
            return (), ()
        return _windows(x, pool.ksize[-2:], pool.strides[-2:], pool.pads[-2:], pool.pads[-2:])
    window, stride = pool.kernel_size[-2:], pool.strides[-2:]
    if pool.pad_mode == "VALID":
        return _windows(x, window, stride, (0, 0), (0, 0))
    before, after = zip(*map(same_padding, x[-2:], window, stride), strict=True)
    return _windows(x, window, stride, before, after)


@of_shapes
def padded_windows(x: Shape | None, window: Any, stride: Any, padding: Any) -> tuple[Ints, Ints]:
    """The same for numbers, or pairs of them."""
    window, stride, padding = (_pair(n) for n in (window, window if stride is None else stride, padding))
    if x is None or len(x) != 4 or not (window and stride and padding):
        return (), ()
    return _windows(x, window, stride, padding, padding)


def _pair(n: Any) -> Ints:
    n = (n, n) if type(n) is int else n
    return n if type(n) is tuple and [type(i) for i in n] == [int, int] else ()


def _windows(shape: Ints, window: Ints, stride: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    sizes = tuple(zip(shape[-2:], window, stride, before, after, strict=True))
    out = tuple((n + a + b - k) // s + 1 if k > 0 and s > 0 else 0 for n, k, s, a, b in sizes)
    # A byte holds a place of 256.
    if (
        0 in shape
        or min(out) < 1
        or window[0] * window[1] > 256
        or any(a < 0 or 2 * a > k or (o - 1) * s - a >= n for o, (n, k, s, a, b) in zip(out, sizes, strict=True))
    ):
        return (), ()
    return out, (*window, *stride, *before)
