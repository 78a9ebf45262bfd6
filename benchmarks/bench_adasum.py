"""adasum_pair of two gradients of 25e6 elements in 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import TENSORS, adasum_pair, wide_pair
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import halves
from boost_ext.bench.harness import Case, Peer


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    wide = adasum_pair(n)
    yield wide
    for kind, *both in halves(uniform(n, 1), uniform(n, 2)):
        a, b = (split(x, TENSORS) for x in both)
        yield _narrow(kind, a, b, wide.peers[0])


def _narrow(kind: str, a: list[Any], b: list[Any], numpy: Peer) -> Case:
    out, n = [np.empty_like(x) for x in a], sum(x.size for x in a)
    return Case(
        f"adasum_pair {kind}, {TENSORS} tensors, {n:.1e}",
        ours=lambda: ops.adasum_pair(a, b, out),
        reference=lambda: [wide_pair(x, y) for x, y in zip(a, b, strict=True)],
        peers=(replace(numpy, name=f"{numpy.name} in fp32", tolerance=2e-2),),
        traffic=5 * 2 * n,
        access="triad",
        bandwidth_goal=0.9,
        tolerance=5e-3,
    )
