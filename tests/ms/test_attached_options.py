"""The plan tells the truth where the optimizer, or the network, is not what AutoBoost expected."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from tests.ms.model_training import ACCUMULATE, FREEZE, loss_fn, manual, momentum, points, snapshot
from tests.ms.networks import Mlp, classes, layers, mlp_batch

from boost_ext import Model, amp, boost, optim
from boost_ext.boost import AutoBoost, BoostTrainOneStepCell
from boost_ext.ms.step.options import StepOptions

BOTH = FREEZE | manual(grad_freeze=True, grad_accumulation=True) | {"grad_accumulation": {"grad_accumulation_step": 4}}


def boosted(config: Any = BOTH) -> tuple[nn.Cell, nn.Cell]:
    net = Mlp()
    return AutoBoost("O0", config).network_auto_process_train(net, momentum(net))


@pytest.mark.parametrize("how", ["Model", "build_train_network", "cell"])
def test_what_an_optimizer_brings_is_applied(how: str) -> None:
    net, optimizer = boosted()
    if how == "Model":
        model = Model(net, loss_fn(), optimizer)
        cell = model.train_network
        assert model.plan is cell.plan
    elif how == "build_train_network":
        cell = amp.build_train_network(net, optimizer, loss_fn())
    else:
        cell = BoostTrainOneStepCell(classes(net), optimizer, plan=AutoBoost("O0").plan)
    assert cell.freeze
    assert cell.accumulation.max_accumulation_step == 4
    for name, details in (("grad_freeze", {"groups": 2}), ("grad_accumulation", {"grad_accumulation_step": 4})):
        decision = cell.plan[name]
        assert (decision.status, decision.reason) == ("applied", "brought by the optimizer")
        assert dict(decision.details) == details
    assert cell.plan["dim_reduce"].status == "skipped"


def test_what_the_arguments_of_a_cell_bring() -> None:
    net = Mlp()
    cell = BoostTrainOneStepCell(classes(net), momentum(net), accumulation_steps=2, plan=AutoBoost("O1").plan)
    decision = cell.plan["grad_accumulation"]
    assert (decision.status, decision.reason) == ("applied", "an argument of the training cell")
    assert cell.plan["grad_freeze"].reason == "neither the optimizer nor the training cell has it"
    net, optimizer = boosted()
    cell = BoostTrainOneStepCell(classes(net), optimizer, accumulation_steps=2, plan=AutoBoost("O0", BOTH).plan)
    assert cell.plan["grad_accumulation"].details["grad_accumulation_step"] == 2


def test_a_second_autoboost_keeps_what_the_first_has_switched_on() -> None:
    net = Mlp()
    config = manual(grad_accumulation=True) | {"grad_accumulation": {"grad_accumulation_step": 3}}
    _, first = AutoBoost("O0", config).network_auto_process_train(net, momentum(net))
    second = AutoBoost("O0", manual(grad_freeze=True) | {"grad_freeze": {"total_steps": 10}})
    _, optimizer = second.network_auto_process_train(net, first)
    assert optimizer.boost_options == StepOptions(accumulation_steps=3)
    assert second.plan["grad_accumulation"].reason == "brought by the optimizer"
    assert second.plan.applies("grad_freeze")


@pytest.mark.parametrize("kind", ["momentum", "adam", "fused"])
def test_nobody_else_steps_it(mode: int, kind: str) -> None:
    """mindspore.Model would train without accumulation and without a word."""
    net = Mlp()
    make = {"momentum": nn.Momentum, "adam": nn.Adam, "fused": optim.Momentum}[kind]
    old = make(net.trainable_params(), 0.05, **({} if kind == "adam" else {"momentum": 0.9}))
    _, optimizer = AutoBoost("O0", ACCUMULATE).network_auto_process_train(net, old)
    assert isinstance(optimizer, make)
    model = ms.Model(net, loss_fn(), optimizer)
    before = snapshot(net)
    with pytest.raises(TypeError, match="AutoBoost: its optimizer must be given to BoostTrainOneStepCell"):
        model.train(1, points(2))
    for name, value in snapshot(net).items():
        np.testing.assert_array_equal(value, before[name])
    Model(net, loss_fn(), optimizer).train(1, points(4))
    assert int(old.global_step.asnumpy().item()) == 2
    assert type(old) is make


def test_what_is_made_of_it_accumulates_too() -> None:
    net = Mlp()
    _, optimizer = AutoBoost("O0", ACCUMULATE).network_auto_process_train(net, momentum(net))
    frozen = boost.FreezeOpt(optimizer, layers(net))
    rebuilt = boost.OptimizerProcess(optimizer).generate_new_optimizer()
    for made in (frozen, rebuilt):
        assert made.boost_options == StepOptions(accumulation_steps=2)
        cell = BoostTrainOneStepCell(classes(net), made)
        for step in range(2):
            cell(*mlp_batch(step, 8))
    assert int(frozen.optimizer.global_step.asnumpy().item()) == 1
    assert int(rebuilt.global_step.asnumpy().item()) == 1


@pytest.mark.parametrize(
    ("level", "on"),
    [("O1", "grad_centralization, grad_freeze"), ("O2", "less_bn, grad_centralization, grad_freeze")],
)
def test_a_freezeopt_is_refused_with_advice(level: str, on: str) -> None:
    net, optimizer = boosted()
    names = [p.name for p in net.get_parameters()]
    with pytest.raises(
        TypeError, match=rf"must be an Optimizer for {on}, got a FreezeOpt.*so it freezes already. Give"
    ):
        Model(net, loss_fn(), optimizer, boost_level=level)
    assert [p.name for p in net.get_parameters()] == names


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"freeze_p": 1}, "grad_freeze.freeze_p is 1: every step trains everything"),
        ({"param_groups": 1}, "grad_freeze.param_groups is 1: every step trains everything"),
        ({"total_steps": 1}, "no step leaves out a parameter of the optimizer"),
    ],
)
def test_nothing_freezes(settings: dict[str, Any], reason: str) -> None:
    net = Mlp()
    auto = AutoBoost("O0", manual(grad_freeze=True) | {"grad_freeze": settings})
    old = momentum(net)
    _, optimizer = auto.network_auto_process_train(net, old)
    assert optimizer is old
    assert (auto.plan["grad_freeze"].status, auto.plan["grad_freeze"].reason) == ("skipped", reason)


def test_one_block() -> None:
    net = nn.SequentialCell(nn.Dense(4, 4))
    auto = AutoBoost("O2")
    auto.network_auto_process_train(net, momentum(net))
    assert auto.plan["grad_freeze"].reason == "the network is one block: there are no layers to leave out"
    assert "grad_freeze is on" not in auto.plan["adasum"].reason


def test_a_freezeopt_that_never_freezes() -> None:
    net = Mlp()
    optimizer = boost.FreezeOpt(momentum(net), layers(net), [0])
    cell = BoostTrainOneStepCell(classes(net), optimizer, plan=AutoBoost("O0").plan)
    assert not cell.plan.applies("grad_freeze")


@pytest.mark.parametrize("name", ["net", "subnet", "bneck", "alphabeta", "my_bn"])
def test_the_name_above_the_layers_is_no_batch_norm(name: str) -> None:
    top = nn.Cell()
    top.insert_child_to_cell(name, nn.SequentialCell([nn.Dense(2, 2) for _ in range(8)]))
    assert len(boost.GradientFreeze(4, 1, 0.5, 10).split_parameters_groups(top, 4)) == 4
