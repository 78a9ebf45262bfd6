"""What stands for MindSpore's convolutions in compiled training steps (:mod:`boost_ext.ms.core.substitutes`).

MindSpore's kernels copy each image into a matrix of patches and multiply that, also where that has a single row, and
where less than half of the products would do (csrc/cpu/winograd.h). On a CPU with AVX-512 most of them are 60 times
slower still, or do without AVX-512 (boost_ext/convolutions.py).
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F

from boost_ext.ms.core.substitutes import is_known, plain
from boost_ext.ms.native.conv2d import Geometry, convolved
from boost_ext.ms.native.products import has_avx512

__all__ = ["conv2d", "same_padding", "watched_conv2d"]

_plain_conv2d = plain(nn.Conv2d.construct)

MOST_PAIRS, LARGEST_PATCH, LARGEST_KERNEL = 1024, 300, 25
"""Beyond so many pairs of an input and an output channel in a group, elements of a patch in it, or elements of a kernel
of several channels, a matrix is faster: measured, docs/benchmarks.md#layers."""
FEWEST_IN_TILES = 16
"""From so many input and output channels on, 3 x 3 and stride 1 run by tiles, as csrc/ops/conv2d.h has it."""


def conv2d(self: nn.Conv2d, x: Tensor) -> Any:
    geometry = _geometry_of(self, x)
    if geometry:
        return _biased(self, convolved(x, self.weight, geometry))
    return _plain_conv2d(self, x)


def watched_conv2d(self: nn.Conv2d, x: Tensor) -> Any:
    """The same of a layer that thor watches."""
    geometry = _geometry_of(self, x)
    if geometry:
        return _biased(self, self.conv2d.watch(convolved(x, self.weight, geometry), x))
    return _plain_conv2d(self, x)


def _geometry_of(self: nn.Conv2d, x: Tensor) -> Any:
    if is_known(x) and self.weight.dtype == ms.float32 and self.data_format == "NCHW" and F.rank(x) == 4:
        shapes = (F.shape(x), F.shape(self.weight))
        layout = (self.pad_mode, self.padding, self.stride, self.dilation, self.group)
        return fast_geometry(*shapes, *layout, has_avx512())
    return ()


def _biased(self: nn.Conv2d, out: Tensor) -> Tensor:
    return self.bias_add(out, self.bias) if self.has_bias else out


@ops.constexpr  # type: ignore[untyped-decorator]
def fast_geometry(
    x: Geometry,
    w: Geometry,
    pad_mode: str,
    padding: Any,
    stride: Geometry,
    dilation: Geometry,
    groups: int,
    with_products: bool,
) -> Geometry:
    """The geometry of a convolution that is faster than MindSpore's, as all are `with_products`; () for others, and for
    an error that MindSpore finds."""
    (n, c, height, width), (outputs, channels, kh, kw) = x, w
    if min(*x, *w) < 1 or channels * groups != c or outputs % groups:
        return ()
    padding = padding if isinstance(padding, tuple) else (padding,) * 4
    down = _axis(height, kh, stride[0], dilation[0], pad_mode, padding[:2])
    across = _axis(width, kw, stride[1], dilation[1], pad_mode, padding[2:])
    if down[1] < 1 or across[1] < 1:
        return ()
    plain = (kh, kw, *stride, *dilation, groups) == (3, 3, 1, 1, 1, 1, 1) and max(down[0], across[0]) <= 2
    if not (with_products or (plain and min(channels, outputs) >= FEWEST_IN_TILES)):
        if kh * kw == 1 or channels * outputs // groups > MOST_PAIRS or channels * kh * kw > LARGEST_PATCH:
            return ()
        if channels > 1 and kh * kw > LARGEST_KERNEL:
            return ()
    return (
        *(n, c, height, width, kh, kw, *stride, *dilation),
        *(down[0], across[0], down[1], across[1], outputs, groups),
    )


def _axis(size: int, kernel: int, stride: int, dilation: int, pad_mode: str, padding: Geometry) -> tuple[int, int]:
    """The padding before the first position, and how many positions there are."""
    reach = (kernel - 1) * dilation + 1
    before, after = (
        same_padding(size, reach, stride) if pad_mode == "same" else padding if pad_mode == "pad" else (0, 0)
    )
    return before, (size + before + after - reach) // stride + 1


def same_padding(size: int, reach: int, stride: int) -> tuple[int, int]:
    """What an axis gets before and behind it in the mode ``same``: there are as many positions as steps."""
    needed = max(-(-size // stride) * stride - stride + reach - size, 0)
    return needed // 2, needed - needed // 2
