"""What stands for max pooling in compiled training steps (:mod:`boost_ext.ms.core.fast_functions`)."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F
from mindspore.ops.function import nn_func

from boost_ext.ms.core.substitutes import plain
from boost_ext.ms.native.pooling import pooled

__all__ = ["max_pool", "max_pool2d"]

Ints = tuple[int, ...]

_plain_max_pool, _plain_max_pool2d = plain(nn.MaxPool2d.construct), plain(nn_func.max_pool2d)


def max_pool(self: nn.MaxPool2d, x: Tensor) -> Any:
    if x.dtype == ms.float32 and not F.is_sequence_value_unknown(F.shape(x)) and not self.return_indices:
        shape = F.shape(x)
        out, windows = windows_of(self.max_pool, shape)
        if out:
            return pooled(x, shape[-2:], out, windows)
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
        x.dtype == ms.float32
        and not F.is_sequence_value_unknown(F.shape(x))
        and F.rank(x) == 4
        and not return_indices
        and not ceil_mode
        and dilation in (1, (1, 1))
        and F.isconstant(kernel_size)
        and F.isconstant(stride)
        and F.isconstant(padding)
    ):
        shape = F.shape(x)
        out, windows = padded_windows(shape, kernel_size, stride, padding)
        if out:
            return pooled(x, shape[-2:], out, windows)
    return _plain_max_pool2d(x, kernel_size, stride, padding, dilation, return_indices, ceil_mode)


@ops.constexpr  # type: ignore[untyped-decorator]
def windows_of(pool: ops.Primitive, shape: Ints) -> tuple[Ints, Ints]:
    """The size of the result, and what :func:`pooled` takes; () for each where MindSpore pools, or finds an error."""
    if not isinstance(pool, ops.MaxPool):
        if pool.ceil_mode or any(d != 1 for d in pool.dilation):
            return (), ()
        return _windows(shape, pool.ksize[-2:], pool.strides[-2:], pool.pads[-2:], pool.pads[-2:])
    window, stride = pool.kernel_size[-2:], pool.strides[-2:]
    if pool.pad_mode == "VALID":
        return _windows(shape, window, stride, (0, 0), (0, 0))
    # As many as there are steps; the padding that this needs, the smaller half of it before.
    needed = [max(-(-n // s) * s - s + k - n, 0) for n, k, s in zip(shape[-2:], window, stride, strict=True)]
    return _windows(shape, window, stride, tuple(n // 2 for n in needed), tuple(n - n // 2 for n in needed))


@ops.constexpr  # type: ignore[untyped-decorator]
def padded_windows(shape: Ints, window: Any, stride: Any, padding: Any) -> tuple[Ints, Ints]:
    """The same for numbers, or pairs of them."""
    window, stride, padding = (_pair(n) for n in (window, window if stride is None else stride, padding))
    if not (window and stride and padding):
        return (), ()
    return _windows(shape, window, stride, padding, padding)


def _pair(n: Any) -> Ints:
    n = (n, n) if type(n) is int else n
    return n if type(n) is tuple and [type(i) for i in n] == [int, int] else ()


def _windows(shape: Ints, window: Ints, stride: Ints, before: Ints, after: Ints) -> tuple[Ints, Ints]:
    sizes = tuple(zip(shape[-2:], window, stride, before, after, strict=True))
    out = tuple((n + a + b - k) // s + 1 if k > 0 and s > 0 else 0 for n, k, s, a, b in sizes)
    # A byte holds a place of 256.
    if (
        len(shape) not in (3, 4)
        or 0 in shape
        or min(out) < 1
        or window[0] * window[1] > 256
        or any(a < 0 or 2 * a > k or (o - 1) * s - a >= n for o, (n, k, s, a, b) in zip(out, sizes, strict=True))
    ):
        return (), ()
    return out, (*window, *stride, *before)
