"""What compiled steps take for MindSpore's layers, forward and backward in a graph, beside those: the sizes of a GPT,
a ViT, MobileNetV2 at 32 pixels, a network of grouped convolutions, LeNet5 and a ResNet."""

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
    images = 2 if quick else 16
    nn, ops = ms.nn, ms.ops

    def gelu(x: Any) -> Any:
        return ops.gelu(x)

    def gelu_tanh(x: Any) -> Any:
        return ops.gelu(x, approximate="tanh")

    def cross_entropy(x: Any) -> Any:
        return ops.cross_entropy(x, labels)

    def softmax(x: Any) -> Any:
        return ops.softmax(x)

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
        ("LayerNorm", nn.LayerNorm([512]), (rows, 512), (rows, 512)),
        ("BatchNorm2d", nn.BatchNorm2d(144).set_train(), *2 * [(images, 144, 32, 32)]),
        ("Dense", nn.Dense(512, 2048), (rows, 512), (rows, 2048)),
        ("Dense", nn.Dense(2048, 2048), (16, 2048), (16, 2048)),
        ("cross_entropy", cross_entropy, (rows, words), ()),
        ("softmax", softmax, *2 * [(4, 8, rows // 4, 64)]),
        ("softmax", softmax, *2 * [(images // 2, 4, 197, 197)]),
        ("x.T", transposed, (words, 512), (512, words)),
        ("x.transpose(2, 0, 3, 1, 4)", heads, (4, rows // 4, 3, 8, 64), (3, 4, 8, rows // 4, 64)),
        ("x[0], x[1], x[2]", sliced, (3, 4, 8, rows // 4, 64), (4, 8, rows // 4, 64)),
        ("x @ x^T", scores, (4, 8, rows // 4, 64), (4, 8, rows // 4, rows // 4)),
        ("Conv2d 3 x 3, depthwise", nn.Conv2d(144, 144, 3, group=144), *2 * [(images, 144, 32, 32)]),
        ("Conv2d 3 x 3, depthwise", nn.Conv2d(960, 960, 3, group=960), *2 * [(images, 960, 4, 4)]),
        ("Conv2d 3 x 3, 32 groups", nn.Conv2d(256, 256, 3, group=32), *2 * [(images, 256, 16, 16)]),
        ("Conv2d 3 x 3", nn.Conv2d(64, 64, 3), *2 * [(images, 64, 32, 32)]),
        ("Conv2d 3 x 3", nn.Conv2d(512, 512, 3), *2 * [(images, 512, 4, 4)]),
        ("Conv2d 5 x 5", nn.Conv2d(6, 16, 5, pad_mode="valid"), (4 * images, 6, 14, 14), (4 * images, 16, 10, 10)),
        ("Conv2d 1 x 1", nn.Conv2d(256, 64, 1), (images, 256, 16, 16), (images, 64, 16, 16)),
        ("Conv2d 3 x 3, stride 2", nn.Conv2d(128, 256, 3, 2), (images, 128, 16, 16), (images, 256, 8, 8)),
        ("Conv1d of 5", nn.Conv1d(25, 25, 5), *2 * [(4 * images, 25, 40)]),
        ("Conv1d of 3", nn.Conv1d(64, 128, 3), (4 * images, 64, 100), (4 * images, 128, 100)),
        ("Conv2dTranspose 4 x 4", nn.Conv2dTranspose(128, 64, 4, 2), (images, 128, 16, 16), (images, 64, 32, 32)),
        ("Conv2dTranspose 4 x 4", nn.Conv2dTranspose(64, 3, 4, 2), (images, 64, 32, 32), (images, 3, 64, 64)),
        ("MaxPool2d(2, 2)", nn.MaxPool2d(2, 2), (4 * images, 6, 28, 28), (4 * images, 6, 14, 14)),
        ("MaxPool2d(2, 2)", nn.MaxPool2d(2, 2), (4 * images, 16, 10, 10), (4 * images, 16, 5, 5)),
        ("MaxPool2d(3, 2, same)", nn.MaxPool2d(3, 2, "same"), (4 * images, 64, 56, 56), (4 * images, 64, 28, 28)),
    ):
        yield _case(ms, f"{name}, {' x '.join(map(str, shape))}", function, shape, form)


def _case(ms: Any, name: str, function: Callable[[Any], Any], shape: tuple[int, ...], form: tuple[int, ...]) -> Case:
    """The function of a tensor of this shape, and its gradients for an output of that form."""
    from boost_ext.ms.core.fast_calls import call_fast

    given = ms.Tensor(uniform(math.prod(shape), seed=3).reshape(shape) * np.float32(2))
    dy = ms.Tensor(uniform(math.prod(form), seed=4).reshape(form))

    class Forward(ms.nn.Cell):  # type: ignore[misc, name-defined]
        def construct(self, x: Any) -> Any:
            return function(x)

    class Backward(ms.nn.Cell):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            weights = ms.ParameterTuple(function.trainable_params() if isinstance(function, ms.nn.Cell) else ())
            gradients = ms.ops.GradOperation(get_all=True, get_by_list=bool(weights), sens_param=True)
            self.gradients = gradients(function, weights) if weights else gradients(function)

        def construct(self, x: Any) -> Any:
            return self.gradients(x, dy)

    ours, theirs = (Forward(), Backward()), (Forward(), Backward())
    around = partial(in_mode, ms.GRAPH_MODE)

    def fast() -> Any:
        return settled(_flat([call_fast(cell, cell.__call__, given) for cell in ours]))

    def plain() -> Any:
        return settled(_flat([cell(given) for cell in theirs]))

    def expected() -> Any:
        with around():
            return [np.asarray(t, np.float64) for t in plain()]

    return Case(
        name,
        ours=fast,
        reference=expected,  # float64 references: tests/ops/test_layers.py
        peers=(Peer("MindSpore, graph", plain, 1, around),),
        tolerance=1e-4,
        around=around,
    )


def _flat(found: Any) -> list[Any]:
    if isinstance(found, (list, tuple)):
        return [tensor for item in found for tensor in _flat(item)]
    return [found]
