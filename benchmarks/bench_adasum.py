"""adasum_pair of two gradients of 25e6 elements in 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops

from .data import split, uniform
from .frameworks import bfloat16, mindspore_or_none, torch_or_none
from .harness import Case, Peer
from .peers import mindspore_peers


def pair(a: Any, b: Any) -> Any:
    """mindspore.boost's formula, with its eps instead of a case for zero."""
    ab, aa, bb = np.dot(a, b), np.dot(a, a) + 1e-12, np.dot(b, b) + 1e-12
    return (1 - ab / (2 * aa)) * a + (1 - ab / (2 * bb)) * b


def wide_pair(a: Any, b: Any) -> Any:
    return pair(a.astype(np.float64), b.astype(np.float64))


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    a, b = (split(uniform(n, seed), 60) for seed in (1, 2))
    out = [np.empty_like(x) for x in a]
    peers = [Peer("NumPy", lambda: [pair(x, y) for x, y in zip(a, b, strict=True)], goal=4.5)]
    if torch := torch_or_none():
        ta, tb = ([torch.from_numpy(x) for x in list_] for list_ in (a, b))

        def torch_pair(x: Any, y: Any) -> Any:
            xy, xx, yy = torch.dot(x, y), torch.dot(x, x) + 1e-12, torch.dot(y, y) + 1e-12
            return (1 - xy / (2 * xx)) * x + (1 - xy / (2 * yy)) * y

        peers.append(Peer("PyTorch", lambda: [torch_pair(x, y) for x, y in zip(ta, tb, strict=True)]))
    if mindspore_or_none():
        peers += _mindspore(a, b)
    yield Case(
        f"adasum_pair fp32, 60 tensors, {n:.1e}",
        ours=lambda: ops.adasum_pair(a, b, out),
        reference=lambda: [wide_pair(x, y) for x, y in zip(a, b, strict=True)],
        peers=tuple(peers),
        traffic=5 * 4 * n,
        access="triad",
        bandwidth_goal=0.9,
    )
    a16, b16 = ([bfloat16(x) for x in list_] for list_ in (a, b))
    if a16[0] is not None:
        out16 = [np.empty_like(x) for x in a16]
        yield Case(
            f"adasum_pair bf16, 60 tensors, {n:.1e}",
            ours=lambda: ops.adasum_pair(a16, b16, out16),
            reference=lambda: [wide_pair(x, y) for x, y in zip(a16, b16, strict=True)],
            peers=(replace_tolerance(peers[0]),),
            traffic=5 * 2 * n,
            access="triad",
            bandwidth_goal=0.9,
            tolerance=5e-3,
        )


def replace_tolerance(peer: Peer) -> Peer:
    return Peer(f"{peer.name} in fp32", peer.run, peer.goal, tolerance=2e-2)


def _mindspore(a: Any, b: Any) -> tuple[Peer, ...]:
    try:
        from mindspore.boost.adasum import _send_recv_res
    except ImportError:
        return ()
    ms = mindspore_or_none()
    assert ms is not None
    combine = ms.ops.MultitypeFuncGraph("adasum_pair")
    hyper_map = ms.ops.HyperMap()

    def alone(x: Any) -> Any:  # stands for the all-reduce of a group of one
        return x

    @combine.register("Tensor", "Tensor")
    def _combine(x: Any, y: Any) -> Any:
        return _send_recv_res(True, y, x, alone, True, 2)

    def both(a: Any, b: Any) -> Any:
        return hyper_map(combine, a, b)

    return mindspore_peers("boost.adasum", both, a, b, pynative_goal=25, graph_goal=25)
