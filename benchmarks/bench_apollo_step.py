"""apollo_step: sixty matrices of 512 x 2048 and of 2048 x 512, with the rank of APOLLO-Mini and with an eighth of the
shorter side, and sixty tiny ones, beside our own adamw_step on the same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Case, Peer

LR = 0.02
Shape = tuple[int, int]


def cases(quick: bool) -> Iterator[Case]:
    shapes = [(32, 64), (64, 32)] if quick else [(512, 2048), (2048, 512)]
    for shape in shapes:
        side = min(shape)
        for name, rank, scale_type in (("Mini", 1, "tensor"), (f"rank {side // 8}", side // 8, "channel")):
            yield sized(f"60 of {shape[0]} x {shape[1]}, {name}", shape, rank, scale_type)
    if not quick:
        yield sized("60 of 16 x 20, rank 2", (16, 20), 2, "channel")


def sized(name: str, shape: Shape, rank: int, scale_type: str) -> Case:
    (rows, columns), count = shape, 60
    start = [uniform(rows * columns, seed=i + 1).reshape(shape) for i in range(count)]
    grads = [np.float32(0.5) * g + np.copysign(np.float32(0.5), g) for g in (np.flip(w).copy() for w in start)]
    weights = [w.copy() for w in start]
    low = (rank, columns) if rows <= columns else (rows, rank)
    first, second = ([np.zeros(low, np.float32) for _ in range(count)] for _ in range(2))
    norms = [np.zeros(1, np.float32) for _ in range(count)]

    def ours() -> Any:
        ops.apollo_step(weights, grads, first, second, norms, lr=LR, step=1, scale_type=scale_type)
        return weights

    def reset() -> None:
        for w, s, m, v, n in zip(weights, start, first, second, norms, strict=True):
            w[...] = s
            for state in (m, v, n):
                state.fill(0)

    def exact() -> Any:
        """The first step: A holds signs, so that |A| is known. |R| is that of the first moment that the step leaves."""
        reset()
        ours()
        found = []
        for w, g, m in zip(start, grads, first, strict=True):
            R = m.astype(np.float64) / 0.1
            axis = None if scale_type == "tensor" else int(rows > columns)
            count = R.size if axis is None else rank
            found.append(w - LR * g.astype(np.float64) * np.sqrt(count) / np.linalg.norm(R, axis=axis, keepdims=True))
        reset()
        return found

    # A step of at most 1.25 times AdamW's time; in tiny matrices the work for each channel shows.
    peers = tuple(_adamw(start, grads, None if rows * columns < 1000 else 0.8))
    return Case(f"apollo_step, {name}", ours=ours, reference=exact, peers=peers, reset=reset, tolerance=1e-3)


def _adamw(start: list[np.ndarray], grads: list[np.ndarray], goal: float | None) -> Iterator[Peer]:
    weights = [w.copy() for w in start]
    state = [[np.zeros_like(w) for w in weights] for _ in range(2)]

    def run() -> Any:
        ops.adamw_step(weights, grads, *state, lr=LR, step=1)
        return weights

    # Another rule: its first step has the same signs, and its elements are not a scaled gradient's.
    yield Peer("our adamw_step", run, goal=goal, tolerance=1.0)
