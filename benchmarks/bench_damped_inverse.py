"""damped_inverse of a batch of blocks, and of one large matrix."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer

DAMPING = 0.1


def inverse(matrices: Any) -> Any:
    return np.linalg.inv(matrices + DAMPING * np.eye(matrices.shape[-1], dtype=matrices.dtype))


def _cholesky(torch: Any, damped: Any) -> Any:
    return torch.cholesky_inverse(torch.linalg.cholesky(damped)).numpy()


def cases(quick: bool) -> Iterator[Case]:
    for batch, n in ((4, 32),) if quick else ((64, 128), (1, 1024)):
        roots = uniform(batch * n * 2 * n, seed=1).reshape(batch, n, 2 * n).astype(np.float64)
        matrices = roots @ roots.transpose(0, 2, 1) / n
        out = np.empty(matrices.shape, np.float32)

        def ours(matrices: Any = matrices, out: Any = out) -> Any:
            ops.damped_inverse(matrices, out, damping=DAMPING)
            return out

        peers = [Peer("NumPy, float64", lambda m=matrices: inverse(m))]
        torch = torch_or_none()
        if torch is not None:
            damped = torch.from_numpy(matrices + DAMPING * np.eye(n))
            peers.append(Peer("PyTorch, Cholesky", partial(_cholesky, torch, damped)))
        yield Case(
            f"damped_inverse {batch} x {n} x {n}",
            ours=ours,
            reference=lambda m=matrices: inverse(m),
            peers=tuple(peers),
            tolerance=1e-6,
            seconds=0.5,
        )
