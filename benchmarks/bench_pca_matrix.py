"""pca_matrix: 32 components of 40 checkpoints in memory, beside NumPy and mindspore.boost.

mindspore.boost keeps many copies of its data: beside it the checkpoints are five times smaller, so
that a run stays below 8 GB and four minutes. Its time and ours grow linearly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Case, Peer
from boost_ext.pca import pca_matrix

CHECKPOINTS, K = 40, 32
_CHUNK = 1 << 15


def trajectory(n: int) -> Any:
    """(40, n): directions that matter less and less, as training leaves them."""
    row = uniform(n, seed=1)
    X = np.empty((CHECKPOINTS, n), np.float32)
    mix = np.random.default_rng(2).standard_normal((CHECKPOINTS, CHECKPOINTS))
    mix *= 0.85 ** np.arange(CHECKPOINTS)
    width = n // CHECKPOINTS
    for start in range(0, n, _CHUNK):
        at = (np.arange(start, min(start + _CHUNK, n)) + width * np.arange(CHECKPOINTS)[:, None]) % n
        X[:, start : start + _CHUNK] = mix @ row[at]
    return X


def gram_pca(X: Any) -> Any:
    """The snapshot method in chunks and float64."""
    chunks = [slice(start, start + _CHUNK) for start in range(0, X.shape[1], _CHUNK)]
    gram = np.zeros((CHECKPOINTS, CHECKPOINTS))
    for chunk in chunks:
        block = X[:, chunk].astype(np.float64)
        block -= block.mean(axis=0)
        gram += block @ block.T
    values, left = np.linalg.eigh(gram)
    weights = left[:, ::-1][:, :K].T / np.sqrt(values[::-1][:K, None])
    P = np.empty((K, X.shape[1]), np.float32)
    for chunk in chunks:
        block = X[:, chunk].astype(np.float64)
        block -= block.mean(axis=0)
        P[:, chunk] = weights @ block
    return P


def cases(quick: bool) -> Iterator[Case]:
    yield case(50_000 if quick else 5_000_000, beside_mindspore=False)
    yield case(50_000 if quick else 1_000_000, beside_mindspore=True)


def case(n: int, beside_mindspore: bool) -> Case:
    X = trajectory(n)
    checkpoints = [{"weight": row} for row in X]
    peers = [Peer("NumPy, chunked Gram", lambda: gram_pca(X))]
    if beside_mindspore:
        try:
            from mindspore.boost.base import _compute_pca_mat
        except ImportError:
            pass
        else:
            peers.append(Peer("mindspore.boost", lambda: _compute_pca_mat(X.copy(), K), goal=25))
    return Case(
        f"pca_matrix, {CHECKPOINTS} checkpoints of {n:.0e}, k={K}",
        ours=lambda: pca_matrix(checkpoints, {"weight": (n,)}, K, progress=False),
        reference=lambda: gram_pca(X),
        peers=tuple(peers),
        tolerance=1e-3,
        view=lambda P: np.abs(P[:, ::16]),  # each has its own rule for the sign
    )
