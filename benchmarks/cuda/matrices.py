"""Products and inverses of matrices: what Muon and thor spend their time with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.harness import Peer

from ..bench_damped_inverse import DAMPING, inverse
from ..bench_muon_step import LR, MOMENTUM, stepped
from ..bench_orthogonalize import MIXED, iterated
from ..bench_precondition import product
from .devices import Device
from .layouts import CudaCase, Layouts

Shape = tuple[int, int]


def _lists(sizes: Layouts) -> Iterator[tuple[str, list[Shape]]]:
    side = sizes.side
    for shape in ((side, 4 * side), (4 * side, 4 * side)):
        yield f"{shape[0]} x {shape[1]}", [shape]
    mixed = [(max(1, a * side // 512), max(1, b * side // 512)) for a, b in MIXED]
    yield f"{6 * len(mixed)} matrices", 6 * mixed


def _uniform(device: Device, shapes: Sequence[Shape], seed: int = 0) -> list[Any]:
    return [device.reshape(device.uniform(a * b, seed + i), a, b) for i, (a, b) in enumerate(shapes)]


def orthogonalize(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for label, shapes in _lists(sizes):
        yield _orthogonalize(device, label, shapes)


def _orthogonalize(device: Device, label: str, shapes: Sequence[Shape]) -> CudaCase:
    matrices, peers = _uniform(device, shapes), []
    out = [device.full(shape, 0) for shape in shapes]
    if device.torch:
        theirs = [device.tensor(m) for m in matrices]
        narrow = [m.bfloat16() for m in theirs]
        peers.append(Peer("PyTorch, a loop in float32", lambda: [iterated(m) for m in theirs], goal=1, tolerance=1e-3))
        peers.append(Peer("PyTorch, a loop in bfloat16", lambda: [iterated(m) for m in narrow], tolerance=0.5))
    return CudaCase(
        f"orthogonalize {label}",
        lambda: ops.orthogonalize(matrices, out),
        lambda: [iterated(device.wide(m)) for m in matrices],
        tuple(peers),
        tolerance=1e-3,
    )


def muon_step(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for label, shapes in _lists(sizes):
        for whole_call in (False, True):
            yield _muon_step(device, label, shapes, True, whole_call)
        yield _muon_step(device, label, shapes, False)


def _muon_step(
    device: Device, label: str, shapes: Sequence[Shape], allow_tf32: bool, whole_call: bool = False
) -> CudaCase:
    start, grads = _uniform(device, shapes), _uniform(device, shapes, seed=100)
    weights, moments, peers = [device.clone(w) for w in start], [device.full(shape, 0) for shape in shapes], []
    nothing = [device.clone(m) for m in moments]

    def ours() -> Any:
        ops.muon_step(weights, grads, moments, lr=LR, momentum=MOMENTUM, step=1, allow_tf32=allow_tf32)
        return weights

    def reset() -> None:
        for w, m, s, zero in zip(weights, moments, start, nothing, strict=True):
            device.copy(w, s)
            device.copy(m, zero)

    if device.torch and hasattr(device.torch.optim, "Muon"):
        theirs = [device.tensor(device.clone(w)).requires_grad_() for w in start]
        for w, g in zip(theirs, grads, strict=True):
            w.grad = device.tensor(g)
        optimizer = device.torch.optim.Muon(theirs, lr=LR, momentum=MOMENTUM, weight_decay=0.0)

        def step() -> Any:
            optimizer.step()
            return theirs

        peers.append(Peer("torch.optim.Muon, in bfloat16", step, goal=1 if whole_call else None, tolerance=0.02))
    return CudaCase(
        f"muon_step{', TF32' * allow_tf32}, {label}" + ", with the host's part" * whole_call,
        ours,
        lambda: [stepped(device.wide(w), device.wide(g)) for w, g in zip(start, grads, strict=True)],
        tuple(peers),
        reset=reset,
        tolerance=0.02 if allow_tf32 else 1e-3,
        whole_call=whole_call,
    )


def precondition(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for rows, columns, block in ((4, 36, sizes.side // 4), (1, 1, 2 * sizes.side), (1, 1, 4 * sizes.side)):
        yield _precondition(device, rows, columns, block)


def _precondition(device: Device, rows: int, columns: int, block: int) -> CudaCase:
    g = _uniform(device, [(rows * block, columns * block)])[0]
    left, right = (device.reshape(device.uniform(n * block * block, seed=n), n, block, block) for n in (rows, columns))
    out, peers = device.full((rows * block, columns * block), 0), []
    if device.torch:
        theirs = [device.tensor(t) for t in (left, g, right)]
        peers.append(Peer("PyTorch matmul", lambda: product(*theirs), goal=1, tolerance=1e-4))
    return CudaCase(
        f"precondition {rows * block} x {columns * block}, blocks of {block}",
        lambda: ops.precondition(g, left, right, out),
        lambda: product(*(device.wide(t) for t in (left, g, right))),
        tuple(peers),
        tolerance=1e-4,
    )


def damped_inverse(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for batch, n in ((64, sizes.side // 4), (1, sizes.side), (1, 4 * sizes.side)):
        yield _damped_inverse(device, batch, n)


def _damped_inverse(device: Device, batch: int, n: int) -> CudaCase:
    roots = uniform(batch * n * 2 * n, seed=1).reshape(batch, n, 2 * n).astype(np.float64)
    product = roots @ roots.swapaxes(1, 2) / n
    matrices, out, found, peers = device.array(product), device.full((batch, n, n), 0), device.full((1,), 0), []
    if device.torch:
        torch = device.torch
        damped = device.tensor(device.array(product + DAMPING * np.eye(n)))

        def cholesky() -> Any:
            return torch.cholesky_inverse(torch.linalg.cholesky_ex(damped)[0])

        peers.append(Peer("PyTorch, Cholesky in float64", cholesky, goal=1))

    def ours() -> Any:
        ops.damped_inverse(matrices, out, damping=DAMPING, inverted=found)
        return out

    return CudaCase(
        f"damped_inverse {batch} x {n} x {n}",
        ours,
        lambda: inverse(product),
        tuple(peers),
        tolerance=1e-5,
    )
