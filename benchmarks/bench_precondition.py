"""precondition of a convolution's gradient, with blocks of 128, and of square ones with one block a side."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

SIZES = (128, 256, 512, 1024, 2048)


def product(left: Any, g: Any, right: Any) -> Any:
    """Of a library's arrays, by its own operators."""
    rows, columns, block = len(left), len(right), left.shape[-1]
    first = (left @ g.reshape(rows, block, -1)).reshape(rows * block, columns, block)
    return (first.swapaxes(0, 1) @ right).swapaxes(0, 1).reshape(g.shape)


def cases(quick: bool) -> Iterator[Case]:
    for rows, columns, block in ((1, 2, 128),) if quick else ((4, 36, 128), *((1, 1, size) for size in SIZES)):
        g = uniform(rows * columns * block * block, seed=1).reshape(rows * block, columns * block)
        left = uniform(rows * block * block, seed=2).reshape(rows, block, block)
        right = uniform(columns * block * block, seed=3).reshape(columns, block, block)
        yield one(g, left, right, np.empty_like(g))


def one(g: Any, left: Any, right: Any, out: Any) -> Case:
    peers = [Peer("NumPy", lambda: product(left, g, right), goal=0.9)]
    torch = torch_or_none()
    if torch is not None:
        tensors = [torch.from_numpy(t) for t in (left, g, right)]
        peers.append(Peer("PyTorch", lambda: product(*tensors).numpy()))
    return Case(
        f"precondition {len(g)} x {g.shape[1]}",
        ours=lambda: ops.precondition(g, left, right, out),
        reference=lambda: product(*(t.astype(np.float64) for t in (left, g, right))),
        peers=tuple(peers),
        tolerance=1e-5,
        seconds=0.5,
    )
