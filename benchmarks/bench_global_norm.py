"""global_norm of 25e6 elements in 60 tensors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops

from .data import split, uniform
from .frameworks import bfloat16, mindspore_or_none, torch_or_none
from .harness import Case, Peer
from .peers import mindspore_peers


def norm(tensors: Any) -> Any:
    return math.sqrt(sum(float(np.dot(t, t)) for t in tensors))


def cases(quick: bool) -> Iterator[Case]:
    n = 600_000 if quick else 25_000_000
    grads = split(uniform(n, seed=1), 60)
    peers = [Peer("NumPy dot", lambda: norm(grads))]
    if torch := torch_or_none():
        tensors = [torch.from_numpy(g) for g in grads]
        peers.append(Peer("PyTorch foreach", lambda: torch.nn.utils.get_total_norm(tensors, foreach=True)))
    if ms := mindspore_or_none():
        square = ms.ops.MultitypeFuncGraph("square_sum")
        hyper_map = ms.ops.HyperMap()

        @square.register("Tensor")
        def _square(grad: Any) -> Any:
            return ms.ops.ReduceSum()(ms.ops.Square()(grad))

        def ms_norm(grads: Any) -> Any:  # as ops.clip_by_global_norm
            return ms.ops.sqrt(ms.ops.addn(hyper_map(square, grads)))

        peers += mindspore_peers("square sums", ms_norm, grads)

    def case(name: str, grads: Any, *peers: Peer) -> Case:
        return Case(
            f"global_norm {name}, 60 tensors, {n:.1e}",
            ours=lambda: ops.global_norm(grads),
            reference=lambda: norm([g.astype(np.float64) for g in grads]),
            peers=peers,
            traffic=sum(g.nbytes for g in grads),
            bandwidth_goal=0.9,
        )

    yield case("fp32", grads, *peers)
    narrow = [bfloat16(g) for g in grads]
    if narrow[0] is not None:
        yield case("bf16", narrow)
