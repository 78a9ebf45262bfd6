"""The cases of ``boost-ext bench``: what a training step calls most, each at a size of the caller's."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import matrix, split, uniform
from boost_ext.bench.frameworks import mindspore_or_none, torch_or_none, torch_tensor
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import grad_scaler_step, mindspore_peers, optimizer_peers, torch_weights

__all__ = [
    "ROWS",
    "SCALE",
    "SHARE",
    "TENSORS",
    "adasum_pair",
    "cases",
    "dropout",
    "global_norm",
    "guarded_step",
    "norm",
    "pca_project",
    "right",
    "told",
    "unscale_and_check",
    "wide_pair",
]

TENSORS = 60
SCALE = 1 - 2.0**-10
"""Of the gradients: hundreds of multiplications by it leave normal numbers."""
ROWS = 32
"""Of the matrix of the projections."""
SHARE = 0.1
"""What dropout drops."""
LR, BETA1, BETA2 = 0.1, 0.9, 0.999
EPS = 0.5  # beside the corrected root, as PyTorch's; large, or the first step would not show the clipping
OURS = EPS * math.sqrt(1 - BETA2)  # the same beside the uncorrected one, as MindSpore's


def cases(elements: int) -> Iterator[tuple[str, Callable[[], Case]]]:
    """The name of each case, and what makes it: its arrays are alive no longer than it.

    Args:
        elements (int): of the gradients.
    """
    yield "guarded_step", lambda: guarded_step(elements, TENSORS)
    yield "unscale_and_check", lambda: unscale_and_check(elements)
    yield "global_norm", lambda: global_norm(elements)
    yield "adasum_pair", lambda: adasum_pair(elements)
    yield "pca_project", lambda: pca_project(elements // 8)
    yield "dropout", lambda: dropout(uniform(elements, seed=1) + np.float32(2), f"dropout fp32, {elements:.1e}")


def unscale_and_check(n: int) -> Case:
    """Gradients times a factor, in place, and whether one is inf or nan."""
    start = uniform(n, seed=1)
    flat = start.copy()
    grads = split(flat, TENSORS)

    def reset() -> None:
        flat[...] = start

    def reference() -> Any:
        return [SCALE * x.astype(np.float64) for x in split(start, TENSORS)] + [0.0]

    def numpy_unscale() -> Any:
        factor = np.float32(SCALE)
        for g in grads:
            np.multiply(g, factor, g)
        return [*grads, not all(np.isfinite(g).all() for g in grads)]

    peers = [Peer("NumPy", numpy_unscale, goal=3)]
    if torch := torch_or_none():
        tensors = [torch.from_numpy(g) for g in grads]
        factor = torch.tensor(SCALE)

        def amp() -> Any:
            found = torch.zeros(1)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)
            return [*tensors, found[0]]

        peers.append(Peer("PyTorch amp foreach", amp, goal=1))
    if mindspore_or_none():
        peers += _mindspore_unscale(grads)
    return Case(
        f"unscale_and_check fp32, {TENSORS} tensors, {n:.1e}",
        ours=lambda: [*grads, bool(ops.unscale_and_check(grads, SCALE))],
        reference=reference,
        peers=tuple(peers),
        traffic=8 * n,
        access="update",
        bandwidth_goal=0.9,
        reset=reset,
    )


def _mindspore_unscale(grads: Any) -> tuple[Peer, ...]:
    """The two ways MindSpore has: its loss-scale cell's (which refuses the CPU) and amp's."""
    ms = mindspore_or_none()
    assert ms is not None
    ops_, inverse = ms.ops, np.float32(1 / SCALE)
    hyper_map = ops_.HyperMap()
    scale = ms.Tensor(inverse)
    base = ms.Tensor(1, ms.float32)
    cell_scale, cell_check = (ops_.MultitypeFuncGraph(name) for name in ("cell_scale", "cell_check"))
    reciprocal, is_finite, reshape = ops_.Reciprocal(), ops_.IsFinite(), ops_.Reshape()

    @cell_scale.register("Tensor", "Tensor")  # type: ignore[untyped-decorator]
    def _scale(scale: Any, grad: Any) -> Any:
        return grad * ops_.cast(reciprocal(scale), ops_.dtype(grad))

    @cell_check.register("Tensor")  # type: ignore[untyped-decorator]
    def _check(grad: Any) -> Any:
        return reshape(base - is_finite(grad).all(), (-1,))

    def cell(scale: Any, grads: Any) -> Any:
        grads = hyper_map(ops_.partial(cell_scale, scale), grads)
        flags = ops_.addn(hyper_map(cell_check, grads))
        return grads, reshape(ops_.less_equal(base, flags), ())

    def amp(scale: Any, grads: Any) -> Any:
        grads = hyper_map(ops_.partial(cell_scale, scale), grads)
        return grads, ops_.logical_not(ms.amp.all_finite(grads))

    return (
        *mindspore_peers("loss-scale cell's ops", cell, scale, grads, pynative_goal=20, graph_goal=20),
        *mindspore_peers("with amp.all_finite", amp, scale, grads, pynative_goal=20, graph_goal=20),
    )


def norm(tensors: Any) -> Any:
    """Of all elements, by NumPy."""
    return math.sqrt(sum(float(np.dot(t, t)) for t in tensors))


def global_norm(n: int) -> Case:
    """The norm of all gradients together."""
    grads = split(uniform(n, seed=1), TENSORS)
    peers = [Peer("NumPy dot", lambda: norm(grads))]
    if torch := torch_or_none():
        tensors = [torch.from_numpy(g) for g in grads]
        peers.append(Peer("PyTorch foreach", lambda: torch.nn.utils.get_total_norm(tensors, foreach=True)))
    if ms := mindspore_or_none():
        square = ms.ops.MultitypeFuncGraph("square_sum")
        hyper_map = ms.ops.HyperMap()

        @square.register("Tensor")  # type: ignore[untyped-decorator]
        def _square(grad: Any) -> Any:
            return ms.ops.ReduceSum()(ms.ops.Square()(grad))

        def ms_norm(grads: Any) -> Any:  # as ops.clip_by_global_norm
            return ms.ops.sqrt(ms.ops.addn(hyper_map(square, grads)))

        peers += mindspore_peers("square sums", ms_norm, grads)
    return Case(
        f"global_norm fp32, {TENSORS} tensors, {n:.1e}",
        ours=lambda: ops.global_norm(grads),
        reference=lambda: norm([g.astype(np.float64) for g in grads]),
        peers=tuple(peers),
        traffic=4 * n,
        bandwidth_goal=0.9,
    )


def guarded_step(n: int, count: int, *, tiny: bool = False) -> Case:
    """Look for inf and nan, clip by the global norm, Adam; with a loss scale of 1, since PyTorch divides the gradients
    in place, call after call.

    Args:
        n (int): elements.
        count (int): tensors.
        tiny (bool): not bound by memory. Default: False.
    """
    start, gradient = uniform(n, seed=1), uniform(n, seed=2)
    clip_norm = 0.5 * float(np.linalg.norm(gradient.astype(np.float64)))
    flat, state = start.copy(), [np.zeros(n, np.float32) for _ in range(2)]
    weights, grads, *states = (split(a, count) for a in (flat, gradient, *state))

    def ours() -> Any:
        norm = ops.global_norm(grads)
        if math.isfinite(norm):
            factor = clip_norm / max(norm, clip_norm)
            ops.adam_step(weights, grads, *states, lr=LR, step=1, beta1=BETA1, beta2=BETA2, eps=OURS, inv_scale=factor)
        return weights

    def reset() -> None:
        flat[...] = start
        for s in state:
            s.fill(0)

    def reference() -> Any:
        g = 0.5 * gradient.astype(np.float64)
        return split(start - LR * g / (abs(g) + EPS), count)

    return Case(
        f"guarded Adam step, {count} tensors, {n:.1e}",
        ours,
        reference,
        peers=(
            *_torch_guarded(split(start.copy(), count), split(gradient.copy(), count), clip_norm),
            *_mindspore_clipped(split(start, count), grads, clip_norm),
        ),
        traffic=None if tiny else 32 * n,
        access="update",
        bandwidth_goal=None if tiny else 0.8,
        reset=reset,
    )


def _torch_guarded(weights: Any, grads: Any, clip_norm: float) -> Iterator[Peer]:
    if torch_or_none():
        yield grad_scaler_step(torch_weights(weights, grads), clip_norm, 1.3, lr=LR, betas=(BETA1, BETA2), eps=EPS)


def _mindspore_clipped(weights: Any, grads: Any, clip_norm: float) -> Iterator[Peer]:
    """Without a look for inf and nan, which MindSpore has no operator for on a CPU."""
    ms = mindspore_or_none()
    if ms is None:
        return

    def clipped(grads: Any) -> Any:  # no lambda: the graph compiler reads its source
        return ms.ops.clip_by_global_norm(grads, clip_norm)

    yield from optimizer_peers(
        "clip_by_global_norm, nn.Adam",
        lambda parameters: ms.nn.Adam(parameters, learning_rate=LR, beta1=BETA1, beta2=BETA2, eps=OURS),
        weights,
        grads,
        pynative_goal=4,
        graph_goal=4,
        prepare=clipped,
    )


def _pair(a: Any, b: Any) -> Any:
    """mindspore.boost's formula, with its eps instead of a case for zero."""
    ab, aa, bb = np.dot(a, b), np.dot(a, a) + 1e-12, np.dot(b, b) + 1e-12
    return (1 - ab / (2 * aa)) * a + (1 - ab / (2 * bb)) * b


def wide_pair(a: Any, b: Any) -> Any:
    """The adaptive sum in float64."""
    return _pair(a.astype(np.float64), b.astype(np.float64))


def adasum_pair(n: int) -> Case:
    """The adaptive sum of two gradients."""
    a, b = (split(uniform(n, seed), TENSORS) for seed in (1, 2))
    out = [np.empty_like(x) for x in a]
    peers = [Peer("NumPy", lambda: [_pair(x, y) for x, y in zip(a, b, strict=True)], goal=4.5)]
    if torch := torch_or_none():
        ta, tb = ([torch.from_numpy(x) for x in list_] for list_ in (a, b))

        def torch_pair(x: Any, y: Any) -> Any:
            xy, xx, yy = torch.dot(x, y), torch.dot(x, x) + 1e-12, torch.dot(y, y) + 1e-12
            return (1 - xy / (2 * xx)) * x + (1 - xy / (2 * yy)) * y

        peers.append(Peer("PyTorch", lambda: [torch_pair(x, y) for x, y in zip(ta, tb, strict=True)]))
    if mindspore_or_none():
        peers += _mindspore_adasum(a, b)
    return Case(
        f"adasum_pair fp32, {TENSORS} tensors, {n:.1e}",
        ours=lambda: ops.adasum_pair(a, b, out),
        reference=lambda: [wide_pair(x, y) for x, y in zip(a, b, strict=True)],
        peers=tuple(peers),
        traffic=5 * 4 * n,
        access="triad",
        bandwidth_goal=0.9,
    )


def _mindspore_adasum(a: Any, b: Any) -> tuple[Peer, ...]:
    try:
        from mindspore.boost.adasum import _send_recv_res
    except ImportError:
        return ()
    ms = mindspore_or_none()
    assert ms is not None
    combine = ms.ops.MultitypeFuncGraph("adasum_pair")
    hyper_map = ms.ops.HyperMap()

    def alone(x: Any) -> Any:  # stands for the all-reduce of a group of one
        return x

    @combine.register("Tensor", "Tensor")  # type: ignore[untyped-decorator]
    def _combine(x: Any, y: Any) -> Any:
        return _send_recv_res(True, y, x, alone, True, 2)

    def both(a: Any, b: Any) -> Any:
        return hyper_map(combine, a, b)

    return mindspore_peers("boost.adasum", both, a, b, pynative_goal=25, graph_goal=25)


def pca_project(n: int) -> Case:
    """A gradient, projected onto the subspace of dimension-reduced training."""
    P, g = matrix(ROWS, n), uniform(n, seed=1)
    out = np.empty(ROWS, np.float32)
    peers = [Peer("NumPy", lambda: P @ g, goal=1.4)]
    if torch := torch_or_none():
        tP, tg = torch.from_numpy(P), torch.from_numpy(g)
        peers.append(Peer("PyTorch mv", lambda: torch.mv(tP, tg)))
    if ms := mindspore_or_none():
        matmul = ms.ops.MatMul()

        def project(P: Any, g: Any) -> Any:  # as mindspore.boost's DimReduce
            return matmul(P, g)

        peers += mindspore_peers("MatMul", project, P, g.reshape(-1, 1))
    return Case(
        f"pca_project fp32, k={ROWS} n={n:.0e}",
        ours=lambda: ops.pca_project(P, g, out),
        reference=lambda: np.array([np.dot(row.astype(np.float64), g) for row in P]),
        peers=tuple(peers),
        traffic=P.nbytes + g.nbytes,
        bandwidth_goal=0.9,
        tolerance=1e-4,
        view=np.ravel,  # MindSpore's is a column
    )


def told(x: Any) -> Callable[[Any], Any]:
    """Of an answer, since everybody has a mask of his own: the share that is kept, and how far what is kept is off."""
    exact = x.astype(np.float64) / (1 - SHARE)

    def tell(y: Any) -> Any:
        wide = y.astype(np.float64).reshape(x.shape)
        return np.array([np.mean(wide != 0), 1 + np.abs(wide - np.where(wide != 0, exact, 0)).max()])

    return tell


def right(x: Any) -> Any:
    """What dropout may give, in float64."""
    kept = np.random.default_rng(1).random(x.shape) >= SHARE
    return np.where(kept, x.astype(np.float64) / (1 - SHARE), 0)


def dropout(x: Any, name: str) -> Case:
    """Dropout of an array without a 0 in it."""
    out = np.empty_like(x)
    rng = np.random.default_rng(1)

    def numpy_dropout() -> Any:
        return np.where(rng.random(x.size, np.float32) < SHARE, x.dtype.type(0), x * x.dtype.type(1 / (1 - SHARE)))

    peers = [Peer("NumPy", numpy_dropout, goal=5)]
    if torch := torch_or_none():
        tensor = torch_tensor(x)
        peers.append(Peer("PyTorch", lambda: torch.nn.functional.dropout(tensor, SHARE), goal=1))
    return Case(
        name,
        ours=lambda: ops.dropout(x, SHARE, 7, out=out),
        reference=lambda: right(x),
        peers=tuple(peers),
        traffic=2 * x.nbytes,
        access="copy",
        bandwidth_goal=0.8,
        tolerance=2e-2,
        view=told(x),
    )
