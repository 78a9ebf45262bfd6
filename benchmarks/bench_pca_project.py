"""pca_project: k=32, n=1e7, P in float32, bfloat16, float16 and int8 codes; one gradient or 60 tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.cases import ROWS, pca_project
from boost_ext.bench.data import matrix, split, uniform
from boost_ext.bench.frameworks import bfloat16, torch_or_none, torch_tensor
from boost_ext.bench.harness import Case, Peer

GOAL = 0.9  # of the read bandwidth


def cases(quick: bool) -> Iterator[Case]:
    n = 100_000 if quick else 10_000_000
    yield pca_project(n)
    P, g = matrix(ROWS, n), uniform(n, seed=1)
    out = np.empty(ROWS, np.float32)

    def product(P: Any) -> Any:
        return np.array([np.dot(row.astype(np.float64), g) for row in P])

    def case(
        name: str, P: Any, *peers: Peer, grads: Any = g, goal: float | None = GOAL, scale: Any = None, wide: Any = None
    ) -> Case:
        return Case(
            f"pca_project {name}, k={ROWS} n={n:.0e}",
            ours=lambda: ops.pca_project(P, grads, out, scale=scale),
            reference=lambda: product(P if wide is None else wide()),
            peers=peers,
            traffic=P.nbytes + g.nbytes + (0 if scale is None else scale.nbytes),
            bandwidth_goal=goal,
            tolerance=1e-4,
        )

    yield case("fp32, 60 tensors", P, Peer("NumPy", lambda: P @ g, goal=1.4), grads=split(g, 60))

    numpy32 = Peer("NumPy with fp32 P", lambda: P @ g, goal=2.5, tolerance=1e-2)
    narrow = bfloat16(P)
    if narrow is not None:
        bf16_peers = [numpy32]
        if torch := torch_or_none():
            tN, tG = torch_tensor(narrow), torch.from_numpy(g).bfloat16()
            bf16_peers.append(Peer("PyTorch mv, all bf16", lambda: torch.mv(tN, tG), tolerance=5e-2))
        yield case("bf16 P", narrow, *bf16_peers)
    yield case("fp16 P", P.astype(np.float16), numpy32)
    codes, scale = ops.quantize_projection(P)
    numpy_of_codes = Peer("NumPy with fp32 P", lambda: P @ g, goal=3, tolerance=2e-2)

    def wide() -> Any:
        return ops.dequantize_projection(codes, scale)

    yield case("int8 P", codes, numpy_of_codes, scale=scale, wide=wide)
    yield case("int8 P, 60 tensors", codes, numpy_of_codes, grads=split(g, 60), scale=scale, wide=wide)
