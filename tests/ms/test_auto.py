"""AutoBoost: the plan carried out on networks and optimizers."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from tests.ms.networks import Mlp, classes, mlp_batch
from tests.ms.residual_networks import INNER, Basic, ResNet, batch, fill, with_loss
from tests.ms.tiers import standard

from boost_ext.config import FEATURES, BoostConfig
from boost_ext.ms.freeze.freeze_optimizer import FreezeOpt
from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.step.cells import BoostTrainOneStepCell
from boost_ext.ms.step.options import StepOptions
from boost_ext.ms.training.auto import AutoBoost

FN_HEAD = {"less_bn": {"bn_flag": True, "fn_flag": True}}


def manual(**switches: bool) -> dict[str, Any]:
    return {"boost": {"mode": "manual", **switches}}


def momentum(network: nn.Cell, **kwargs: Any) -> nn.Optimizer:
    return nn.Momentum(network.trainable_params(), 0.05, 0.9, **kwargs)


def names(network: nn.Cell) -> list[str]:
    return [p.name for p in network.get_parameters()]


def resnet() -> nn.Cell:
    return fill(ResNet(Basic))


class TestObject:
    def test_attributes(self) -> None:
        boost = AutoBoost("O1", {"grad_freeze": {"freeze_p": 0.5}})
        assert boost.level == "O1"
        assert boost.config == BoostConfig.load({"grad_freeze": {"freeze_p": 0.5}}).at_level("O1")
        assert boost.config.grad_freeze.model_fields_set == {"freeze_p"}
        assert boost.plan.applies("grad_centralization")
        assert boost.boost_config == dict.fromkeys(FEATURES, False) | {"less_bn": True, "grad_freeze": True}

    def test_h11_two_objects_do_not_know_of_each_other(self) -> None:
        """The reference is a singleton, and mode manual edits the table of levels for the whole process."""
        first = AutoBoost("O1", manual(less_bn=False))
        second = AutoBoost("O1")
        assert first is not second
        assert not first.boost_config["less_bn"]
        assert second.boost_config["less_bn"]
        assert AutoBoost("O2").level == "O2"

    def test_h11_an_unknown_level_is_refused(self) -> None:
        for bad in ("O3", "o1", "auto"):
            with pytest.raises(ValueError, match=r"AutoBoost: level must be one of \['O0', 'O1', 'O2'\], got"):
                AutoBoost(bad)
        with pytest.raises(TypeError, match="AutoBoost: level must be a str, got int"):
            AutoBoost(1)

    def test_a_json_file(self, tmp_path: Path) -> None:
        path = tmp_path / "boost.json"
        path.write_text(json.dumps(manual(grad_freeze=True)))
        assert AutoBoost("O0", str(path)).boost_config["grad_freeze"]

    def test_bad_mode(self) -> None:
        with pytest.raises(ValueError, match=r"boost.mode: must be one of .*got 'all'"):
            AutoBoost("O1", {"boost": {"mode": "all"}})


class TestNothing:
    @pytest.mark.parametrize("arguments", [("O0",), ("O2", {"boost": {"mode": "disable_all"}})])
    def test_network_and_optimizer_come_back(self, arguments: tuple[Any, ...]) -> None:
        net = resnet()
        optimizer, before = momentum(net), names(net)
        boost = AutoBoost(*arguments)
        assert boost.network_auto_process_train(net, optimizer) == (net, optimizer)
        assert boost.network_auto_process_eval(net) is net
        assert names(net) == before
        assert not hasattr(optimizer, "boost_options")


class TestLessBN:
    def test_the_plan_knows_what_was_removed(self) -> None:
        net = resnet()
        boost = AutoBoost("O1", FN_HEAD)
        network, _ = boost.network_auto_process_train(net, momentum(net))
        decision = boost.plan["less_bn"]
        assert decision.reason.startswith("removed 4 of 10 batch norms")
        assert decision.details["removed"] == INNER[Basic]
        assert boost.plan["fn_head"].details == {"head": "fc"}
        assert network is net
        assert "fc.multiplier" in names(net)
        assert not [n for n in names(net) if n.startswith("layer1.0.bn1")]

    def test_the_optimizer_is_rebuilt_over_what_remains(self) -> None:
        net = resnet()
        old = momentum(net, weight_decay=0.1)
        before = [p.name for p in old.parameters]
        _, new = AutoBoost("O0", manual(less_bn=True)).network_auto_process_train(net, old)
        assert [p.name for p in old.parameters] == before
        assert isinstance(new, nn.Momentum)
        gone = {f"{n}.{p}" for n in INNER[Basic] for p in ("gamma", "beta")}
        assert {p.name for p in new.parameters} == (set(before) - gone) | {"fc.multiplier"}
        by_name = {p.name: p for p in net.get_parameters()}
        assert all(p is by_name[p.name] for p in new.parameters)

    def test_what_the_user_does_not_train_stays_untrained(self) -> None:
        net = resnet()
        head = [p for p in net.trainable_params() if p.name.startswith(("fc", "layer2"))]
        extra = ms.Parameter(Tensor([1.0]), name="temperature")  # of a loss
        optimizer = nn.Momentum([*head, extra], 0.1, 0.9)
        _, new = AutoBoost("O0", manual(less_bn=True)).network_auto_process_train(net, optimizer)
        trained = {p.name for p in new.parameters}
        assert "conv1.weight" not in trained
        assert {"temperature", "fc.weight", "fc.multiplier", "layer2.0.conv1.weight"} <= trained

    @pytest.mark.parametrize("bn_flag", [False, True])
    @pytest.mark.parametrize("fn_flag", [False, True])
    @pytest.mark.parametrize("gc_flag", [False, True])
    def test_flags(self, bn_flag: bool, fn_flag: bool, gc_flag: bool) -> None:
        net = resnet()
        config = manual(less_bn=True) | {"less_bn": {"bn_flag": bn_flag, "fn_flag": fn_flag, "gc_flag": gc_flag}}
        boost = AutoBoost("O0", config)
        _, optimizer = boost.network_auto_process_train(net, momentum(net))
        assert ("fc.multiplier" in names(net)) is fn_flag
        assert ("layer1.0.bn1.gamma" in names(net)) is not bn_flag
        assert boost.plan.applies("less_bn") is bn_flag
        assert boost.plan.applies("fn_head") is fn_flag
        assert boost.plan.applies("grad_centralization") is gc_flag
        centralized = {p.name for p, on in zip(optimizer.parameters, centralization(optimizer), strict=True) if on}
        assert centralized >= {"conv1.weight"} if gc_flag else not centralized
        assert "fc.multiplier" not in centralized
        count = f"less_bn.gc_flag is True: {len(centralized)} of {len(optimizer.parameters)} parameters"
        applied = f"{count}; for accuracy, it costs time"
        assert boost.plan["grad_centralization"].reason == (applied if gc_flag else "less_bn.gc_flag is False")

    def test_the_optimizer_goes_on_from_its_state(self) -> None:
        net = resnet()
        old = momentum(net)
        for moment in old.moments:
            moment.set_data(Tensor(np.full(moment.shape, 0.25, np.float32)))
        _, new = AutoBoost("O0", manual(less_bn=True)).network_auto_process_train(net, old)
        for p, moment in zip(new.parameters, new.moments, strict=True):
            assert np.all(moment.asnumpy() == (0.0 if p.name == "fc.multiplier" else 0.25))

    def test_no_residual_branch(self) -> None:
        net = Mlp()
        boost = AutoBoost("O0", manual(less_bn=True))
        _, optimizer = boost.network_auto_process_train(net, momentum(net))
        assert boost.plan["less_bn"].status == "skipped"
        assert "no residual branch found" in boost.plan["less_bn"].reason
        assert boost.plan["fn_head"].reason == "head is a CommonHeadLastFN"
        assert "head.multiplier" in {p.name for p in optimizer.parameters}

    def test_the_plan_is_that_of_the_last_training_network(self) -> None:
        boost = AutoBoost("O0", manual(less_bn=True))
        plain, residual = Mlp(), resnet()
        boost.network_auto_process_train(plain, momentum(plain))
        boost.network_auto_process_train(residual, momentum(residual))
        assert boost.plan["less_bn"].reason.startswith("removed 4 of 10")
        boost.network_auto_process_eval(Mlp())
        assert boost.plan["less_bn"].reason.startswith("removed 4 of 10")

    def test_split_groups(self) -> None:
        for points, expected in ((3, {1, 2}), ([2, 5], {1, 2, 3})):
            net = resnet()
            boost = AutoBoost("O0", manual(less_bn=True) | {"common": {"gradient_split_groups": points}})
            _, optimizer = boost.network_auto_process_train(net, momentum(net))
            assert {p.comm_fusion for p in optimizer.parameters} == expected


class TestEvaluation:
    @pytest.mark.parametrize("fn_flag", [False, True])
    @standard(lambda p: p.graph == p.fn_flag)
    def test_a_checkpoint_fits_both(self, mode: int, fn_flag: bool, tmp_path: Path) -> None:
        """The reference forgets the FN head in evaluation."""
        boost = AutoBoost("O0", manual(less_bn=True) | {"less_bn": {"fn_flag": fn_flag}})
        net, optimizer = boost.network_auto_process_train(*(lambda n: (n, momentum(n)))(resnet()))
        BoostTrainOneStepCell(with_loss(net), optimizer).set_train()(*batch())
        ms.save_checkpoint(net, str(tmp_path / "net.ckpt"))
        other = boost.network_auto_process_eval(fill(ResNet(Basic), 9))
        missing, unused = ms.load_param_into_net(other, ms.load_checkpoint(str(tmp_path / "net.ckpt")))
        assert (missing, unused) == ([], [])
        x = batch()[0]
        net.set_train(False), other.set_train(False)
        np.testing.assert_array_equal(other(x).asnumpy(), net(x).asnumpy())

    def test_idempotent_on_the_same_network(self) -> None:
        boost = AutoBoost("O1", FN_HEAD)
        net = resnet()
        boost.network_auto_process_train(net, momentum(net))
        before = [(p.name, id(p)) for p in net.get_parameters()]
        assert boost.network_auto_process_eval(net) is net
        assert boost.network_auto_process_eval(with_loss(net)) is not net
        assert [(p.name, id(p)) for p in net.get_parameters()] == before


class TestFreeze:
    def test_groups(self) -> None:
        net = Mlp()
        config = manual(grad_freeze=True) | {"grad_freeze": {"param_groups": 2, "total_steps": 10}}
        boost = AutoBoost("O0", config)
        _, optimizer = boost.network_auto_process_train(net, momentum(net))
        assert isinstance(optimizer, FreezeOpt)
        details = boost.plan["grad_freeze"].details
        assert details["groups"] == 2
        assert details["frozen_shares"][0] == 0
        assert 0 < details["frozen_shares"][1] < 1
        assert details["freeze_p"] == 0.7

    def test_more_groups_than_blocks_is_said(self) -> None:
        net = Mlp()
        boost = AutoBoost("O0", manual(grad_freeze=True))
        boost.network_auto_process_train(net, momentum(net))
        assert "10 groups were asked for, the network has 2 blocks: 2 groups" in boost.plan["grad_freeze"].reason


class TestOptions:
    def test_accumulation_travels_with_a_new_optimizer(self) -> None:
        net = Mlp()
        config = manual(grad_accumulation=True) | {"grad_accumulation": {"grad_accumulation_step": 3}}
        old = momentum(net)
        _, new = AutoBoost("O0", config).network_auto_process_train(net, old)
        assert new is not old
        assert not hasattr(old, "boost_options")
        assert new.boost_options == StepOptions(accumulation_steps=3)

    def test_accumulation_with_freezing(self, mode: int) -> None:
        net = Mlp()
        config = manual(grad_accumulation=True, grad_freeze=True) | {
            "grad_accumulation": {"grad_accumulation_step": 2},
            "grad_freeze": {"param_groups": 2, "freeze_p": 0.5, "total_steps": 8},
        }
        network, optimizer = AutoBoost("O0", config).network_auto_process_train(net, momentum(net))
        cell = BoostTrainOneStepCell(classes(network), optimizer)
        for i in range(4):
            assert np.isfinite(cell(*mlp_batch(i, 8))[0].asnumpy())
        assert cell.accumulation.max_accumulation_step == 2
        assert int(optimizer.position.asnumpy()[0]) == 2

    def test_dim_reduce_keeps_the_users_optimizer(self, mode: int, tmp_path: Path) -> None:
        """The reference replaces it by an SGD with learning rate 1."""
        net = Mlp()
        elements = sum(p.size for p in net.trainable_params())
        matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((elements, 3)))[0].T
        np.save(tmp_path / "pca.npy", np.ascontiguousarray(matrix, np.float32))
        config = manual(dim_reduce=True) | {
            "dim_reduce": {"n_components": 3, "pca_mat_path": str(tmp_path / "pca.npy")}
        }
        optimizer = momentum(net)
        network, new = AutoBoost("O0", config).network_auto_process_train(net, optimizer)
        assert isinstance(new, nn.Momentum)
        assert list(new.parameters) == list(optimizer.parameters)
        cell = BoostTrainOneStepCell(classes(network), new)
        assert cell.check_dim_reduce_enable()
        cell(*mlp_batch(0, 8))
        assert int(optimizer.global_step.asnumpy().item()) == 1  # one state

    def test_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from boost_ext.ms.training import auto

        monkeypatch.setattr(auto, "rank_count", lambda: 12)
        boost = AutoBoost("O0", manual(adasum=True))
        assert boost.plan.refused == ("adasum",)
        net = Mlp()
        with pytest.raises(ValueError, match=r"AutoBoost: adasum was asked for, but common\.device_number must divide"):
            boost.network_auto_process_train(net, momentum(net))


def test_the_plan_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    net = resnet()
    boost = AutoBoost("O1")
    with caplog.at_level(logging.INFO, logger="boost_ext"):
        network, _ = boost.network_auto_process_train(net, momentum(net))
        boost.network_auto_process_eval(network)
    records = [r for r in caplog.records if r.name == "boost_ext"]
    assert len(records) == 1
    assert records[0].getMessage() == str(boost.plan)


def centralization(optimizer: nn.Optimizer) -> list[bool]:
    flags = getattr(optimizer, "grad_centralization_flags", None)
    return [False] * len(optimizer.parameters) if flags is None else [bool(f) for f in flags]


@pytest.mark.parametrize("level", ["O1", "O2"])
@standard(lambda p: p.graph == (p.level == "O2"))
def test_the_loss_falls(mode: int, level: str) -> None:
    net = resnet()
    network, optimizer = AutoBoost(level).network_auto_process_train(net, momentum(net))
    cell = BoostTrainOneStepCell(with_loss(network), optimizer).set_train()
    losses = [float(cell(*batch())[0].asnumpy()) for _ in range(12)]
    assert losses[-1] < 0.5 * losses[0]


def test_the_plan_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "autoboost.md").read_text()
    (text,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    boost, net = AutoBoost("O2"), resnet()
    boost.network_auto_process_train(net, momentum(net))
    assert text == f"{boost.plan}\n"


class TestLossScaleGroup:
    @pytest.mark.parametrize("config", ["", manual(loss_scale_group=True), manual(less_bn=False)])
    def test_a_group_manager_switches_it_on(self, config: Any) -> None:
        boost = AutoBoost("O0", config)
        boost.take_loss_scale(GroupLossScaleManager(16, []))
        assert boost.plan.applies("loss_scale_group")
        assert boost.boost_config["loss_scale_group"]
        net = Mlp()
        boost.network_auto_process_train(net, momentum(net))
        assert boost.plan.applies("loss_scale_group")

    def test_other_managers_change_nothing(self) -> None:
        boost = AutoBoost("O1")
        before = boost.plan
        boost.take_loss_scale(None)
        boost.take_loss_scale(ms.amp.DynamicLossScaleManager())
        assert boost.plan is before

    @pytest.mark.parametrize("config", [manual(loss_scale_group=False), {"boost": {"mode": "disable_all"}}])
    def test_a_group_manager_where_it_is_off(self, config: Any) -> None:
        with pytest.raises(ValueError, match="must be no GroupLossScaleManager, since loss_scale_group is off"):
            AutoBoost("O0", config).take_loss_scale(GroupLossScaleManager(16, []))

    def test_another_manager_where_it_is_on(self) -> None:
        with pytest.raises(ValueError, match="takes a GroupLossScaleManager as loss_scale_manager, got NoneType"):
            AutoBoost("O0", manual(loss_scale_group=True)).take_loss_scale(None)


def test_a_rebuilt_ftrl_decays_what_it_decayed() -> None:
    net = nn.SequentialCell(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    config = {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": False}, "less_bn": {"fn_flag": False}}
    optimizer = nn.FTRL(net.trainable_params(), weight_decay=0.1)
    _, new = AutoBoost("O1", config).network_auto_process_train(net, optimizer)
    assert new is not optimizer
    assert [float(w.asnumpy()) for w in new.weight_decay] == pytest.approx([0.1] * len(new.parameters))
