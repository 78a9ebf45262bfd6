"""Clipping by the global norm, re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from typing import Any, overload

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Tensors, number, scalar

__all__ = ["clip_by_global_norm"]


@overload
def clip_by_global_norm(
    grads: Arrays, clip_norm: float = 1.0, *, scale: float | Array = 1.0, out: None = None
) -> float: ...
@overload
def clip_by_global_norm(
    grads: Arrays, clip_norm: float = 1.0, *, scale: float | Array = 1.0, out: Tensors
) -> Tensors: ...
def clip_by_global_norm(
    grads: Arrays, clip_norm: float = 1.0, *, scale: float | Array = 1.0, out: Array | None = None
) -> Any:
    """Shorten gradients, taken as one vector, to the length `clip_norm`, in place.

    ``norm = sqrt(sum(g**2)) / scale``, ``g *= clip_norm / max(norm, clip_norm)``; the norm is summed in float64.

    Source: Pascanu et al. 2013, *On the difficulty of training recurrent neural networks*, algorithm 1.

    Args:
        grads: tensors of any shapes; nothing is written where they are short enough, or not finite.
        clip_norm: the greatest length, > 0.
        scale: what the gradients are too large by (a loss scale), > 0; they stay so. An array of one float32 is as good
            as a number; on a device nobody reads it, so it is not checked there.
        out: one float64, written: the norm. Default: none.

    Returns:
        The norm from before, inf or nan exactly when some element is. With `out`, and of arrays on a device, which
        nobody waits for: `out`, or a new array like it.

    An optimizer of :mod:`boost_ext.ops` spares the writing pass: give it the factor, as its ``inv_scale``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> grads = [np.float32([3, 0]), np.float32([4])]
        >>> print(ops.clip_by_global_norm(grads, 1.0), *grads)
        5.0 [0.6 0. ] [0.8]
    """
    op = "clip_by_global_norm"
    return _core.clip_by_global_norm(grads, number(op, "clip_norm", clip_norm), scalar(op, "scale", scale), out)
