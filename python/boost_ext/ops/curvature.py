"""Kronecker-factored curvature: its factors, their inverses, and gradients times these.

Re-exported by :mod:`boost_ext.ops`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Numbers, Tensors, integer, number, numbers

__all__ = ["covariance", "damped_inverse", "precondition"]


def _pair(arg: str, value: Any, count: int = 2) -> list[int]:
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value] * count
    if len(items) != count:
        raise ValueError(f"covariance: {arg} must hold {count} integers, got {len(items)}")
    return [integer("covariance", arg, item) for item in items]


def covariance(
    x: Array,
    out: Tensors,
    *,
    factor: float = 1.0,
    kernel: int | Sequence[int] = 1,
    stride: int | Sequence[int] = 1,
    dilation: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    one_hot: bool = False,
) -> Tensors:
    """Second moments of rows, ``factor * sum(outer(row, row) for row in rows)``, in blocks along the diagonal.

    Source: Martens & Grosse, ICML 2015, section 2, and Grosse & Martens, ICML 2016, section 3, for convolutions; blocks
    as in Chen et al., *THOR*, AAAI 2021.

    Args:
        x: ``(rows, d)``; or images ``(n, c, h, w)``, whose rows are the patches that a convolution sees, of
            d = c * kernel elements. With `one_hot` int32 indices ``(rows,)``: a row is 1 at its index, and 0 elsewhere.
        out: float64 ``(blocks, b, b)`` with ceil(d / b) blocks, written: the blocks of the matrix, zeros beyond its
            end. With `one_hot` ``(d,)``, its diagonal, which is all there is.
        factor: finite.
        kernel, stride, dilation: of images: one integer, or two.
        padding: of images: one integer, or four: above, below, left, right.

    Returns:
        ``out``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> rows = np.float32([[1, 2], [3, 4]])
        >>> print(ops.covariance(rows, np.empty((1, 2, 2)), factor=1 / 2))
        [[[ 5.  7.]
          [ 7. 10.]]]
    """
    op = "covariance"
    share = number(op, "factor", factor)
    if one_hot:
        _core.covariance(x, [], share, out)
        return out
    shape = getattr(x, "shape", None)
    if not isinstance(shape, Sequence) or len(shape) not in (2, 4):
        shape = (0, 1, 0, 0)  # not an array, or none of these: for the op to refuse
    n, c, h, w = shape if len(shape) == 4 else (*shape, 1, 1)
    (kh, kw), (sh, sw), (dh, dw) = _pair("kernel", kernel), _pair("stride", stride), _pair("dilation", dilation)
    top, bottom, left, right = _pair("padding", padding, 4)
    axes = ((h + top + bottom, kh, sh, dh), (w + left + right, kw, sw, dw))
    positions = [max((size - d * (k - 1) - 1) // max(s, 1) + 1, 0) for size, k, s, d in axes]
    _core.covariance(x, [n, c, h, w, kh, kw, sh, sw, dh, dw, top, left, *positions], share, out)
    return out


@overload
def damped_inverse(
    matrices: Arrays, out: Arrays, *, factor: Numbers = 1.0, damping: Numbers = 0.0, inverted: None = None
) -> bool: ...
@overload
def damped_inverse(
    matrices: Arrays, out: Arrays, *, factor: Numbers = 1.0, damping: Numbers = 0.0, inverted: Tensors
) -> Tensors: ...
def damped_inverse(
    matrices: Arrays,
    out: Arrays,
    *,
    factor: Numbers = 1.0,
    damping: Numbers = 0.0,
    inverted: Array | None = None,
) -> Any:
    """Inverses of symmetric positive semidefinite matrices, ``out = inv(factor * matrices + damping * I)``.

    Cholesky's method in float64, one rounding to float32; symmetric to the last bit.

    Source: Martens & Grosse, ICML 2015, section 6.3.

    Args:
        matrices: float64 ``(batch, b, b)``, of which the upper triangles are read; or ``(d,)``, a diagonal.
        out: float32, of the same shapes, written.
        factor, damping: finite and >= 0; one number, or one for each tensor.
        inverted: one float32, written: 1 if all were inverted, else 0. Default: none.

    Returns:
        Whether all were inverted; with `inverted`, and of arrays on a device, which nobody waits for: `inverted`, or a
        new array like it. A matrix that is not positive definite even so, or holds inf or nan, leaves its place in
        `out` as it is.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> inverse = np.empty((1, 2, 2), np.float32)
        >>> print(ops.damped_inverse([np.diag([1.0, 3.0])[None]], [inverse], damping=1.0))
        True
        >>> print(inverse)
        [[[0.5  0.  ]
          [0.   0.25]]]
    """
    op = "damped_inverse"
    count = len(matrices) if isinstance(matrices, (list, tuple)) else 1

    def spread(values: list[float]) -> list[float]:
        return values * count if len(values) == 1 else values

    factors, dampings = spread(numbers(op, "factor", factor)), spread(numbers(op, "damping", damping))
    return _core.damped_inverse(matrices, factors, dampings, out, inverted)


def precondition(grads: Arrays, left: Arrays, right: Arrays, out: Tensors, *, inv_scale: float = 1.0) -> Tensors:
    """Gradients times both factors of an inverse curvature, ``out = inv_scale * left @ grads @ right``.

    Source: Martens & Grosse, ICML 2015, section 2.

    Args:
        grads: of any float dtype; each is a matrix of its first axis by all others.
        left, right: float32, one for each gradient: ``(blocks, b, b)``, blocks on a diagonal; or ``(d,)``, a diagonal.
            Both of no elements: the gradient stays as it is.
        out: float32, of the sizes of `grads`, written.
        inv_scale: finite.

    Returns:
        ``out``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> grad, left, right = np.ones((2, 3), np.float32), np.float32([1, 2]), np.float32([1, 10, 100])  # diagonals
        >>> print(ops.precondition([grad], [left], [right], [np.empty_like(grad)])[0])
        [[  1.  10. 100.]
         [  2.  20. 200.]]
    """
    _core.precondition(grads, left, right, number("precondition", "inv_scale", inv_scale), out)
    return out
