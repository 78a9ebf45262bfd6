"""tensor_statistics of 25e6 elements in 60 tensors: inf, nan, zeros, largest magnitude and norm of each in one read."""

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
