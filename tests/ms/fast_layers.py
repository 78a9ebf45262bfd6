"""Layers and functions of MindSpore, as its own compiler takes them and as compiled training cells do."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted

__all__ = ["Called", "Gelu", "Gradients", "Layer", "Once", "Product", "Shares", "Sum", "arrays", "both", "near"]


class Layer(nn.Cell):  # type: ignore[misc]
    """A layer of MindSpore, and what it is given. Its parameters are drawn."""

    def __init__(self, layer: nn.Cell) -> None:
        super().__init__()
        self.layer = layer
        rng = np.random.default_rng(5)
        for parameter in layer.get_parameters():
            parameter.set_data(Tensor(rng.standard_normal(parameter.shape).astype(np.float32)))

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.layer(*inputs)


class Called(nn.Cell):  # type: ignore[misc]
    """An operator that a network makes and calls; the first of its outputs."""

    def __init__(self, operator: ops.Primitive) -> None:
        super().__init__()
        self.operator = operator

    def construct(self, *inputs: Tensor) -> Tensor:
        found = self.operator(*inputs)
        return found[0] if isinstance(found, tuple) else found


class Gelu(nn.Cell):  # type: ignore[misc]
    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.approximate = approximate

    def construct(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=self.approximate)


class Shares(nn.Cell):  # type: ignore[misc]
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis = axis

    def construct(self, x: Tensor) -> Tensor:
        return ops.softmax(x, self.axis)


class Product(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.matmul(x, y)


class Once(nn.Cell):  # type: ignore[misc]
    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.cell(*inputs)


class Sum(nn.Cell):  # type: ignore[misc]
    """A loss whose gradient has a gradient."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell

    def construct(self, *inputs: Tensor) -> Tensor:
        y = self.cell(*inputs)
        return (y * y * y).sum()


class Gradients(nn.Cell):  # type: ignore[misc]
    def __init__(self, cell: nn.Cell, inputs: int) -> None:
        super().__init__()
        self.weights = ms.ParameterTuple(cell.trainable_params())
        self.all = ms.grad(Sum(cell), tuple(range(inputs)), self.weights if self.weights else None)
        self.has_weights = bool(self.weights)

    def construct(self, *inputs: Tensor) -> Any:
        found = self.all(*inputs)
        if self.has_weights:
            return found[0] + found[1] if isinstance(found[0], tuple) else (found[0], *found[1])
        return found if isinstance(found, tuple) else (found,)


def arrays(found: Any) -> list[np.ndarray]:
    return [t.asnumpy() for t in (found if isinstance(found, (tuple, list)) else (found,))]


def both(make: Any, inputs: tuple[Tensor, ...]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """What a new cell answers, as MindSpore compiles it, and with the substitutes."""
    theirs = arrays(make()(*inputs))
    with substituted(SUBSTITUTES):
        return theirs, arrays(make()(*inputs))


def near(theirs: list[np.ndarray], ours: list[np.ndarray], tolerance: float) -> None:
    for expected, got in zip(theirs, ours, strict=True):
        assert got.shape == expected.shape
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * max(abs(expected).max(), 1e-3))
