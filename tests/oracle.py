"""What every op computes, in float64 NumPy: one equation an op, no blocks, no threads, no storage types."""

from __future__ import annotations

import math
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


def quantize_projection(P: Array) -> tuple[Array, Array]:
    starts = np.arange(0, P.shape[1], 256)
    scale = np.maximum.reduceat(abs(P), starts, axis=1) / 127 if len(starts) else np.empty((len(P), 0))
    each = np.repeat(scale, 256, axis=1)[:, : P.shape[1]]
    return np.rint(P / np.where(each > 0, each, 1)), scale


def dequantize_projection(codes: Array, scale: Array) -> Array:
    return np.repeat(scale, 256, axis=1)[:, : codes.shape[1]] * codes


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


def adasum_over_nodes(nodes: Sequence[Sequence[Array]]) -> list[Array]:
    """The nodes beyond a power of two are added to the first ones, then neighbours are added up in a binary tree."""
    values = [list(node) for node in nodes]
    while len(values) & (len(values) - 1):
        extra = values.pop()
        other = len(values) - (1 << (len(values).bit_length() - 1))
        values[other] = [adasum_pair(a, b) for a, b in zip(values[other], extra, strict=True)]
    while len(values) > 1:
        pairs = zip(values[::2], values[1::2], strict=True)
        values = [[adasum_pair(a, b) for a, b in zip(*pair, strict=True)] for pair in pairs]
    return values[0]


def adacons(rows: Sequence[Array]) -> Array:
    """The weighted sum of the ranks' vectors: weights like <c, mean> / |c|^2, none negative, of sum 1."""
    mean = np.mean(rows, axis=0)
    weights = np.array([row @ mean / (row @ row) if row.any() else 0.0 for row in rows])
    weights = weights - min(weights.min(), 0.0)
    return np.asarray(weights @ np.asarray(rows) / weights.sum()) if weights.sum() > 0 else mean


def nearest_codes(vector: Array) -> Array:
    """Whole numbers of steps up to 127, the step of each 256 elements its own."""
    blocks = np.pad(vector, (0, -len(vector) % 256)).reshape(-1, 256)
    step = np.abs(blocks).max(axis=1, keepdims=True) / 127
    return (np.rint(blocks / np.where(step > 0, step, 1)) * step).ravel()[: len(vector)]


def largest_elements(vector: Array, kept: int) -> Array:
    """Those of the largest magnitudes, and 0 elsewhere."""
    return np.where(np.abs(vector) >= np.sort(np.abs(vector))[len(vector) - kept], vector, 0)


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


def tensor_statistics(tensor: Array, scale: float = 1) -> Array:
    seen, values = check(tensor), tensor.ravel()
    finite = values[np.isfinite(values)] / scale
    first = -1 if seen.first is None else seen.first
    zeros = np.sum(values == 0)
    return np.array([seen.inf, seen.nan, first, np.abs(finite).max(initial=0.0), zeros, np.sum(finite**2)])


def accumulate(accumulator: Array, grad: Array, factor: float, first: bool) -> Array:
    return factor * grad if first else accumulator + factor * grad


def orthogonalize(matrix: Array, steps: int = 5, eps: float = 1e-7) -> Array:
    tall = matrix.shape[0] > matrix.shape[1]
    X = (matrix.T if tall else matrix) / (np.linalg.norm(matrix) + eps)
    for _ in range(steps):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.T if tall else X


def ema_update(average: Array, weight: Array, decay: float) -> Array:
    return decay * average + (1 - decay) * weight


def global_norm(tensors: Sequence[Array]) -> float:
    return float(np.sqrt(np.sum(flat(tensors) ** 2)))


def adaptive_clip(grad: Array, weight: Array, clipping: float, eps: float, scale: float = 1) -> Array:
    axes = tuple(range(1, grad.ndim)) if grad.ndim > 1 else None
    g, w = (np.sqrt((x**2).sum(axis=axes, keepdims=True)) for x in (grad, weight))
    limit = clipping * scale * np.maximum(w, eps)
    return grad * np.where(g > limit, limit / np.where(g > 0, g, 1), 1)


def clip_by_global_norm(grads: Sequence[Array], clip_norm: float, scale: float = 1) -> tuple[list[Array], float]:
    norm = global_norm(grads) / scale
    return [g.astype(np.float64) * (clip_norm / max(norm, clip_norm)) for g in grads], norm


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


class Moments(NamedTuple):
    """The weight after a step, and the states."""

    w: Array
    state: tuple[Array, ...]


def ready_gradient(
    w: Array, g: Array, inv_scale: float = 1.0, ratio: float = 1.0, l2: float = 0.0, centralized: bool = False
) -> Array:
    u = inv_scale * ratio * g + l2 * w
    if centralized and u.ndim >= 2 and u.size:
        u = u - u.mean(axis=tuple(range(1, u.ndim)), keepdims=True)
    return u


def sgd_step(
    w: Array, u: Array, a: Array | None, lr: float, momentum: float, dampening: float, nesterov: bool, first: bool
) -> Moments:
    if a is None:
        return Moments(w - lr * u, ())
    a = u if first else momentum * a + (1 - dampening) * u
    return Moments(w - lr * (u + momentum * a if nesterov else a), (a,))


def _heeding(direction: Array, u: Array, cautious: bool) -> Array:
    """The direction; if cautious, where it has the sign of u."""
    return direction * np.maximum(np.sign(direction * u), 0) if cautious else direction


def momentum_step(
    w: Array, u: Array, a: Array, lr: float, momentum: float, use_nesterov: bool, cautious: bool = False
) -> Moments:
    a = momentum * a + u
    return Moments(w - lr * _heeding(u + momentum * a if use_nesterov else a, u, cautious), (a,))


def _averages(u: Array, m: Array, v: Array, beta1: float, beta2: float) -> tuple[Array, Array]:
    return beta1 * m + (1 - beta1) * u, beta2 * v + (1 - beta2) * u**2


def adam_step(
    w: Array,
    u: Array,
    m: Array,
    v: Array,
    x: Array | None,
    lr: float,
    step: int,
    beta1: float,
    beta2: float,
    eps: float,
    use_nesterov: bool,
    cautious: bool = False,
) -> Moments:
    m, v = _averages(u, m, v, beta1, beta2)
    rate = lr * np.sqrt(1 - beta2**step) / (1 - beta1**step)
    top = _heeding(beta1 * m + (1 - beta1) * u if use_nesterov else m, u, cautious)
    if x is None:
        return Moments(w - rate * top / (np.sqrt(v) + eps), (m, v))
    x = np.maximum(x, v)
    return Moments(w - rate * top / (np.sqrt(x) + eps), (m, v, x))


def adam_weight_decay_step(
    w: Array,
    u: Array,
    m: Array,
    v: Array,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    cautious: bool = False,
) -> Moments:
    m, v = _averages(u, m, v, beta1, beta2)
    return Moments(w - lr * (_heeding(m, u, cautious) / (np.sqrt(v) + eps) + decay * w), (m, v))


def adamw_step(
    w: Array,
    u: Array,
    m: Array,
    v: Array,
    lr: float,
    step: int,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    cautious: bool = False,
) -> Moments:
    m, v = _averages(u, m, v, beta1, beta2)
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return Moments(w - lr * decay * w - lr * _heeding(m_hat, u, cautious) / (np.sqrt(v_hat) + eps), (m, v))


def lamb_step(
    w: Array, u: Array, m: Array, v: Array, lr: float, step: int, beta1: float, beta2: float, eps: float, decay: float
) -> Moments:
    m, v = _averages(u, m, v, beta1, beta2)
    r = m / (1 - beta1**step) / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * w
    norms = np.linalg.norm(w.ravel()), np.linalg.norm(r.ravel())
    return Moments(w - lr * (norms[0] / norms[1] if min(norms) > 0 else 1.0) * r, (m, v))


def lion_step(
    w: Array, u: Array, m: Array, lr: float, beta1: float, beta2: float, decay: float, cautious: bool = False
) -> Moments:
    direction = _heeding(np.sign(beta1 * m + (1 - beta1) * u), u, cautious)
    return Moments(w - lr * decay * w - lr * direction, (beta2 * m + (1 - beta2) * u,))


def nadamw_step(
    w: Array,
    u: Array,
    m: Array,
    v: Array,
    lr: float,
    step: int,
    beta1: float,
    beta2: float,
    eps: float,
    momentum_decay: float,
    decay: float,
    cautious: bool = False,
) -> Moments:
    m, v = _averages(u, m, v, beta1, beta2)
    momenta = beta1 * (1 - 0.5 * 0.96 ** (np.arange(1, step + 2) * momentum_decay))
    product = np.prod(momenta[:-1])
    top = momenta[-1] * m / (1 - product * momenta[-1]) + (1 - momenta[-2]) * u / (1 - product)
    return Moments(
        w - lr * decay * w - lr * _heeding(top, u, cautious) / (np.sqrt(v / (1 - beta2**step)) + eps), (m, v)
    )


def ademamix_step(
    w: Array,
    u: Array,
    m: Array,
    v: Array,
    slow: Array,
    lr: float,
    step: int,
    beta1: float,
    beta2: float,
    eps: float,
    beta3: float,
    alpha: float,
    alpha_steps: float,
    beta3_steps: float,
    decay: float,
    cautious: bool = False,
) -> Moments:
    if step < beta3_steps:  # the paper's equation of the schedule
        done, end = step / beta3_steps, np.log(beta3)
        start = np.log(beta1) if beta1 else -np.inf
        beta3 = np.exp(end / ((1 - done) * end / start + done))
    m, v = _averages(u, m, v, beta1, beta2)
    slow = beta3 * slow + (1 - beta3) * u
    top = m / (1 - beta1**step) + (alpha * step / alpha_steps if step < alpha_steps else alpha) * slow
    direction = _heeding(top, u, cautious) / (np.sqrt(v / (1 - beta2**step)) + eps)
    return Moments(w - lr * (direction + decay * w), (m, v, slow))


def adan_step(
    w: Array,
    u: Array,
    m: Array,
    n: Array,
    d: Array,
    last: Array,
    lr: float,
    step: int,
    beta1: float,
    beta2: float,
    beta3: float,
    eps: float,
    decay: float,
    cautious: bool = False,
) -> Moments:
    change = u - (u if step == 1 else last)
    m, d = beta1 * m + (1 - beta1) * u, beta2 * d + (1 - beta2) * change
    n = beta3 * n + (1 - beta3) * (u + beta2 * change) ** 2
    top = m / (1 - beta1**step) + beta2 * d / (1 - beta2**step)
    direction = _heeding(top, u, cautious) / (np.sqrt(n / (1 - beta3**step)) + eps)
    return Moments((w - lr * direction) / (1 + lr * decay), (m, n, d, u))


def _schedule_free(y: Array, z: Array, d: Array, lr: float, c: float, beta: float) -> tuple[Array, Array]:
    """The three sequences of the paper's equations 1 to 3."""
    x = (y - (1 - beta) * z) / beta
    z = z - lr * d
    x = (1 - c) * x + c * z
    return (1 - beta) * z + beta * x, z


def schedule_free_sgd_step(
    y: Array, u: Array, z: Array, lr: float, averaging_weight: float, momentum: float, first: bool = False
) -> Moments:
    y, z = _schedule_free(y, y if first else z, u, lr, averaging_weight, momentum)
    return Moments(y, (z,))


def schedule_free_adamw_step(
    y: Array,
    u: Array,
    z: Array,
    v: Array,
    lr: float,
    step: int,
    averaging_weight: float,
    beta1: float,
    beta2: float,
    eps: float,
    decay: float,
    first: bool = False,
) -> Moments:
    v = beta2 * v + (1 - beta2) * u**2
    r = u / (np.sqrt(v / (1 - beta2**step)) + eps) + decay * y
    y, z = _schedule_free(y, y if first else z, r, lr, averaging_weight, beta1)
    return Moments(y, (z, v))


def averaging_weights(rates: Sequence[float], r: float = 0.0, weight_lr_power: float = 2.0) -> Array:
    """The c of each step, of the learning rates of all steps."""
    largest = np.maximum.accumulate(np.asarray(rates, np.float64))
    weights = np.arange(1, len(rates) + 1) ** r * largest**weight_lr_power
    sums = np.cumsum(weights)
    return np.divide(weights, sums, out=np.zeros_like(sums), where=sums > 0)


def _over_root(u: Array, h: Array) -> Array:
    return np.where(h != 0, u / np.sqrt(np.where(h != 0, h, 1.0)), 0.0)


def adagrad_step(w: Array, u: Array, h: Array, lr: float, update_slots: bool) -> Moments:
    h = h + u**2 if update_slots else h
    return Moments(w - lr * _over_root(u, h), (h,))


def proximal_adagrad_step(w: Array, u: Array, h: Array, lr: float, l1: float, l2: float) -> Moments:
    h = h + u**2
    p = w - lr * _over_root(u, h)
    return Moments(np.sign(p) * np.maximum(np.abs(p) - lr * l1, 0) / (1 + lr * l2), (h,))


def rmsprop_step(
    w: Array, u: Array, s: Array, a: Array, lr: float, decay: float, momentum: float, epsilon: float
) -> Moments:
    s = decay * s + (1 - decay) * u**2
    a = momentum * a + lr * u / np.sqrt(s + epsilon)
    return Moments(w - a, (s, a))


def centered_rmsprop_step(
    w: Array, u: Array, g: Array, s: Array, a: Array, lr: float, decay: float, momentum: float, epsilon: float
) -> Moments:
    g, s = decay * g + (1 - decay) * u, decay * s + (1 - decay) * u**2
    a = momentum * a + lr * u / np.sqrt(np.maximum(s - g**2, 0) + epsilon)
    return Moments(w - a, (g, s, a))


def ftrl_step(w: Array, u: Array, h: Array, z: Array, lr: float, l1: float, l2: float, lr_power: float) -> Moments:
    n = h + u**2
    if lr == 0:
        return Moments(w, (n, z + u))
    z = z + u - (n**-lr_power - h**-lr_power) / lr * w
    shrunk = (np.sign(z) * l1 - z) / (n**-lr_power / lr + 2 * l2)
    return Moments(np.where(np.abs(z) > l1, shrunk, 0.0), (n, z))


class AdaFactor(NamedTuple):
    """Hyperparameters; without `beta1` no first moment, `lr` None is the relative step."""

    lr: float | None = None
    eps: tuple[float, float] = (1e-30, 1e-3)
    clip_threshold: float = 1.0
    decay_rate: float = 0.8
    beta1: float | None = None
    scale_parameter: bool = True
    warmup_init: bool = False


def adafactor_state(shape: tuple[int, ...], beta1: float | None) -> tuple[Array, ...]:
    """R and C, or V; and m, if there is one."""
    factored = len(shape) >= 2
    shapes = [shape[:-1], shape[:-2] + shape[-1:]] if factored else [shape]
    return tuple(np.zeros(s) for s in shapes + ([] if beta1 is None else [shape]))


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2)))


def adafactor_step(w: Array, u: Array, state: Sequence[Array], step: int, decay: float, hyper: AdaFactor) -> Moments:
    """Shazeer and Stern 2018, algorithms 4 and 5."""
    if w.size == 0:
        return Moments(w, tuple(state))
    rate = min(1e-6 * step if hyper.warmup_init else 1e-2, 1 / np.sqrt(step)) if hyper.lr is None else hyper.lr
    alpha = rate * (max(hyper.eps[1], rms(w)) if hyper.scale_parameter else 1.0)
    beta2 = 1 - step**-hyper.decay_rate
    now = u**2 + hyper.eps[0]
    means = [now.mean(axis=-1), now.mean(axis=-2)] if w.ndim >= 2 else [now]
    averages = [beta2 * state[k] + (1 - beta2) * mean for k, mean in enumerate(means)]
    v = averages[0]
    if w.ndim >= 2:
        R, C = averages
        v = (R / R.mean(axis=-1, keepdims=True))[..., :, None] * C[..., None, :]
    U = u / np.sqrt(v)
    m = alpha * U / max(1.0, rms(U) / hyper.clip_threshold)
    if hyper.beta1 is not None:
        m = hyper.beta1 * state[-1] + (1 - hyper.beta1) * m
        averages.append(m)
    return Moments(w - alpha * decay * w - m, tuple(averages))


def muon_step(
    w: Array,
    u: Array,
    m: Array,
    lr: float,
    decay: float,
    momentum: float = 0.95,
    nesterov: bool = True,
    steps: int = 5,
    match_rms: bool = False,
) -> Moments:
    """Jordan et al. 2024, of a matrix: the first axis by all others."""
    if w.size == 0:
        return Moments(w, (m,))
    m = momentum * m + (1 - momentum) * u
    d = (momentum * m + (1 - momentum) * u if nesterov else m).reshape(len(w), -1)
    rows, columns = d.shape
    scale = 0.2 * np.sqrt(max(rows, columns)) if match_rms else np.sqrt(max(1, rows / columns))
    return Moments((1 - lr * decay) * w - lr * scale * orthogonalize(d, steps).reshape(w.shape), (m,))


class Apollo(NamedTuple):
    """Hyperparameters of :func:`apollo_step`."""

    tensor_wise: bool = False
    factor: float = 1.0
    limit: float = 1.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


def adam_of(R: Array, m: Array, v: Array, step: int, betas: tuple[float, float], eps: float) -> tuple[Array, ...]:
    m, v = betas[0] * m + (1 - betas[0]) * R, betas[1] * v + (1 - betas[1]) * R**2
    return m, v, m / (1 - betas[0] ** step) / (np.sqrt(v / (1 - betas[1] ** step)) + eps)


def apollo_step(
    w: Array, u: Array, P: Array, state: tuple[Array, Array, float], lr: float, step: int, decay: float, hyper: Apollo
) -> Moments:
    """Zhu et al. 2024, algorithm 1, of a matrix: the first axis by all others; state is m, v and the last norm."""
    G = u.reshape(len(u), -1)
    tall = G.shape[0] > G.shape[1]
    R = G @ P.T if tall else P @ G
    m, v, last = state
    axis = None if hyper.tensor_wise else int(tall)
    m, v, A = adam_of(R, m, v, step, hyper.betas, hyper.eps)
    size, adam = (np.sqrt((x**2).sum(axis=axis, keepdims=True)) for x in (R, A))
    d = np.sqrt(hyper.factor) * G * (adam / np.maximum(size, 1e-30))
    norm = np.linalg.norm(d)
    if last > 0 and norm > hyper.limit * last:
        d, norm = d * (hyper.limit * last / norm), hyper.limit * last
    return Moments((1 - lr * decay) * w - lr * d.reshape(w.shape), (m, v, norm))


def galore_step(
    w: Array, u: Array, P: Array, m: Array, v: Array, lr: float, step: int, decay: float, hyper: Apollo
) -> Moments:
    """Zhao et al. 2024, algorithm 2, of a matrix: the first axis by all others."""
    G, tall = u.reshape(len(u), -1), len(u) ** 2 > u.size
    m, v, A = adam_of(G @ P if tall else P.T @ G, m, v, step, hyper.betas, hyper.eps)
    d = hyper.factor * (A @ P.T if tall else P @ A)
    return Moments((1 - lr * decay) * w - lr * d.reshape(w.shape), (m, v))


def lars_ratio(w: Array, g: Array, lr: float, decay: float, coefficient: float, epsilon: float, clip: bool) -> float:
    weight, gradient = np.linalg.norm(w.ravel()), np.linalg.norm(g.ravel())
    if weight == 0 or gradient == 0:
        return 1.0
    r = coefficient * weight / (gradient + decay * weight + epsilon)
    return float(min(r / lr, 1)) if clip else float(r)


def normal_cdf(x: Array) -> Array:
    return np.vectorize(math.erfc, otypes=[np.float64])(np.asarray(x, np.float64) * -math.sqrt(0.5)) / 2


def logistic(x: Array) -> Array:
    e = np.exp(-abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def gelu(x: Array, tanh: bool = False) -> Array:
    """Hendrycks and Gimpel, arXiv 1606.08415, section 2."""
    x = np.asarray(x, np.float64)
    if tanh:
        return x * logistic(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return x * normal_cdf(x)


def gelu_slope(x: Array, tanh: bool = False) -> Array:
    x = np.asarray(x, np.float64)
    if tanh:
        share = logistic(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
        return share + x * share * (1 - share) * 2 * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    return normal_cdf(x) + x * np.exp(-x * x / 2) / np.sqrt(2 * np.pi)


def layer_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """The normalized rows, their means and 1 / their deviations: Ba, Kiros and Hinton, arXiv 1607.06450, eq. 3, 4."""
    x = np.asarray(x, np.float64)
    mean = x.mean(1, keepdims=True)
    rstd = 1 / np.sqrt(((x - mean) ** 2).mean(1, keepdims=True) + epsilon)
    return (x - mean) * rstd * gamma + beta, mean[:, 0], rstd[:, 0]


def layer_norm_gradient(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> tuple[Array, Array, Array]:
    dy, x = np.asarray(dy, np.float64), np.asarray(x, np.float64)
    factor = np.asarray(rstd, np.float64)[:, None]
    normed, h = (x - np.asarray(mean, np.float64)[:, None]) * factor, dy * gamma
    dx = factor * (h - h.mean(1, keepdims=True) - normed * (h * normed).mean(1, keepdims=True))
    return dx, (dy * normed).sum(0), dy.sum(0)


def batch_norm(x: Array, gamma: Array, beta: Array, epsilon: float) -> tuple[Array, Array, Array]:
    """The normalized channels of x (n, c, m), their means and variances: Ioffe and Szegedy, arXiv 1502.03167."""
    x = np.asarray(x, np.float64)
    mean = x.mean((0, 2))
    variance = ((x - mean[:, None]) ** 2).mean((0, 2))
    scale = np.asarray(gamma, np.float64) / np.sqrt(variance + epsilon)
    return (x - mean[:, None]) * scale[:, None] + np.asarray(beta, np.float64)[:, None], mean, variance


def batch_norm_gradient(dy: Array, x: Array, mean: Array, rstd: Array, gamma: Array) -> tuple[Array, Array, Array]:
    dy, x = np.asarray(dy, np.float64), np.asarray(x, np.float64)
    normed = (x - np.asarray(mean, np.float64)[:, None]) * np.asarray(rstd, np.float64)[:, None]
    dgamma, dbeta = (dy * normed).sum((0, 2)), dy.sum((0, 2))
    size = x.shape[0] * x.shape[2]
    scale = np.asarray(gamma, np.float64) * rstd
    return scale[:, None] * (dy - dbeta[:, None] / size - normed * dgamma[:, None] / size), dgamma, dbeta


Pair = tuple[int, int]


def conv2d(x: Array, w: Array, stride: Pair, dilation: Pair, padding: Sequence[int], groups: int) -> Array:
    """x (n, c, h, w) beside w (outputs, c / groups, kh, kw); padding above, below, left and right."""
    seen, weights = _seen(_padded(x, padding), w, stride, dilation, groups)
    y = np.einsum("ngcijab,gocab->ngoij", seen, weights)
    return y.reshape(len(x), len(w), *y.shape[3:])


def conv2d_gradients(
    dy: Array, x: Array, w: Array, stride: Pair, dilation: Pair, padding: Sequence[int], groups: int
) -> tuple[Array, Array]:
    """Of the sum of dy y: by x, and by w."""
    seen, weights = _seen(_padded(x, padding), w, stride, dilation, groups)
    dy = np.asarray(dy, np.float64).reshape(len(x), groups, -1, *dy.shape[2:])
    dx = np.zeros_like(_padded(x, padding))
    places, _ = _seen(dx, w, stride, dilation, groups, writeable=True)
    for a, b in np.ndindex(*w.shape[2:]):
        places[..., a, b] += np.einsum("ngoij,goc->ngcij", dy, weights[..., a, b])
    rows, columns = (slice(padding[i], padding[i] + x.shape[2 + i // 2]) for i in (0, 2))
    return dx[:, :, rows, columns], np.einsum("ngoij,ngcijab->gocab", dy, seen).reshape(w.shape)


def _padded(x: Array, padding: Sequence[int]) -> Array:
    return np.pad(np.asarray(x, np.float64), ((0, 0), (0, 0), padding[:2], padding[2:]))


def _seen(
    x: Array, w: Array, stride: Pair, dilation: Pair, groups: int, writeable: bool = False
) -> tuple[Array, Array]:
    """A view of what each position sees, (n, groups, c, oh, ow, kh, kw), and the weights (groups, o, c, kh, kw)."""
    channels, kh, kw = w.shape[1:]
    reach = [(k - 1) * d + 1 for k, d in zip((kh, kw), dilation, strict=True)]
    seen = np.lib.stride_tricks.sliding_window_view(x, reach, (2, 3), writeable=writeable)
    seen = seen[:, :, :: stride[0], :: stride[1], :: dilation[0], :: dilation[1]]
    # A reshape of a strided view could be a copy: the axis of channels is split by hand.
    n, c = seen.strides[:2]
    shape = (len(x), groups, channels, *seen.shape[2:])
    seen = np.lib.stride_tricks.as_strided(seen, shape, (n, c * channels, c, *seen.strides[2:]), writeable=writeable)
    return seen, np.asarray(w, np.float64).reshape(groups, -1, channels, kh, kw)


def cross_entropy(x: Array, labels: Array, ignored: int = -100, mean: bool = True) -> tuple[float, Array]:
    """The loss, and the logarithm of the sum of the exponentials of each row."""
    x = np.asarray(x, np.float64)
    most = x.max(1)
    lse = most + np.log(np.exp(x - most[:, None]).sum(1))
    rows = np.flatnonzero(labels != ignored)
    losses = lse[rows] - x[rows, labels[rows]]
    return float(losses.sum() / len(rows) if mean else losses.sum()), lse


def cross_entropy_gradient(x: Array, labels: Array, dloss: float, ignored: int = -100, mean: bool = True) -> Array:
    x = np.asarray(x, np.float64)
    rows = np.flatnonzero(labels != ignored)
    dx = np.zeros_like(x)
    e = np.exp(x[rows] - x[rows].max(1, keepdims=True))
    dx[rows] = e / e.sum(1, keepdims=True)
    dx[rows, labels[rows]] -= 1
    return dx * dloss / (len(rows) if mean else 1)


def softmax(x: Array) -> Array:
    """The shares of each row."""
    x = np.asarray(x, np.float64)
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def softmax_gradient(dy: Array, y: Array) -> Array:
    dy, y = np.asarray(dy, np.float64), np.asarray(y, np.float64)
    return y * (dy - (dy * y).sum(1, keepdims=True))


def max_pool(x: Array, out: tuple[int, int], windows: Sequence[int]) -> tuple[Array, Array]:
    """The maxima (planes, *out) and their places in the windows: the first of equals, the last nan."""
    (kh, kw, sh, sw, top, left), (planes, h, w) = windows, x.shape
    y, places = np.empty((planes, *out)), np.empty((planes, *out), np.uint8)
    for p, r, c in np.ndindex(y.shape):
        best = None
        for i, j in np.ndindex(kh, kw):
            row, column = r * sh - top + i, c * sw - left + j
            if 0 <= row < h and 0 <= column < w:
                value = x[p, row, column]
                if best is None or value > best or np.isnan(value):
                    best, places[p, r, c] = value, i * kw + j
        y[p, r, c] = best
    return y, places


def max_pool_gradient(dy: Array, places: Array, image: tuple[int, int], windows: Sequence[int]) -> Array:
    _, kw, sh, sw, top, left = windows
    dx = np.zeros((len(dy), *image))
    for p, r, c in np.ndindex(dy.shape):
        i, j = divmod(int(places[p, r, c]), kw)
        dx[p, r * sh - top + i, c * sw - left + j] += dy[p, r, c]
    return dx
