"""LARS around the optimizers, beside float64 equations, and what uses it."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests import oracle

from boost_ext import amp, optim
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.optim.rebuild import rebuild

SHAPES = {"conv.weight": (4, 3, 3, 3), "fc.weight": (5, 7), "fc.bias": (5,), "LayerNorm.scale": (7,)}
DECAY, MOMENTUM = 0.01, 0.9


def parameters(dtype: ms.Type = ms.float32) -> list[Parameter]:
    rng = np.random.default_rng(1)
    return [Parameter(Tensor(rng.standard_normal(s), dtype), name=n) for n, s in SHAPES.items()]


def gradients(step: int, scale: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(100 + step)
    return [(scale * rng.standard_normal(s)).astype(np.float32) for s in SHAPES.values()]


def steps(count: int, rates: Sequence[float], coefficient: float, epsilon: float, clip: bool) -> list[np.ndarray]:
    """The weights after some steps of LARS around Momentum."""
    weights = [p.asnumpy().astype(np.float64) for p in parameters()]
    moments = [np.zeros_like(w) for w in weights]
    for step in range(count):
        for i, (name, g) in enumerate(zip(SHAPES, gradients(step), strict=True)):
            u, lr = g.astype(np.float64), rates[step]
            if "bias" not in name and "LayerNorm" not in name:
                u = oracle.lars_ratio(weights[i], u, lr, DECAY, coefficient, epsilon, clip) * (u + DECAY * weights[i])
            weights[i], (moments[i],) = oracle.momentum_step(weights[i], u, moments[i], lr, MOMENTUM, False)
    return weights


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("rates", [[0.1] * 8, [0.1 * 0.8**i for i in range(8)]], ids=["fixed", "dynamic"])
def test_steps(mode: int, clip: bool, rates: list[float]) -> None:
    params = parameters()
    rate = rates[0] if len(set(rates)) == 1 else rates
    inner = optim.Momentum(params, rate, MOMENTUM, weight_decay=DECAY, loss_scale=8.0)
    optimizer = optim.LARS(inner, epsilon=1e-3, coefficient=0.5, use_clip=clip)
    for step in range(8):
        optimizer(tuple(Tensor(8 * g) for g in gradients(step)))
    for p, expected in zip(params, steps(8, rates, 0.5, 1e-3, clip), strict=True):
        np.testing.assert_allclose(p.asnumpy(), expected, rtol=2e-5, atol=2e-6)
    assert inner.global_step.asnumpy().tolist() == [8]
    assert optimizer.get_lr_parameter(params[0]) is inner.get_lr_parameter(params[0])


def test_groups_and_a_filter_of_ones_own(mode: int) -> None:
    params = parameters()
    groups = [{"params": params[:1], "lr": 0.2, "weight_decay": 0.5}, {"params": params[1:]}]
    optimizer = optim.LARS(optim.SGD(groups, 0.1), lars_filter=lambda p: p.name.startswith("fc"))
    before = [p.asnumpy().astype(np.float64) for p in params]
    grads = gradients(0)
    optimizer(tuple(Tensor(g) for g in grads))
    for i, (name, g) in enumerate(zip(SHAPES, grads, strict=True)):
        u = g.astype(np.float64)
        if name.startswith("fc"):
            u = oracle.lars_ratio(before[i], u, 0.1, 0.0, 1e-3, 1e-5, False) * u
        expected = before[i] - (0.2 if i == 0 else 0.1) * u
        np.testing.assert_allclose(params[i].asnumpy(), expected, rtol=1e-5, atol=1e-6)


NAMESAKES = {
    "Momentum": {"momentum": 0.9},
    "SGD": {"momentum": 0.9, "weight_decay": DECAY},
    "Adam": {"loss_scale": 4.0},
}
NAMESAKES |= {"Adagrad": {}, "RMSProp": {"centered": True, "momentum": 0.5}, "FTRL": {"l2": 0.1}, "LazyAdam": {}}


@pytest.mark.parametrize("name", NAMESAKES)
def test_around_an_optimizer_of_mindspore(name: str) -> None:
    """In its place stands our namesake, which goes on after the steps that it has made."""
    ends = []
    for module in (nn, optim):
        params = parameters()
        groups: object = [{"params": params[:2], "weight_decay": 0.1}, {"params": params[2:]}]
        groups = groups if name == "RMSProp" else params
        rate = 0.1 if name == "FTRL" else [0.1, 0.05, 0.2, 0.3]
        inner = getattr(module, name)(groups, learning_rate=rate, **NAMESAKES[name])
        for step in range(2):
            inner(tuple(map(Tensor, gradients(step))))
        optimizer = optim.LARS(inner, coefficient=0.1)
        assert type(optimizer.opt) is getattr(optim, name)
        for step in (2, 3):
            optimizer(tuple(map(Tensor, gradients(step))))
        assert optimizer.global_step.asnumpy().tolist() == [4]
        ends.append([p.asnumpy() for p in params])
    for got, expected in zip(*ends, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [{"use_lazy": True}, {"use_lazy": False}, {"use_offload": True}])
def test_around_the_kinds_of_mindspores_adam(kind: dict[str, bool]) -> None:
    """nn.Adam notes such an argument where it is given; Adam has none."""
    ends = []
    for inner in (lambda params: nn.Adam(params, 0.1, **kind), lambda params: optim.Adam(params, 0.1)):
        params = parameters()
        optimizer = optim.LARS(inner(params), coefficient=0.1)
        assert type(optimizer.opt) is optim.Adam
        for step in range(2):
            optimizer(tuple(map(Tensor, gradients(step))))
        ends.append([p.asnumpy() for p in params])
    for got, expected in zip(*ends, strict=True):
        np.testing.assert_array_equal(got, expected)


def test_narrowed_and_rebuilt(mode: int) -> None:
    params = parameters()
    optimizer = optim.LARS(optim.Momentum(params, 0.1, MOMENTUM, weight_decay=DECAY))
    whole = optim.LARS(optim.Momentum(others := parameters(), 0.1, MOMENTUM, weight_decay=DECAY))
    part = restrict(optimizer, [params[1], params[0]])
    grads = [Tensor(g) for g in gradients(0)]
    whole(tuple(grads))
    part((grads[1], grads[0]))
    again = rebuild(optimizer, params)
    for i in (0, 1):
        np.testing.assert_array_equal(params[i].asnumpy(), others[i].asnumpy())
        np.testing.assert_array_equal(again.opt.moments[i].asnumpy(), whole.opt.moments[i].asnumpy())
    assert isinstance(again, optim.LARS)
    assert again.opt.global_step.asnumpy().tolist() == [1]
    assert optimizer.opt.moments[2].asnumpy().any() == np.False_


def test_a_step_that_overflows_changes_nothing(mode: int) -> None:
    ms.set_seed(0)
    net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3))
    optimizer = optim.LARS(optim.Momentum(net.trainable_params(), 0.5, MOMENTUM), coefficient=0.1)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    cell = amp.build_train_network(net, optimizer, loss, loss_scale_manager=ms.amp.DynamicLossScaleManager(2.0**10))
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 4)).astype(np.float32), Tensor(rng.integers(0, 3, 16), ms.int32)
    losses = [float(cell(Tensor(x), y)[0].asnumpy()) for _ in range(20)]
    assert losses[-1] < 0.9 * losses[0]
    everything = [*net.trainable_params(), *optimizer.opt.moments]
    state = [p.asnumpy().copy() for p in everything]
    bad = x.copy()
    bad[0, 0] = np.inf
    assert bool(cell(Tensor(bad), y)[1].asnumpy())
    for p, old in zip(everything, state, strict=True):
        np.testing.assert_array_equal(p.asnumpy(), old)
    assert optimizer.global_step.asnumpy().tolist() == [20]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"epsilon": 1}, TypeError, "LARS: epsilon must be a float, got int"),
        ({"epsilon": -1.0}, ValueError, "LARS: epsilon must be finite and >= 0, got -1.0"),
        ({"coefficient": -1.0}, ValueError, "LARS: coefficient must be finite and >= 0, got -1.0"),
        ({"use_clip": 1}, TypeError, "LARS: use_clip must be a bool, got int"),
        ({"lars_filter": "fc"}, TypeError, "LARS: lars_filter must be a function, got str"),
    ],
)
def test_arguments(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        optim.LARS(optim.Momentum(parameters(), 0.1, MOMENTUM), **arguments)


def test_optimizers_that_it_cannot_go_around() -> None:
    for other in (nn.ASGD(parameters()), optim.LARS(optim.SGD(parameters())), 0.1):
        message = rf"LARS: optimizer must be one of boost_ext\.optim, .*, got {type(other).__name__}$"
        with pytest.raises(TypeError, match=message):
            optim.LARS(other)
    with pytest.raises(TypeError, match="LARS: AdamWeightDecay decouples its weight decay"):
        optim.LARS(nn.AdamWeightDecay(parameters()))
    with pytest.raises(TypeError, match="LARS: ScheduleFreeSGD averages its steps by their learning rates, which LARS"):
        optim.LARS(optim.ScheduleFreeSGD(parameters()))
    decoupled = (optim.AdamW, optim.Lamb, optim.Lion, optim.NAdamW, optim.AdEMAMix, optim.Adan, optim.Muon)
    for cls in (*decoupled, optim.ScheduleFreeAdamW, optim.Apollo, optim.GaLore):
        with pytest.raises(TypeError, match=f"LARS: {cls.__name__} decouples its weight decay"):
            optim.LARS(cls(parameters(), 0.1))


def test_gradients_of_another_shape_or_number(mode: int) -> None:
    optimizer = optim.LARS(optim.Momentum(parameters(), 0.1, MOMENTUM))
    grads = list(map(Tensor, gradients(0)))
    with pytest.raises(ValueError, match=r"^LARS: gradients must be 4, one a parameter, got 3$"):
        optimizer(tuple(grads[:3]))
    grads[1] = Tensor(np.zeros((7, 5), np.float32))
    with pytest.raises(
        ValueError, match=r"^LARS: gradients\[1\] must have the shape of fc.weight, \(5, 7\), got \(7, 5\)$"
    ):
        optimizer(tuple(grads))
