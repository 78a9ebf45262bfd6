"""unscale_and_check of 25e6 elements in 60 tensors: fp32, bf16, with report, only the check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops

from .data import split, uniform
from .frameworks import bfloat16, mindspore_or_none, torch_bfloat16, torch_or_none
from .harness import Case, Peer
from .peers import mindspore_peers

SCALE = 1 - 2.0**-10  # so that hundreds of multiplications leave normal numbers


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    start = uniform(n, seed=1)
    flat = start.copy()
    grads = split(flat, 60)

    def reset() -> None:
        flat[...] = start

    def reference() -> Any:
        return [SCALE * x.astype(np.float64) for x in split(start, 60)] + [0.0]

    def numpy_unscale() -> Any:
        factor = np.float32(SCALE)
        for g in grads:
            np.multiply(g, factor, g)
        return [*grads, not all(np.isfinite(g).all() for g in grads)]

    def ours(report: bool = False) -> Any:
        return [*grads, bool(ops.unscale_and_check(grads, SCALE, report))]

    peers = [Peer("NumPy", numpy_unscale, goal=3)]
    if torch := torch_or_none():
        tensors = [torch.from_numpy(g) for g in grads]
        factor = torch.tensor(SCALE)

        def amp(tensors: Any = tensors) -> Any:
            found = torch.zeros(1)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)
            return [*tensors, found[0]]

        peers.append(Peer("PyTorch amp foreach", amp, goal=1))
    if mindspore_or_none():
        peers += _mindspore(grads)
    yield Case(
        f"unscale_and_check fp32, 60 tensors, {n:.1e}",
        ours=ours,
        reference=reference,
        peers=tuple(peers),
        traffic=8 * n,
        access="update",
        bandwidth_goal=0.9,
        reset=reset,
    )
    yield Case(
        f"unscale_and_check fp32 with report, {n:.1e}",
        ours=lambda: ours(report=True),
        reference=reference,
        peers=(Peer("ours without report", ours, goal=1 / 1.1),),
        traffic=8 * n,
        access="update",
        reset=reset,
    )
    yield Case(
        f"unscale_and_check fp32, inv_scale = 1, {n:.1e}",
        ours=lambda: ops.unscale_and_check(grads, 1.0),
        reference=lambda: 0.0,
        peers=(Peer("NumPy", lambda: not all(np.isfinite(g).all() for g in grads), goal=3),),
        traffic=4 * n,
        access="read",
        bandwidth_goal=0.9,
        reset=reset,
    )
    start16 = bfloat16(start)
    if start16 is not None:
        flat16 = start16.copy()
        grads16 = split(flat16, 60)

        def reset16() -> None:
            flat16[...] = start16

        peers16 = []
        if torch := torch_or_none():
            tensors16 = [torch_bfloat16(g) for g in grads16]
            peers16.append(Peer("PyTorch amp foreach", lambda: amp(tensors16), goal=1))
        yield Case(
            f"unscale_and_check bf16, 60 tensors, {n:.1e}",
            ours=lambda: [*grads16, ops.unscale_and_check(grads16, SCALE)],
            reference=lambda: [SCALE * x.astype(np.float64) for x in split(start16, 60)] + [0.0],
            peers=tuple(peers16),
            traffic=4 * n,
            access="update",
            bandwidth_goal=0.9,
            tolerance=1e-2,
            reset=reset16,
        )


def _mindspore(grads: Any) -> tuple[Peer, ...]:
    """The two ways MindSpore has: its loss-scale cell's (which refuses the CPU) and amp's."""
    ms = mindspore_or_none()
    assert ms is not None
    ops_, inverse = ms.ops, np.float32(1 / SCALE)
    hyper_map = ops_.HyperMap()
    scale = ms.Tensor(inverse)
    base = ms.Tensor(1, ms.float32)
    cell_scale, cell_check = (ops_.MultitypeFuncGraph(name) for name in ("cell_scale", "cell_check"))
    reciprocal, is_finite, reshape = ops_.Reciprocal(), ops_.IsFinite(), ops_.Reshape()

    @cell_scale.register("Tensor", "Tensor")
    def _scale(scale: Any, grad: Any) -> Any:
        return grad * ops_.cast(reciprocal(scale), ops_.dtype(grad))

    @cell_check.register("Tensor")
    def _check(grad: Any) -> Any:
        return reshape(base - is_finite(grad).all(), (-1,))

    def cell(scale: Any, grads: Any) -> Any:
        grads = hyper_map(ops_.partial(cell_scale, scale), grads)
        flags = ops_.addn(hyper_map(cell_check, grads))
        return grads, reshape(ops_.less_equal(base, flags), ())

    def amp(scale: Any, grads: Any) -> Any:
        grads = hyper_map(ops_.partial(cell_scale, scale), grads)
        return grads, ops_.logical_not(ms.amp.all_finite(grads))

    return (
        *mindspore_peers("loss-scale cell's ops", cell, scale, grads, pynative_goal=20, graph_goal=20),
        *mindspore_peers("with amp.all_finite", amp, scale, grads, pynative_goal=20, graph_goal=20),
    )
