"""orthogonalize of one matrix and of sixty mixed ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

MIXED = (
    (64, 64),
    (64, 576),
    (128, 128),
    (128, 1152),
    (256, 128),
    (256, 512),
    (512, 128),
    (512, 512),
    (768, 256),
    (10, 512),
)


def iterated(matrix: Any) -> Any:
    """Of a library's array, by its own operators."""
    tall = matrix.shape[0] > matrix.shape[1]
    X = (matrix.T if tall else matrix) / ((matrix * matrix).sum() ** 0.5 + 1e-7)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (2.0315 * (A @ A) - 4.7750 * A) @ X
    return X.T if tall else X


def flat(matrices: Any) -> Any:
    return np.concatenate([np.asarray(m).ravel() for m in matrices])


def cases(quick: bool) -> Iterator[Case]:
    small = (("32 x 64", ((32, 64),)), ("2 matrices", MIXED[:2]))
    for label, shapes in small if quick else (("512 x 2048", ((512, 2048),)), ("60 matrices", 6 * MIXED)):
        matrices = [uniform(a * b, seed=i).reshape(a, b) for i, (a, b) in enumerate(shapes)]
        out = [np.empty_like(m) for m in matrices]

        def ours(matrices: Any = matrices, out: Any = out) -> Any:
            return flat(ops.orthogonalize(matrices, out))

        def by_loop(tensors: Any) -> Any:
            return flat([iterated(m) for m in tensors])

        peers = [Peer("NumPy", partial(by_loop, matrices))]
        torch = torch_or_none()
        if torch is not None:
            tensors = [torch.from_numpy(m) for m in matrices]
            peers.append(Peer("PyTorch, float32", partial(by_loop, tensors)))
        yield Case(
            f"orthogonalize {label}",
            ours=ours,
            reference=partial(by_loop, [m.astype(np.float64) for m in matrices]),
            peers=tuple(peers),
            tolerance=1e-3,
            seconds=0.5,
        )
