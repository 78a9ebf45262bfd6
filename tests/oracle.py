"""What every op computes, in float64 NumPy: one equation an op, no blocks, no threads, no storage types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def flat(tensors: Sequence[npt.ArrayLike]) -> Array:
    return np.concatenate([np.asarray(t).astype(np.float64).ravel() for t in tensors])


def pca_project(P: Array, grads: Sequence[Array]) -> Array:
    return P @ flat(grads)


def pca_back_project(P: Array, v: Array, like: Sequence[Array]) -> list[Array]:
    ends = np.cumsum([t.size for t in like])
    return [part.reshape(t.shape) for part, t in zip(np.split(P.T @ v, ends[:-1]), like, strict=True)]


def bfgs_update(B: Array, s: Array, y: Array, eps: float = 1e-20) -> Array:
    if not y @ s > eps:
        return B
    rho = 1 / (y @ s)
    left = np.eye(len(s)) - rho * np.outer(s, y)
    return left @ B @ left.T + rho * np.outer(s, s)


def adasum_dots(a: Array, b: Array) -> Array:
    return np.array([np.sum(a * b), np.sum(a * a), np.sum(b * b)])


def adasum_combine(a: Array, b: Array, dots: Array) -> Array:
    ab, aa, bb = dots
    of_a = 1 - ab / (2 * aa) if aa != 0 else 1.0
    of_b = 1 - ab / (2 * bb) if bb != 0 else 1.0
    return of_a * a + of_b * b


def adasum_pair(a: Array, b: Array) -> Array:
    return adasum_combine(a, b, adasum_dots(a, b))


class Finiteness(NamedTuple):
    inf: int
    nan: int
    first: int | None
    max_abs: float


def unscale(grad: Array, inv_scale: float) -> Array:
    return grad * inv_scale


def check(stored: Array) -> Finiteness:
    """What the elements are like after they went through their storage type."""
    values = stored.ravel()
    bad = np.flatnonzero(~np.isfinite(values))
    return Finiteness(
        inf=int(np.isinf(values).sum()),
        nan=int(np.isnan(values).sum()),
        first=int(bad[0]) if bad.size else None,
        max_abs=float(np.abs(values[np.isfinite(values)]).max(initial=0.0)),
    )


def accumulate(accumulator: Array, grad: Array, factor: float, first: bool) -> Array:
    return factor * grad if first else accumulator + factor * grad


def global_norm(tensors: Sequence[Array]) -> float:
    return float(np.sqrt(np.sum(flat(tensors) ** 2)))


def centralize(grad: Array) -> Array:
    if grad.ndim < 2 or grad.size == 0:
        return grad
    return grad - grad.mean(axis=tuple(range(1, grad.ndim)), keepdims=True)


class Direction(NamedTuple):
    gk: Array
    B_next: Array
    dk: Array
    slope: float


def dim_reduce_direction(
    B: Array, s: Array, gk_last: Array, started: bool, gk: Array, inv_scale: float, eps: float
) -> Direction:
    gk = gk * inv_scale
    B_next = bfgs_update(B, s, gk - gk_last, eps) if started else B
    dk = -B_next @ gk
    return Direction(gk, B_next, dk, float(gk @ dk))


def dim_reduce_trial(saved: Array, dn: Array, step: float) -> Array:
    return saved + step * dn


def dim_reduce_momentum(m: Array, g: Array, proj: Array, gamma: float, inv_scale: float) -> Array:
    return gamma * m + inv_scale * g - proj


def dim_reduce_delta(m: Array, dn: Array, alpha: float, rho: float) -> Array:
    return alpha * m - rho * dn


def group_loss_scale_update(scale: float, found: int, max_scale: float) -> float:
    if found == 1:
        return max(scale / np.sqrt(2), 1.0)
    return min(scale * 2 ** (1 / 1000), max_scale) if found == 0 else scale


class LossScale(NamedTuple):
    scale: float
    iteration: int
    last: int
    bad: int


def loss_scale_update(state: LossScale, overflow: bool, factor: float, window: int, max_scale: float) -> LossScale:
    scale, iteration, last, bad = state
    if overflow:
        return LossScale(max(scale / factor, 1.0), iteration + 1, iteration, bad + 1)
    if iteration - last >= window:
        return LossScale(min(scale * factor, max_scale), iteration + 1, iteration, 0)
    return LossScale(scale, iteration + 1, last, 0)
