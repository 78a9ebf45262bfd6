"""Max pooling in compiled training cells: MindSpore's values, gradients, and gradients of gradients."""

from __future__ import annotations

import re
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.fast_layers import Once

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.ms.core import fast_calls
from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted

pytestmark = pytest.mark.usefixtures("graph_mode")
RNG = np.random.default_rng(7)


def floats(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


class Function(nn.Cell):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.args, self.options = args, options

    def construct(self, x: Tensor) -> Any:
        return ops.max_pool2d(x, *self.args, **self.options)


IMAGES = (3, 4, 9, 12)
CASES: dict[str, tuple[nn.Cell, tuple[int, ...]]] = {
    "valid": (nn.MaxPool2d(2, 2), IMAGES),
    "valid, overlapping": (nn.MaxPool2d(3, 1), IMAGES),
    "valid, of two sizes": (nn.MaxPool2d((3, 2), (1, 3)), IMAGES),
    "valid, the whole image": (nn.MaxPool2d((9, 12), 5), IMAGES),
    "valid, between the windows": (nn.MaxPool2d(2, 3), IMAGES),
    "valid, without a batch": (nn.MaxPool2d(2, 2), IMAGES[1:]),
    "same": (nn.MaxPool2d(3, 2, "same"), IMAGES),
    "same, every element": (nn.MaxPool2d(2, 1, "same"), IMAGES),
    "same, larger than the image": (nn.MaxPool2d(5, 2, "same"), (2, 3, 2, 3)),
    "same, between the windows": (nn.MaxPool2d(2, 3, "same"), IMAGES),
    "pad": (nn.MaxPool2d(3, 2, "pad", 1), IMAGES),
    "pad of two sizes": (nn.MaxPool2d((3, 4), (2, 1), "pad", (1, 2)), IMAGES),
    "pad by nothing": (nn.MaxPool2d(2, 2, "pad"), IMAGES),
    "pad, without a batch": (nn.MaxPool2d(3, 2, "pad", 1), IMAGES[1:]),
    "function": (Function(2), IMAGES),
    "function of all arguments": (Function((3, 4), (2, 1), padding=(1, 2)), IMAGES),
}
LEFT: dict[str, tuple[nn.Cell, tuple[int, ...]]] = {
    "dilation": (nn.MaxPool2d(2, 1, "pad", dilation=2), IMAGES),
    "ceil_mode": (nn.MaxPool2d(3, 2, "pad", ceil_mode=True), IMAGES),
    "a window of 289": (nn.MaxPool2d(17, 1, "same"), (1, 2, 3, 4)),
    "dilation of the function": (Function(2, dilation=2), IMAGES),
    "ceil_mode of the function": (Function(3, 2, ceil_mode=True), IMAGES),
}


class Total(nn.Cell):  # type: ignore[misc]
    def __init__(self, cell: nn.Cell, power: int = 1) -> None:
        super().__init__()
        self.cell, self.power = cell, power

    def construct(self, x: Tensor) -> Tensor:
        return (self.cell(x) ** self.power).sum()


class Gradient(nn.Cell):  # type: ignore[misc]
    def __init__(self, cell: nn.Cell, power: int = 3) -> None:
        super().__init__()
        self.gradient = ms.grad(Total(cell, power))

    def construct(self, x: Tensor) -> Tensor:
        return self.gradient(x)


def both(cell: type[nn.Cell], pool: nn.Cell, x: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """What a new cell answers with the substitutes, and as MindSpore compiles it."""
    with substituted(SUBSTITUTES) as met:
        found = cell(pool)(x).asnumpy()
    assert met
    return found, cell(pool)(x).asnumpy()


@pytest.mark.parametrize("case", [*CASES, *LEFT])
def test_values_and_gradients_are_mindspores(case: str) -> None:
    pool, shape = (CASES | LEFT)[case]
    x = floats(*shape)
    np.testing.assert_array_equal(*both(Once, pool, x), strict=True)
    np.testing.assert_array_equal(*both(Gradient, pool, x), strict=True)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients(case: str) -> None:
    """MindSpore has none. Of an element that is the maximum of n windows they are powers of n and of the element."""
    pool, shape = CASES[case]
    x = floats(*shape)
    n, element = Gradient(pool, 1)(x).asnumpy().astype(np.float64), x.asnumpy().astype(np.float64)
    once = Gradient(pool)
    twice = Gradient(once)
    with substituted(SUBSTITUTES):
        np.testing.assert_allclose(once(x).asnumpy(), 3 * n * element**2, rtol=1e-5)
        np.testing.assert_allclose(twice(x).asnumpy(), 162 * n**3 * element**5, rtol=1e-5)
        np.testing.assert_allclose(Gradient(twice, 2)(x).asnumpy(), 10 * 162**2 * n**6 * element**9, rtol=1e-5)


@pytest.mark.parametrize("mode", ["valid", "same", "pad"])
def test_other_dtypes_and_indices_are_left(mode: str) -> None:
    x = ops.cast(floats(*IMAGES), ms.float64)
    np.testing.assert_array_equal(*both(Once, nn.MaxPool2d(2, 2, mode), x), strict=True)
    if mode == "pad":
        pool = nn.MaxPool2d(2, 2, mode, return_indices=True)
        with substituted(SUBSTITUTES):
            found = Once(pool)(floats(*IMAGES))
        assert len(found) == 2


def test_a_window_beyond_the_image_is_refused_as_mindspore_does() -> None:
    for pool in (nn.MaxPool2d(5, 1), nn.MaxPool2d(5, 1, "pad"), nn.MaxPool2d(2, 1, "pad", 2), Function(5)):
        with pytest.raises((RuntimeError, ValueError)) as theirs:
            Once(pool)(floats(1, 1, 4, 4))
        with substituted(SUBSTITUTES), pytest.raises(type(theirs.value), match=re.escape(str(theirs.value)[:40])):
            Once(pool)(floats(1, 1, 4, 4))


@pytest.mark.parametrize("mode", ["valid", "same", "pad"])
def test_a_nan_is_the_maximum(mode: str) -> None:
    """MindSpore loses it in some places of the window, but not where it pads by a number."""
    x = np.zeros((1, 1, 4, 4), np.float32)
    x[0, 0, 0, 1] = x[0, 0, 3, 3] = np.nan
    with substituted(SUBSTITUTES):
        y = Once(nn.MaxPool2d(2, 2, mode))(Tensor(x)).asnumpy()
        dx = Gradient(nn.MaxPool2d(2, 2, mode), 1)(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(y, [[[[np.nan, 0], [0, np.nan]]]])
    np.testing.assert_array_equal(dx[0, 0], [[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1]])


class Network(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3, weight_init="normal"), nn.Conv2d(4, 6, 3, weight_init="normal")
        self.valid, self.same, self.pad = nn.MaxPool2d(2, 2), nn.MaxPool2d(3, 2, "same"), nn.MaxPool2d(3, 1, "pad", 1)

    def construct(self, x: Tensor) -> Tensor:
        y = self.pad(self.same(ops.relu(self.second(self.valid(ops.relu(self.first(x)))))))
        return (ops.max_pool2d(y, 2) - 0.01).square().sum()


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def test_a_step_takes_the_substitutes(mode: int) -> None:
    ms.set_context(mode=mode)
    x = floats(5, 1, 17, 18)
    found = []
    for table in (SUBSTITUTES, {}):
        ms.set_seed(1)
        net = Network()
        cell = BoostTrainOneStepCell(net, optim.Momentum(net.trainable_params(), 0.01, 0.9)).set_train()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_calls, "substitutes", lambda table=table: table)
            found.append([float(cell(x)[0]) for _ in range(3)])
        assert "_slow" not in cell.pipelines[0].__dict__
    assert found[0] == pytest.approx(found[1], rel=1e-6)
