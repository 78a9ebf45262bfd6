"""Our optimizers in every kind of training loop, beside the oracle on MindSpore's own gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.model_training import Losses, loss_fn, manual, points
from tests.ms.networks import Mlp, classes, mlp_batch
from tests.ms.optim.cases import CASES, CLASSES, Oracle, array, arrays, gradients, parameters
from tests.ms.tiers import standard

from boost_ext import Model, amp, boost
from boost_ext.callbacks import BoostMonitor

STEPS = 8
RATES = dict.fromkeys(CLASSES, 0.01) | {"Momentum": 0.05, "SGD": 0.3, "Lamb": 0.03, "Adagrad": 0.1}
RATES |= {"ProximalAdagrad": 0.1, "RMSProp": 0.1, "FTRL": 0.5, "AdaFactor": 0.3, "Muon": 0.05, "ScheduleFreeSGD": 0.3}
RATES |= {"GaLore": 0.1}


def batch(step: int) -> tuple[Tensor, Tensor]:
    x, _ = mlp_batch(step % 2, 32)
    return x, Tensor(np.argmax(x.asnumpy()[:, :4], axis=1).astype(np.int32))


class Weighted(nn.Cell):
    """The loss times a weight: an infinite one makes every gradient inf or nan."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.loss = classes(net)

    def construct(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return self.loss(x, y) * weight


@cache
def expected_losses(name: str, per_step: int = 1) -> tuple[float, ...]:
    """Of the oracle; an update for every `per_step` batches. Once for both modes, in PYNATIVE_MODE."""
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = Mlp()
    params = list(net.trainable_params())
    expected = Oracle(CASES[name], params)
    grad = ms.value_and_grad(classes(net), None, ms.ParameterTuple(params))
    losses, held = [], []
    for step in range(STEPS):
        loss, grads = grad(*batch(step))
        losses.append(float(loss.asnumpy()))
        held.append(grads)
        if len(held) == per_step:
            means = [sum(array(g) for g in each) / per_step for each in zip(*held, strict=True)]
            expected([Tensor(mean, ms.float32) for mean in means], RATES[name])
            held = []
            for p, w in zip(params, expected.weights, strict=True):
                p.set_data(Tensor(w, ms.float32))
    ms.set_context(mode=mode)
    # FTRL forgets the weights that it begins with: its moments say what they are.
    assert sum(losses[-2:]) < (1.0 if name == "FTRL" else 0.9) * sum(losses[:2])
    return tuple(losses)


def make(name: str, net: nn.Cell) -> nn.Optimizer:
    return CASES[name].make(net.trainable_params(), RATES[name])


def assert_losses(got: Sequence[float], name: str, per_step: int = 1) -> None:
    np.testing.assert_allclose(got, expected_losses(name, per_step), rtol=2e-4)


@pytest.mark.parametrize("name", CLASSES)
@standard(lambda p: p.graph == (p.name in ("SGD", "Adam", "Lamb", "AdaFactor", "FTRL", "RMSProp", "Adagrad")))
def test_dynamic_loss_scale(mode: int, name: str) -> None:
    """A step that overflows changes no weight, no state and no step counter."""
    net = Mlp()
    optimizer = make(name, net)
    manager = amp.DynamicLossScaleManager(2.0**10, 2, 100)
    cell = amp.build_train_network(Weighted(net), optimizer, level="O0", loss_scale_manager=manager).set_train()
    losses = []
    for step in range(STEPS):
        if step == 3:
            before = {p.name: p.asnumpy().copy() for p in optimizer.get_parameters()}
            assert bool(cell(*batch(step), Tensor(np.inf, ms.float32))[1])
            for p in optimizer.get_parameters():
                np.testing.assert_array_equal(p.asnumpy(), before[p.name], err_msg=p.name)
        loss, overflow, scale = cell(*batch(step), Tensor(1.0, ms.float32))
        assert not bool(overflow)
        assert float(scale) == (2.0**10 if step < 3 else 2.0**9)
        losses.append(float(loss.asnumpy()))
    assert_losses(losses, name)
    assert optimizer.global_step.asnumpy() == [STEPS]


def with_compile(compile: str) -> Callable[[nn.Cell, nn.Optimizer], Callable[..., Any]]:
    def make_step(net: nn.Cell, optimizer: nn.Optimizer) -> Callable[..., Any]:
        cell = boost.BoostTrainOneStepCell(classes(net), optimizer, compile=compile).set_train()
        return lambda *inputs: cell(*inputs)[0]

    return make_step


def mindspores_cell(net: nn.Cell, optimizer: nn.Optimizer) -> Callable[..., Any]:
    return nn.TrainOneStepCell(classes(net), optimizer).set_train()


def functional(net: nn.Cell, optimizer: nn.Optimizer) -> Callable[..., Any]:
    grad = ms.value_and_grad(classes(net), None, optimizer.parameters)

    def step(*inputs: Tensor) -> Tensor:
        loss, grads = grad(*inputs)
        optimizer(grads)
        return loss

    return step


def compiled(net: nn.Cell, optimizer: nn.Optimizer) -> Callable[..., Any]:
    return ms.jit(functional(net, optimizer))


LOOPS = {"network": with_compile("network"), "off": with_compile("off"), "TrainOneStepCell": mindspores_cell}
LOOPS |= {"functional": functional, "jit": compiled}


MODES = [pytest.param(ms.PYNATIVE_MODE, loop, id=f"pynative-{loop}") for loop in LOOPS]
# GRAPH_MODE compiles everything, whatever `compile` says.
MODES += [pytest.param(ms.GRAPH_MODE, loop, id=f"graph-{loop}") for loop in LOOPS if loop not in ("network", "off")]


@pytest.mark.parametrize(("mode", "loop"), MODES, indirect=["mode"])
@pytest.mark.parametrize("name", ["Momentum", "Adam", "Lamb"])
@standard(lambda p: p.name == "Adam" or (p.name, p.loop) in (("Momentum", "network"), ("Lamb", "jit")))
def test_loops(mode: int, name: str, loop: str) -> None:
    net = Mlp()
    step = LOOPS[loop](net, make(name, net))
    assert_losses([float(step(*batch(i)).asnumpy()) for i in range(STEPS)], name)


@pytest.mark.parametrize("name", ["SGD", "Adam", "FTRL"])
@standard(lambda p: p.graph == (p.name == "Adam"))
def test_accumulation(mode: int, name: str) -> None:
    net = Mlp()
    cell = boost.BoostTrainOneStepCell(classes(net), make(name, net), accumulation_steps=2).set_train()
    assert_losses([float(cell(*batch(i))[0].asnumpy()) for i in range(STEPS)], name, 2)


@cache
def frozen_losses(name: str, mode: int) -> tuple[float, ...]:
    net = Mlp()
    config = manual(grad_freeze=True) | {"grad_freeze": {"param_groups": 2, "freeze_p": 0.5, "total_steps": STEPS}}
    optimizer = make(name, net)
    cell = amp.build_train_network(classes(net), optimizer, level="O0", boost_level="O1", boost_config_dict=config)
    cell.set_train()
    losses = tuple(float(cell(*batch(i))[0].asnumpy()) for i in range(STEPS))
    assert cell.plan.applies("grad_freeze")
    assert cell.optimizer.optimizer.global_step.asnumpy() == [STEPS], "of the optimizer that O1 made of ours"
    return losses


@pytest.mark.parametrize("name", ["SGD", "Adam", "Lamb"])
@standard(lambda p: p.graph == (p.name == "Adam") and p.name != "Lamb")
def test_freezing(mode: int, name: str) -> None:
    """In both modes alike."""
    losses = frozen_losses(name, mode)
    assert sum(losses[-2:]) < 0.9 * sum(losses[:2])
    assert losses != expected_losses(name)
    if mode == ms.GRAPH_MODE:
        ms.set_context(mode=ms.PYNATIVE_MODE)
        np.testing.assert_allclose(losses, frozen_losses(name, ms.PYNATIVE_MODE), rtol=2e-4)


@pytest.mark.parametrize("name", ["Momentum", "AdamWeightDecay", "RMSProp"])
@standard(lambda p: p.graph == (p.name == "Momentum"))
def test_model_with_callbacks(mode: int, name: str, tmp_path: Any) -> None:
    ours, reference, seen = Mlp(), Mlp(), Losses()
    model = Model(ours, loss_fn(), make(name, ours))
    model.train(3, points(), callbacks=[seen, BoostMonitor(tmp_path / "run.jsonl")], dataset_sink_mode=False)
    assert seen.seen[-1] < seen.seen[0]
    assert (tmp_path / "run.jsonl").stat().st_size > 0
    ms.Model(reference, loss_fn(), make(name, reference)).train(3, points(), dataset_sink_mode=False)
    for p, q in zip(ours.get_parameters(), reference.get_parameters(), strict=True):
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=1e-4, atol=1e-6)


class Twice(nn.Cell):
    """Two steps in one graph, the second only `go`; the weight before, between and after."""

    def __init__(self, optimizer: nn.Optimizer, weight: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer, self.weight = optimizer, weight

    def construct(self, go: Tensor, first: Any, second: Any) -> tuple[Tensor, ...]:
        before = self.weight * 1.0
        self.optimizer(first)
        between = self.weight * 1.0
        if go[0] > 0:
            self.optimizer(second)
        return before, between, self.weight * 1.0


@pytest.mark.parametrize("name", ["SGD-dampening", "Adam", "FTRL"])
@standard(lambda p: not p.graph or p.name != "FTRL")
def test_twice_in_one_graph(mode: int, name: str) -> None:
    """In order, with the learning rate of each step, and nothing where the branch is not taken."""
    case, params = CASES[name], parameters()
    expected = Oracle(case, params)
    lr = [0.1] * 6 if case.one_rate else [0.1, 0.3, 0.05, 0.2, 0.01, 0.15]
    cell = Twice(case.make(params, 0.1 if case.one_rate else lr), params[0])
    done = 0
    for call, go in enumerate((1, 0, 1)):
        grads = gradients(2 * call, params), gradients(2 * call + 1, params)
        seen = [expected.weights[0]]
        for g in grads[: 1 + go]:
            expected(g, lr[done])
            done += 1
            seen.append(expected.weights[0])
        seen += [seen[-1]] * (3 - len(seen))
        for got, want in zip(arrays(cell(Tensor([go], ms.int32), *grads)), seen, strict=True):
            np.testing.assert_allclose(got, want, rtol=case.rtol, atol=case.atol)
        expected.assert_weights(params)


@pytest.mark.parametrize("change", ["assign", "set_data"])
def test_a_learning_rate_that_is_changed(mode: int, change: str) -> None:
    case, params = CASES["Momentum"], parameters()
    expected = Oracle(case, params)
    optimizer = case.make(params)
    for step, rate in enumerate((0.1, 0.1, 0.025, 0.5)):
        if change == "assign":
            ops.assign(optimizer.learning_rate, Tensor(rate, ms.float32))
        else:
            optimizer.learning_rate.set_data(Tensor(rate, ms.float32))
        optimizer(gradients(step, params))
        expected(gradients(step, params), rate)
    expected.assert_weights(params)


@pytest.mark.parametrize("how", ["set_data", "load_param_into_net", "state"])
def test_storage_that_moves(mode: int, how: str) -> None:
    """Pointers are never kept across a change of what they point to."""
    case, params = CASES["Adam"], parameters()
    expected = Oracle(case, params)
    optimizer = case.make(params)
    kept = []  # so that new storage cannot lie where the old one was
    for step in range(5):
        grads = gradients(step, params)
        optimizer(grads)
        expected(grads)
        if step in (1, 3):
            for i, p in enumerate(params):
                value = np.full(p.shape, 0.25 * (step + i), np.float32)
                target = optimizer.moment1[i] if how == "state" else p
                new = Tensor(value)
                kept += [target.asnumpy(), new]
                if how == "load_param_into_net":
                    ms.load_param_into_net(optimizer, {p.name: Parameter(new, name=p.name)})
                else:
                    target.set_data(new)
                if how == "state":
                    expected.states[i] = (value.astype(np.float64), *expected.states[i][1:])
                else:
                    expected.weights[i] = value.astype(np.float64)
    expected.assert_weights(params)


@pytest.mark.parametrize("change", ["set_data", "load_param_into_net"])
@pytest.mark.parametrize("name", ["Momentum", "SGD-momentum"])
def test_a_momentum_that_is_changed(mode: int, name: str, change: str) -> None:
    """Made with another one, which the first step, from no momentum, does not show."""
    case, params = CASES[name], parameters()
    expected = Oracle(case, params)
    optimizer = case.ours(params, 0.1, momentum=0.5)
    for step in range(3):
        optimizer(gradients(step, params))
        expected(gradients(step, params))
        if step == 0:
            found = Parameter(Tensor(0.9, ms.float32), name="momentum")
            if change == "set_data":
                optimizer.momentum.set_data(found)
            else:
                ms.load_param_into_net(optimizer, {"momentum": found})
    expected.assert_weights(params)
    assert optimizer.momentum.asnumpy() == np.float32(0.9)


def test_a_momentum_that_nothing_was_made_for() -> None:
    params = parameters()
    optimizer = CASES["SGD"].make(params)
    optimizer.momentum.set_data(Tensor(0.9, ms.float32))
    with pytest.raises(ValueError, match=r"sgd_step: accum must be given with momentum 0\.9\d*, got none"):
        optimizer(gradients(0, params))
