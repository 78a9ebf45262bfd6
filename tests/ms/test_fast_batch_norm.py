"""The batch norm of compiled training steps beside MindSpore's: values, gradients, moving statistics."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from mindspore.ops.operations import _inner_ops as inner_ops
from tests.ms.fast_layers import arrays, near

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.ms.core import fast_calls
from boost_ext.ms.core.fast_batch_norm import CONSTRUCT
from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted

pytestmark = pytest.mark.usefixtures("graph_mode")
RNG = np.random.default_rng(11)


def floats(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


CASES: dict[str, tuple[Any, tuple[int, ...]]] = {
    "BatchNorm2d": (lambda: nn.BatchNorm2d(5), (4, 5, 3, 7)),
    "BatchNorm2d, other numbers": (lambda: nn.BatchNorm2d(3, eps=1e-2, momentum=0.6), (2, 3, 5, 5)),
    "batch statistics": (lambda: nn.BatchNorm2d(3, use_batch_statistics=True), (2, 3, 5, 5)),
    "frozen affine": (lambda: nn.BatchNorm2d(3, affine=False), (2, 3, 5, 5)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), (5, 6)),
    "BatchNorm1d of three axes": (lambda: nn.BatchNorm1d(6), (5, 6, 4)),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(3), (2, 3, 4, 2, 3)),
}
LEFT: dict[str, tuple[Any, tuple[int, ...]]] = {
    "moving statistics": (lambda: nn.BatchNorm2d(3, use_batch_statistics=False), (2, 3, 5, 5)),
}


def filled(make: Any, seed: int = 3) -> nn.Cell:
    rng, cell = np.random.default_rng(seed), make()
    for parameter in cell.get_parameters():
        parameter.set_data(Tensor(rng.uniform(0.5, 2, parameter.shape).astype(np.float32)))
    return cell.set_train()


class Gradients(nn.Cell):  # type: ignore[misc]
    """The value of a cell, and the gradients of the sum of its cubes."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell

        def loss(x: Tensor) -> Any:
            y = self.cell(x)
            return (y * y * y).sum(), y

        weights = ms.ParameterTuple(cell.trainable_params())
        self.has_weights = bool(weights)
        self.all = ms.value_and_grad(loss, 0, weights or None, has_aux=True)

    def construct(self, x: Tensor) -> Any:
        (_, y), found = self.all(x)
        return (y, found[0], *found[1]) if self.has_weights else (y, found)


class Twice(nn.Cell):  # type: ignore[misc]
    """The gradient of the squares of a gradient."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.cell = cell

        def cubes(x: Tensor) -> Tensor:
            y = self.cell(x)
            return (y * y * y).sum()

        once = ms.grad(cubes)

        def squares(x: Tensor) -> Tensor:
            return (once(x) ** 2).sum()

        self.twice = ms.grad(squares)

    def construct(self, x: Tensor) -> Tensor:
        return self.twice(x)


class PlainNorm(nn.Cell):  # type: ignore[misc]
    """What MindSpore differentiates twice."""

    def __init__(self, norm: nn.Cell, axes: tuple[int, ...], form: tuple[int, ...]) -> None:
        super().__init__()
        self.gamma, self.beta, self.eps, self.axes, self.form = norm.gamma, norm.beta, norm.eps, axes, form

    def construct(self, x: Tensor) -> Tensor:
        centered = x - x.mean(self.axes, keep_dims=True)
        factor = ops.rsqrt((centered * centered).mean(self.axes, keep_dims=True) + self.eps)
        return centered * factor * self.gamma.reshape(self.form) + self.beta.reshape(self.form)


def statistics(cell: nn.Cell) -> list[np.ndarray]:
    return [p.asnumpy().copy() for p in cell.get_parameters() if "mean" in p.name or "variance" in p.name]


@pytest.mark.parametrize("case", [*CASES, *LEFT])
def test_values_gradients_and_moving_statistics_are_mindspores(case: str) -> None:
    make, shape = (CASES | LEFT)[case]
    inputs = [floats(*shape) * 2 + 1 for _ in range(3)]
    results = []
    for table in ({}, SUBSTITUTES):
        cell = filled(make)
        gradients = Gradients(cell).set_train()
        with substituted(table) as met:
            outs = [found for x in inputs for found in arrays(gradients(x))]
        assert bool(table) == (CONSTRUCT in met)
        gradients.set_train(False)
        results.append((outs, statistics(cell), arrays(gradients.cell(inputs[0]))))
    for (theirs, ours), tolerance in zip(zip(*results, strict=True), (3e-5, 1e-6, 1e-5), strict=True):
        near(theirs, ours, tolerance)


@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients(case: str) -> None:
    make, shape = CASES[case]
    x, cell = floats(*shape) * 2, filled(make)
    axes = (0, *range(2, len(shape)))
    norm = getattr(cell, "bn2d", cell)
    form = (1, -1, *[1] * (len(shape) - 2))
    theirs = arrays(Twice(PlainNorm(norm, axes, form))(x))
    once = statistics(cell)
    with substituted(SUBSTITUTES) as met:
        ours = arrays(Twice(cell).set_train()(x))
    assert CONSTRUCT in met
    near(theirs, ours, 5e-5)
    kept, mean = norm.momentum, x.asnumpy().mean(axes)
    np.testing.assert_allclose(statistics(cell)[0], once[0] * (1 - kept) + kept * mean, rtol=1e-5, atol=1e-6)


class Net(nn.Cell):  # type: ignore[misc]
    """`how`: with a part that is recomputed, or called twice."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.dense, self.last = nn.Dense(4 * 36, 5), nn.BatchNorm1d(5, momentum=0.5)
        self.flatten, self.again = nn.Flatten(), how == "twice"
        if how == "recompute":
            self.norm.recompute()
        if how == "frozen":
            for p in (*self.conv.get_parameters(), *self.norm.get_parameters()):
                p.requires_grad = False

    def construct(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        if self.again:
            y = self.norm(2 * y)
        return self.last(self.dense(self.flatten(self.relu(y))))


class Loss(nn.Cell):  # type: ignore[misc]
    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Tensor, labels: Tensor) -> Tensor:
        return ops.cross_entropy(self.net(x), labels)


BATCHES = [(floats(8, 3, 6, 6), Tensor(RNG.integers(0, 5, 8).astype(np.int32))) for _ in range(4)]


def trained(how: str) -> tuple[list[float], nn.Cell]:
    ms.set_seed(1)
    net = Net(how)
    optimizer = optim.Momentum(net.trainable_params(), 0.05, 0.9)
    options = {"accumulation_steps": 2} if how == "accumulated" else {}
    cell = BoostTrainOneStepCell(Loss(net), optimizer, **options).set_train()
    losses = [float(cell(*batch)[0]) for batch in BATCHES]
    assert "_slow" not in cell.pipelines[0].__dict__
    return losses, net


@pytest.mark.parametrize("how", ["", "accumulated", "frozen", "recompute", "twice"])
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def test_a_training(monkeypatch: pytest.MonkeyPatch, mode: int, how: str) -> None:
    ms.set_context(mode=mode)
    ours, net = trained(how)
    monkeypatch.setattr(fast_calls, "substitutes", dict)
    theirs, plain = trained(how)
    assert ours == pytest.approx(theirs, rel=1e-5)
    for expected, got in zip(plain.get_parameters(), net.get_parameters(), strict=True):
        np.testing.assert_allclose(got.asnumpy(), expected.asnumpy(), rtol=1e-4, atol=1e-5, err_msg=got.name)
    x = BATCHES[0][0]
    np.testing.assert_allclose(
        net.set_train(False)(x).asnumpy(), plain.set_train(False)(x).asnumpy(), rtol=1e-4, atol=1e-4
    )


def test_statistics_of_all_ranks_are_left_to_mindspore() -> None:
    """SyncBatchNorm has the construct of the others, and another operator."""
    substitute, layer = SUBSTITUTES[CONSTRUCT], nn.BatchNorm2d(3)
    assert nn.SyncBatchNorm.construct is CONSTRUCT
    assert substitute.of(layer) is substitute.function
    layer.bn_train = inner_ops.SyncBatchNorm(epsilon=1e-5, momentum=0.1, group="some", device_num=2)
    assert substitute.of(layer) is None
