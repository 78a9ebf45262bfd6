"""Kronecker-factored curvature in float64 NumPy: the oracle of thor and of its ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def blocks_of(matrix: Array, size: int) -> Array:
    """The blocks along the diagonal, the last one filled up with zeros."""
    d = len(matrix)
    count = -(-d // size)
    full = np.zeros((count * size, count * size), matrix.dtype)
    full[:d, :d] = matrix
    return np.stack([full[i : i + size, i : i + size] for i in range(0, count * size, size)])


def from_blocks(blocks: Array, d: int) -> Array:
    """The matrix of d rows with these blocks on its diagonal; a vector is a diagonal."""
    if blocks.ndim == 1:
        return np.diag(blocks.astype(np.float64))
    count, size, _ = blocks.shape
    full = np.zeros((count * size, count * size))
    for i in range(count):
        full[i * size : (i + 1) * size, i * size : (i + 1) * size] = blocks[i]
    return full[:d, :d]


def patches(
    x: Array, kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], padding: tuple[int, ...]
) -> Array:
    """What each output position of a convolution sees: (n * positions, c * kernel)."""
    (kh, kw), (sh, sw), (dh, dw), (top, bottom, left, right) = kernel, stride, dilation, padding
    x = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    h, w = x.shape[2] - dh * (kh - 1), x.shape[3] - dw * (kw - 1)
    rows = [
        x[:, :, i : i + dh * (kh - 1) + 1 : dh, j : j + dw * (kw - 1) + 1 : dw].reshape(len(x), -1)
        for i in range(0, h, sh)
        for j in range(0, w, sw)
    ]
    return np.stack(rows, axis=1).reshape(-1, x.shape[1] * kh * kw)


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """MindSpore's pad_mode "same", along one axis."""
    out = -(-size // stride)
    total = max((out - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


def covariance(rows: Array, factor: float = 1.0) -> Array:
    wide = rows.astype(np.float64)
    return factor * wide.T @ wide


def damped_inverse(matrix: Array, damping: float) -> Array:
    return np.linalg.inv(matrix + damping * np.eye(len(matrix)))
