"""global_norm of 25e6 elements in 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import TENSORS, global_norm, norm
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import halves
from boost_ext.bench.harness import Case


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    yield global_norm(n)
    for kind, flat in halves(uniform(n, seed=1)):
        yield _narrow(kind, split(flat, TENSORS), n)


def _narrow(kind: str, grads: list[Any], n: int) -> Case:
    return Case(
        f"global_norm {kind}, {TENSORS} tensors, {n:.1e}",
        ours=lambda: ops.global_norm(grads),
        reference=lambda: norm([g.astype(np.float64) for g in grads]),
        traffic=2 * n,
        bandwidth_goal=0.9,
    )
