"""Adaptive gradient clipping in the training cells, beside the equation in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms import group_networks
from tests.ms.networks import Mlp, classes, layers, mlp_batch
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard

import oracle
from boost_ext import Model, amp, boost, optim
from boost_ext.config import DimReduceConfig

CLIP, EPS = 0.25, 1e-3
RATE, MOMENTUM = 0.25, 0.5


class Three(nn.Cell):
    """loss = sum(a * x) + sum(b * y) + sum(head * z): the gradients are x, y and z."""

    def __init__(self, head_dtype: Any = ms.float32) -> None:
        super().__init__()
        rng = np.random.default_rng(7)
        b = rng.standard_normal((3, 4)).astype(np.float32)
        b[1] = 0  # eps lets it move
        b[2] *= 100  # too long to be clipped
        self.a = Parameter(Tensor([1.0, 2.0], ms.float32), name="a")
        self.b = Parameter(Tensor(b), name="b")
        self.head = Parameter(Tensor(rng.standard_normal((2, 2, 2)).astype(np.float32)).astype(head_dtype), name="head")

    def construct(self, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return (self.a * x).sum() + (self.b * y).sum() + (self.head * z).sum()


def batch(step: int, factor: float = 1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    return [(factor * rng.standard_normal(shape)).astype(np.float32) for shape in ((2,), (3, 4), (2, 2, 2))]


def tensors(grads: list[np.ndarray]) -> list[Tensor]:
    return [Tensor(g) for g in grads]


class Expected:
    """Momentum on clipped gradients, in float64."""

    def __init__(self, net: Three, exclude: tuple[str, ...] = ()) -> None:
        self.parameters, self.exclude = (net.a, net.b, net.head), exclude
        self.weights = [p.asnumpy().astype(np.float64) for p in self.parameters]
        self.velocity = [np.zeros_like(w) for w in self.weights]

    def step(self, grads: list[np.ndarray]) -> None:
        for i, (g, p) in enumerate(zip(grads, self.parameters, strict=True)):
            g = g.astype(np.float64)
            if p.name not in self.exclude:
                g = oracle.adaptive_clip(g, self.weights[i], CLIP, EPS)
            self.velocity[i] = MOMENTUM * self.velocity[i] + g
            self.weights[i] = self.weights[i] - RATE * self.velocity[i]

    def check(self, rtol: float = 3e-6) -> None:
        for got, want in zip(self.parameters, self.weights, strict=True):
            np.testing.assert_allclose(got.asnumpy(), want, rtol=rtol, atol=rtol)


def ours(net: nn.Cell, **kwargs: Any) -> nn.Optimizer:
    return optim.Momentum(net.trainable_params(), RATE, MOMENTUM, **kwargs)


def theirs(net: nn.Cell, **kwargs: Any) -> nn.Optimizer:
    return nn.Momentum(net.trainable_params(), RATE, MOMENTUM, **kwargs)


def plain(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs: Any) -> nn.Cell:
    return boost.BoostTrainOneStepCell(net, optimizer(net), **{"adaptive_clip": CLIP} | kwargs)


def own_scale(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs: Any) -> nn.Cell:
    return boost.BoostTrainOneStepCell(net, optimizer(net, loss_scale=64.0), 64.0, **{"adaptive_clip": CLIP} | kwargs)


def dynamic_scale(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs: Any) -> nn.Cell:
    """It doubles after two steps, and halves on overflow."""
    scale = amp.DynamicLossScaleManager(2.0**10, 2, 2).get_update_cell()
    return boost.BoostTrainOneStepWithLossScaleCell(net, optimizer(net), scale, **{"adaptive_clip": CLIP} | kwargs)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize("make", [plain, own_scale, dynamic_scale])
@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(
    lambda p: (
        (p.fused or (p.optimizer is theirs and p.make is not own_scale))
        and (p.compile == ("step" if p.graph else "off"))
        and (p.make is not plain or p.optimizer is ours)
        and not (p.make is own_scale and p.graph and p.optimizer is theirs)
    )
)
def test_units_beside_the_equation_with_an_overflow_between(mode: int, compile: str, make, optimizer, fused) -> None:
    net = Three()
    cell, expected = make(net, optimizer, compile=compile, fused_optimizer=fused), Expected(net)
    for step in range(5):
        grads = batch(step)
        if step == 3:
            grads[1][0, 2] = (np.nan, np.inf)[make is plain]
        _, overflow, _ = cell(*tensors(grads))
        assert bool(overflow.asnumpy()) == (step == 3)
        if step != 3:
            expected.step(grads)
        expected.check()
    if make is dynamic_scale:
        assert cell.scale_sense.asnumpy() == 2.0**10  # doubled after two steps, halved by the overflow


@pytest.mark.parametrize("make", [own_scale, dynamic_scale])
@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(lambda p: p.graph and (p.optimizer is ours) == (p.make is dynamic_scale))
def test_the_mean_of_micro_batches_is_clipped_and_not_each(mode: int, make, optimizer) -> None:
    net = Three()
    cell, expected = make(net, optimizer, accumulation_steps=2), Expected(net)
    for step in range(3):
        halves = [batch(2 * step, 6), batch(2 * step + 1, 5)]
        for grads in halves:
            cell(*tensors(grads))
        expected.step([(a.astype(np.float64) + b) / 2 for a, b in zip(*halves, strict=True)])
        expected.check()


@pytest.mark.parametrize("exclude", [("head",), ("b",), ("a", "head"), ("a", "b", "head")])
@pytest.mark.parametrize("steps", [1, 2])
@standard(lambda p: (p.steps == 1) == p.graph or p.exclude == ("b",))
def test_excluded_parameters_keep_their_gradients(mode: int, exclude: tuple[str, ...], steps: int) -> None:
    net = Three()
    clip = boost.AdaptiveClip(CLIP, exclude=exclude)
    cell = dynamic_scale(net, ours, adaptive_clip=clip, accumulation_steps=steps, compile="off")
    expected = Expected(net, exclude)
    for step in range(2):
        for _ in range(steps):
            cell(*tensors(batch(step)))
        expected.step(batch(step))
        expected.check()


@in_pynative_mode
def test_eps_is_the_least_norm_of_weights(mode: int) -> None:
    net = Three()
    cell = plain(net, ours, adaptive_clip=boost.AdaptiveClip(CLIP, eps=0.5), compile="off")
    cell(*tensors(batch(0)))
    np.testing.assert_allclose(np.linalg.norm(net.b.asnumpy()[1]), RATE * CLIP * 0.5, rtol=1e-6)


@in_pynative_mode
def test_half_precision_weights(mode: int) -> None:
    net = Three(ms.float16)
    cell, expected = dynamic_scale(net, ours, compile="off"), Expected(net)
    for step in range(2):
        grads = batch(step)
        grads[2] = grads[2].astype(np.float16).astype(np.float32)
        cell(*tensors(grads))
        expected.step(grads)
        expected.check(rtol=3e-3)


@in_graph_mode
def test_without_the_check_for_inf_and_nan(mode: int) -> None:
    net = Three()
    cell, expected = plain(net, ours, check_overflow=False), Expected(net)
    for step in range(3):
        cell(*tensors(batch(step)))
        expected.step(batch(step))
        expected.check()


class Shared(nn.Cell):
    """Two weights of one gradient, which the graph compiler computes once."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Parameter(Tensor([1.0, 2.0], ms.float32), name="a")
        self.b = Parameter(Tensor([10.0, 20.0], ms.float32), name="b")

    def construct(self, x: Tensor) -> Tensor:
        return (self.a * x).sum() + (self.b * x).sum()


@pytest.mark.parametrize("make", [plain, dynamic_scale])
@standard(lambda p: p.graph)
def test_weights_of_one_gradient(mode: int, make) -> None:
    net = Shared()
    x = np.float32([30.0, -40.0])
    weights = [p.asnumpy().astype(np.float64) for p in (net.a, net.b)]
    want = [w - RATE * oracle.adaptive_clip(x.astype(np.float64), w, CLIP, EPS) for w in weights]
    given = Tensor(x)
    make(net, ours)(given)
    np.testing.assert_allclose([net.a.asnumpy(), net.b.asnumpy()], want, rtol=1e-6)
    np.testing.assert_array_equal(given.asnumpy(), x)


@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(lambda p: p.graph and p.optimizer is ours)
def test_with_freezing_the_trained_group_is_clipped(mode: int, optimizer) -> None:
    net = Mlp()
    opt = optimizer(net)
    frozen = boost.FreezeOpt(opt, layers(net)[::2], Tensor(np.int32([0, 1])))
    clip = boost.AdaptiveClip(1e-3, exclude=[net.head.bias.name])
    cell = boost.BoostTrainOneStepCell(classes(net), frozen, adaptive_clip=clip)
    for step in range(2):
        before = [p.asnumpy().astype(np.float64) for p in net.trainable_params()]
        velocity = [m.asnumpy().astype(np.float64) for m in opt.moments]
        cell(*mlp_batch(step, 16))
        for i, p in enumerate(net.trainable_params()):
            moved = (before[i] - p.asnumpy()) / RATE - MOMENTUM * velocity[i]
            if step == 1 and i < 4:
                np.testing.assert_array_equal(p.asnumpy(), before[i])
            elif p.name != net.head.bias.name and p.ndim > 1:
                limits = 1e-3 * np.linalg.norm(before[i], axis=1)
                assert (np.linalg.norm(moved, axis=1) <= limits * 1.01 + 1e-6).all()
                assert (np.linalg.norm(moved, axis=1) > limits * 0.5).any()


@in_pynative_mode
def test_a_loss_scale_for_each_group(mode: int) -> None:
    moved = []
    for clip in (None, 0.01):
        manager, net = group_networks.example()
        before = [p.asnumpy().astype(np.float64) for p in net.trainable_params()]
        cell = boost.BoostTrainOneStepWithLossScaleCell(
            group_networks.with_loss(net), ours(net), manager, adaptive_clip=clip, compile="off"
        )
        cell(*group_networks.batch())
        moved.append([(b - p.asnumpy()) / RATE for p, b in zip(net.trainable_params(), before, strict=True)])
    assert max(abs(a - b).max() for a, b in zip(*moved, strict=True)) > 0.01
    for weight, plain_step, got in zip(before, *moved, strict=True):
        np.testing.assert_allclose(got, oracle.adaptive_clip(plain_step, weight, 0.01, EPS), rtol=1e-3, atol=1e-6)


def test_through_build_train_network_and_model() -> None:
    clip = boost.AdaptiveClip(CLIP, exclude=["head"])
    net = Three()
    cell, expected = amp.build_train_network(net, ours(net), level="O0", adaptive_clip=clip), Expected(net, ("head",))
    assert cell.grad_norm is None
    cell(*tensors(batch(0)))
    expected.step(batch(0))
    expected.check()
    net = Three()
    model, expected = Model(net, None, ours(net), adaptive_clip=CLIP), Expected(net)
    rows = [batch(i) for i in range(3)]
    dataset = ms.dataset.GeneratorDataset(rows, ["x", "y", "z"], shuffle=False)
    model.train(1, dataset, dataset_sink_mode=False)
    for grads in rows:
        expected.step(grads)
    expected.check()


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("1", TypeError, "adaptive_clip must be a number, an AdaptiveClip or None, got str"),
        (True, TypeError, "adaptive_clip must be a number, an AdaptiveClip or None, got bool"),
        (0, ValueError, "adaptive_clip must be finite and > 0, got 0"),
        (math.inf, ValueError, "adaptive_clip must be finite and > 0, got inf"),
        (boost.AdaptiveClip(exclude=["hed"]), ValueError, r"AdaptiveClip\.exclude must name parameters of the optimi"),
    ],
)
def test_errors(value, error, message) -> None:
    net = Three()
    with pytest.raises(error, match=rf"^BoostTrainOneStepCell: {message}"):
        boost.BoostTrainOneStepCell(net, ours(net), adaptive_clip=value)
    with pytest.raises(error, match=rf"^(build_train_network|BoostTrainOneStepCell): {message}"):
        amp.build_train_network(net, ours(net), adaptive_clip=value)


def test_the_nearest_name_is_suggested() -> None:
    net = Three()
    with pytest.raises(ValueError, match=r"got 'hed', did you mean 'head'\?$"):
        plain(net, ours, adaptive_clip=boost.AdaptiveClip(exclude=["hed"]))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"clipping": "1"}, TypeError, "clipping must be a number, got str"),
        ({"clipping": -1}, ValueError, "clipping must be finite and > 0, got -1"),
        ({"eps": math.nan}, ValueError, "eps must be finite and >= 0, got nan"),
        ({"exclude": "head"}, TypeError, "exclude must be a list of names of parameters, got str"),
        ({"exclude": [1]}, TypeError, "exclude must be a list of names of parameters, got int in it"),
    ],
)
def test_errors_of_the_settings(arguments, error, message) -> None:
    with pytest.raises(error, match=rf"^AdaptiveClip: {message}$"):
        boost.AdaptiveClip(**arguments)


def test_what_it_does_not_go_with() -> None:
    net = Three()
    with pytest.raises(ValueError, match=r"^BoostTrainOneStepCell: adaptive_clip must be None with clip_norm"):
        plain(net, ours, clip_norm=1.0)
    with pytest.raises(ValueError, match=r"^BoostTrainOneStepCell: adaptive_clip must be None with dim_reduce, which "):
        plain(net, ours, dim_reduce=DimReduceConfig())
