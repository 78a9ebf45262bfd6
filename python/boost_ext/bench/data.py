"""Arguments that are cheap to make and benign in every dtype."""

from __future__ import annotations

from typing import Any

import numpy as np


def uniform(n: int, seed: int) -> Any:
    """n float32 between -1 and 1."""
    values = np.random.default_rng(seed).random(n, np.float32)
    values *= np.float32(2)
    values -= np.float32(1)
    return values


def matrix(k: int, n: int) -> Any:
    """(k, n) float32: one random row, turned; drawing all of them would take longer than timing."""
    row = uniform(n, seed=7)
    P = np.empty((k, n), np.float32)
    for r in range(k):
        P[r] = np.roll(row, r * (n // k))
    return P


def cuts(n: int, parts: int) -> list[int]:
    """Where n elements are cut into sizes that differ: powers of two are not what layers are made of."""
    weights = np.arange(1, parts + 1, dtype=np.float64) ** 1.5
    return [int(at) for at in np.cumsum(weights)[:-1] / weights.sum() * n]


def split(array: Any, parts: int) -> list[Any]:
    """Views of `array`, see :func:`cuts`."""
    return np.split(array, cuts(len(array), parts))
