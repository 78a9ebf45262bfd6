"""Clipping by the global norm, re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from boost_ext import _core
from boost_ext._arguments import Arrays, number

__all__ = ["clip_by_global_norm"]


def clip_by_global_norm(grads: Arrays, clip_norm: float = 1.0, *, scale: float = 1.0) -> float:
    """Shorten gradients, taken as one vector, to the length `clip_norm`, in place.

    ``norm = sqrt(sum(g**2)) / scale``, ``g *= clip_norm / max(norm, clip_norm)``; the norm is summed in float64.

    Source: Pascanu et al. 2013, *On the difficulty of training recurrent neural networks*, algorithm 1.

    Args:
        grads: tensors of any shapes; nothing is written where they are short enough, or not finite.
        clip_norm: the greatest length, > 0.
        scale: what the gradients are too large by (a loss scale), > 0; they stay so.

    Returns:
        The norm from before, inf or nan exactly when some element is.

    An optimizer of :mod:`boost_ext.ops` spares the writing pass: give it the factor, as its ``inv_scale``.
    """
    op = "clip_by_global_norm"
    return _core.clip_by_global_norm(grads, number(op, "clip_norm", clip_norm), number(op, "scale", scale))
