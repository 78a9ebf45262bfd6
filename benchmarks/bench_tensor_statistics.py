"""tensor_statistics of 25e6 elements in 60 tensors: inf, nan, zeros, largest magnitude and norm of each in one read.

And a step of HealthMonitor between two looks, which reads the gradients once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import TENSORS, norm
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import bfloat16, torch_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.health import HealthMonitor


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    grads = split(uniform(n, seed=1), TENSORS)
    narrow = [bfloat16(g) for g in grads]
    for kind, tensors in (("fp32", grads), ("bf16", narrow)):
        if tensors[0] is None:
            continue
        yield Case(
            f"tensor_statistics {kind}, {TENSORS} tensors, {n:.1e}",
            ours=lambda tensors=tensors: ops.tensor_statistics(tensors),
            reference=lambda tensors=tensors: numpy([t.astype(np.float64) for t in tensors]),
            peers=tuple(_peers(tensors)) if kind == "fp32" else (),
            traffic=tensors[0].itemsize * n,
            bandwidth_goal=0.9,
        )
        yield Case(
            f"the norm by tensor_statistics {kind}, {TENSORS} tensors, {n:.1e}",
            ours=lambda tensors=tensors: math.sqrt(ops.tensor_statistics(tensors)[:, 5].sum()),
            reference=lambda tensors=tensors: norm([t.astype(np.float64) for t in tensors]),
            peers=(Peer("ops.global_norm: one read", lambda tensors=tensors: ops.global_norm(tensors), goal=1 / 1.1),),
        )
    for count, size in ((TENSORS, n // TENSORS), (161, 3900)):
        yield _between(split(uniform(count * size, seed=2), count), "NumPy")
        if torch := torch_or_none():
            yield _between([torch.from_numpy(g) for g in split(uniform(count * size, seed=2), count)], "PyTorch")


def _between(grads: Any, kind: str) -> Case:
    monitor, named = HealthMonitor(every=1000), {f"layer{i}.weight": g for i, g in enumerate(grads)}
    return Case(
        f"HealthMonitor between two looks, {kind}, {len(grads)} tensors, {sum(map(len, grads)):.1e}",
        ours=lambda: np.array(monitor.check(1, gradients=named) is None, np.float64),
        reference=lambda: np.array(1.0),
        peers=(
            Peer(
                "ops.global_norm: one read",
                lambda: np.array(ops.global_norm(grads) > 0, np.float64),
                goal=1 / 1.1 if len(grads) == TENSORS else None,
            ),
        ),
    )


def numpy(tensors: Any) -> Any:
    rows = []
    for t in tensors:
        finite, magnitudes = np.isfinite(t), np.abs(t)
        zeros = t.size - np.count_nonzero(t)
        rows.append([0, np.isnan(t).sum(), -1, magnitudes.max(where=finite, initial=0), zeros, np.dot(t, t)])
    return np.array(rows, np.float64)


def _peers(tensors: Any) -> Iterator[Peer]:
    yield Peer("NumPy", lambda: numpy(tensors), goal=3)
    if torch := torch_or_none():
        theirs = [torch.from_numpy(t) for t in tensors]

        def foreach() -> Any:
            squares = [float(x) ** 2 for x in torch._foreach_norm(theirs)]
            largest = [float(x) for x in torch._foreach_norm(theirs, torch.inf)]
            zeros = [t.numel() - int(torch.count_nonzero(t)) for t in theirs]
            nan = [int(torch.isnan(t).sum()) for t in theirs]
            rows = zip(nan, largest, zeros, squares, strict=True)
            return np.array([[0, bad, -1, top, none, square] for bad, top, none, square in rows])

        yield Peer("PyTorch foreach", foreach, goal=3)
