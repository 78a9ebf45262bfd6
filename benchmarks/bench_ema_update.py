"""ema_update: averages of 25e6 weights in 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

DECAY = 0.999


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    start, trained = uniform(n, seed=1), uniform(n, seed=2)
    flat = start.copy()
    averages, weights = split(flat, 60), split(trained, 60)

    def reset() -> None:
        flat[...] = start

    def numpy() -> Any:
        for average, weight in zip(averages, weights, strict=True):
            average += np.float32(1 - DECAY) * (weight - average)
        return averages

    yield Case(
        f"ema_update fp32, 60 tensors, {n:.1e}",
        ours=lambda: ops.ema_update(averages, weights, DECAY),
        reference=lambda: split(DECAY * start.astype(np.float64) + (1 - DECAY) * trained.astype(np.float64), 60),
        peers=(Peer("NumPy", numpy, goal=1.5), *_torch(averages, weights)),
        traffic=12 * n,
        access="update",
        bandwidth_goal=0.9,
        reset=reset,
    )


def _torch(averages: Any, weights: Any) -> Iterator[Peer]:
    """What torch.optim.swa_utils does for an exponential moving average."""
    if torch := torch_or_none():
        ours, theirs = [torch.from_numpy(a) for a in averages], [torch.from_numpy(w) for w in weights]
        yield Peer("PyTorch foreach lerp", lambda: torch._foreach_lerp_(ours, theirs, 1 - DECAY) or ours, goal=1)
