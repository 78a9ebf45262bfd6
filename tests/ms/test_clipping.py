"""Clipping by the global norm in the training cells, beside the equations: with every kind of optimizer and scale."""

from __future__ import annotations

import math
from collections.abc import Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms import group_networks
from tests.ms.networks import Mlp, classes, mlp_batch
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard

import oracle
from boost_ext import Model, amp, boost, optim
from boost_ext.config import DimReduceConfig

CLIP = 1.5
RATE, MOMENTUM = 0.25, 0.5


class Pair(nn.Cell):
    """loss = sum(a * x) + sum(b * y): the gradients are x and y."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Parameter(Tensor([1.0, 2.0], ms.float32), name="a")
        self.b = Parameter(Tensor([[3.0], [4.0], [5.0]], ms.float32), name="b")

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.a * x).sum() + (self.b * y).sum()


def batch(step: int, length: float | None = None) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    grads = [rng.standard_normal(2), rng.standard_normal((3, 1))]
    factor = 1.0 if length is None else length / oracle.global_norm(grads)
    return [(g * factor).astype(np.float32) for g in grads]


def tensors(grads: list[np.ndarray]) -> list[Tensor]:
    return [Tensor(g) for g in grads]


class Expected:
    """Momentum on clipped gradients, in float64."""

    def __init__(self, net: Pair) -> None:
        self.weights = [p.asnumpy().astype(np.float64) for p in (net.a, net.b)]
        self.velocity = [np.zeros_like(w) for w in self.weights]

    def step(self, grads: list[np.ndarray]) -> float:
        clipped, norm = oracle.clip_by_global_norm(grads, CLIP)
        for i, g in enumerate(clipped):
            self.velocity[i] = MOMENTUM * self.velocity[i] + g
            self.weights[i] = self.weights[i] - RATE * self.velocity[i]
        return norm

    def check(self, net: Pair) -> None:
        for got, want in zip((net.a, net.b), self.weights, strict=True):
            np.testing.assert_allclose(got.asnumpy(), want, rtol=2e-6, atol=2e-6)


def ours(net: nn.Cell, **kwargs) -> nn.Optimizer:
    return optim.Momentum(net.trainable_params(), RATE, MOMENTUM, **kwargs)


def theirs(net: nn.Cell, **kwargs) -> nn.Optimizer:
    return nn.Momentum(net.trainable_params(), RATE, MOMENTUM, **kwargs)


def plain(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs) -> nn.Cell:
    return boost.BoostTrainOneStepCell(net, optimizer(net), clip_norm=CLIP, **kwargs)


def own_scale(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs) -> nn.Cell:
    return boost.BoostTrainOneStepCell(net, optimizer(net, loss_scale=64.0), 64.0, clip_norm=CLIP, **kwargs)


def fixed_scale(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs) -> nn.Cell:
    scale = Tensor(1024.0, ms.float32)
    return boost.BoostTrainOneStepWithLossScaleCell(net, optimizer(net), scale, clip_norm=CLIP, **kwargs)


def dynamic_scale(net: nn.Cell, optimizer: Callable[..., nn.Optimizer], **kwargs) -> nn.Cell:
    manager = amp.DynamicLossScaleManager(2.0**10, 2, 2)
    return boost.BoostTrainOneStepWithLossScaleCell(
        net, optimizer(net), manager.get_update_cell(), clip_norm=CLIP, **kwargs
    )


SCALES = [plain, own_scale, fixed_scale, dynamic_scale]


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize("make", SCALES)
@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(
    lambda p: (
        p.compile == "off"
        or ((p.compile == "step") == p.graph and (p.optimizer is ours) == (p.make in (plain, dynamic_scale)))
    )
)
def test_every_kind_of_scale(mode: int, compile: str, make, optimizer) -> None:
    net = Pair()
    cell, expected = make(net, optimizer, compile=compile), Expected(net)
    assert cell.observe()["gradient_norm"] is None
    for step in range(5):
        grads = batch(step, CLIP / 4 if step == 1 else None)
        loss, overflow, _ = cell(*tensors(grads))
        norm = expected.step(grads)
        assert not overflow.asnumpy()
        assert cell.observe()["gradient_norm"] == pytest.approx(norm, rel=1e-6)
        expected.check(net)
    assert math.isfinite(loss.asnumpy())


@pytest.mark.parametrize("make", [plain, fixed_scale])
@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(lambda p: p.graph and (p.optimizer is ours) == (p.make is fixed_scale))
def test_the_mean_of_micro_batches_is_clipped_and_not_each(mode: int, make, optimizer) -> None:
    net = Pair()
    cell, expected = make(net, optimizer, accumulation_steps=2), Expected(net)
    for step in range(3):
        halves = [batch(2 * step, 6 * CLIP), batch(2 * step + 1, 5 * CLIP)]
        for grads in halves:
            cell(*tensors(grads))
        norm = expected.step([(a.astype(np.float64) + b) / 2 for a, b in zip(*halves, strict=True)])
        np.testing.assert_allclose(cell.grad_norm.asnumpy(), [norm], rtol=1e-6)
        expected.check(net)


@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(lambda p: (p.optimizer is ours) == p.graph)
def test_an_overflow_changes_nothing(mode: int, optimizer) -> None:
    net = Pair()
    cell, expected = fixed_scale(net, optimizer), Expected(net)
    cell(*tensors(batch(0)))
    expected.step(batch(0))
    bad = batch(1)
    bad[1][1] = np.nan
    assert cell(*tensors(bad))[1].asnumpy()
    expected.check(net)
    assert [o["name"] for o in cell.observe()["overflowed"]] == ["b"]
    cell(*tensors(batch(2)))
    expected.step(batch(2))
    expected.check(net)


@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(lambda p: (p.optimizer is ours) == p.graph)
def test_short_gradients_train_bit_for_bit_as_without(mode: int, optimizer) -> None:
    networks = [Mlp(), Mlp()]
    scale = Tensor(256.0, ms.float32)
    cells = [
        boost.BoostTrainOneStepWithLossScaleCell(classes(net), optimizer(net), scale, **options)
        for net, options in zip(networks, [{}, {"clip_norm": 1e6}], strict=True)
    ]
    for step in range(3):
        for cell in cells:
            cell(*mlp_batch(step, 16))
    for one, other in zip(networks[0].trainable_params(), networks[1].trainable_params(), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


@in_graph_mode
def test_larger_optimizers_beside_their_own_steps_on_clipped_gradients(mode: int) -> None:
    """LARS and Lamb scale by norms of their own, after clipping."""
    for make in (
        lambda net: optim.Lamb(net.trainable_params(), 0.1),
        lambda net: optim.LARS(optim.Momentum(net.trainable_params(), RATE, MOMENTUM), lars_filter=lambda _: True),
    ):
        net, reference = Pair(), Pair()
        cell, by_hand = fixed_scale(net, make), make(reference)
        for step in range(3):
            grads = batch(step, 4 * CLIP)
            cell(*tensors(grads))
            by_hand(tuple(tensors([g.astype(np.float32) for g in oracle.clip_by_global_norm(grads, CLIP)[0]])))
            for got, want in ((net.a, reference.a), (net.b, reference.b)):
                np.testing.assert_allclose(got.asnumpy(), want.asnumpy(), rtol=3e-6)


@pytest.mark.parametrize("optimizer", [ours, theirs])
@standard(lambda p: (p.optimizer is ours) == p.graph)
def test_with_freezing_the_trained_group_is_clipped(mode: int, optimizer) -> None:
    net = Mlp()
    freeze = boost.GradientFreeze(2, 0, 0.5, 8)
    network, frozen = freeze.freeze_generate(classes(net), optimizer(net))
    cell = boost.BoostTrainOneStepCell(network, frozen, clip_norm=1e-3)
    for step in range(6):
        before = [p.asnumpy().copy() for p in net.trainable_params()]
        cell(*mlp_batch(step, 16))
        moved = [(p.asnumpy() - b) / RATE for p, b in zip(net.trainable_params(), before, strict=True)]
        # v = m v + g, |g| <= 1e-3: never more than 1e-3 / (1 - m)
        assert 0 < oracle.global_norm(moved) < 1e-3 / (1 - MOMENTUM) * 1.01
        assert cell.observe()["gradient_norm"] > 1e-3


@in_pynative_mode
def test_a_loss_scale_for_each_group(mode: int) -> None:
    moved = []
    for clip_norm in (None, CLIP / 100):
        manager, net = group_networks.example()
        before = [p.asnumpy().copy() for p in net.trainable_params()]
        network = group_networks.with_loss(net)
        cell = boost.BoostTrainOneStepWithLossScaleCell(network, ours(net), manager, clip_norm=clip_norm)
        cell(*group_networks.batch())
        moved.append([(b - p.asnumpy()) / RATE for p, b in zip(net.trainable_params(), before, strict=True)])
    expected, norm = oracle.clip_by_global_norm(moved[0], CLIP / 100)
    assert norm > 2 * CLIP / 100
    np.testing.assert_allclose(cell.grad_norm.asnumpy(), [norm], rtol=1e-4)
    for got, want in zip(moved[1], expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=3e-7)


def test_through_build_train_network_and_model() -> None:
    net = Pair()
    cell, expected = amp.build_train_network(net, ours(net), level="O0", clip_norm=CLIP), Expected(net)
    cell(*tensors(batch(0)))
    expected.step(batch(0))
    expected.check(net)
    net = Pair()
    model, expected = Model(net, None, ours(net), clip_norm=CLIP), Expected(net)
    rows = [batch(i, 3 * CLIP) for i in range(3)]
    dataset = ms.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False)
    model.train(1, dataset, dataset_sink_mode=False)
    for grads in rows:
        expected.step(grads)
    expected.check(net)


@in_graph_mode
def test_it_goes_on_from_its_state(mode: int) -> None:
    def trained(steps: range, state=None) -> tuple[nn.Cell, Pair]:
        net = Pair()
        cell = fixed_scale(net, ours)
        if state is not None:
            cell.load_state_dict(state)
        for step in steps:
            cell(*tensors(batch(step, 2 * CLIP)))
        return cell, net

    cell, _ = trained(range(2))
    assert "clip.norm" in cell.state_dict()
    _, resumed = trained(range(2, 4), cell.state_dict())
    _, whole = trained(range(4))
    for one, other in zip(resumed.trainable_params(), whole.trainable_params(), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("1", TypeError, "clip_norm must be a number or None, got str"),
        (True, TypeError, "clip_norm must be a number or None, got bool"),
        (0, ValueError, "clip_norm must be finite and > 0, got 0"),
        (-1.0, ValueError, "clip_norm must be finite and > 0, got -1.0"),
        (math.inf, ValueError, "clip_norm must be finite and > 0, got inf"),
    ],
)
def test_errors(value, error, message) -> None:
    net = Pair()
    with pytest.raises(error, match=message):
        boost.BoostTrainOneStepCell(net, ours(net), clip_norm=value)
    with pytest.raises(error, match=message):
        amp.build_train_network(net, ours(net), clip_norm=value)


def test_not_with_dim_reduce() -> None:
    net = Pair()
    with pytest.raises(ValueError, match="clip_norm must be None with dim_reduce"):
        boost.BoostTrainOneStepCell(net, ours(net), clip_norm=1.0, dim_reduce=DimReduceConfig())
