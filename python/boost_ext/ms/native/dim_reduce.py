"""The native ops of dimension-reduced training: projection, direction, line search, residual momentum."""

from __future__ import annotations

from .cell import NativeCell


class PcaProject(NativeCell):
    """``cell(P, grads, out, scale)``: ``out = P @ grads``, out (k,) float32; the scale of int8 codes, or ``absent``.

    See :func:`boost_ext.ops.pca_project`.
    """

    symbol, read_only = "pca_project", (1,)


class PcaBackProject(NativeCell):
    """``cell(P, v, w, out_v, out_w, scale)``: ``P.T @ v`` and ``P.T @ w`` in one pass, as in :class:`PcaProject`.

    See :func:`boost_ext.ops.pca_back_project`.
    """

    symbol = "pca_back_project"


class SubspacePoint(NativeCell):
    """``cell(P, coordinates, origin, weights)``: ``weights = origin[0] + P.T @ coordinates``, summed up in float32.

    ``origin`` is float32 (2, n); its second row is written too. See :func:`boost_ext.ops.pca_back_project`.
    """

    symbol = "subspace_point"


class DimReduceDirection(NativeCell):
    """``cell(B, s, gk_last, started, gk, scale, B_next, dk, eps, slope)``; writes gk, B_next, dk and slope (1,).

    See :func:`boost_ext.ops.dim_reduce_direction`.
    """

    symbol = "dim_reduce_direction"


class DimReduceTrial(NativeCell):
    """``cell(weights, saved, dn, step, save)``: ``weights = saved + step * dn``, after saving them if ``save``.

    See :func:`boost_ext.ops.dim_reduce_trial`.
    """

    symbol = "dim_reduce_trial"


class DimReduceApply(NativeCell):
    """``cell(gamma, alpha, rho, scale, momentum, grads, grad_proj, dn)``: momentum in place, delta over ``grad_proj``.

    See :func:`boost_ext.ops.dim_reduce_apply`.
    """

    symbol, read_only = "dim_reduce_apply", (5,)
