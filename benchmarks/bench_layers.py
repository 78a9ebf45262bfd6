"""What compiled steps take for MindSpore's layers, forward and backward in a graph, beside those; a GPT's sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import mindspore_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import in_mode, settled


def cases(quick: bool) -> Iterator[Case]:
    ms = mindspore_or_none()
    if ms is None:
        return
    from boost_ext.ms.core.fast_calls import call_fast

    rows, words = (32, 1000) if quick else (256, 8192)
    labels = ms.Tensor(np.arange(rows, dtype=np.int32))
    norm, dense, ops = ms.nn.LayerNorm([512]), ms.nn.Dense(512, 2048), ms.ops

    def gelu(x: Any) -> Any:
        return ops.gelu(x)

    def gelu_tanh(x: Any) -> Any:
        return ops.gelu(x, approximate="tanh")

    def layer_norm(x: Any) -> Any:
        return norm(x)

    def biased(x: Any) -> Any:
        return dense(x)

    def cross_entropy(x: Any) -> Any:
        return ops.cross_entropy(x, labels)

    def transposed(x: Any) -> Any:
        return x.T

    def heads(x: Any) -> Any:
        return x.transpose((2, 0, 3, 1, 4))

    def sliced(x: Any) -> Any:
        return x[0] * x[1] + x[2]

    def scores(x: Any) -> Any:
        return ops.matmul(x, x.swapaxes(-1, -2))

    for name, function, shape, form in (
        ("gelu", gelu, (rows, 2048), (rows, 2048)),
        ("gelu, tanh", gelu_tanh, (rows, 2048), (rows, 2048)),
        ("LayerNorm", layer_norm, (rows, 512), (rows, 512)),
        ("Dense", biased, (rows, 512), (rows, 2048)),
        ("cross_entropy", cross_entropy, (rows, words), ()),
        ("x.T", transposed, (words, 512), (512, words)),
        ("x.transpose(2, 0, 3, 1, 4)", heads, (4, rows // 4, 3, 8, 64), (3, 4, 8, rows // 4, 64)),
        ("x[0], x[1], x[2]", sliced, (3, 4, 8, rows // 4, 64), (4, 8, rows // 4, 64)),
        ("x @ x^T", scores, (4, 8, rows // 4, 64), (4, 8, rows // 4, rows // 4)),
    ):
        given = ms.Tensor(uniform(int(np.prod(shape)), seed=3).reshape(shape) * np.float32(2))

        dy = ms.Tensor(uniform(int(np.prod(form)), seed=4).reshape(form))

        def compiled(function: Callable[..., Any] = function, dy: Any = dy) -> Any:
            class Both(ms.nn.Cell):  # type: ignore[name-defined]
                def __init__(self) -> None:
                    super().__init__()
                    self.gradient = ops.GradOperation(sens_param=True)(function)

                def construct(self, x: Any) -> Any:
                    return function(x), self.gradient(x, dy)

            return Both()

        ours, theirs = compiled(), compiled()
        around = partial(in_mode, ms.GRAPH_MODE)

        def fast(ours: Any = ours, given: Any = given) -> Any:
            return settled(call_fast(ours, ours.__call__, given))

        def plain(theirs: Any = theirs, given: Any = given) -> Any:
            return settled(theirs(given))

        def expected(plain: Any = plain, around: Any = around) -> Any:
            with around():
                return [np.asarray(t, np.float64) for t in plain()]

        yield Case(
            f"{name}, {' x '.join(map(str, shape))}",
            ours=fast,
            reference=expected,  # float64 references: tests/ops/test_layers.py
            peers=(Peer("MindSpore, graph", plain, 1, around),),
            tolerance=1e-4,
            around=around,
        )
