"""covariance of a Dense layer's rows and of a convolution's patches, in blocks of 128."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

BLOCK = 128


def blocks(matrix: Any) -> Any:
    """The blocks of a matrix of a multiple of 128 rows."""
    return np.stack([matrix[i : i + BLOCK, i : i + BLOCK] for i in range(0, len(matrix), BLOCK)])


def by_blocks(x: Any) -> Any:
    """As NumPy computes no more than it must."""
    parts = x.reshape(len(x), -1, BLOCK).transpose(1, 2, 0)
    return parts @ parts.transpose(0, 2, 1) / len(x)


def patches(x: Any) -> Any:
    """Of a kernel of 3 by 3 with a padding of 1."""
    n, c, h, w = x.shape
    wide = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    return seen.transpose(0, 2, 3, 1, 4, 5).reshape(n * h * w, c * 9)


def cases(quick: bool) -> Iterator[Case]:
    rows = 256 if quick else 4096
    x = uniform(rows * 512, seed=1).reshape(rows, 512)
    out = np.empty((4, BLOCK, BLOCK))
    yield Case(
        f"covariance {rows} x 512",
        ours=lambda: ops.covariance(x, out, factor=1 / rows),
        reference=lambda: by_blocks(x.astype(np.float64)),
        peers=(Peer("NumPy, blocks", lambda: by_blocks(x)), Peer("NumPy, whole", lambda: blocks(x.T @ x / rows))),
        tolerance=1e-5,
        seconds=0.5,
    )
    n, c = (2, 128) if quick else (16, 128)
    images = uniform(n * c * 256, seed=2).reshape(n, c, 16, 16)
    result, count = np.empty((9, BLOCK, BLOCK)), n * 256
    peers = [Peer("NumPy", lambda: by_blocks(patches(images)))]
    torch = torch_or_none()
    if torch is not None:
        tensor = torch.from_numpy(images)

        def unfolded() -> Any:
            seen = torch.nn.functional.unfold(tensor, 3, padding=1).transpose(1, 2).reshape(count, -1, BLOCK)
            parts = seen.permute(1, 2, 0)
            return (parts @ parts.transpose(1, 2) / count).numpy()

        peers.append(Peer("PyTorch", unfolded))
    yield Case(
        f"covariance of patches {n} x {c} x 16 x 16",
        ours=lambda: ops.covariance(images, result, factor=1 / count, kernel=3, padding=1),
        reference=lambda: by_blocks(patches(images.astype(np.float64))),
        peers=tuple(peers),
        tolerance=1e-5,
        seconds=0.5,
    )
