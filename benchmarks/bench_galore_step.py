"""galore_step: matrices of 512 x 2048 and of 2048 x 512 with an eighth of AdamW's state, by the basis of an earlier
step and by a new one, beside our own adamw_step on the same tensors. Where the CPU multiplies bfloat16, in medium
precision, too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

from benchmarks.bench_muon_step import has_medium_precision, medium_precision
from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Case, Peer

LR = 0.02
Shape = tuple[int, int]


def cases(quick: bool) -> Iterator[Case]:
    shapes, rank = ([(32, 64), (64, 32)], 3) if quick else ([(512, 2048), (2048, 512)], 56)
    for shape in shapes:
        name = f"20 of {shape[0]} x {shape[1]}, rank {rank}"
        yield sized(name, shape, rank, 2)
        if has_medium_precision():
            yield sized(f"{name}, medium precision", shape, rank, 2, medium=True)
        yield sized(f"{name}, new bases", shape, rank, 1)


def sized(name: str, shape: Shape, rank: int, step: int, medium: bool = False) -> Case:
    (rows, columns), count = shape, 20
    start = [uniform(rows * columns, seed=i + 1).reshape(shape) for i in range(count)]
    grads = [np.flip(w).copy() for w in start]
    weights = [w.copy() for w in start]
    low = (rank, columns) if rows <= columns else (rows, rank)
    first, second = ([np.zeros(low, np.float32) for _ in range(count)] for _ in range(2))
    basis = np.linalg.qr(uniform(min(shape) * rank, seed=99).reshape(-1, rank))[0].astype(np.float32)
    bases = [basis.copy() for _ in range(count)]

    def ours() -> Any:
        ops.galore_step(weights, grads, bases, first, second, lr=LR, step=step)
        return weights

    def reset() -> None:
        for w, s, m, v in zip(weights, start, first, second, strict=True):
            w[...] = s
            for state in (m, v):
                state.fill(0)

    def exact() -> Any:
        """By the bases that the step leaves."""
        reset()
        ours()
        found = []
        for w, g, P in zip(start, grads, (b.astype(np.float64) for b in bases), strict=True):
            R = P.T @ g if rows <= columns else g @ P
            m, v = 0.1 * R / (1 - 0.9**step), 0.001 * R**2 / (1 - 0.999**step)
            A = m / (np.sqrt(v) + 1e-8)
            found.append(w - LR * 0.25 * (P @ A if rows <= columns else A @ P.T))
        reset()
        return found

    # The goal, 1.25 times its time, is for steps by the same basis. In float32 the products alone take about as long.
    return Case(
        f"galore_step, {name}",
        ours=ours,
        reference=exact,
        peers=(_adamw(start, grads, goal=0.8 if step > 1 else None),),
        reset=reset,
        tolerance=0.02 if medium else 1e-3,
        around=medium_precision if medium else nullcontext,
    )


def _adamw(start: list[np.ndarray], grads: list[np.ndarray], goal: float | None) -> Peer:
    weights = [w.copy() for w in start]
    state = [[np.zeros_like(w) for w in weights] for _ in range(2)]

    def run() -> Any:
        ops.adamw_step(weights, grads, *state, lr=LR, step=1)
        return weights

    # Another rule.
    return Peer("our adamw_step", run, goal=goal, tolerance=1.0)
