"""The whole guarded step: unscale, look for inf and nan, clip by the global norm, Adam.

Ours reads the gradients once for check and norm, and does the rest in the pass that updates; PyTorch's is GradScaler,
clip_grad_norm_ and fused Adam.

The loss scale is 1, since PyTorch divides the gradients in place, call after call.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops

from .data import split, uniform
from .frameworks import mindspore_or_none, torch_or_none
from .harness import Case, Peer
from .peers import grad_scaler_step, optimizer_peers, torch_weights

LR, BETA1, BETA2 = 0.1, 0.9, 0.999
EPS = 0.5  # beside the corrected root, as PyTorch's; large, or the first step would not show the clipping
OURS = EPS * math.sqrt(1 - BETA2)  # the same beside the uncorrected one, as MindSpore's


def cases(quick: bool) -> Iterator[Case]:
    large, many, count = (300_000, 200_000, 100) if quick else (25_000_000, 20_000_000, 500)
    yield guarded(large, 60)
    yield guarded(many, count)
    yield guarded(18_000, 60, tiny=True)


def guarded(n: int, count: int, tiny: bool = False) -> Case:
    start, gradient = uniform(n, seed=1), uniform(n, seed=2)
    clip_norm = 0.5 * float(np.linalg.norm(gradient.astype(np.float64)))
    flat, state = start.copy(), [np.zeros(n, np.float32) for _ in range(2)]
    weights, grads, *states = (split(a, count) for a in (flat, gradient, *state))

    def ours() -> Any:
        norm = ops.global_norm(grads)
        if math.isfinite(norm):
            factor = clip_norm / max(norm, clip_norm)
            ops.adam_step(weights, grads, *states, lr=LR, step=1, beta1=BETA1, beta2=BETA2, eps=OURS, inv_scale=factor)
        return weights

    def reset() -> None:
        flat[...] = start
        for s in state:
            s.fill(0)

    def reference() -> Any:
        g = 0.5 * gradient.astype(np.float64)
        return split(start - LR * g / (abs(g) + EPS), count)

    return Case(
        f"guarded Adam step, {count} tensors, {n:.1e}",
        ours,
        reference,
        peers=(
            *_torch(split(start.copy(), count), split(gradient.copy(), count), clip_norm),
            *_mindspore(split(start, count), grads, clip_norm),
        ),
        traffic=None if tiny else 32 * n,
        access="update",
        bandwidth_goal=None if tiny else 0.8,
        reset=reset,
    )


def _torch(weights: Any, grads: Any, clip_norm: float) -> Iterator[Peer]:
    if not torch_or_none():
        return
    yield grad_scaler_step(torch_weights(weights, grads), clip_norm, 1.3, lr=LR, betas=(BETA1, BETA2), eps=EPS)


def _mindspore(weights: Any, grads: Any, clip_norm: float) -> Iterator[Peer]:
    """Without a look for inf and nan, which MindSpore has no operator for on a CPU."""
    ms = mindspore_or_none()
    if ms is None:
        return

    def clipped(grads: Any) -> Any:  # no lambda: the graph compiler reads its source
        return ms.ops.clip_by_global_norm(grads, clip_norm)

    yield from optimizer_peers(
        "clip_by_global_norm, nn.Adam",
        lambda parameters: ms.nn.Adam(parameters, learning_rate=LR, beta1=BETA1, beta2=BETA2, eps=OURS),
        weights,
        grads,
        pynative_goal=4,
        graph_goal=4,
        prepare=clipped,
    )
