"""The native phases of a dimension-reduced step: direction (k=32), trial and apply (n=1e7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Case, Peer

from .bench_bfgs_update import cheap_formula, formula

K = 32
RHO, GAMMA, ALPHA = 0.55, 0.9, 0.001


def cases(quick: bool) -> Iterator[Case]:
    yield direction()
    n = 100_000 if quick else 10_000_000
    m, g, proj, dn, w, saved = (uniform(n, seed) for seed in range(6))
    out, scratch = np.empty_like(m), np.empty_like(m)
    step = np.float32(0.25)

    def numpy_trial() -> Any:
        np.multiply(dn, step, w)
        return np.add(saved, w, w)

    yield Case(
        f"dim_reduce_trial, n={n:.0e}",
        ours=lambda: ops.dim_reduce_trial(w, saved, dn, 0.25),
        reference=lambda: saved + 0.25 * dn.astype(np.float64),
        peers=(Peer("NumPy, in place", numpy_trial),),
        traffic=3 * 4 * n,
        access="triad",
        bandwidth_goal=0.9,
    )

    start = m.copy()

    def reset() -> None:
        m[...] = start

    def numpy_apply() -> Any:
        np.multiply(m, np.float32(GAMMA), m)
        np.add(m, g, m)
        np.subtract(m, proj, m)
        np.multiply(m, np.float32(ALPHA), out)
        np.multiply(dn, np.float32(RHO), scratch)
        return [m, np.subtract(out, scratch, out)]

    def apply() -> Any:
        ops.dim_reduce_apply(m, g, proj, dn, out, gamma=GAMMA, alpha=ALPHA, rho=RHO)
        return [m, out]

    def wide_apply() -> Any:
        momentum = GAMMA * start.astype(np.float64) + g - proj
        return [momentum, ALPHA * momentum - RHO * dn.astype(np.float64)]

    yield Case(
        f"dim_reduce_apply, n={n:.0e}",
        ours=apply,
        reference=wide_apply,
        peers=(Peer("NumPy, in place", numpy_apply),),
        traffic=6 * 4 * n,
        access="triad",
        bandwidth_goal=0.9,
        reset=reset,
    )


def direction() -> Case:
    s, gk_last = uniform(K, 1), uniform(K, 2)
    gk = gk_last + s + np.float32(0.1) * uniform(K, 3)
    eye = np.eye(K, dtype=np.float32)
    B_next, dk = np.empty_like(eye), np.empty_like(s)

    def ours() -> Any:
        ops.dim_reduce_direction(eye, s, gk_last, True, gk, B_next, dk)
        return [B_next, dk]

    def numpy() -> Any:
        B = cheap_formula(eye.copy(), s, gk - gk_last)
        d = -(B @ gk)
        return [B, d, float(gk @ d)][:2]

    def wide() -> Any:
        y = gk.astype(np.float64) - gk_last
        B = formula(np.eye(K), s.astype(np.float64), y)
        return [B, -(B @ gk)]

    return Case(
        f"dim_reduce_direction, k={K}",
        ours=ours,
        reference=wide,
        peers=(Peer("NumPy, O(k²)", numpy, goal=3),),
        tolerance=1e-4,
        seconds=0.5,
    )
