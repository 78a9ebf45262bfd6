"""Networks of random parts, their loss and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext import boost

FEATURES, CLASSES, BATCH = 6, 4, 4
FIRST = ("embedding", "conv", "residual")
MIDDLE = ("dense", "relu", "layernorm", "wide", "batchnorm", "shift", "dropout")


class Linear(nn.Cell):
    """A Dense with weights of any dtype, which computes in float32."""

    def __init__(self, inputs: int, outputs: int, dtype: Any) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((outputs, inputs)), dtype), name="weight")
        self.bias = Parameter(Tensor(np.zeros(outputs), dtype), name="bias")

    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, ops.cast(self.weight, ms.float32).T) + ops.cast(self.bias, ms.float32)


class Shift(nn.Cell):
    """Two biases: MindSpore may give them one gradient."""

    def __init__(self, width: int, dtype: Any) -> None:
        super().__init__()
        self.one = Parameter(Tensor(np.zeros(width), dtype), name="one")
        self.two = Parameter(Tensor(np.zeros(width), dtype), name="two")

    def construct(self, x: Tensor) -> Tensor:
        return x + ops.cast(self.one, ms.float32) + ops.cast(self.two, ms.float32)


class Lookup(nn.Cell):
    """Rows of a table, by the numbers of the input; their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, FEATURES)

    def construct(self, x: Tensor) -> Tensor:
        return self.table(ops.cast(ops.clamp(4 + 2 * x, 0, 8), ms.int32)).mean(1)


class Images(nn.Cell):
    """Each sample as an image of 2 x 3."""

    def construct(self, x: Tensor) -> Tensor:
        return ops.reshape(x, (-1, 1, 2, 3))


class Block(nn.Cell):
    """A residual block whose first batch norm LessBN removes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)

    def construct(self, x: Tensor) -> Tensor:
        return ops.relu(self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x))))) + x)


class Net(nn.Cell):
    """The parts and a head, of weights of this dtype. `amp`: the manager of two groups of loss scales, or None."""

    def __init__(self, parts: Sequence[str], dtype: Any, amp: Any, seed: int) -> None:
        super().__init__()
        dense = nn.Dense if dtype == ms.float32 else partial(Linear, dtype=dtype)
        cells: list[nn.Cell] = []
        width = FEATURES
        makers: dict[str, Callable[[int], tuple[list[nn.Cell], int]]] = {
            "dense": lambda n: ([dense(n, 10)], 10),
            "wide": lambda n: ([dense(n, 64), nn.ReLU(), dense(64, 64)], 64),
            "relu": lambda n: ([nn.ReLU()], n),
            "layernorm": lambda n: ([nn.LayerNorm((n,))], n),
            "batchnorm": lambda n: ([nn.BatchNorm1d(n)], n),
            "shift": lambda n: ([Shift(n, dtype)], n),
            "dropout": lambda n: ([boost.Dropout(0.3, seed=seed)], n),
            "embedding": lambda n: ([Lookup()], n),
            "conv": lambda n: ([Images(), nn.Conv2d(1, 4, 3), nn.Flatten()], 4 * n),
            "residual": lambda n: ([Images(), nn.Conv2d(1, 4, 3), Block(), nn.Flatten()], 4 * n),
        }
        for part in parts:
            made, width = makers[part](width)
            cells += made
        self.body, self.head, self.amp = nn.SequentialCell(*cells, nn.Identity()), dense(width, CLASSES), amp
        self.grouped = amp is not None
        rng = np.random.default_rng(seed)
        for p in self.get_parameters():
            if p.requires_grad and "gamma" not in p.name and not p.name.startswith("loss_scale"):
                values = rng.standard_normal(p.shape) * (0.1 if p.ndim < 2 else math.prod(p.shape[1:]) ** -0.5)
                p.set_data(Tensor(values.astype(np.float32)).astype(p.dtype))

    def construct(self, x: Tensor) -> Tensor:
        if not self.grouped:
            return self.head(self.body(x))
        x = self.body(self.amp(x, 0, 1))
        return self.amp(self.head(self.amp(x, 1, 2)), 2, 3)


class Loss(nn.Cell):
    """The mean cross entropy with weighted classes; an infinite weight makes its gradients inf or nan."""

    def construct(self, logits: Tensor, y: Tensor) -> Tensor:
        return -(ops.log_softmax(ops.cast(logits, ms.float32), -1) * y).sum(-1).mean()


class Decay(nn.Cell):
    """A weight decay that falls."""

    def construct(self, step: Tensor) -> Tensor:
        return 0.1 / (1.0 + ops.cast(step, ms.float32))


def batch(number: int, infinite: bool = False) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1000 + number)
    x = rng.standard_normal((BATCH, FEATURES)).astype(np.float32)
    y = np.eye(CLASSES, dtype=np.float32)[rng.integers(0, CLASSES, BATCH)]
    return Tensor(x), Tensor(np.where(y > 0, np.float32(np.inf), y) if infinite else y)
