"""What stands for MindSpore's convolutions in compiled training steps (:mod:`boost_ext.ms.core.substitutes`).

MindSpore's kernels copy each image into a matrix of patches and multiply that, also where that has a single row, and
where less than half of the products would do (csrc/cpu/winograd.h). On a CPU with AVX-512 most of them are 60 times
slower still, or do without AVX-512 (boost_ext/convolutions.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn, ops

from boost_ext.ms.core.substitutes import plain
from boost_ext.ms.native.conv2d import Geometry, convolved, input_gradient
from boost_ext.ms.native.products import has_avx512
from boost_ext.ms.native.shapes import Ints, Shape, of_shapes

__all__ = ["conv2d_of", "conv2d_transpose", "same_padding"]

_plain_conv2d_transpose = plain(nn.Conv2dTranspose.construct)

MOST_PAIRS, LARGEST_PATCH, LARGEST_KERNEL = 1024, 300, 25
"""Beyond so many pairs of an input and an output channel in a group, elements of a patch in it, or elements of a kernel
of several channels, a matrix is faster: measured, docs/benchmarks.md#layers; as csrc/ops/conv2d.h has it."""
FEWEST_IN_TILES = 16
"""From so many input and output channels on, 3 x 3 and stride 1 run by tiles, as csrc/ops/conv2d.h has it."""


def conv2d_of(operator: ops.Conv2D) -> Callable[..., Any]:
    """Of images, and of signals, which are images of one line."""
    layout, mode, padding, groups = operator.data_format, operator.pad_mode, operator.pad, operator.group
    stride, dilation = operator.stride[2:], operator.dilation[2:]

    def conv2d(x: Tensor, weight: Tensor) -> Any:
        geometry = of_images(x, weight, layout, mode, padding, stride, dilation, groups)
        return convolved(x, weight, geometry) if geometry else operator(x, weight)

    return conv2d


def conv2d_transpose(self: nn.Conv2dTranspose, x: Tensor) -> Any:
    """By the gradient of the convolution that it transposes, of an image for which x would be the result."""
    if self.output_padding == 0:
        geometry = of_results(
            x, self.weight, self.data_format, self.pad_mode, self.padding, self.stride, self.dilation, self.group
        )
        if geometry:
            out = input_gradient(x, self.weight, geometry)
            return self.bias_add(out, self.bias) if self.has_bias else out
    return _plain_conv2d_transpose(self, x)


# The geometry of a convolution that is faster than MindSpore's, as all are with AVX-512; () for others, and for an
# error that MindSpore finds.


@of_shapes
def of_images(x: Shape | None, w: Shape | None, layout: str, *geometry: Any) -> Geometry:
    if x is None or w is None or len(x) != 4 or layout != "NCHW":
        return ()
    return _fast_geometry(x, w, *geometry)


@of_shapes
def of_results(
    x: Shape | None,
    w: Shape | None,
    layout: str,
    pad_mode: str,
    padding: Any,
    stride: Ints,
    dilation: Ints,
    groups: int,
) -> Geometry:
    """x is its result, for the smallest image, or for the largest one in the mode ``same``, as MindSpore's layers have
    it."""
    if x is None or w is None or len(x) != 4 or x[1] != w[0] or layout != "NCHW":
        return ()
    paddings = padding if isinstance(padding, tuple) else (padding,) * 4
    sizes = []
    for i in (0, 1):
        reach, padded = (w[2 + i] - 1) * dilation[i] + 1, sum(paddings[2 * i : 2 * i + 2])
        size = {
            "same": x[2 + i] * stride[i],
            "valid": x[2 + i] * stride[i] + max(reach - stride[i], 0),
            "pad": (x[2 + i] - 1) * stride[i] + reach - padded,
        }[pad_mode]
        sizes.append(size)
    return _fast_geometry((x[0], w[1] * groups, *sizes), w, pad_mode, padding, stride, dilation, groups)


def _fast_geometry(
    x: Ints, w: Ints, pad_mode: str, padding: Any, stride: Ints, dilation: Ints, groups: int
) -> Geometry:
    (n, c, height, width), (outputs, channels, kh, kw) = x, w
    if min(*x, *w) < 1 or channels * groups != c or outputs % groups:
        return ()
    padding = padding if isinstance(padding, tuple) else (padding,) * 4
    down = _axis(height, kh, stride[0], dilation[0], pad_mode, padding[:2])
    across = _axis(width, kw, stride[1], dilation[1], pad_mode, padding[2:])
    if down[1] < 1 or across[1] < 1:
        return ()
    plain = (kh, kw, *stride, *dilation, groups) == (3, 3, 1, 1, 1, 1, 1) and max(down[0], across[0]) <= 2
    if not (has_avx512() or (plain and min(channels, outputs) >= FEWEST_IN_TILES)):
        if kh * kw == 1 or channels * outputs // groups > MOST_PAIRS or channels * kh * kw > LARGEST_PATCH:
            return ()
        if channels > 1 and kh * kw > LARGEST_KERNEL:
            return ()
    return (
        *(n, c, height, width, kh, kw, *stride, *dilation),
        *(down[0], across[0], down[1], across[1], outputs, groups),
    )


def _axis(size: int, kernel: int, stride: int, dilation: int, pad_mode: str, padding: Ints) -> tuple[int, int]:
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
