"""Model: callbacks, evaluation and checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train import callback as callbacks
from tests.ms.model_training import (
    ACCUMULATE,
    FREEZE,
    Losses,
    images,
    loss_fn,
    momentum,
    points,
    resnet,
    snapshot,
)
from tests.ms.networks import Mlp
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import Model, amp, optim


class TestCallbacks:
    def test_monitors(self, mode: int, capsys: pytest.CaptureFixture[str]) -> None:
        net = Mlp()
        model = Model(net, loss_fn(), momentum(net))
        model.train(2, points(), callbacks=[callbacks.LossMonitor(), callbacks.TimeMonitor()])
        printed = capsys.readouterr().out
        assert len(re.findall(r"epoch: \d step: \d, loss is \d\.\d+", printed)) == 8
        assert printed.count("Train epoch time") == 2

    @in_graph_mode
    def test_fit_and_early_stopping(self, mode: int, capsys: pytest.CaptureFixture[str]) -> None:
        net = Mlp()
        model = Model(net, loss_fn(), nn.SGD(net.trainable_params(), 1e-12), metrics={"accuracy"})
        stop = callbacks.EarlyStopping(monitor="eval_loss", patience=2, verbose=True)
        seen = Losses()
        model.fit(20, points(), points(), callbacks=[stop, seen, callbacks.LossMonitor()])
        assert len(seen.seen) < 6 * 4
        assert "Eval result: epoch 1, metrics: {'accuracy':" in capsys.readouterr().out

    def test_a_learning_rate_set_by_a_callback_reaches_the_optimizer_inside_lars(self) -> None:
        net = Mlp()
        inside = optim.Momentum(net.trainable_params(), 0.5, 0.9)
        model = Model(net, loss_fn(), optim.LARS(inside))
        halve = callbacks.LearningRateScheduler(lambda rate, step: rate / 2)
        model.train(1, points(2), callbacks=[halve])
        assert float(inside.learning_rate.asnumpy()) == 0.125

    @pytest.mark.parametrize("config", ["", FREEZE, ACCUMULATE], ids=["plain", "freeze", "accumulate"])
    @standard(lambda p: p.graph == (p.config is FREEZE))
    def test_a_learning_rate_set_by_a_callback_is_used(self, mode: int, config: Any) -> None:
        net = Mlp()
        model = Model(net, loss_fn(), nn.SGD(net.trainable_params(), 0.1), boost_config_dict=config)
        start = snapshot(net)
        stop = callbacks.LearningRateScheduler(lambda rate, step: rate if step < 4 else 0.0)
        model.train(1, points(4), callbacks=[stop])
        trained = snapshot(net)
        assert any(np.any(start[name] != trained[name]) for name in start)
        model.train(1, points(4))
        after = snapshot(net)
        for name, value in trained.items():
            np.testing.assert_array_equal(value, after[name])

    @pytest.mark.parametrize("level", ["O0", "O1"])
    @standard(lambda p: p.graph == (p.level == "O1"))
    def test_a_checkpoint_loads_back(self, mode: int, level: str, tmp_path: Path) -> None:
        net = resnet()
        model = Model(net, loss_fn(), momentum(net), {"accuracy"}, boost_level=level)
        keep = callbacks.ModelCheckpoint("net", str(tmp_path), callbacks.CheckpointConfig(4))
        model.train(2, images(), callbacks=[keep])
        saved = ms.load_checkpoint(str(next(tmp_path.glob("net-2_4.ckpt"))))

        other = resnet(5)
        again = Model(other, loss_fn(), momentum(other), {"accuracy"}, boost_level=level)
        missing, _ = ms.load_param_into_net(again.train_network, saved)
        assert not missing
        assert again.eval(images()) == model.eval(images())
        evaluated = resnet(6)
        only = Model(evaluated, loss_fn(), metrics={"accuracy"}, boost_level=level)
        missing, _ = ms.load_param_into_net(evaluated, saved)
        assert not missing
        assert only.eval(images()) == model.eval(images())

    @in_graph_mode
    def test_training_goes_on_from_a_checkpoint(self, mode: int, tmp_path: Path) -> None:
        """Saved by MindSpore's callback, in the middle of a window: the same bits as without an interruption."""

        def fresh() -> tuple[nn.Cell, Model]:
            net = Mlp()
            manager = amp.DynamicLossScaleManager(2.0**8, 2, 2)
            adam = nn.Adam(net.trainable_params(), 0.01)
            return net, Model(net, loss_fn(), adam, boost_config_dict=ACCUMULATE, loss_scale_manager=manager)

        _, model = fresh()
        keep = callbacks.ModelCheckpoint("net", str(tmp_path), callbacks.CheckpointConfig(5))
        model.train(1, points(5), callbacks=[keep])
        model.train(1, points(3))

        other, again = fresh()
        missing, _ = ms.load_param_into_net(again.train_network, ms.load_checkpoint(str(tmp_path / "net-1_5.ckpt")))
        assert not missing
        again.train(1, points(3))
        for name, value in snapshot(model.train_network).items():
            if not name.startswith("guard"):
                np.testing.assert_array_equal(snapshot(again.train_network)[name], value, name)
        assert any(np.any(snapshot(Mlp())[name] != value) for name, value in snapshot(other).items())


class TestEvaluation:
    @pytest.mark.parametrize("shared", [False, True])
    @standard(lambda p: p.graph == p.shared)
    def test_eval_network_gets_the_same_rewrite(self, mode: int, shared: bool) -> None:
        net = resnet()
        backbone = net if shared else resnet(7)
        evaluation = nn.WithEvalCell(backbone, loss_fn())
        model = Model(net, loss_fn(), momentum(net), {"accuracy"}, evaluation, [0, 1, 2], boost_level="O2")
        model.train(2, images())
        missing, _ = ms.load_param_into_net(backbone, {p.name: p for p in net.get_parameters()})
        assert not missing
        assert [p.name for p in backbone.get_parameters()] == [p.name for p in net.get_parameters()]
        direct = np.argmax(model.predict(Tensor(next(images().create_tuple_iterator())[0])).asnumpy(), axis=1)
        accuracy = model.eval(images())["accuracy"]
        assert 0 <= accuracy <= 1
        expected = np.argmax(backbone.set_train(False)(next(images().create_tuple_iterator())[0]).asnumpy(), axis=1)
        np.testing.assert_array_equal(direct, expected)

    def test_without_optimizer_the_plan_says_so(self) -> None:
        model = Model(resnet(), loss_fn(), metrics={"loss"}, boost_level="O2")
        assert model.plan.applies("less_bn")
        assert model.plan["grad_freeze"].reason == "this Model has no optimizer: it only evaluates"

    def test_a_network_that_trains_itself(self) -> None:
        net = Mlp()
        cell = nn.TrainOneStepCell(nn.WithLossCell(net, loss_fn()), momentum(net))
        Model(cell).train(1, points())
        with pytest.raises(
            ValueError, match="optimizer must be given for boost_level 'O1', got None and a network that"
        ):
            Model(cell, boost_level="O1")
