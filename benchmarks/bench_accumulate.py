"""accumulate: 25e6 gradients in 60 tensors onto float32 accumulators, the first and a later micro-batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import halves, mindspore_or_none, torch_or_none, torch_tensor
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import mindspore_peers

FACTOR = 1 / (1024 * 4)  # 4 micro-batches at a loss scale of 1024


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    start, gradient = uniform(n, seed=1), uniform(n, seed=2)
    flat = start.copy()
    totals, grads = split(flat, 60), split(gradient, 60)
    sums_ms, mindspore = _mindspore(totals, grads)

    def reset() -> None:
        flat[...] = start
        for total, before in zip(sums_ms, split(start, 60), strict=False):  # Parameters have storage of their own
            total.asnumpy()[...] = before

    def sums(before: Any, added: Any) -> Any:
        return split(before.astype(np.float64) + FACTOR * added.astype(np.float64), 60)

    yield Case(
        f"accumulate fp32, 60 tensors, {n:.1e}",
        ours=lambda: ops.accumulate(totals, grads, FACTOR),
        reference=lambda: sums(start, gradient),
        peers=(
            Peer("NumPy", lambda: _numpy(totals, grads), goal=1),
            *_torch([(totals, grads)]),
            *mindspore,
        ),
        traffic=12 * n,
        access="update",
        bandwidth_goal=0.9,
        reset=reset,
    )
    yield Case(
        f"accumulate fp32, first, {n:.1e}",
        ours=lambda: ops.accumulate(totals, grads, FACTOR, first=True),
        reference=lambda: sums(np.zeros(1, np.float32), gradient),
        peers=(Peer("NumPy, cleared and added", lambda: _numpy_first(totals, grads), goal=1.5),),
        traffic=8 * n,
        access="copy",
        reset=reset,
    )

    def narrow(kind: str, added: Any) -> Case:
        grads16 = split(added, 60)
        return Case(
            f"accumulate {kind} onto fp32, 60 tensors, {n:.1e}",
            ours=lambda: ops.accumulate(totals, grads16, FACTOR),
            reference=lambda: sums(start, added),
            peers=tuple(_torch([(totals, grads16)])),
            traffic=10 * n,
            access="update",
            bandwidth_goal=0.9,
            reset=reset,
        )

    for kind, added in halves(gradient):
        yield narrow(kind, added)


def _numpy(totals: Any, grads: Any) -> Any:
    factor = np.float32(FACTOR)
    for total, grad in zip(totals, grads, strict=True):
        total += factor * grad
    return totals


def _numpy_first(totals: Any, grads: Any) -> Any:
    for total in totals:
        total.fill(0)
    return _numpy(totals, grads)


def _torch(pairs: Any) -> Iterator[Peer]:
    torch = torch_or_none()
    if not torch:
        return
    ((totals, grads),) = pairs
    sums = [torch.from_numpy(t) for t in totals]
    added = [torch_tensor(g) for g in grads]

    def foreach() -> Any:
        if added[0].dtype == torch.float32:
            torch._foreach_add_(sums, added, alpha=FACTOR)
        else:  # foreach takes one dtype only
            for total, grad in zip(sums, added, strict=True):
                total.add_(grad, alpha=FACTOR)
        return sums

    yield Peer("PyTorch foreach add" if added[0].dtype == torch.float32 else "PyTorch add_", foreach, goal=1)


def _mindspore(totals: Any, grads: Any) -> tuple[Any, tuple[Peer, ...]]:
    """The accumulators, and what is usual: AssignAdd of a product, tensor by tensor."""
    ms = mindspore_or_none()
    if not ms:
        return (), ()
    sums = ms.ParameterTuple(
        ms.Parameter(ms.Tensor.from_numpy(t), name=f"total{i}", requires_grad=False) for i, t in enumerate(totals)
    )
    add, factor = ms.ops.MultitypeFuncGraph("accumulate"), ms.Tensor(FACTOR, ms.float32)
    hyper_map = ms.ops.HyperMap()

    @add.register("Tensor", "Tensor")
    def _add(total: Any, grad: Any) -> Any:
        return ms.ops.assign_add(total, grad * factor)

    def assign_add(grads: Any) -> Any:
        return hyper_map(add, sums, grads)

    return sums, mindspore_peers("assign_add", assign_add, grads, pynative_goal=5, graph_goal=2)
