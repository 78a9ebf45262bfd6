"""pca_back_project: two vectors at once, k=32, n=1e7, P in float32, bfloat16, float16 and int8 codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import matrix, split, uniform
from boost_ext.bench.frameworks import bfloat16, mindspore_or_none, torch_or_none, torch_tensor
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import mindspore_peers

K = 32


def cases(quick: bool) -> Iterator[Case]:
    n = 100_000 if quick else 10_000_000
    P, V = matrix(K, n), uniform(2 * K, seed=1).reshape(2, K)
    out = np.empty((2, n), np.float32)
    product = np.empty_like(out)

    def back(P: Any) -> Any:
        wide, total = V.astype(np.float64), np.empty((2, n))
        for start in range(0, n, 1 << 16):
            part = slice(start, start + (1 << 16))
            total[:, part] = wide @ P[:, part].astype(np.float64)
        return total

    def case(name: str, P: Any, *peers: Peer, parts: int = 1, scale: Any = None, wide: Any = None) -> Case:
        into = [split(row, parts) for row in out]

        def ours() -> Any:
            ops.pca_back_project(P, list(V), into, scale=scale)
            return out

        return Case(
            f"pca_back_project {name}, 2 vectors, k={K} n={n:.0e}",
            ours=ours,
            reference=lambda: [back(P if wide is None else wide())],
            peers=peers,
            traffic=P.nbytes + out.nbytes + (0 if scale is None else scale.nbytes),
            bandwidth_goal=0.9,
        )

    peers = [Peer("NumPy, one GEMM", lambda: np.matmul(V, P, product), goal=2)]
    if torch := torch_or_none():
        tP, tV, tout = torch.from_numpy(P), torch.from_numpy(V), torch.from_numpy(product)
        peers.append(Peer("PyTorch mm", lambda: torch.mm(tV, tP, out=tout)))
    yield case("fp32", P, *peers)
    yield case("fp32, 60 tensors", P, peers[0], parts=60)
    if ms := mindspore_or_none():
        matmul, transpose = ms.ops.MatMul(), ms.ops.Transpose()

        def two(P: Any, a: Any, b: Any) -> Any:  # as mindspore.boost's DimReduce: one vector after the other
            return matmul(transpose(P, (1, 0)), a), matmul(transpose(P, (1, 0)), b)

        columns = V.reshape(2, K, 1)
        yield Case(
            f"pca_back_project fp32, beside MindSpore, k={K} n={n:.0e}",
            ours=lambda: ops.pca_back_project(P, list(V), list(out)),
            reference=lambda: [row for row in back(P)],
            peers=mindspore_peers("MatMul", two, P, columns[0], columns[1], graph_goal=10),
            view=np.ravel,
        )
    numpy32 = Peer("NumPy, one GEMM, fp32 P", lambda: np.matmul(V, P, product), goal=3.5, tolerance=1e-2)
    narrow = bfloat16(P)
    if narrow is not None:
        bf16_peers = [numpy32]
        if torch := torch_or_none():
            tN, tW = torch_tensor(narrow), torch.from_numpy(V).bfloat16()
            bf16_peers.append(Peer("PyTorch mm, all bf16", lambda: torch.mm(tW, tN), tolerance=5e-2))
        yield case("bf16 P", narrow, *bf16_peers)
    yield case("fp16 P", P.astype(np.float16), numpy32)
    codes, scale = ops.quantize_projection(P)
    numpy_of_codes = Peer("NumPy, one GEMM, fp32 P", lambda: np.matmul(V, P, product), goal=4, tolerance=2e-2)

    def dequantized() -> Any:
        return ops.dequantize_projection(codes, scale)

    yield case("int8 P", codes, numpy_of_codes, scale=scale, wide=dequantized)
    yield case("int8 P, 60 tensors", codes, numpy_of_codes, parts=60, scale=scale, wide=dequantized)
