"""Dimension-reduced training: pca_project and pca_back_project beside cuBLAS, bfgs_update, dim_reduce_apply."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Peer
from boost_ext.ops.projection_codes import PROJECTION_BLOCK

from .devices import Device
from .gradients import SHORT, SIZE
from .layouts import CudaCase, Layout, Layouts

GAMMA, ALPHA, RHO, INV_SCALE = 0.9, 0.1, 0.5, 0.5
DTYPES = (("float32", 1), ("float32", 60), ("bfloat16", 1), ("int8", 1), ("int8", 60))
PEERS = {"float32": 1e-3, "bfloat16": 0.05, "int8": 1e-3}  # how far they may be off: they sum in their own dtype


class Matrix:
    """P of a case, its scales beside int8 codes, and what PyTorch gets: the floats that codes stand for."""

    def __init__(self, device: Device, shape: tuple[int, int], dtype: str) -> None:
        k, n = self.shape = shape
        self.device, self.scale = device, None
        self.short = SHORT.get(dtype, dtype)
        self.bytes = SIZE.get(dtype, 1) * k * n
        if dtype != "int8":
            self.P = device.reshape(device.uniform(k * n, seed=1, dtype=dtype), k, n)
            return
        random = np.random.default_rng(1)
        blocks = -(-n // PROJECTION_BLOCK)
        self.P = device.array(random.integers(-127, 128, shape, np.int8))
        self.scale = device.array(random.uniform(0.5, 1.5, (k, blocks)).astype(np.float32) / 127)
        self.bytes += 4 * k * blocks

    def wide(self) -> Any:
        device = self.device
        if self.scale is None:
            return device.wide(self.P)
        return device.wide(self.P) * device.wide(device.repeated(self.scale, PROJECTION_BLOCK, self.shape[1]))

    def of_torch(self) -> Any:
        if self.scale is None:
            return self.device.tensor(self.P)
        return self.device.tensor(self.P) * self.device.tensor(
            self.device.repeated(self.scale, PROJECTION_BLOCK, self.shape[1])
        )

    def peer(self, name: str) -> str:
        return name + {"bf16": ", all bf16", "int8": " with fp32 P"}.get(self.short, "")


def _tensors(count: int) -> str:
    return f", {count} tensors cut from a buffer" if count > 1 else ""


def pca_project(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for dtype, count in DTYPES:
        yield _project(device, sizes.matrix, dtype, count)


def _project(device: Device, shape: tuple[int, int], dtype: str, count: int) -> CudaCase:
    k, n = shape
    matrix = Matrix(device, shape, dtype)
    flat, out, peers = device.uniform(n, seed=2), device.full((k,), 0), []
    grads = device.split(flat, Layout(n, count, cut=True).places)
    if device.torch:
        torch, theirs = device.torch, matrix.of_torch()
        vector, answer = (device.tensor(t).to(theirs.dtype) for t in (flat, out))

        def mv() -> Any:
            return torch.mv(theirs, vector, out=answer)

        peers.append(Peer(matrix.peer("PyTorch mv"), mv, goal=1, tolerance=PEERS[dtype]))
    return CudaCase(
        f"pca_project {matrix.short}, k={k} n={n:.1e}" + _tensors(count),
        lambda: ops.pca_project(matrix.P, grads, out, scale=matrix.scale),
        lambda: matrix.wide() @ device.wide(flat),
        tuple(peers),
        matrix.bytes + 4 * n,
        bandwidth_goal=0.9,
    )


def pca_back_project(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for dtype, count in DTYPES:
        yield _back_project(device, sizes.matrix, dtype, count)


def _back_project(device: Device, shape: tuple[int, int], dtype: str, count: int) -> CudaCase:
    k, n = shape
    matrix = Matrix(device, shape, dtype)
    both, flat = device.reshape(device.uniform(2 * k, seed=2), 2, k), [device.full((n,), 0) for _ in range(2)]
    vectors, out = (
        [device.part(both, j) for j in range(2)],
        [device.split(f, Layout(n, count, cut=True).places) for f in flat],
    )
    peers = []
    if device.torch:
        torch, theirs = device.torch, matrix.of_torch()
        rows = device.tensor(both).to(theirs.dtype)
        answer = torch.empty(2, n, dtype=theirs.dtype, device=theirs.device)

        def mm() -> Any:
            torch.mm(rows, theirs, out=answer)
            return [answer[0], answer[1]]

        peers.append(Peer(matrix.peer("PyTorch mm"), mm, goal=1, tolerance=PEERS[dtype]))

    def ours() -> Any:
        ops.pca_back_project(matrix.P, vectors, out, scale=matrix.scale)
        return flat

    def reference() -> Any:
        answer = device.wide(both) @ matrix.wide()
        return [answer[0], answer[1]]

    return CudaCase(
        f"pca_back_project {matrix.short}, 2 vectors, k={k} n={n:.1e}"
        + f", {count} tensors cut from a buffer" * (count > 1),
        ours,
        reference,
        tuple(peers),
        matrix.bytes + 8 * n,
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
    for layout in (sizes.many, sizes.cut, sizes.large):
        yield _apply(device, layout)


def _apply(device: Device, layout: Layout) -> CudaCase:
    start, *rest = (device.uniform(layout.room, seed) for seed in (1, 2, 3, 4))
    flat = device.clone(start)
    momentum, grads, projected, dn = (device.split(t, layout.places) for t in (flat, *rest))
    out, peers = device.split(device.full((layout.room,), 0), layout.places), []
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
        moved = [device.split(t, layout.places) for t in (start, *rest)]
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
