"""adaptive_clip: gradients of 25e6 weights in 60 matrices, all of them too long; and of 500 small ones, beside
pytorch_optimizer where it is installed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

CLIPPING, EPS = 0.01, 1e-3


def cases(quick: bool) -> Iterator[Case]:
    yield _case((60, 20 if quick else 813, 512), _libraries, of_bandwidth=True)
    if find_spec("pytorch_optimizer"):
        yield _case((500, 10, 30), _pytorch_optimizer, of_bandwidth=False)


def _case(shape: tuple[int, int, int], peers: Callable[[Any, Any], Iterator[Peer]], of_bandwidth: bool) -> Case:
    start, flat_weights = (uniform(math.prod(shape), seed=seed) for seed in (1, 2))
    flat = start.copy()
    grads, weights = [*flat.reshape(shape)], [*flat_weights.reshape(shape)]

    def reset() -> None:
        flat[...] = start

    def reference() -> Any:
        g, w = (x.astype(np.float64).reshape(shape) for x in (start, flat_weights))
        norm, limit = np.linalg.norm(g, axis=2), CLIPPING * np.maximum(np.linalg.norm(w, axis=2), EPS)
        return [*(g * np.where(norm > limit, limit / norm, 1)[..., None])]

    return Case(
        f"adaptive_clip fp32, {shape[0]} matrices, {start.size:.1e}",
        ours=lambda: ops.adaptive_clip(grads, weights, CLIPPING, eps=EPS),
        reference=reference,
        peers=tuple(peers(grads, weights)),
        traffic=12 * start.size if of_bandwidth else None,
        access="update",
        bandwidth_goal=0.8,
        reset=reset,
    )


def _libraries(grads: Any, weights: Any) -> Iterator[Peer]:
    """NumPy; and PyTorch as timm.utils.agc does it, tensor by tensor."""

    def numpy() -> Any:
        for g, w in zip(grads, weights, strict=True):
            norm, limit = np.linalg.norm(g, axis=1), CLIPPING * np.maximum(np.linalg.norm(w, axis=1), EPS)
            g *= np.where(norm > limit, limit / np.maximum(norm, 1e-6), 1)[:, None]
        return grads

    yield Peer("NumPy", numpy, goal=3)
    if torch := torch_or_none():
        pairs = _as_tensors(grads, weights)

        def clip() -> Any:
            for g, w in pairs:
                limit = w.norm(dim=1, keepdim=True).clamp_(min=EPS).mul_(CLIPPING)
                norm = g.norm(dim=1, keepdim=True)
                g.copy_(torch.where(norm < limit, g, g * (limit / norm.clamp(min=1e-6))))
            return [g for g, _ in pairs]

        yield Peer("PyTorch, tensor by tensor", clip, goal=2)


def _pytorch_optimizer(grads: Any, weights: Any) -> Iterator[Peer]:
    from pytorch_optimizer import agc

    pairs = _as_tensors(grads, weights)

    def clip() -> Any:
        for g, w in pairs:
            g.copy_(agc(w, g, EPS, CLIPPING))
        return [g for g, _ in pairs]

    yield Peer("pytorch_optimizer.agc", clip, goal=5)


def _as_tensors(grads: Any, weights: Any) -> list[tuple[Any, Any]]:
    from torch import from_numpy

    return [(from_numpy(g), from_numpy(w)) for g, w in zip(grads, weights, strict=True)]
