"""What compiled steps take for MindSpore's layers, forward and backward in a graph, beside those; sizes of a GPT and
of MobileNetV2."""

from __future__ import annotations

import math
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
    rows, words = (32, 1000) if quick else (256, 8192)
    labels = ms.Tensor(np.arange(rows, dtype=np.int32))
    norm, dense, ops = ms.nn.LayerNorm([512]), ms.nn.Dense(512, 2048), ms.ops
    planes, channels = (rows // 16, 144, 32, 32), ms.nn.BatchNorm2d(144).set_train()

    def gelu(x: Any) -> Any:
        return ops.gelu(x)

    def gelu_tanh(x: Any) -> Any:
        return ops.gelu(x, approximate="tanh")

    def layer_norm(x: Any) -> Any:
        return norm(x)

    def batch_norm(x: Any) -> Any:
        return channels(x)

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
        ("BatchNorm2d", batch_norm, planes, planes),
        ("Dense", biased, (rows, 512), (rows, 2048)),
        ("cross_entropy", cross_entropy, (rows, words), ()),
        ("x.T", transposed, (words, 512), (512, words)),
        ("x.transpose(2, 0, 3, 1, 4)", heads, (4, rows // 4, 3, 8, 64), (3, 4, 8, rows // 4, 64)),
        ("x[0], x[1], x[2]", sliced, (3, 4, 8, rows // 4, 64), (4, 8, rows // 4, 64)),
        ("x @ x^T", scores, (4, 8, rows // 4, 64), (4, 8, rows // 4, rows // 4)),
    ):
        yield _case(ms, f"{name}, {' x '.join(map(str, shape))}", function, shape, form)


def _case(ms: Any, name: str, function: Callable[[Any], Any], shape: tuple[int, ...], form: tuple[int, ...]) -> Case:
    """The function of a tensor of this shape, and its gradient for an output of that form."""
    from boost_ext.ms.core.fast_calls import call_fast

    given = ms.Tensor(uniform(math.prod(shape), seed=3).reshape(shape) * np.float32(2))
    dy = ms.Tensor(uniform(math.prod(form), seed=4).reshape(form))

    class Both(ms.nn.Cell):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.gradient = ms.ops.GradOperation(sens_param=True)(function)

        def construct(self, x: Any) -> Any:
            return function(x), self.gradient(x, dy)

    ours, theirs = Both(), Both()
    around = partial(in_mode, ms.GRAPH_MODE)

    def plain() -> Any:
        return settled(theirs(given))

    def expected() -> Any:
        with around():
            return [np.asarray(t, np.float64) for t in plain()]

    return Case(
        name,
        ours=lambda: settled(call_fast(ours, ours.__call__, given)),
        reference=expected,  # float64 references: tests/ops/test_layers.py
        peers=(Peer("MindSpore, graph", plain, 1, around),),
        tolerance=1e-4,
        around=around,
    )
