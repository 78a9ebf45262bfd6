"""How time grows from 1e5 to 1e8 elements, and with the threads.

Growth: one call on ten tensors of n elements together, beside ten calls on one of them each. The
ratio stays near 1 when the time an element takes is constant, and exceeds it where ten calls cost
more than one. Threads: one beside all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import boost_ext
from boost_ext import ops
from boost_ext.bench.bandwidth import Access
from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Case, Peer

K = 4
PARTS = 10
Call = Callable[[], Any]


def cases(quick: bool) -> Iterator[Case]:
    for n in (100_000,) if quick else (100_000, 1_000_000, 10_000_000, 100_000_000):
        a = uniform(n, seed=1)
        A = np.split(a, PARTS)

        def norms(A: Any = A) -> Any:
            return math.sqrt(sum(ops.global_norm(part) ** 2 for part in A))

        yield _case("global_norm", n, lambda A=A: ops.global_norm(A), norms, 4 * n, "read")

        def unscale(A: Any = A) -> Any:
            return ops.unscale_and_check(A, 1 - 2.0**-10)

        def unscales(A: Any = A) -> Any:
            return any([ops.unscale_and_check(part, 1 - 2.0**-10) for part in A])

        yield _case("unscale_and_check", n, unscale, unscales, 8 * n, "update")

        b, out = uniform(n, seed=2), np.empty_like(a)
        B, out_parts = np.split(b, PARTS), np.split(out, PARTS)

        def pairs(A: Any = A, B: Any = B, C: Any = out_parts) -> Any:
            return [ops.adasum_pair(*part) for part in zip(A, B, C, strict=True)]

        yield _case(
            "adasum_pair",
            n,
            lambda A=A, B=B, C=out_parts: ops.adasum_pair(A, B, C),
            pairs,
            20 * n,
            "triad",
        )
        del b, out, B, out_parts

        P = uniform(K * n, seed=3).reshape(K, n)
        tenths = [np.ascontiguousarray(part) for part in np.split(P, PARTS, axis=1)]

        def projections(A: Any = A, tenths: Any = tenths) -> Any:
            return sum(ops.pca_project(part, g) for part, g in zip(tenths, A, strict=True))

        yield _case(
            f"pca_project k={K}",
            n,
            lambda P=P, A=A: ops.pca_project(P, A),
            projections,
            4 * (K + 1) * n,
            "read",
        )


def _case(name: str, n: int, whole: Call, tenths: Call, traffic: int, access: Access) -> Case:
    threads = boost_ext.num_threads()

    def alone() -> Any:
        boost_ext.set_num_threads(1)
        try:
            return whole()
        finally:
            boost_ext.set_num_threads(threads)

    peers = [Peer("ten calls on a tenth each", tenths, goal=0.9, tolerance=1e-4)]
    if threads > 1:
        gain = 0.8 * min(threads, 2)  # beyond two, the memory is usually taken
        peers.append(Peer("one thread", alone, goal=gain if n >= 1_000_000 else None))
    return Case(
        f"{name}, n={n:.0e}",
        ours=whole,
        reference=alone,
        peers=tuple(peers),
        traffic=traffic,
        access=access,
        tolerance=0,  # the bits do not depend on the threads
        view=lambda answer: answer.ravel()[:: 1 + answer.size // 100_000],
        seconds=0.3,
    )
