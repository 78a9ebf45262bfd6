"""Clipping of gradients, re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from typing import Any, overload

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Tensors, number, scalar

__all__ = ["adaptive_clip", "clip_by_global_norm"]


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


def adaptive_clip(
    grads: Tensors, weights: Arrays, clipping: float = 0.01, *, eps: float = 1e-3, scale: float = 1.0
) -> Tensors:
    """Shorten the gradient of each unit to a share of the norm of its weights, in place: AGC.

    ``limit = clipping * scale * max(‖w‖, eps)``, ``g *= limit / ‖g‖`` where ``‖g‖ > limit``, unit by unit. A unit is an
    output channel or neuron: all that shares the index of the first axis, as MindSpore and PyTorch store Dense and
    convolutions. A tensor of one axis or none is one unit. Norms are summed in float64.

    Source: Brock et al. 2021, *High-performance large-scale image recognition without normalization*, eq. 3. There the
    last layer is not clipped.

    Args:
        grads: tensors of any shapes, written. A unit with inf or nan is left as it is.
        weights: tensors of the same shapes; a unit with inf or nan is not clipped.
        clipping: the greatest ratio of the norms, > 0. Larger batches need a smaller one: 0.01 for 4096 images.
        eps: the least norm of weights that counts, >= 0, so that weights of zeros can leave it.
        scale: what the gradients are too large by (a loss scale), > 0; they stay so.

    Returns:
        ``grads``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> weight = np.float32([[3, 4], [30, 40]])
        >>> print(ops.adaptive_clip(np.float32([[0, 1], [0, 1]]), weight, 0.1))
        [[0.  0.5]
         [0.  1. ]]
    """
    op = "adaptive_clip"
    limits = (number(op, name, value) for name, value in (("clipping", clipping), ("eps", eps), ("scale", scale)))
    _core.adaptive_clip(grads, weights, *limits)
    return grads
