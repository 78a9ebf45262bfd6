"""bfgs_update for k = 32, 64, 128: small enough that the call itself counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import mindspore_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import mindspore_peers


def formula(B: Any, s: Any, y: Any) -> Any:
    rho = 1 / (y @ s)
    left = np.eye(len(s), dtype=B.dtype) - rho * np.outer(s, y)
    return left @ B @ left.T + rho * np.outer(s, s)


def cheap_formula(B: Any, s: Any, y: Any) -> Any:
    """The same in O(k²), as a careful user of NumPy writes it."""
    rho = 1 / (y @ s)
    u = B @ y
    cross = np.outer(s, u)
    B -= rho * (cross + cross.T)
    B += rho * (1 + rho * (y @ u)) * np.outer(s, s)
    return B


def cases(quick: bool) -> Iterator[Case]:
    for k in (32,) if quick else (32, 64, 128):
        s = uniform(k, seed=1)
        y = s + np.float32(0.1) * uniform(k, seed=2)
        B = np.eye(k, dtype=np.float32)
        other = B.copy()

        def ours(B: Any = B, s: Any = s, y: Any = y) -> Any:
            ops.bfgs_update(B, s, y)
            return B

        def reset(B: Any = B, other: Any = other, k: int = k) -> None:
            B[...] = other[...] = np.eye(k)

        peers = [
            Peer("NumPy, O(k²)", lambda B=other, s=s, y=y: cheap_formula(B, s, y), goal=3),
            Peer(
                "NumPy, as printed",
                lambda k=k, s=s, y=y: formula(np.eye(k, dtype=np.float32), s, y),
                goal=3,
            ),
        ]
        if mindspore_or_none():
            peers += _mindspore(k, s, y)
        yield Case(
            f"bfgs_update k={k}",
            ours=ours,
            reference=lambda k=k, s=s, y=y: formula(np.eye(k), s.astype(np.float64), y.astype(np.float64)),
            peers=tuple(peers),
            tolerance=1e-4,
            reset=reset,
            seconds=0.5,
        )


def _mindspore(k: int, s: Any, y: Any) -> tuple[Peer, ...]:
    ms = mindspore_or_none()
    assert ms is not None
    matmul, transpose, squeeze = ms.ops.MatMul(), ms.ops.Transpose(), ms.ops.Squeeze()

    def update(B: Any, s: Any, y: Any, eye: Any) -> Any:  # the lines of mindspore.boost's DimReduce
        p = 1.0 / squeeze(matmul(transpose(y, (1, 0)), s))
        t = eye - matmul(p * y, transpose(s, (1, 0)))
        return matmul(matmul(transpose(t, (1, 0)), B), t) + matmul(p * s, transpose(s, (1, 0)))

    eye = np.eye(k, dtype=np.float32)
    return mindspore_peers("DimReduce's ops", update, eye, s[:, None], y[:, None], eye.copy())
