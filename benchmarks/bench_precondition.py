"""precondition of a convolution's gradient, with blocks of 128."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

BLOCK = 128


def product(library: Any, left: Any, g: Any, right: Any) -> Any:
    rows, columns = len(left), len(right)
    first = library.matmul(left, g.reshape(rows, BLOCK, -1)).reshape(rows * BLOCK, columns, BLOCK)
    return library.matmul(first.swapaxes(0, 1), right).swapaxes(0, 1).reshape(g.shape)


def cases(quick: bool) -> Iterator[Case]:
    rows, columns = (1, 2) if quick else (4, 36)
    g = uniform(rows * columns * BLOCK * BLOCK, seed=1).reshape(rows * BLOCK, columns * BLOCK)
    left = uniform(rows * BLOCK * BLOCK, seed=2).reshape(rows, BLOCK, BLOCK)
    right = uniform(columns * BLOCK * BLOCK, seed=3).reshape(columns, BLOCK, BLOCK)
    out = np.empty_like(g)
    peers = [Peer("NumPy", lambda: product(np, left, g, right))]
    torch = torch_or_none()
    if torch is not None:
        tensors = [torch.from_numpy(t) for t in (left, g, right)]
        peers.append(Peer("PyTorch", lambda: product(torch, *tensors).numpy()))
    yield Case(
        f"precondition {rows * BLOCK} x {columns * BLOCK}",
        ours=lambda: ops.precondition(g, left, right, out),
        reference=lambda: product(np, *(t.astype(np.float64) for t in (left, g, right))),
        peers=tuple(peers),
        tolerance=1e-5,
        seconds=0.5,
    )
