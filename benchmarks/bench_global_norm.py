"""global_norm of 25e6 elements in 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import TENSORS, global_norm, norm
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import bfloat16
from boost_ext.bench.harness import Case


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    yield global_norm(n)
    narrow = [bfloat16(g) for g in split(uniform(n, seed=1), TENSORS)]
    if narrow[0] is not None:
        yield Case(
            f"global_norm bf16, {TENSORS} tensors, {n:.1e}",
            ours=lambda: ops.global_norm(narrow),
            reference=lambda: norm([g.astype(np.float64) for g in narrow]),
            traffic=2 * n,
            bandwidth_goal=0.9,
        )
