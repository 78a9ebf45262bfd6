"""unscale_and_check of 25e6 elements in 60 tensors: in fp32 and halves, with report, only the check."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import SCALE, TENSORS, unscale_and_check
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import halves, torch_or_none, torch_tensor
from boost_ext.bench.harness import Case, Peer


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    yield unscale_and_check(n)
    start = uniform(n, seed=1)
    flat = start.copy()
    grads = split(flat, TENSORS)

    def reset() -> None:
        flat[...] = start

    def ours(report: bool = False) -> Any:
        return [*grads, bool(ops.unscale_and_check(grads, SCALE, report))]

    yield Case(
        f"unscale_and_check fp32 with report, {n:.1e}",
        ours=lambda: ours(report=True),
        reference=lambda: [SCALE * x.astype(np.float64) for x in split(start, TENSORS)] + [0.0],
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
    for kind, start16 in halves(start):
        yield narrow(kind, start16)


def narrow(kind: str, start16: Any) -> Case:
    flat16 = start16.copy()
    grads16 = split(flat16, TENSORS)

    def reset() -> None:
        flat16[...] = start16

    peers = []
    if torch := torch_or_none():
        tensors, factor = [torch_tensor(g) for g in grads16], torch.tensor(SCALE)

        def amp() -> Any:
            found = torch.zeros(1)
            torch._amp_foreach_non_finite_check_and_unscale_(tensors, found, factor)
            return [*tensors, found[0]]

        peers.append(Peer("PyTorch amp foreach", amp, goal=1))
    return Case(
        f"unscale_and_check {kind}, {TENSORS} tensors, {start16.size:.1e}",
        ours=lambda: [*grads16, ops.unscale_and_check(grads16, SCALE)],
        reference=lambda: [SCALE * x.astype(np.float64) for x in split(start16, TENSORS)] + [0.0],
        peers=tuple(peers),
        traffic=4 * start16.size,
        access="update",
        bandwidth_goal=0.9,
        tolerance=1e-2,
        reset=reset,
    )
