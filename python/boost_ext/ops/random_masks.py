"""Dropout whose masks are drawn again instead of kept, re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from boost_ext import _core
from boost_ext.ops.arguments import Array, Tensors, empty_like, integer, is_array, number

__all__ = ["dropout"]


def dropout(
    x: Tensors,
    p: float,
    seed: int,
    *,
    draw: int | Array = 0,
    stream: int = 0,
    shared: int = 1,
    out: Tensors | None = None,
) -> Tensors:
    """Set a random share `p` of the elements to 0 and multiply the others by ``1 / (1 - p)``.

    The mask follows from `seed`, `draw`, `stream` and the place of an element alone, by the counter-based generator
    Philox4x32-7: it is not kept anywhere, has the same bits for any number of threads and on any device, and the
    backward pass is the same call on the gradient.

    Source: Srivastava et al. 2014, *Dropout: a simple way to prevent neural networks from overfitting*; Salmon et al.
    2011, *Parallel random numbers: as easy as 1, 2, 3*; with `shared` Tompson et al. 2015, *Efficient object
    localization using convolutional networks*, section 3.2.

    Args:
        x: one array. What is dropped is 0, even if it was inf or nan.
        p: 0 <= p <= 1, rounded to a multiple of 2^-16, also in the factor.
        seed: 0 <= seed < 2^64; another one for each layer.
        draw: which pass, 0 <= draw < 2^32; or an array of one int32, which is read where it lies: on a device by the
            kernel, so that a captured graph draws anew in each replay.
        stream: 0 <= stream < 2^32, for instance the rank.
        shared: how many elements in a row are dropped or kept together; it divides the size. For `x` of shape
            (N, C, H, W), H * W drops whole channels.
        out: like `x`; may be `x` itself. A new array if None and `x` is a NumPy array, a PyTorch tensor or on a device.

    Returns:
        ``out``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> y = ops.dropout(np.ones(1000, np.float32), 0.25, seed=7)
        >>> print(np.unique(y).round(3), (y == 0).mean().round(1))
        [0.    1.333] 0.3
        >>> dx = ops.dropout(np.ones(1000, np.float32), 0.25, seed=7)  # the backward pass: the same mask
        >>> print(np.array_equal(y == 0, dx == 0))
        True
    """
    op = "dropout"
    key = {"seed": integer(op, "seed", seed), "stream": integer(op, "stream", stream)}
    if not is_array(draw) or getattr(draw, "shape", None) == ():
        draw = key["draw"] = integer(op, "draw", draw)
    for name, value in key.items():
        bits = 64 if name == "seed" else 32
        if not 0 <= value < 2**bits:
            raise ValueError(f"{op}: {name} must be >= 0 and < 2**{bits}, got {value}")
    group = integer(op, "shared", shared)
    if not 0 < group < 2**63:
        raise ValueError(f"{op}: shared must be >= 1 and divide the elements of x, got {group}")
    if out is None:
        out = empty_like(op, x, "x")
    result: Tensors = _core.dropout(x, number(op, "p", p), key["seed"], draw, key["stream"], group, out)
    return result
