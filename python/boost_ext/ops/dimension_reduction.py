"""Dimension-reduced training on arrays: the projections, the quasi-Newton step in the subspace, and the step of the
weights. Re-exported by :mod:`boost_ext.ops`.

Source: the ``dim_reduce`` section of mindspore.boost's documentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Tensors, factors, like_theirs, number, scalar

__all__ = [
    "bfgs_update",
    "dim_reduce_apply",
    "dim_reduce_direction",
    "dim_reduce_trial",
    "pca_back_project",
    "pca_project",
]


def pca_project(P: Array, grads: Arrays, out: Array | None = None, *, scale: Array | None = None) -> Array:
    """Project gradients onto the rows of ``P``: ``out = P @ concatenate([g.ravel() for g in grads])``.

    Source: dimension-reduced training, ``grad_k = pca_mat . grad`` (mindspore.boost documentation, ``dim_reduce``).

    Args:
        P: ``(k, n)`` matrix; or int8 codes, of which ``scale[r, i // 256] * P[r, i]`` is the element.
        grads: tensors with n elements together, in the order of P's columns.
        out: ``(k,)`` float32; if None a new array where ``grads`` are: a PyTorch tensor if one of these is, else
            NumPy's or a device's.
        scale: with an int8 ``P`` only: ``(k, ceil(n / 256))`` float32, see :func:`quantize_projection`.

    Returns:
        ``out``. Sums run in float32 lanes over blocks of 4096 elements, and over the blocks in float64. Codes that
        share a scale are summed up first and multiplied with it then.

    Raises:
        RuntimeError: also for an int8 ``P`` on Ascend.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> P = np.eye(2, 5, dtype=np.float32)
        >>> print(ops.pca_project(P, [np.float32([[1, 2], [3, 4]]), np.float32([5])]))
        [1. 2.]
    """
    result = _core.pca_project(P, grads, out, scale)
    return result if out is not None else like_theirs(result, grads)


def pca_back_project(P: Array, vectors: Sequence[Array], out: Tensors, *, scale: Array | None = None) -> Tensors:
    """Map coordinates back to tensors, for several vectors in one pass over ``P``.

    ``out[j] = P.T @ vectors[j]``, split over the tensors of ``out[j]`` in order.

    Args:
        P: ``(k, n)`` matrix, or int8 codes as in :func:`pca_project`.
        vectors: J arrays ``(k,)`` of float32.
        out: J lists of writable tensors in the parameters' shapes, n elements a list; all lists have the same sizes.
        scale: with an int8 ``P`` only, as in :func:`pca_project`.

    Returns:
        ``out``.

    Raises:
        RuntimeError: also for an int8 ``P`` on Ascend.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> P = np.eye(2, 5, dtype=np.float32)
        >>> out = [[np.empty((2, 2), np.float32), np.empty(1, np.float32)]]  # the shapes of two parameters
        >>> print(*ops.pca_back_project(P, [np.float32([3, 4])], out)[0])
        [[3. 4.]
         [0. 0.]] [0.]
    """
    _core.pca_back_project(P, vectors, out, scale)
    return out


@overload
def bfgs_update(B: Array, s: Array, y: Array, eps: float = 1e-20, *, out: None = None) -> bool: ...
@overload
def bfgs_update(B: Array, s: Array, y: Array, eps: float = 1e-20, *, out: Tensors) -> Tensors: ...
def bfgs_update(B: Array, s: Array, y: Array, eps: float = 1e-20, *, out: Array | None = None) -> Any:
    """Update the inverse-Hessian approximation ``B`` in place (Nocedal & Wright, eq. 6.17).

    If ``y @ s > eps``: ``B = (I - rho s y^T) B (I - rho y s^T) + rho s s^T`` with ``rho = 1 / (y @ s)``.

    Args:
        B: symmetric ``(k, k)``, float32 or float64; stays symmetric to the last bit.
        s: ``(k,)`` step, of B's dtype.
        y: ``(k,)`` difference of gradients, of B's dtype.
        eps: smallest curvature ``y @ s`` that is used.
        out: one float32, written: 1 if B was updated, else 0. Default: none.

    Returns:
        Whether B was updated: not without curvature, nor where ``s``, ``y`` or ``B @ y`` hold inf or nan. With `out`,
        and for arrays on a device (without a wait): `out`, or a new array like it.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> B, s, y = np.eye(2), np.array([1.0, 0.0]), np.array([4.0, 0.0])  # curvature 4 along the step
        >>> print(ops.bfgs_update(B, s, y))
        True
        >>> print(B)
        [[0.25 0.  ]
         [0.   1.  ]]
    """
    return _core.bfgs_update(B, s, y, number("bfgs_update", "eps", eps), out)


@overload
def dim_reduce_direction(
    B: Array,
    s: Array,
    gk_last: Array,
    started: bool,
    gk: Array,
    B_next: Array,
    dk: Array,
    *,
    inv_scale: float | Array = 1.0,
    eps: float = 1e-20,
    out: None = None,
) -> float: ...
@overload
def dim_reduce_direction(
    B: Array,
    s: Array,
    gk_last: Array,
    started: bool,
    gk: Array,
    B_next: Array,
    dk: Array,
    *,
    inv_scale: float | Array = 1.0,
    eps: float = 1e-20,
    out: Tensors,
) -> Tensors: ...
def dim_reduce_direction(
    B: Array,
    s: Array,
    gk_last: Array,
    started: bool,
    gk: Array,
    B_next: Array,
    dk: Array,
    *,
    inv_scale: float | Array = 1.0,
    eps: float = 1e-20,
    out: Array | None = None,
) -> Any:
    """Propose the quasi-Newton direction of a dimension-reduced step; nothing is committed.

    ``gk *= inv_scale``; ``B_next`` is ``B``, updated with ``s`` and ``y = gk - gk_last`` when ``started``
    (:func:`bfgs_update`); ``dk = -B_next @ gk``.

    Args:
        B: symmetric ``(k, k)`` float32.
        s: ``(k,)`` float32, the last accepted step.
        gk_last: ``(k,)`` float32, the projected gradient before that step.
        started: whether ``s`` and ``gk_last`` hold a step yet.
        gk: ``(k,)`` float32, the projection of the scaled gradient; unscaled in place.
        B_next: ``(k, k)`` float32, written.
        dk: ``(k,)`` float32, written.
        inv_scale: the reciprocal of the loss scale: a number, or an array of one float32, not checked on a
            device.
        eps: as in :func:`bfgs_update`.
        out: one float64, written: the slope. Default: none.

    Returns:
        The slope ``gk @ dk``, negative for a direction of descent. With `out`, and for arrays on a device (without a
        wait): `out`, or a new array like it.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> B, B_next = np.eye(2, dtype=np.float32), np.empty((2, 2), np.float32)
        >>> s, gk_last, gk, dk = np.float32([[0, 0], [0, 0], [3, 4], [0, 0]])
        >>> slope = ops.dim_reduce_direction(B, s, gk_last, False, gk, B_next, dk)
        >>> print(slope, dk)
        -25.0 [-3. -4.]
    """
    op = "dim_reduce_direction"
    scale, curvature = scalar(op, "inv_scale", inv_scale), number(op, "eps", eps)
    return _core.dim_reduce_direction(B, s, gk_last, bool(started), gk, scale, B_next, dk, curvature, out)


def dim_reduce_trial(
    weights: Tensors, saved: Arrays, dn: Arrays, step: float | Array, *, save: bool = False
) -> Tensors:
    """Move the weights to a point of the line search: ``weights = saved + step * dn``.

    Args:
        weights: tensors, written.
        saved: tensors like ``weights``. With ``save`` they first receive the weights.
        dn: float32 tensors of the same sizes, the direction ``P.T @ dk``.
        step: learning rate times rho^m: a number, or a float32 array with one element or one for each tensor. 0
            restores the bits of ``saved``.
        save: store the weights first.

    Returns:
        ``weights``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> weights, saved, dn = [np.float32([1, 2])], [np.empty(2, np.float32)], [np.float32([1, -1])]
        >>> print(ops.dim_reduce_trial(weights, saved, dn, 0.5, save=True)[0])
        [1.5 1.5]
        >>> print(ops.dim_reduce_trial(weights, saved, dn, 0)[0])
        [1. 2.]
    """
    _core.dim_reduce_trial(weights, saved, dn, factors("dim_reduce_trial", "step", step), bool(save))
    return weights


def dim_reduce_apply(
    momentum: Arrays,
    grads: Arrays,
    grad_proj: Arrays,
    dn: Arrays,
    out: Tensors,
    *,
    gamma: float,
    alpha: float,
    rho: float | Array,
    inv_scale: float | Array = 1.0,
    saved: Arrays | None = None,
    lr: float | Array | None = None,
) -> Tensors:
    """Residual momentum and the step of dimension-reduced training, in one pass.

    ``momentum = gamma * momentum + inv_scale * grads - grad_proj`` and ``delta = alpha * momentum - rho * dn``
    (mindspore.boost documentation, ``dim_reduce``). Without ``saved``, ``out = delta``, for an optimizer to apply; with
    it, ``out = saved - lr * delta``: the weights themselves.

    Args:
        momentum: float32 tensors, written.
        grads: tensors of the same sizes, as the backward pass left them.
        grad_proj: float32 tensors, ``P.T @ gk``.
        dn: float32 tensors, ``P.T @ dk``.
        out: float32 tensors (may be ``grad_proj``), or with ``saved`` the weights.
        gamma: decay of the momentum.
        alpha: weight of the residual.
        rho: accepted step length of the line search, 0 if none was: a number, or an array of one float32, not
            checked on a device.
        inv_scale: the reciprocal of the loss scale; a number or an array, as ``rho``.
        saved: the weights before the line search, like ``out``; may be ``out``.
        lr: learning rate, with ``saved`` only: a number, or a float32 array with one element or one for each tensor.
            1 if None.

    Returns:
        ``out``.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> momentum, grads, dn = [np.zeros(2, np.float32)], [np.float32([1, 1])], [np.float32([-1, 0])]
        >>> projected = [np.float32([1, 0])]  # the part of the gradient in the subspace
        >>> print(ops.dim_reduce_apply(momentum, grads, projected, dn, projected, gamma=0.9, alpha=0.5, rho=1.0)[0])
        [1.  0.5]
    """
    op = "dim_reduce_apply"
    if saved is None and lr is not None:
        raise ValueError(f"{op}: lr must come with saved, the weights that it moves, got lr alone")
    rate = factors(op, "lr", 1.0 if lr is None else lr)
    scale = scalar(op, "inv_scale", inv_scale)
    decay, share, step = number(op, "gamma", gamma), number(op, "alpha", alpha), scalar(op, "rho", rho)
    _core.dim_reduce_apply(momentum, grads, grad_proj, dn, decay, share, step, scale, out, saved, rate)
    return out
