"""Dimension-reduced training: pca_project and pca_back_project beside cuBLAS, bfgs_update, dim_reduce_apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops

from ..data import uniform
from ..harness import Peer
from .devices import Device
from .gradients import SHORT, SIZE
from .layouts import CudaCase, Layout, Layouts

GAMMA, ALPHA, RHO, INV_SCALE = 0.9, 0.1, 0.5, 0.5
PEERS = {"float32": 1e-3, "bfloat16": 0.05}  # how far they may be off: they sum in float32, and store in P's dtype


def pca_project(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for dtype, count in (("float32", 1), ("float32", 60), ("bfloat16", 1)):
        yield _project(device, sizes.matrix, dtype, count)


def _project(device: Device, shape: tuple[int, int], dtype: str, count: int) -> CudaCase:
    k, n = shape
    P = device.reshape(device.uniform(k * n, seed=1, dtype=dtype), k, n)
    flat, out, peers = device.uniform(n, seed=2), device.full((k,), 0), []
    grads = device.split(flat, count)
    if device.torch:
        torch, matrix = device.torch, device.tensor(P)
        vector, answer = (device.tensor(t).to(matrix.dtype) for t in (flat, out))
        name = "PyTorch mv" + ", all bf16" * (dtype == "bfloat16")
        peers.append(
            Peer(
                name, lambda: torch.mv(matrix, vector, out=answer), goal=1, tolerance=1e-3 if SIZE[dtype] == 4 else 0.05
            )
        )
    return CudaCase(
        f"pca_project {SHORT[dtype]}, k={k} n={n:.1e}" + f", {count} tensors" * (count > 1),
        lambda: ops.pca_project(P, grads, out),
        lambda: device.wide(P) @ device.wide(flat),
        tuple(peers),
        SIZE[dtype] * k * n + 4 * n,
        bandwidth_goal=0.9,
    )


def pca_back_project(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for dtype, count in (("float32", 1), ("float32", 60), ("bfloat16", 1)):
        yield _back_project(device, sizes.matrix, dtype, count)


def _back_project(device: Device, shape: tuple[int, int], dtype: str, count: int) -> CudaCase:
    k, n = shape
    P = device.reshape(device.uniform(k * n, seed=1, dtype=dtype), k, n)
    both, flat = device.reshape(device.uniform(2 * k, seed=2), 2, k), [device.full((n,), 0) for _ in range(2)]
    vectors, out = [device.part(both, j) for j in range(2)], [device.split(f, count) for f in flat]
    peers = []
    if device.torch:
        torch, matrix = device.torch, device.tensor(P)
        rows = device.tensor(both).to(matrix.dtype)
        answer = torch.empty(2, n, dtype=matrix.dtype, device=matrix.device)

        def mm() -> Any:
            torch.mm(rows, matrix, out=answer)
            return [answer[0], answer[1]]

        name = "PyTorch mm" + ", all bf16" * (dtype == "bfloat16")
        peers.append(Peer(name, mm, goal=1, tolerance=PEERS[dtype]))

    def ours() -> Any:
        ops.pca_back_project(P, vectors, out)
        return flat

    def reference() -> Any:
        answer = device.wide(both) @ device.wide(P)
        return [answer[0], answer[1]]

    return CudaCase(
        f"pca_back_project {SHORT[dtype]}, 2 vectors, k={k} n={n:.1e}" + f", {count} tensors" * (count > 1),
        ours,
        reference,
        tuple(peers),
        SIZE[dtype] * k * n + 8 * n,
        bandwidth_goal=0.9,
    )


def bfgs_update(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for k in (32, 64, 128):
        yield _bfgs(device, k)


def _updated(B: Any, s: Any, y: Any) -> Any:
    rho, By = 1 / (y @ s), B @ y
    column, row = s.reshape(-1, 1), s.reshape(1, -1)
    both = By.reshape(-1, 1) * row + column * By.reshape(1, -1)
    return B + (1 + rho * (y @ By)) * rho * (column * row) - rho * both


def _bfgs(device: Device, k: int) -> CudaCase:
    step = uniform(k, seed=1)
    start, s, y = (device.array(t) for t in (np.eye(k, dtype=np.float32), step, np.float32(0.5) * step + np.sin(step)))
    B, updated, peers = device.clone(start), device.full((1,), 0), []
    if device.torch:
        theirs = [device.tensor(t) for t in (B, s, y)]
        peers.append(Peer("PyTorch expression", lambda: theirs[0].copy_(_updated(*theirs)), goal=1, tolerance=1e-4))

    def ours() -> Any:
        ops.bfgs_update(B, s, y, out=updated)
        return B

    return CudaCase(
        f"bfgs_update k={k}",
        ours,
        lambda: _updated(*(device.wide(t) for t in (start, s, y))),
        tuple(peers),
        reset=lambda: device.copy(B, start),
        tolerance=1e-5,
    )


def dim_reduce_apply(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout in (sizes.many, sizes.large):
        yield _apply(device, layout)


def _apply(device: Device, layout: Layout) -> CudaCase:
    start, *rest = (device.uniform(layout.n, seed) for seed in (1, 2, 3, 4))
    flat = device.clone(start)
    momentum, grads, projected, dn = (device.split(t, layout.count) for t in (flat, *rest))
    out, peers = device.split(device.full((layout.n,), 0), layout.count), []
    if device.torch:
        torch = device.torch
        m, g, p, d, o = ([device.tensor(t) for t in ts] for ts in (momentum, grads, projected, dn, out))

        def foreach() -> Any:
            torch._foreach_mul_(m, GAMMA)
            torch._foreach_add_(m, g, alpha=INV_SCALE)
            torch._foreach_sub_(m, p)
            torch._foreach_copy_(o, d)
            torch._foreach_mul_(o, -RHO)
            torch._foreach_add_(o, m, alpha=ALPHA)
            return o

        peers.append(Peer("PyTorch foreach", foreach, goal=1))

    def reference() -> Any:
        moved = [device.split(t, layout.count) for t in (start, *rest)]
        return [
            ALPHA * (GAMMA * m + INV_SCALE * g - p) - RHO * d
            for m, g, p, d in zip(*([device.wide(t) for t in ts] for ts in moved), strict=True)
        ]

    return CudaCase(
        f"dim_reduce_apply fp32, {layout}",
        lambda: ops.dim_reduce_apply(
            momentum, grads, projected, dn, out, gamma=GAMMA, alpha=ALPHA, rho=RHO, inv_scale=INV_SCALE
        ),
        reference,
        tuple(peers),
        24 * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
        reset=lambda: device.copy(flat, start),
    )
