"""The native ops of dimension-reduced training: projection, BFGS update, line search, residual momentum."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor

from boost_ext import _core

from .cell import NativeCell, Tensors, contiguous, flag, number


def _with_scale(P: Tensor | Tensors) -> Tensors:
    return P if isinstance(P, (tuple, list)) else (P,)


def _pca_project(P: Tensor | Tensors, out: Tensor, grads: Tensors) -> None:
    matrix, *scale = _with_scale(P)
    _core.pca_project(matrix, contiguous(grads), out, *scale)


class PcaProject(NativeCell):
    """``cell(P, out, grads)``: ``out = P @ grads``, out (k,) float32; P may be a tuple: int8 codes and their scale.

    See :func:`boost_ext.ops.pca_project`.
    """

    symbol, by_pointer = "pca_project", staticmethod(_pca_project)


def _pca_back_project(P: Tensor | Tensors, v: Tensor, w: Tensor, out_v: Tensors, out_w: Tensors) -> None:
    matrix, *scale = _with_scale(P)
    _core.pca_back_project(matrix, (v, w), (out_v, out_w), *scale)


class PcaBackProject(NativeCell):
    """``cell(P, v, w, out_v, out_w)``: ``P.T @ v`` and ``P.T @ w`` in one pass over P, as in :class:`PcaProject`.

    See :func:`boost_ext.ops.pca_back_project`.
    """

    symbol, by_pointer = "pca_back_project", staticmethod(_pca_back_project)


_BOTH = np.ones(2, np.float32)


def _subspace_point(P: Tensor, coordinates: Tensor, origin: Tensor, weights: Tensors) -> None:
    _core.pca_back_project(P, (coordinates,), ([origin.asnumpy()[1]],))
    _core.pca_back_project(origin, (_BOTH,), (weights,))


class SubspacePoint(NativeCell):
    """``cell(P, coordinates, origin, weights)``: ``weights = origin[0] + P.T @ coordinates``, summed up in float32.

    ``origin`` is float32 (2, n); its second row is written too. See :func:`boost_ext.ops.pca_back_project`.
    """

    symbol, by_pointer = "subspace_point", staticmethod(_subspace_point)


def _bfgs_update(B: Tensor, s: Tensor, y: Tensor, eps: Tensor) -> bool:
    return bool(_core.bfgs_update(B, s, y, number(eps)))


class BfgsUpdate(NativeCell):
    """``cell(B, s, y, eps)``: inverse-BFGS update of B in place; True if it updated.

    See :func:`boost_ext.ops.bfgs_update`. ``eps`` is one float32.
    """

    symbol, by_pointer = "bfgs_update", staticmethod(_bfgs_update)


def _dim_reduce_direction(*args: Tensor) -> None:
    B, s, gk_last, started, gk, scale, B_next, dk, slope, eps = args
    value = _core.dim_reduce_direction(B, s, gk_last, flag(started), gk, 1.0 / number(scale), B_next, dk, number(eps))
    slope.assign_value(Tensor([value], ms.float32))


class DimReduceDirection(NativeCell):
    """``cell(B, s, gk_last, started, gk, scale, B_next, dk, slope, eps)``; writes gk, B_next, dk and slope (1,).

    See :func:`boost_ext.ops.dim_reduce_direction`.
    """

    symbol, by_pointer = "dim_reduce_direction", staticmethod(_dim_reduce_direction)


def _dim_reduce_trial(step: Tensor, save: Tensor, weights: Tensors, saved: Tensors, dn: Tensors) -> None:
    _core.dim_reduce_trial(weights, saved, dn, step, flag(save))


class DimReduceTrial(NativeCell):
    """``cell(step, save, weights, saved, dn)``: ``weights = saved + step * dn``, after saving them if ``save``.

    See :func:`boost_ext.ops.dim_reduce_trial`.
    """

    symbol, by_pointer = "dim_reduce_trial", staticmethod(_dim_reduce_trial)


def _dim_reduce_apply(
    gamma: Tensor, alpha: Tensor, rho: Tensor, scale: Tensor, m: Tensors, grads: Tensors, proj: Tensors, dn: Tensors
) -> None:
    rates = (number(gamma), number(alpha), number(rho), 1.0 / number(scale))
    _core.dim_reduce_apply(m, contiguous(grads), proj, dn, proj, *rates, None, None)


class DimReduceApply(NativeCell):
    """``cell(gamma, alpha, rho, scale, momentum, grads, grad_proj, dn)``: momentum in place, delta over ``grad_proj``.

    See :func:`boost_ext.ops.dim_reduce_apply`.
    """

    symbol, by_pointer = "dim_reduce_apply", staticmethod(_dim_reduce_apply)
