"""Random layers and functions that compiled training cells compute by other functions than MindSpore's.

They have MindSpore's values and gradients. What MindSpore refuses they refuse by its error, or compute.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from hypothesis import strategies as st
from mindspore import Tensor, nn, ops
from tests.ms.fast_layers import Gelu, Gradients, Layer, Once, Product, Shares, arrays

from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted

RELATIVE, OF_LARGEST = 1e-3, 1e-4
ALIVE: list[nn.Cell] = []
"""MindSpore keeps what it has parsed of a cell by the address, which another cell must not get."""
Shape = tuple[int, ...]
Drawn = tuple[dict[str, Any], tuple[Shape, ...]]


class ByTransposed(nn.Cell):
    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.matmul(x, y.swapaxes(-1, -2))


class Permuted(nn.Cell):
    def __init__(self, axes: Shape) -> None:
        super().__init__()
        self.axes = axes

    def construct(self, x: Tensor) -> Tensor:
        return ops.transpose(x, self.axes)


class Swapped(nn.Cell):
    def __init__(self, axes: Shape) -> None:
        super().__init__()
        self.axis0, self.axis1 = axes

    def construct(self, x: Tensor) -> Tensor:
        return x.swapaxes(self.axis0, self.axis1)


class Pooled(nn.Cell):
    def __init__(self, kernel: Any, stride: Any, padding: Any, ceil_mode: bool) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.ceil_mode = kernel, stride, padding, ceil_mode

    def construct(self, x: Tensor) -> Tensor:
        return ops.max_pool2d(x, self.kernel, self.stride, self.padding, 1, False, self.ceil_mode)


class CrossEntropy(nn.Cell):
    def __init__(self, labels: list[int], reduction: str, ignore_index: int) -> None:
        super().__init__()
        self.labels, self.reduction, self.ignore_index = Tensor(labels, ms.int32), reduction, ignore_index

    def construct(self, x: Tensor) -> Tensor:
        return ops.cross_entropy(x, self.labels, reduction=self.reduction, ignore_index=self.ignore_index)


FLAG = st.booleans()


def size(most: int) -> st.SearchStrategy[int]:
    return st.integers(1, most)


def sizes(axes: int, most: int) -> st.SearchStrategy[Shape]:
    return st.tuples(*[size(most)] * axes)


def fits(n: int) -> st.SearchStrategy[int]:
    """Mostly."""
    return st.sampled_from((n,) * 12 + (n + 1, max(n - 1, 1)))


@st.composite
def convolution(draw: Any, axes: int, transposed: bool = False) -> Drawn:
    groups = draw(st.sampled_from((1, 1, 1, 2, 3)))
    inputs, outputs = (draw(st.one_of(size(9).map(lambda n: n * groups), st.just(48 // groups * groups))) for _ in "io")
    if draw(st.integers(0, 4)) == 0:
        groups, outputs = inputs, inputs * draw(size(2))
    mode = draw(st.sampled_from(("same", "valid", "pad")))
    padding: Any = draw(st.integers(0, 2)) if mode == "pad" else 0
    if mode == "pad" and axes == 2 and draw(FLAG):
        padding = draw(st.tuples(*[st.integers(0, 2)] * 4))
    arguments = {"in_channels": inputs, "out_channels": outputs, "pad_mode": mode, "padding": padding}
    for name, most in (("kernel_size", 5), ("stride", 3), ("dilation", 2)):
        arguments[name] = draw(size(most)) if axes == 1 or draw(FLAG) else draw(sizes(2, most))
    x = (draw(size(3)), draw(fits(inputs)), *draw(sizes(axes, 9 if transposed else 17)))
    return {**arguments, "group": groups, "has_bias": draw(FLAG)}, (x,)


@st.composite
def dense(draw: Any) -> Drawn:
    inputs, outputs = (draw(st.one_of(size(80), st.sampled_from((64, 128)))) for _ in "io")
    activation = draw(st.sampled_from((None, "relu", "gelu")))
    x = (*draw(sizes(draw(size(3)), 6)), draw(fits(inputs)))
    return {"in_channels": inputs, "out_channels": outputs, "has_bias": draw(FLAG), "activation": activation}, (x,)


@st.composite
def product(draw: Any, transposed: bool) -> Drawn:
    m, k, n = draw(st.tuples(size(40), size(70), size(70)))
    batch = draw(sizes(draw(st.integers(0, 2)), 3))
    others = (draw(st.sampled_from(((), batch, batch, (1,) * len(batch)))), (draw(fits(k)), n))
    return {}, ((*batch, m, k), (*others[0], *(others[1][::-1] if transposed else others[1])))


@st.composite
def layer_norm(draw: Any) -> Drawn:
    row, lead = (*draw(sizes(draw(st.integers(0, 1)), 5)), draw(st.integers(3, 20))), draw(sizes(draw(size(2)), 6))
    axes = {f"begin_{which}_axis": draw(st.sampled_from((len(lead), len(lead), -1))) for which in ("norm", "params")}
    return {"normalized_shape": list(row), **axes, "epsilon": draw(st.sampled_from((1e-7, 1e-3)))}, ((*lead, *row),)


@st.composite
def batch_norm(draw: Any, axes: int) -> Drawn:
    channels = draw(size(20))
    arguments = {
        "momentum": draw(st.sampled_from((0.9, 0.5, 1.0))),
        "use_batch_statistics": draw(st.sampled_from((None, True))),
    }
    x = (draw(st.integers(2, 6)), draw(fits(channels)), *draw(st.tuples(*[st.integers(2, 8)] * axes)))
    return {"num_features": channels, "affine": draw(FLAG), **arguments}, (x,)


@st.composite
def pooling(draw: Any, layer: bool) -> Drawn:
    kernel, stride, x = draw(sizes(2, 4)), draw(sizes(2, 4)), draw(sizes(4, 15))
    if not layer:
        paddings = st.one_of(st.integers(0, 2), st.tuples(st.integers(0, 2), st.integers(0, 2)))
        found = {"kernel": draw(st.sampled_from((kernel, kernel[0]))), "stride": draw(st.sampled_from((stride, None)))}
        return {**found, "padding": draw(paddings), "ceil_mode": draw(FLAG)}, (x,)
    mode = draw(st.sampled_from(("same", "valid", "pad")))
    padded = {"padding": draw(st.integers(0, 2)), "ceil_mode": draw(FLAG)} if mode == "pad" else {}
    return {"kernel_size": kernel, "stride": stride, "pad_mode": mode, **padded}, (x,)


@st.composite
def cross_entropy(draw: Any) -> Drawn:
    rows, classes = draw(size(9)), draw(size(40))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows))
    arguments = {"reduction": draw(st.sampled_from(("mean", "sum", "none"))), "ignore_index": draw(st.integers(-1, 2))}
    return {"labels": labels, **arguments}, ((rows, classes),)


@st.composite
def gelu(draw: Any) -> Drawn:
    return {"approximate": draw(st.sampled_from(("none", "tanh")))}, (draw(sizes(draw(st.integers(0, 4)), 9)),)


@st.composite
def softmax(draw: Any) -> Drawn:
    rank = draw(st.integers(1, 4))
    return {"axis": draw(st.one_of(st.just(-1), st.integers(-rank - 1, rank)))}, (draw(sizes(rank, 40)),)


@st.composite
def permutation(draw: Any, swapped: bool) -> Drawn:
    shape = draw(sizes(draw(size(5)), 6))
    rank = len(shape)
    axes = draw(st.permutations(range(rank)).map(tuple))
    if swapped:
        axes = draw(st.tuples(*[st.integers(0, rank - 1)] * 2))
    return {"axes": tuple(a - rank * draw(st.integers(0, 1)) for a in axes)}, (shape,)


KINDS: dict[str, tuple[Callable[..., nn.Cell], st.SearchStrategy[Drawn]]] = {
    "BatchNorm1d": (nn.BatchNorm1d, batch_norm(0)),
    "BatchNorm2d": (nn.BatchNorm2d, batch_norm(2)),
    "Conv1d": (nn.Conv1d, convolution(1)),
    "Conv2d": (nn.Conv2d, convolution(2)),
    "Conv2dTranspose": (nn.Conv2dTranspose, convolution(2, transposed=True)),
    "Dense": (nn.Dense, dense()),
    "LayerNorm": (nn.LayerNorm, layer_norm()),
    "MaxPool2d": (nn.MaxPool2d, pooling(layer=True)),
    "Softmax": (nn.Softmax, softmax()),
    "cross_entropy": (CrossEntropy, cross_entropy()),
    "gelu": (Gelu, gelu()),
    "matmul": (Product, product(transposed=False)),
    "matmul of a transposed": (ByTransposed, product(transposed=True)),
    "max_pool2d": (Pooled, pooling(layer=False)),
    "softmax": (Shares, softmax()),
    "swapaxes": (Swapped, permutation(swapped=True)),
    "transpose": (Permuted, permutation(swapped=False)),
}


@dataclass(frozen=True)
class Recipe:
    kind: str
    arguments: dict[str, Any]
    shapes: tuple[Shape, ...]

    def check(self) -> bool:
        """Whether MindSpore computes it."""
        theirs, ours = self.found({}), self.found(SUBSTITUTES)
        if isinstance(theirs, Exception):
            if isinstance(ours, Exception):
                assert first_line(ours) == first_line(theirs)
            return False
        if isinstance(ours, Exception):
            ours = self.found(SUBSTITUTES)  # after failed compilations MindSpore may parse another object once
        if isinstance(ours, Exception):
            raise ours
        for expected, got in zip(theirs, ours, strict=True):
            assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
            largest = max(1, np.abs(expected).max(initial=0))
            np.testing.assert_allclose(got, expected, RELATIVE, OF_LARGEST * largest)
        return True

    def found(self, table: Any) -> list[np.ndarray] | Exception:
        """The result, what it has made of the parameters, and the gradients of the inputs and of the weights."""
        rng = np.random.default_rng(1)
        inputs = tuple(Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in self.shapes)
        make, _ = KINDS[self.kind]
        cell = Layer(make(**self.arguments)).set_train()
        once, gradients = Once(cell).set_train(), Gradients(cell, len(inputs)).set_train()
        ALIVE.extend((once, gradients))
        try:
            with substituted(table):
                values = arrays(once(*inputs)) + arrays(list(cell.get_parameters()))
                return values + arrays(gradients(*inputs))
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            return error


def first_line(error: Exception) -> str:
    """Without the numbers of the graph's nodes."""
    return re.sub(r"-op\d+", "", f"{type(error).__name__}: {error}".splitlines()[0])


@st.composite
def recipes(draw: Any) -> Recipe:
    kind = draw(st.sampled_from(sorted(KINDS)))
    _, drawn = KINDS[kind]
    return Recipe(kind, *draw(drawn))
