"""adasum_pair of two gradients of 25e6 elements in 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import TENSORS, adasum_pair, wide_pair
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import bfloat16
from boost_ext.bench.harness import Case


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    wide = adasum_pair(n)
    yield wide
    a, b = ([bfloat16(x) for x in split(uniform(n, seed), TENSORS)] for seed in (1, 2))
    if a[0] is not None:
        out = [np.empty_like(x) for x in a]
        numpy = wide.peers[0]
        yield Case(
            f"adasum_pair bf16, {TENSORS} tensors, {n:.1e}",
            ours=lambda: ops.adasum_pair(a, b, out),
            reference=lambda: [wide_pair(x, y) for x, y in zip(a, b, strict=True)],
            peers=(replace(numpy, name=f"{numpy.name} in fp32", tolerance=2e-2),),
            traffic=5 * 2 * n,
            access="triad",
            bandwidth_goal=0.9,
            tolerance=5e-3,
        )
