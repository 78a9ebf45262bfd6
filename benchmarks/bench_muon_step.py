"""muon_step: one matrix, sixty mixed ones, and 74 flat ones, beside PyTorch: its Muon, whose iteration is bfloat16, and
the same loop in float32. Where the CPU multiplies bfloat16, in medium precision, too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np

import boost_ext
from benchmarks.bench_orthogonalize import MIXED, iterated
from boost_ext import _core, ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import torch_weights

LR, MOMENTUM = 0.02, 0.95
Shape = tuple[int, int]


def cases(quick: bool) -> Iterator[Case]:
    small = {"32 x 64": [(32, 64)], "4 matrices of 24 x 512": [(24, 512)] * 4}
    large = {"512 x 2048": [(512, 2048)], "60 matrices": 6 * MIXED, "74 matrices of 24 x 10240": [(24, 10240)] * 74}
    for name, shapes in (small if quick else large).items():
        yield sized(name, shapes)
        if has_medium_precision():
            yield sized(name, shapes, medium=True)


def has_medium_precision() -> bool:
    """Whether this CPU multiplies bfloat16."""
    with medium_precision():
        return bool(_core.has_narrow_products())


@contextmanager
def medium_precision() -> Iterator[None]:
    boost_ext.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        boost_ext.set_float32_matmul_precision("highest")


def stepped(w: Any, g: Any) -> Any:
    """The first step."""
    scale = max(1.0, w.shape[0] / w.shape[1]) ** 0.5
    return w - LR * scale * iterated((1 - MOMENTUM) * (1 + MOMENTUM) * g)


def sized(name: str, shapes: Sequence[Shape], medium: bool = False) -> Case:
    start = [uniform(a * b, seed=i).reshape(a, b) for i, (a, b) in enumerate(shapes)]
    grads = [np.flip(w).copy() for w in start]
    weights, moments = [w.copy() for w in start], [np.zeros_like(w) for w in start]

    def ours() -> Any:
        ops.muon_step(weights, grads, moments, lr=LR, momentum=MOMENTUM, step=1)
        return weights

    def reset() -> None:
        for w, s, m in zip(weights, start, moments, strict=True):
            w[...] = s
            m.fill(0)

    def exact() -> Any:
        return [stepped(w.astype(np.float64), g.astype(np.float64)) for w, g in zip(start, grads, strict=True)]

    return Case(
        f"muon_step, {name}" + (", medium precision" if medium else ""),
        ours=ours,
        reference=exact,
        peers=tuple(_torch(start, grads)),
        reset=reset,
        tolerance=0.02 if medium else 1e-3,
        seconds=0.5,
        around=medium_precision if medium else nullcontext,
    )


def _torch(start: Any, grads: Any) -> Iterator[Peer]:
    torch = torch_or_none()
    if torch is None:
        return
    given = [(torch.from_numpy(w.copy()), torch.from_numpy(g.copy())) for w, g in zip(start, grads, strict=True)]

    def in_float32() -> Any:
        return [stepped(w, g) for w, g in given]

    yield Peer("PyTorch, a loop in float32", in_float32)
    if not hasattr(torch.optim, "Muon"):
        return
    tensors = torch_weights([w.copy() for w in start], grads)
    optimizer = torch.optim.Muon(tensors, lr=LR, momentum=MOMENTUM, weight_decay=0.0)

    def run() -> Any:
        optimizer.step()
        return tensors

    yield Peer("torch.optim.Muon", run, goal=2, tolerance=0.02)
