"""thor in mixed precision: made before a network is converted and after, beside thor in float32."""

from __future__ import annotations

from functools import cache

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, amp, nn, ops
from tests.ms.tiers import standard

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.ms.core.fast_calls import substitutes

LAYERS = ("table.embedding_table", "body.0.weight", "body.3.weight")


class Smooth(nn.Cell):
    """A layer of each kind, two of them in a container, and no kink that rounding might cross; with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 4)
        self.body = nn.SequentialCell(
            nn.Conv2d(2, 3, 3, pad_mode="valid", has_bias=True), nn.Tanh(), nn.Flatten(), nn.Dense(12, 4)
        )
        rng = np.random.default_rng(0)
        for p in self.trainable_params():
            p.set_data(Tensor((0.5 * rng.standard_normal(p.shape)).astype(np.float32)))

    def construct(self, ids: Tensor, image: Tensor) -> Tensor:
        return ops.square(self.table(ids) + self.body(image)).mean()


def thor(net: nn.Cell) -> optim.Thor:
    return optim.thor(net, Tensor(0.1), 0.1, 0.9, batch_size=8, frequency=2, block_size=16)


def trained(net: nn.Cell, optimizer: optim.Thor) -> list[np.ndarray]:
    """Three steps, two of which gather: the weights, and the inverses."""
    cell = BoostTrainOneStepCell(net, optimizer, compile="off")
    rng = np.random.default_rng(1)
    for _ in range(3):
        image = rng.standard_normal((8, 2, 4, 4)).astype(np.float32)
        cell(Tensor(rng.integers(0, 5, 8).astype(np.int32)), Tensor(image))
    values = *optimizer.parameters, *optimizer.matrix_a_inv, *optimizer.matrix_g_inv
    return [p.asnumpy().copy() for p in values]


@cache
def in_float32() -> list[np.ndarray]:
    net = Smooth()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return trained(net, thor(net))


@pytest.mark.parametrize("first", ["thor", "precision"])
@pytest.mark.parametrize("precision", ["to_float", "O1", "O2", "O3"])
@standard(lambda p: p.graph == (p.first == "precision"))
def test_either_order(mode: int, precision: str, first: str) -> None:
    exact = in_float32()
    ms.set_context(mode=mode)
    net = Smooth()
    start, names = [p.asnumpy().copy() for p in net.trainable_params()], [p.name for p in net.get_parameters()]
    optimizer = thor(net) if first == "thor" else None
    net = net.to_float(ms.float16) if precision == "to_float" else amp.auto_mixed_precision(net, precision)
    optimizer = optimizer or thor(net)
    got = trained(net, optimizer)
    assert optimizer.layers == LAYERS
    assert [p.name for p in net.get_parameters()] == names
    errors = []
    for i, (ours, wide) in enumerate(zip(got, exact, strict=True)):
        size = abs(wide - (start[i] if i < len(start) else 0)).max()  # of all steps together; or of the inverse
        errors.append(abs(ours - wide).max() / size)
    assert max(errors) < 4e-3, errors
    assert max(errors[: len(start)]) > 2e-5, "float32"


class Own(nn.Dense):
    def construct(self, x: Tensor) -> Tensor:
        return ops.matmul(x, self.weight.T)


class Named(nn.Dense):
    """A Dense by another name."""


class Subclasses(nn.Cell):
    """And no Dense: in the same network, MindSpore confuses it with the base class of its subclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.named = Own(4, 4), Named(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.named(self.own(x))


def watches(net: nn.Cell) -> int:
    return sum(type(cell).__name__ == "_Watch" for _, cell in net.cells_and_names())


def test_layers_that_level_o1_has_written_anew() -> None:
    """A construct of one's own stays left alone."""
    net = amp.auto_mixed_precision(Subclasses(), "O1")
    for _ in range(2):
        assert thor(net).layers == ("named.weight",)
    assert watches(net) == 1


class Two(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 2)

    def construct(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_a_layer_that_level_o1_casts_keeps_mindspores_kernel() -> None:
    net = Two()
    substitute = substitutes()[nn.Dense.construct]
    assert substitute.of(net.first) is substitute.function
    thor(net)
    assert substitute.of(net.first) is substitute.watched
    net = amp.auto_mixed_precision(net, "O1")
    assert substitute.of(net.first) is None


def test_layers_that_were_converted_before_level_o1() -> None:
    """They are not converted again."""
    net = Two()
    thor(net)
    net = amp.auto_mixed_precision(net, "O1")
    for _ in range(2):
        assert thor(net).layers == ("first.weight", "second.weight")
    assert watches(net) == 2
