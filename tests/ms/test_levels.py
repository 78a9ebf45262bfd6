"""What O1 and O2 make of a network and an optimizer: a level's own defaults where the configuration says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from mindspore import nn
from tests.ms.residual_networks import Basic, ResNet, fill

from boost_ext import Model, amp
from boost_ext.ms.training.auto import AutoBoost

STEPS = 1000


def trained(level: str, mode: str, **sections: Any) -> tuple[AutoBoost, set[str], float]:
    """The AutoBoost, what the optimizer has, and the share of steps that freeze nothing."""
    net = fill(ResNet(Basic))
    settings = {"total_steps": STEPS, **sections.pop("grad_freeze", {})}
    boost = AutoBoost(level, {"boost": {"mode": mode}, "grad_freeze": settings, **sections})
    _, optimizer = boost.network_auto_process_train(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    return boost, {p.name for p in optimizer.parameters}, optimizer.schedule.count(0) / len(optimizer.schedule)


@pytest.mark.parametrize("mode", ["auto", "manual"])
@pytest.mark.parametrize(("level", "freeze_p"), [("O1", 0.7), ("O2", 0.6)])
def test_own_defaults(level: str, freeze_p: float, mode: str) -> None:
    boost, parameters, share = trained(level, mode)
    assert share == pytest.approx(freeze_p, abs=2 / STEPS)
    assert boost.plan["grad_freeze"].details["freeze_p"] == boost.config.grad_freeze.freeze_p == freeze_p
    assert "param_groups 2, freeze_type 2" in boost.plan["grad_freeze"].reason
    assert boost.plan["fn_head"].reason == f"level {level} leaves it out (less_bn.fn_flag switches it on)"
    assert "fc.multiplier" not in parameters
    other = boost.network_auto_process_eval(fill(ResNet(Basic), 9))
    assert "fc.multiplier" not in {p.name for p in other.get_parameters()}


@pytest.mark.parametrize("mode", ["auto", "manual"])
@pytest.mark.parametrize("level", ["O1", "O2"])
def test_what_is_given_wins(level: str, mode: str) -> None:
    boost, parameters, share = trained(level, mode, grad_freeze={"freeze_p": 0.6}, less_bn={"fn_flag": True})
    assert share == pytest.approx(0.6, abs=2 / STEPS)
    assert boost.plan.applies("fn_head")
    assert "fc.multiplier" in parameters


def test_o2_freezes_more_than_o1() -> None:
    shares = [trained(level, "auto")[2] for level in ("O1", "O2")]
    assert shares[0] - shares[1] == pytest.approx(0.1, abs=4 / STEPS)


def test_manual_at_o0_has_the_documented_defaults() -> None:
    net = fill(ResNet(Basic))
    boost = AutoBoost("O0", {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": True}})
    _, optimizer = boost.network_auto_process_train(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    assert boost.plan["grad_freeze"].details["freeze_p"] == 0.7
    assert "fc.multiplier" in {p.name for p in optimizer.parameters}


@pytest.mark.parametrize(("level", "freeze_p"), [("O1", 0.7), ("O2", 0.6)])
def test_build_train_network_and_model(level: str, freeze_p: float) -> None:
    settings = {"grad_freeze": {"total_steps": STEPS}}
    loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    for build in (
        lambda net, optimizer: amp.build_train_network(
            net, optimizer, loss_fn, boost_level=level, boost_config_dict=settings
        ),
        lambda net, optimizer: (
            Model(net, loss_fn, optimizer, boost_level=level, boost_config_dict=settings).train_network
        ),
    ):
        net = fill(ResNet(Basic))
        cell = build(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
        schedule = cell.optimizer.schedule
        assert schedule.count(0) / len(schedule) == pytest.approx(freeze_p, abs=2 / STEPS)
        assert cell.plan["grad_freeze"].details["freeze_p"] == freeze_p
        assert not cell.plan.applies("fn_head")
