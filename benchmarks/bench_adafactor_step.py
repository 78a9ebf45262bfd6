"""adafactor_step: one matrix and 500 of 20e6 elements, with and without a first moment, small convolutions, vectors and
60 tiny matrices, beside MindSpore's AdaFactor and PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import mindspore_or_none, torch_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import optimizer_peers, torch_weights

LR, BETA1 = 0.1, 0.9
Shape = tuple[int, ...]


def cases(quick: bool) -> Iterator[Case]:
    count, side = (10, 40) if quick else (500, 200)
    large = 400 if quick else 4472
    channels = 16 if quick else 128
    yield sized("one matrix", [(large, large)], None, goal=4, reads=3)
    yield sized(f"{count} matrices", [(side, side)] * count, None, goal=8)
    yield sized(f"{count} matrices with a first moment", [(side, side)] * count, BETA1, goal=8)
    yield sized(f"{count} vectors", [(side * side,)] * count, None, goal=8)
    yield sized("20 convolutions", [(channels, channels, 3, 3)] * 20, None, goal=4)
    yield sized("60 tiny matrices", [(15, 20)] * 60, None, goal=15, tiny=True)


def answer(w: Any, g: Any, beta1: float | None) -> Any:
    """The first step, in which V is g^2, or made of its means."""
    w, g = w.astype(np.float64), g.astype(np.float64)
    v = g**2
    if g.ndim >= 2:
        rows, columns = v.mean(-1, keepdims=True), v.mean(-2, keepdims=True)
        v = rows / rows.mean(-2, keepdims=True) * columns
    u = g / np.sqrt(v)
    u /= max(1.0, np.sqrt(np.mean(u**2)))
    return w - LR * max(1e-3, np.sqrt(np.mean(w**2))) * (1.0 if beta1 is None else 1 - beta1) * u


def sized(
    name: str, shapes: Sequence[Shape], beta1: float | None, *, goal: float, reads: int = 1, tiny: bool = False
) -> Case:
    """`reads`: how often a gradient comes from memory; the weights come twice then."""
    start = [uniform(int(np.prod(s)), seed=i + 1).reshape(s) for i, s in enumerate(shapes)]
    grads = [np.float32(0.5) * g + np.copysign(np.float32(0.5), g) for g in (np.flip(w).copy() for w in start)]
    weights = [w.copy() for w in start]
    matrices = [w.ndim >= 2 for w in weights]
    pairs = list(zip(weights, matrices, strict=True))
    rows = [np.zeros(w.shape[:-1], np.float32) if flag else None for w, flag in pairs]
    columns = [np.zeros(w.shape[:-2] + w.shape[-1:], np.float32) if flag else None for w, flag in pairs]
    squares = [None if flag else np.zeros(w.shape, np.float32) for w, flag in pairs]
    moments = None if beta1 is None else [np.zeros(w.shape, np.float32) for w in weights]

    def ours() -> Any:
        ops.adafactor_step(weights, grads, rows, columns, squares, moments, step=1, lr=LR, beta1=beta1)
        return weights

    def reset() -> None:
        for w, s in zip(weights, start, strict=True):
            w[...] = s
        for m in moments or ():
            m.fill(0)

    n = sum(w.size for w in weights)
    passes = reads + (2 if reads == 1 else 3) + (0 if beta1 is None else 2) + 2 * (not all(matrices))
    return Case(
        f"adafactor_step, {name}, {n:.1e}",
        ours=ours,
        reference=lambda: [answer(w, g, beta1) for w, g in zip(start, grads, strict=True)],
        peers=(
            *_torch([w.copy() for w in start], grads, beta1),
            *_mindspore(start, grads, beta1, goal, tiny),
        ),
        traffic=None if tiny else 4 * passes * n,
        access="update",
        reset=reset,
    )


def _torch(weights: Any, grads: Any, beta1: float | None) -> Iterator[Peer]:
    """It has no first moment."""
    torch = torch_or_none()
    if not torch or beta1 is not None or not hasattr(torch.optim, "Adafactor"):
        return
    tensors = torch_weights(weights, grads)
    optimizer = torch.optim.Adafactor(tensors, lr=LR, weight_decay=0.0, foreach=True)

    def run() -> Any:
        optimizer.step()
        return tensors

    yield Peer("PyTorch Adafactor foreach", run, goal=1)


def _mindspore(weights: Any, grads: Any, beta1: float | None, goal: float, tiny: bool) -> Iterator[Peer]:
    ms = mindspore_or_none()
    if ms is None:
        return

    yield from optimizer_peers(
        "nn.AdaFactor",
        lambda parameters: ms.nn.AdaFactor(parameters, learning_rate=LR, beta1=beta1, relative_step=False),
        weights,
        grads,
        pynative_goal=goal,
        graph_goal=None if tiny else goal,
    )
