"""centralize: gradients of Dense and Conv2d layers, 25e6 elements together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import mindspore_or_none, torch_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import mindspore_peers


def layers(quick: bool) -> list[Any]:
    shapes = [(512, 512, 3, 3), (1000, 2048), (2048, 512), (4096, 1024), (64, 3, 7, 7)]
    repeats = 1 if quick else 2
    return [uniform(int(np.prod(shape)), seed).reshape(shape) for seed, shape in enumerate(shapes * repeats)]


def centered(g: Any) -> Any:
    return g - g.mean(axis=tuple(range(1, g.ndim)), keepdims=True)


def cases(quick: bool) -> Iterator[Case]:
    start = layers(quick)
    grads = [g.copy() for g in start]
    n = sum(g.size for g in grads)

    def reset() -> None:
        for g, before in zip(grads, start, strict=True):
            g[...] = before

    def numpy_centralize() -> Any:
        for g in grads:
            g -= g.mean(axis=tuple(range(1, g.ndim)), keepdims=True)
        return grads

    peers = [Peer("NumPy", numpy_centralize)]
    if torch := torch_or_none():
        tensors = [torch.from_numpy(g) for g in grads]

        def torch_centralize() -> Any:
            for t in tensors:
                t.sub_(t.mean(dim=tuple(range(1, t.dim())), keepdim=True))
            return tensors

        peers.append(Peer("PyTorch", torch_centralize))
    if ms := mindspore_or_none():
        one = ms.ops.MultitypeFuncGraph("centralize")
        hyper_map = ms.ops.HyperMap()

        @one.register("Tensor")
        def _one(grad: Any) -> Any:  # its own primitive, Centralization, does not exist on the CPU
            rows = ms.ops.reshape(grad, (grad.shape[0], -1))
            return ms.ops.reshape(rows - ms.ops.ReduceMean(keep_dims=True)(rows, 1), grad.shape)

        def ms_centralize(grads: Any) -> Any:
            return hyper_map(one, grads)

        peers += mindspore_peers("mean and sub", ms_centralize, grads)
    yield Case(
        f"centralize fp32, {len(grads)} layers, {n:.1e}",
        ours=lambda: ops.centralize(grads),
        reference=lambda: [centered(g.astype(np.float64)) for g in start],
        peers=tuple(peers),
        traffic=8 * n,
        access="update",
        bandwidth_goal=0.9,
        reset=reset,
    )
