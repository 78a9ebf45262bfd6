"""Training in half precision, for optimizers without a table of rules: each has a `Training` beside its oracle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dtypes import assert_same_bits, normal

Shapes = Sequence[tuple[int, ...]]


def check_masters(
    rng: np.random.Generator, shapes: Shapes, types: tuple[Any, Any], made: Callable[[list[Any]], Any], steps: int = 2
) -> None:
    """All digits of float32, and the weight is the rounded master.

    Args:
        types: of weights and of gradients.
        made: a training of such weights.
    """
    of_weight, of_gradient = types
    weights = [normal(rng, s, of_weight) for s in shapes]
    masters = [w.astype(np.float32) for w in weights] if of_weight != np.float32 else None
    training = made(weights)
    for _ in range(steps):
        training.step([normal(rng, s, of_gradient) for s in shapes], centralize=True, masters=masters)
    training.check(masters)
    for w, m in zip(weights, masters or weights, strict=True):
        assert_same_bits(w, m.astype(w.dtype))


def check_weights_alone(
    rng: np.random.Generator, shapes: Shapes, kind: Any, made: Callable[[list[Any]], Any], atol: float
) -> None:
    """Without masters: a step is rounded once."""
    weights = [normal(rng, s, kind) for s in shapes]
    training = made(weights)
    training.step([normal(rng, w.shape, kind) for w in weights])
    for got, exact in zip(weights, training.exact, strict=True):
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=2.0**-8, atol=atol)
