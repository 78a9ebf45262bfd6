"""Max pooling in compiled training cells: MindSpore's values, gradients, and gradients of gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.ms.core import fast_calls
from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted

RNG = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def graph_mode() -> Iterator[None]:
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=mode)


def floats(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


class Function(nn.Cell):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        self.args, self.options = args, options

    def construct(self, x: Tensor) -> Any:
        return ops.max_pool2d(x, *self.args, **self.options)


class Layer(nn.Cell):  # type: ignore[misc]
    def __init__(self, layer: nn.Cell) -> None:
        super().__init__()
        self.layer = layer

    def construct(self, x: Tensor) -> Any:
        return self.layer(x)


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


class Weighted(nn.Cell):  # type: ignore[misc]
    """A loss whose gradient has another weight for each maximum."""

    def __init__(self, pool: nn.Cell) -> None:
        super().__init__()
        self.pool = pool

    def construct(self, x: Tensor) -> Tensor:
        y = self.pool(x)
        return (y * y * y).sum()


class Gradient(nn.Cell):  # type: ignore[misc]
    def __init__(self, pool: nn.Cell) -> None:
        super().__init__()
        self.once = ms.grad(Weighted(pool))

    def construct(self, x: Tensor) -> Tensor:
        return self.once(x)


class Squares(nn.Cell):  # type: ignore[misc]
    def __init__(self, pool: nn.Cell) -> None:
        super().__init__()
        self.once = Gradient(pool)

    def construct(self, x: Tensor) -> Tensor:
        once = self.once(x)
        return (once * once * once).sum()


class Twice(nn.Cell):  # type: ignore[misc]
    def __init__(self, pool: nn.Cell) -> None:
        super().__init__()
        self.twice = ms.grad(Squares(pool))

    def construct(self, x: Tensor) -> Tensor:
        return self.twice(x)


class Squared(nn.Cell):  # type: ignore[misc]
    def __init__(self, pool: nn.Cell) -> None:
        super().__init__()
        self.twice = Twice(pool)

    def construct(self, x: Tensor) -> Tensor:
        twice = self.twice(x)
        return (twice * twice).sum()


class Thrice(nn.Cell):  # type: ignore[misc]
    def __init__(self, pool: nn.Cell) -> None:
        super().__init__()
        self.thrice = ms.grad(Squared(pool))

    def construct(self, x: Tensor) -> Tensor:
        return self.thrice(x)


def ours(cell: nn.Cell, x: Tensor, native: bool = True) -> np.ndarray:
    """What a new cell answers with the substitutes, native ones or what they leave to MindSpore."""
    with substituted(SUBSTITUTES) as met:
        found = cell(x).asnumpy()
    assert met
    return found


@pytest.mark.parametrize("case", [*CASES, *LEFT])
def test_values_and_gradients_are_mindspores(case: str) -> None:
    pool, shape = (CASES | LEFT)[case]
    x = floats(*shape)
    np.testing.assert_array_equal(ours(Layer(pool), x), Layer(pool)(x).asnumpy(), strict=True)
    np.testing.assert_allclose(ours(Gradient(pool), x), Gradient(pool)(x).asnumpy(), rtol=1e-6, strict=True)
