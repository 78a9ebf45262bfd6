"""Gradient centralization inside optimizers, beside the formula in float64."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from tests import oracle
from tests.ms.optimizers import OPTIMIZERS, assert_close, make_grads, make_parameters, values
from tests.ms.tiers import standard

from boost_ext import boost
from boost_ext.ms import native
from boost_ext.ms.core.common_head import CommonHeadLastFN
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.optim.grad_centralization import centralizing, is_centralized
from boost_ext.ms.optim.rebuild import parameter_groups, rebuild
from boost_ext.ms.surgery.process import OptimizerProcess

DTYPES = {"float32": ms.float32, "float16": ms.float16, "bfloat16": ms.bfloat16}
FIRST = {"Adam-offload", "AdamOffload", "AdamWeightDecay", "AdaFactor", "AdaFactor-plain"}


def centralize(array: np.ndarray) -> np.ndarray:
    return oracle.centralize(array.astype(np.float64)) if array.ndim > 1 else array.astype(np.float64)


def groups_of(parameters: list[Parameter], centralized: bool) -> list[dict]:
    """conv.weight and fc.weight, and the others."""
    marked = {"grad_centralization": True} if centralized else {}
    return [
        {"params": [parameters[0], parameters[2]], **marked},
        {"params": [parameters[1], parameters[3]]},
        {"order_params": parameters},
    ]


class Apply(nn.Cell):
    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.centralized = native.Centralized()

    def construct(self, grads: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        return self.centralized(grads), grads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", [[(3, 5)], [(4, 3, 3, 3), (7,), (5, 17), ()], [(2, 3), (1, 1)]])
@standard(lambda p: not p.graph or len(p.shapes) == 4)
def test_the_op_leaves_its_gradients_alone(mode: int, dtype: str, shapes: list[tuple[int, ...]]) -> None:
    rng = np.random.default_rng(0)
    grads = tuple(Tensor(np.asarray(rng.standard_normal(s) + 1, np.float32)).astype(DTYPES[dtype]) for s in shapes)
    exact = [g.astype(ms.float32).asnumpy() for g in grads]
    centralized, kept = Apply()(grads)
    tolerance = {"float32": 1e-6, "float16": 4e-3, "bfloat16": 3e-2}[dtype]
    for c, k, e, g in zip(centralized, kept, exact, grads, strict=True):
        assert (c.dtype, c.shape) == (g.dtype, g.shape)
        np.testing.assert_allclose(c.astype(ms.float32).asnumpy(), centralize(e), rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(k.astype(ms.float32).asnumpy(), e)
        np.testing.assert_array_equal(g.astype(ms.float32).asnumpy(), e)


def test_a_view_is_centralized(mode: int) -> None:
    base = Tensor(np.arange(12, dtype=np.float32).reshape(4, 3) ** 2)
    view = base.T
    (out,), _ = Apply()((view,))
    assert_close([out.asnumpy()], [centralize(base.asnumpy().T)])


# What differs in a graph are the operators, which are each tested; here, one of each kind of class.
GRAPHS = [(ms.GRAPH_MODE, name) for name in ("Momentum", "Adam", "AdamWeightDecay")]


@pytest.mark.parametrize(
    ("mode", "name"), [(ms.PYNATIVE_MODE, name) for name in OPTIMIZERS] + GRAPHS, indirect=["mode"]
)
def test_every_optimizer_centralizes(mode: int, name: str) -> None:
    """Beside the same optimizer without, which gets gradients that were centralized by hand."""
    ours, theirs = make_parameters(), make_parameters()
    plain = OPTIMIZERS[name](groups_of(ours, False))
    optimizer = rebuild(plain, groups_of(ours, True))
    assert isinstance(optimizer, type(plain))
    reference = OPTIMIZERS[name](groups_of(theirs, False))
    decay = values(reference.weight_decay) if isinstance(reference.weight_decay, tuple) else [np.zeros(())] * 4
    some = restrict(optimizer, [ours[2], ours[1]])
    for step in range(4):
        grads = make_grads(step)
        given = values(grads)
        if step < 2:
            optimizer(grads)
        else:
            some((grads[2], grads[1]))
        by_hand = []
        for g, w, p in zip(given, decay, theirs, strict=True):
            # With decay in the gradient: centralized(g + decay w) is what the optimizer shall see.
            decayed = 0.0 if name in FIRST else w.astype(np.float64) * p.asnumpy()
            by_hand.append(Tensor((centralize(g + decayed) - decayed).astype(np.float32)) if p.ndim > 1 else Tensor(g))
        reference(tuple(by_hand))
        assert_close(values(grads), given, rtol=0, atol=0)
        trained = range(4) if step < 2 else (1, 2)
        assert_close(values(ours[i] for i in trained), values(theirs[i] for i in trained), rtol=1e-4, atol=1e-5)


def test_momentum_with_weight_decay_by_hand(mode: int) -> None:
    """Decay, centralize, unscale, momentum; the scale drops out."""
    parameters = make_parameters()
    weights = [p.asnumpy().astype(np.float64) for p in parameters]
    velocity = [np.zeros_like(w) for w in weights]
    plain = nn.Momentum(parameters, 0.1, 0.9, weight_decay=0.05, loss_scale=16.0)
    optimizer = rebuild(plain, groups_of(parameters, True))
    for step in range(4):
        grads = make_grads(step)
        optimizer(tuple(Tensor(16 * g.asnumpy()) for g in grads))
        for i, g in enumerate(grads):
            decayed = g.asnumpy() + 0.05 * weights[i]
            velocity[i] = 0.9 * velocity[i] + (oracle.centralize(decayed) if i in (0, 2) else decayed)
            weights[i] = weights[i] - 0.1 * velocity[i]
    assert_close(values(parameters), weights, rtol=1e-4, atol=1e-5)


def test_without_groups_that_ask_the_class_stays() -> None:
    parameters = make_parameters()
    optimizer = OPTIMIZERS["Momentum"](parameters)
    assert type(rebuild(optimizer, groups_of(parameters, False))) is nn.Momentum
    centralized = rebuild(optimizer, groups_of(parameters, True))
    assert centralizing(centralized) is type(centralized)
    assert type(rebuild(centralized, parameter_groups(centralized))) is type(centralized)


class Shared(nn.Cell):
    """The gradients of a, b and c are one piece of memory: that of the product's gradient."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        rng = np.random.default_rng(1)
        self.a, self.b, self.c = (
            Parameter(Tensor(rng.standard_normal((4, columns)).astype(np.float32)), name=name) for name in "abc"
        )

    def construct(self, x: Tensor) -> Tensor:
        return ((self.a + self.b + self.c) * x).sum() + self.b.sum()


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize("name", ["Momentum", "AdamWeightDecay", "Adadelta"])
@standard(
    lambda p: (
        p.compile == "off"
        or (p.name, p.compile) == ("AdamWeightDecay", "network")
        or (p.graph and p.name == "Momentum")
    )
)
def test_gradients_that_share_memory(mode: int, compile: str, name: str) -> None:
    """b is not centralized: its gradient must not change when that of a, in the same memory, is."""

    def train(net: nn.Cell, centralized: bool) -> list[np.ndarray]:
        plain = OPTIMIZERS[name](net.trainable_params())
        marked = {"grad_centralization": True} if centralized else {}
        optimizer = rebuild(plain, [{"params": [net.a, net.c], **marked}, {"params": [net.b]}])
        cell = boost.BoostTrainOneStepCell(net, optimizer, 4.0, compile=compile)
        for step in range(2):
            cell(Tensor(np.random.default_rng(step).standard_normal((4, 7)).astype(np.float32)))
        return values([net.a, net.b, net.c])

    def expected() -> list[np.ndarray]:
        net = Shared(7)
        optimizer = OPTIMIZERS[name]([{"params": [net.a, net.c]}, {"params": [net.b]}])
        for step in range(2):
            x = np.random.default_rng(step).standard_normal((4, 7)).astype(np.float32).astype(np.float64)
            out = []
            for p, g in ((net.a, 4 * x), (net.c, 4 * x), (net.b, 4 * (x + 1))):
                decayed = 0.01 * p.asnumpy().astype(np.float64) if name == "Momentum" else 0.0
                out.append(g if p is net.b else oracle.centralize(g + decayed) - decayed)
            optimizer(tuple(Tensor(g.astype(np.float32)) for g in out))
        return values([net.a, net.b, net.c])

    # Adadelta divides by the gradient's own size: rounding of what is nearly zero counts.
    assert_close(train(Shared(7), True), expected(), rtol=1e-3, atol=1e-4)


class OneGradient(nn.Cell):
    """The optimizer gets one tensor for all three parameters."""

    def __init__(self, optimizer: nn.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer

    def construct(self, grad: Tensor) -> Tensor:
        return ops.depend(grad, self.optimizer((grad, grad, grad)))


def test_one_tensor_for_all_parameters(mode: int) -> None:
    net = Shared(7)
    before = values([net.a, net.b, net.c])
    plain = nn.Momentum(net.trainable_params(), 1.0, 0.0)
    optimizer = rebuild(plain, [{"params": [net.a, net.c], "grad_centralization": True}, {"params": [net.b]}])
    grad = Tensor(np.random.default_rng(2).standard_normal((4, 7)).astype(np.float32))
    OneGradient(optimizer)(grad)
    a, c, b = (centralize(grad.asnumpy()),) * 2 + (grad.asnumpy(),)
    expected = [w - g for w, g in zip(before, (a, b, c), strict=True)]
    assert_close(values([net.a, net.b, net.c]), expected)


class Convolutional(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.dense = nn.Dense(5, 2)
        rng = np.random.default_rng(3)
        for p in (self.conv.weight, self.dense.weight):
            p.set_data(Tensor(rng.standard_normal(p.shape).astype(np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.mean(ops.square(self.dense(ops.mean(ops.relu(self.norm(self.conv(x))), (2, 3)))))


def test_training_keeps_the_mean_of_each_filter(mode: int) -> None:
    """The property that gives the method its name: sum over a filter never moves, for 3 and 5 channels too."""
    net = Convolutional().set_train()
    process = OptimizerProcess(nn.Momentum(net.trainable_params(), 0.1, 0.9, loss_scale=128.0))
    process.add_grad_centralization(net)
    cell = boost.BoostTrainOneStepCell(net, process.generate_new_optimizer(), 128.0)
    weights = (net.conv.weight, net.dense.weight)
    before = values([*weights, net.dense.bias])
    for step in range(5):
        cell(Tensor(np.random.default_rng(step).standard_normal((4, 3, 6, 6)).astype(np.float32)))
    for w, old in zip(weights, before[:2], strict=True):
        axes = tuple(range(1, old.ndim))
        assert np.abs(w.asnumpy() - old).max() > 1e-3
        np.testing.assert_allclose(w.asnumpy().mean(axes), old.mean(axes), atol=1e-6)
    assert np.abs(net.dense.bias.asnumpy() - before[2]).max() > 1e-3


class Own(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones((3, 4), np.float32)), name="weight")


class OwnContainer(nn.SequentialCell):
    def __init__(self, *cells: nn.Cell) -> None:
        super().__init__(*cells)
        self.weight = Parameter(Tensor(np.ones((3, 4), np.float32)), name="weight")


class OwnEmbedding(nn.Embedding):
    pass


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (nn.Conv1d(3, 4, 3), True),
        (nn.Conv2d(3, 4, 3), True),
        (nn.Conv2d(4, 4, 3, group=4), False),
        (nn.Conv2d(4, 4, 3, group=2), False),
        (nn.Conv1d(4, 4, 3, group=4), False),
        (nn.Conv2dTranspose(3, 4, 3), True),
        (nn.Dense(3, 4), True),
        (nn.Linear(3, 4), True),
        (mint.nn.Conv1d(3, 4, 3), True),
        (mint.nn.Conv2d(3, 4, 3), True),
        (mint.nn.Conv2d(4, 4, 3, groups=4), False),
        (mint.nn.Conv3d(4, 4, 3, groups=2), False),
        (mint.nn.ConvTranspose2d(3, 4, 3), True),
        (mint.nn.Linear(3, 4), True),
        (nn.Conv2dThor(3, 4, 3), True),
        (nn.DenseThor(3, 4), True),
        (Own(), True),
        (OwnContainer(nn.ReLU()), True),
        (nn.Embedding(3, 4), False),
        (nn.EmbeddingLookup(3, 4), False),
        (mint.nn.Embedding(3, 4), False),
        (nn.LSTM(3, 4), False),
        (nn.GRUCell(3, 4), False),
        (nn.BiDense(3, 4, 5), False),
        (OwnEmbedding(3, 4), False),
        (CommonHeadLastFN(3, 4), False),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}" if isinstance(value, nn.Cell) else str(value),
)
def test_which_weights(cell, expected: bool) -> None:
    weight = max(cell.trainable_params(), key=lambda p: p.ndim)
    assert is_centralized(weight, cell) is expected
    assert is_centralized(weight, None) is False
    assert not any(is_centralized(p, cell) for p in cell.trainable_params() if p.ndim < 2)


@pytest.mark.parametrize("name", ["fc.bias", "norm.gamma", "beta.weight"])
def test_which_names(name: str) -> None:
    assert is_centralized(Parameter(Tensor(np.ones((2, 2))), name="fc.weight"), nn.Dense(2, 2))
    assert not is_centralized(Parameter(Tensor(np.ones((2, 2))), name=name), nn.Dense(2, 2))
