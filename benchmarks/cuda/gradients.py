"""What reads or changes gradients: unscale_and_check, global_norm, accumulate, centralize, adasum_pair; dropout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from boost_ext import ops
from boost_ext.bench.harness import Peer

from .devices import Device
from .layouts import CudaCase, Layout, Layouts

SCALE = 1 - 2.0**-10  # so that thousands of multiplications leave normal numbers
FACTOR = 0.5
TOLERANCE = {"float32": 1e-5, "float16": 1e-3, "bfloat16": 1e-2}
SIZE = {"float32": 4, "float16": 2, "bfloat16": 2}
SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def unscale_and_check(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    yield _unscale(device, sizes.middle)
    yield _unscale(device, sizes.middle, dtype="bfloat16")
    yield _unscale(device, sizes.many)
    yield _unscale(device, sizes.cut)
    yield _unscale(device, sizes.cut, dtype="bfloat16")
    yield _unscale(device, sizes.many, whole_call=True)
    yield _unscale(device, sizes.large)
    yield _unscale(device, sizes.large, dtype="float16")
    yield _report(device, sizes.middle)


def _unscale(device: Device, layout: Layout, dtype: str = "float32", whole_call: bool = False) -> CudaCase:
    start = device.uniform(layout.room, seed=1, dtype=dtype)
    flat, found = device.clone(start), device.full((1,), 0)
    grads = device.split(flat, layout.places)
    peers = []
    if device.torch:
        torch, tensors = device.torch, [device.tensor(g) for g in grads]
        factor, seen = (device.tensor(device.full((1,), x)) for x in (SCALE, 0.0))

        def amp() -> Any:
            seen.zero_()
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, seen, factor)
            return [*tensors, seen]

        peers.append(Peer("PyTorch amp foreach", amp, None if whole_call else 1))

    def ours() -> Any:
        ops.unscale_and_check(grads, SCALE, out=found)
        return [*grads, found]

    return CudaCase(
        f"unscale_and_check {SHORT[dtype]}, {layout}" + ", with the host's part" * whole_call,
        ours,
        lambda: [
            *(SCALE * device.wide(g) for g in device.split(start, layout.places)),
            device.wide(device.full((1,), 0)),
        ],
        tuple(peers),
        None if whole_call else 2 * SIZE[dtype] * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
        tolerance=TOLERANCE[dtype],
        reset=lambda: device.copy(flat, start),
        whole_call=whole_call,
    )


def _report(device: Device, layout: Layout) -> CudaCase:
    start = device.uniform(layout.room, seed=1)
    flat, found = device.clone(start), device.full((1,), 0)
    grads = device.split(flat, layout.places)

    def ours(report: bool = True) -> Any:
        ops.unscale_and_check(grads, SCALE, report, out=found)
        return grads

    return CudaCase(
        f"unscale_and_check fp32 with report, {layout}",
        ours,
        lambda: [SCALE * device.wide(g) for g in device.split(start, layout.places)],
        (Peer("ours without report", lambda: ours(report=False), goal=1 / 1.1),),
        8 * layout.n,
        reset=lambda: device.copy(flat, start),
    )


def global_norm(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout, dtype in (
        (sizes.middle, "float32"),
        (sizes.middle, "bfloat16"),
        (sizes.many, "float32"),
        (sizes.cut, "float32"),
        (sizes.large, "float32"),
    ):
        yield _norm(device, layout, dtype)


def _norm(device: Device, layout: Layout, dtype: str) -> CudaCase:
    flat, out = device.uniform(layout.room, seed=1, dtype=dtype), device.full((1,), 0, "float64")
    tensors, peers = device.split(flat, layout.places), []
    if device.torch:
        torch, theirs = device.torch, [device.tensor(t) for t in tensors]

        def norm() -> Any:
            norms = torch._foreach_norm(theirs, dtype=torch.float32)
            return torch.linalg.vector_norm(torch.stack(norms)).reshape(1)

        peers.append(Peer("PyTorch foreach_norm", norm, goal=1, tolerance=1e-3))

    def ours() -> Any:
        ops.global_norm(tensors, out=out)
        return out

    return CudaCase(
        f"global_norm {SHORT[dtype]}, {layout}",
        ours,
        lambda: sum((device.wide(t) ** 2).sum() for t in tensors).reshape(1) ** 0.5,
        tuple(peers),
        SIZE[dtype] * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
        tolerance=1e-6,
    )


def accumulate(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout, dtype in (
        (sizes.many, "float32"),
        (sizes.cut, "float32"),
        (sizes.large, "float32"),
        (sizes.large, "bfloat16"),
    ):
        yield _accumulate(device, layout, dtype)


def _accumulate(device: Device, layout: Layout, dtype: str) -> CudaCase:
    start, gradient = device.uniform(layout.room, seed=1), device.uniform(layout.room, seed=2, dtype=dtype)
    flat = device.clone(start)
    sums, grads = (device.split(t, layout.places) for t in (flat, gradient))
    peers = []
    if device.torch:
        torch, theirs, added = device.torch, [device.tensor(t) for t in sums], [device.tensor(t) for t in grads]

        def foreach() -> Any:
            torch._foreach_add_(theirs, added, alpha=FACTOR)
            return theirs

        peers.append(Peer("PyTorch foreach_add", foreach, goal=1))
    return CudaCase(
        f"accumulate {SHORT[dtype]}, {layout}",
        lambda: ops.accumulate(sums, grads, FACTOR),
        lambda: [
            device.wide(s) + FACTOR * device.wide(g)
            for s, g in zip(device.split(start, layout.places), grads, strict=True)
        ],
        tuple(peers),
        (8 + SIZE[dtype]) * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
        reset=lambda: device.copy(flat, start),
    )


def centralize(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout, rows in ((sizes.middle, 100), (sizes.large, 1000)):
        columns = layout.n // (layout.count * rows)
        start = device.uniform(layout.count * rows * columns, seed=1)
        flat = device.clone(start)
        yield _centralize(device, start, flat, (layout.count, rows, columns), layout.bandwidth_goal)


def _centralize(
    device: Device, start: Any, flat: Any, shape: tuple[int, int, int], bandwidth_goal: float | None
) -> CudaCase:
    count, rows, columns = shape

    def matrices(tensor: Any) -> list[Any]:
        stack = device.reshape(tensor, count, rows, columns)
        return [device.part(stack, i) for i in range(count)]

    def centered(x: Any) -> Any:
        return x - (x.sum(1) / columns).reshape(-1, 1)

    grads, peers = matrices(flat), []
    if device.torch:
        theirs = [device.tensor(g) for g in grads]

        def expression() -> Any:
            for g in theirs:
                g.sub_(g.mean(1, keepdim=True))
            return theirs

        peers.append(Peer("PyTorch expression", expression, goal=1))
    return CudaCase(
        f"centralize fp32, {count} x ({rows}, {columns})",
        lambda: ops.centralize(grads),
        lambda: [centered(device.wide(g)) for g in matrices(start)],
        tuple(peers),
        8 * count * rows * columns,
        bandwidth_goal=bandwidth_goal,
        reset=lambda: device.copy(flat, start),
    )


def adasum_pair(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout in (sizes.middle, sizes.many, sizes.cut, sizes.large):
        yield _adasum(device, layout)


def _adasum(device: Device, layout: Layout) -> CudaCase:
    a, b = (device.split(device.uniform(layout.room, seed), layout.places) for seed in (1, 2))
    out, peers = device.split(device.full((layout.room,), 0), layout.places), []

    def combined(a: Any, b: Any) -> Any:
        dot, aa, bb = a @ b, a @ a, b @ b
        return (1 - dot / (2 * aa)) * a + (1 - dot / (2 * bb)) * b

    if device.torch:
        theirs = [tuple(device.tensor(t) for t in pair) for pair in zip(a, b, strict=True)]
        peers.append(Peer("PyTorch expression", lambda: [combined(*p) for p in theirs], goal=1, tolerance=1e-3))
    return CudaCase(
        f"adasum_pair fp32, {layout}",
        lambda: ops.adasum_pair(a, b, out),
        lambda: [combined(device.wide(x), device.wide(y)) for x, y in zip(a, b, strict=True)],
        tuple(peers),
        20 * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
    )


def dropout(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout, dtype in ((sizes.large, "float32"), (sizes.large, "bfloat16")):
        yield _dropout(device, layout, dtype)


def _dropout(device: Device, layout: Layout, dtype: str) -> CudaCase:
    """Alone: PyTorch draws masks of its own, and so has another answer."""
    x = device.uniform(layout.n, seed=1, dtype=dtype)
    out, mask = device.clone(x), device.full((layout.n,), 1)
    ops.dropout(mask, 0.5, 7, out=mask)  # 0 or 2
    return CudaCase(
        f"dropout {SHORT[dtype]}, {layout}",
        lambda: ops.dropout(x, 0.5, 7, out=out),
        lambda: device.wide(mask) * device.wide(x),
        (),
        2 * SIZE[dtype] * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
        tolerance=TOLERANCE[dtype],
    )
