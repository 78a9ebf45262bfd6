"""Model: MindSpore's training loop on the cells of boost_ext."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from tests.ms.model_training import (
    ACCUMULATE,
    FREEZE,
    LESS_BN,
    Grouped,
    Losses,
    images,
    loss_fn,
    manual,
    momentum,
    points,
    resnet,
)
from tests.ms.networks import Mlp
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard

import boost_ext
from boost_ext import Model, amp
from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell


def test_a_subclass_of_mindspores() -> None:
    net = Mlp()
    model = Model(net, loss_fn(), momentum(net))
    assert isinstance(model, ms.Model)
    assert type(model.train_network) is BoostTrainOneStepCell
    assert model.train_network.plan is model.plan
    assert boost_ext.Model is Model


@in_graph_mode
def test_trains_like_mindspores_model(mode: int) -> None:
    ours, theirs = Mlp(), Mlp()
    Model(ours, loss_fn(), momentum(ours)).train(2, points())
    ms.Model(theirs, loss_fn(), momentum(theirs)).train(2, points())
    for p, q in zip(ours.get_parameters(), theirs.get_parameters(), strict=True):
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=1e-4, atol=1e-6)


FROM_THE_FRONT = manual(grad_freeze=True, less_bn=False)
RATES = {
    "one": (lambda steps: 0.1, "is what the training makes"),
    "list": (lambda steps: [0.1] * steps, "is the number of learning rates"),
    "cosine": (lambda steps: nn.CosineDecayLR(0.01, 0.1, steps), "is the number of learning rates"),
}


@pytest.mark.parametrize("rate", RATES)
def test_the_front_freezes_by_the_length_of_the_training(rate: str) -> None:
    """Which the learning rates tell, or ``train``."""
    net, data = Mlp(), points()
    steps = 5 * data.get_dataset_size()
    rates, why = RATES[rate]
    optimizer = nn.Momentum(net.trainable_params(), rates(steps), 0.9)
    model = Model(net, loss_fn(), optimizer, boost_level="O1", boost_config_dict=FROM_THE_FRONT)
    front, moved = next(iter(net.trainable_params())), []

    class Moves(ms.Callback):  # type: ignore[misc]
        def on_train_step_begin(self, run_context: Any) -> None:
            self.before = front.asnumpy().copy()

        def on_train_step_end(self, run_context: Any) -> None:
            moved.append(bool(np.any(front.asnumpy() != self.before)))

    model.train(5, data, callbacks=[Moves()])
    full = round(0.7 * steps)
    assert moved == [True] * full + [False] * (steps - full)
    decision = model.train_network.plan["grad_freeze"]
    assert decision.details["total_steps"] == steps
    assert f"total_steps {steps} {why}" in decision.reason
    assert model.plan["grad_freeze"] == decision


def test_micro_batches_are_no_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose number decides when the front freezes."""
    monkeypatch.setattr(ms.Model, "_train", lambda *args, **kwargs: None)
    net, data = Mlp(), points()
    config = ACCUMULATE | manual(grad_freeze=True, less_bn=False, grad_accumulation=True)
    model = Model(net, loss_fn(), momentum(net), boost_level="O1", boost_config_dict=config)
    model.train(5, data)
    assert model.plan["grad_freeze"].details["total_steps"] == 5 * data.get_dataset_size() // 2


def test_a_training_of_unknown_length_says_what_is_missing() -> None:
    net = Mlp()
    cell = amp.build_train_network(net, momentum(net), loss_fn(), boost_level="O1", boost_config_dict=FROM_THE_FRONT)
    assert "a loop of yours must set grad_freeze.total_steps" in cell.plan["grad_freeze"].reason


# Each configuration with and without a data sink, each mode with each: of sixteen six.
LEARNING = [("", True, True), (FREEZE, True, True), (FREEZE, False, False), (ACCUMULATE, True, False)]
LEARNING += [(ACCUMULATE, False, True), (LESS_BN, False, False)]


@pytest.mark.parametrize("sink", [False, True], ids=["no-sink", "sink"])
@pytest.mark.parametrize("config", ["", FREEZE, ACCUMULATE, LESS_BN], ids=["plain", "freeze", "accumulate", "less_bn"])
@standard(lambda p: (p.config, p.graph, p.sink) in LEARNING)
def test_learns(mode: int, config: Any, sink: bool) -> None:
    net, seen = resnet(), Losses()
    model = Model(net, loss_fn(), momentum(net), metrics={"accuracy", "loss"}, boost_config_dict=config)
    model.train(6, images(), callbacks=[seen], dataset_sink_mode=sink)
    assert seen.seen[-1] < 0.3 * seen.seen[0]
    assert model.eval(images(seed=1), dataset_sink_mode=sink)["accuracy"] > 0.8


# The others are in test_amp.py: Model hands on the levels to the same function.
LEVELS = [(True, "O0", "O1"), (False, "O0", "O2"), (True, "O2", "O1")]


@pytest.mark.parametrize(
    ("amp_level", "boost_level"),
    [("O0", "O0"), ("O0", "O1"), ("O0", "O2"), ("O2", "O0"), ("O2", "O1"), ("O3", "O1")],
)
@standard(lambda p: (p.graph, p.amp_level, p.boost_level) in LEVELS)
def test_levels(mode: int, amp_level: str, boost_level: str) -> None:
    net, seen = resnet(), Losses()
    model = Model(
        net,
        loss_fn(),
        momentum(net),
        {"accuracy"},
        amp_level=amp_level,
        boost_level=boost_level,
        boost_config_dict={"grad_freeze": {"param_groups": 2}},  # each is a graph to compile
    )
    scaled = amp_level == "O2"
    assert type(model.train_network) is (BoostTrainOneStepWithLossScaleCell if scaled else BoostTrainOneStepCell)
    assert model.plan.applies("grad_centralization") is model.plan.applies("grad_freeze") is (boost_level != "O0")
    assert model.plan.applies("less_bn") is (boost_level == "O2")
    model.train(14, images(), callbacks=[seen])  # at O2 the dynamic loss scale overflows until it fits
    assert seen.seen[-1] < 0.3 * seen.seen[0]
    assert model.eval(images(seed=1))["accuracy"] > 0.8
    prediction = model.predict(Tensor(np.zeros((3, 1, 8, 8), np.float32)))
    assert prediction.shape == (3, 8)


class TestH11:
    """The reference skips boost without a word when there are neither metrics nor an evaluation network."""

    def test_reference_skips(self) -> None:
        net = resnet()
        names = [p.name for p in net.trainable_params()]
        reference = ms.Model(net, loss_fn(), momentum(net), boost_level="O1")
        assert [p.name for p in reference.train_network.network.trainable_params()] == names

    def test_applied_without_metrics(self) -> None:
        net = resnet()
        model = Model(net, loss_fn(), momentum(net), boost_level="O2")
        assert model.plan["less_bn"].details["removed"] == ["block1.bn1", "block2.bn1"]
        names = {p.name for p in model.train_network.optimizer.parameters}
        assert "block1.bn1.gamma" not in names
        assert {"block1.bn2.gamma", "fc.weight"} <= names
        assert "fc.multiplier" not in names  # the level leaves the head out

    def test_two_models_do_not_know_of_each_other(self) -> None:
        """The reference's AutoBoost is one object for the whole process, with the first level."""
        first, second, third = Mlp(), Mlp(), Mlp()
        head = {"less_bn": {"fn_flag": True}}
        plans = [
            Model(first, loss_fn(), momentum(first), boost_level="O1", boost_config_dict=head).plan,
            Model(second, loss_fn(), momentum(second)).plan,
            Model(third, loss_fn(), momentum(third), boost_level="O1", boost_config_dict=manual(less_bn=False)).plan,
        ]
        assert [p.applies("grad_freeze") for p in plans] == [True, False, True]
        assert [p.applies("fn_head") for p in plans] == [True, False, False]

    @in_pynative_mode
    def test_accumulation_counts(self, mode: int) -> None:
        net = Mlp()
        model = Model(net, loss_fn(), momentum(net), boost_config_dict=ACCUMULATE)
        model.train(1, points(3))
        assert int(model.train_network.optimizer.global_step.asnumpy().item()) == 1
        assert model.train_network.accumulation.max_accumulation_step == 2


class TestLossScale:
    @pytest.mark.parametrize("manager", [amp.DynamicLossScaleManager, ms.amp.DynamicLossScaleManager])
    def test_a_step_counts_once(self, mode: int, manager: Any) -> None:
        """The loop reports each step to the manager after the cell has counted it."""
        net = Mlp()
        scale = manager(256, 2, 3)
        model = Model(net, loss_fn(), momentum(net), loss_scale_manager=scale)
        model.train(2, points(3))
        assert float(model.train_network.scale_sense.asnumpy()) == 1024

    @in_graph_mode
    def test_groups(self, mode: int) -> None:
        manager = GroupLossScaleManager(1024, [])
        net = Grouped(manager)
        manager.loss_scale_groups = [net.first.trainable_params(), net.head.trainable_params()]
        seen = Losses()
        model = Model(net, loss_fn(), momentum(net), {"accuracy"}, loss_scale_manager=manager)
        model.train(8, points(), callbacks=[seen])
        assert model.plan["loss_scale_group"].reason == "loss_scale_manager is a GroupLossScaleManager"
        assert seen.seen[-1] < 0.7 * seen.seen[0]
        assert float(manager.loss_scales[0].asnumpy()) > 1024

    def test_fixed_scale_that_the_optimizer_does_not_know(self) -> None:
        net = Mlp()
        with pytest.raises(ValueError, match=r"optimizer.loss_scale must be 1000"):
            Model(net, loss_fn(), momentum(net), loss_scale_manager=amp.FixedLossScaleManager(1000.0, False))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"acc_level": "O1"}, ValueError, "Model: acc_level must not be given, it is called boost_level"),
        ({"boost_config": {}}, ValueError, "Model: unknown argument 'boost_config', did you mean 'boost_config_dict'"),
        ({"boost_lvel": "O1"}, ValueError, "Model: unknown argument 'boost_lvel', did you mean 'boost_level'"),
        ({"boost_level": "O3"}, ValueError, r"level must be one of \['O0', 'O1', 'O2'\], got 'O3'"),
        ({"amp_level": "O7"}, ValueError, "level must be one of"),
        ({"boost_config_dict": {"bost": {}}}, ValueError, "unknown section 'bost', did you mean 'boost'"),
        ({"boost_config_dict": {"boost": {"mode": "enable_all"}}}, ValueError, "dim_reduce.weight_load_dir"),
        ({"keep_batchnorm_fp32": 1}, TypeError, "keep_batchnorm_fp32 must be a bool"),
    ],
)
def test_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    net = resnet()
    before = [p.name for p in net.get_parameters()]
    with pytest.raises(error, match=message):
        Model(net, loss_fn(), momentum(net), **({"boost_level": "O1"} | arguments))
    assert [p.name for p in net.get_parameters()] == before


class OnTheHost(nn.Cell):
    """Computes in NumPy, with its own gradient: no graph can hold it."""

    def construct(self, x: Tensor) -> Tensor:
        return Tensor(2 * x.asnumpy())

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (Tensor(2 * dout.asnumpy()),)


@in_pynative_mode
def test_a_network_that_the_graph_compiler_does_not_take(mode: int) -> None:
    weights = []
    for make in (ms.Model, partial(Model, compile="off"), partial(built, compile="off")):
        ms.set_seed(1)
        net = Mlp()
        weights.append([net.head.weight.asnumpy().copy()])
        make(nn.SequentialCell(net, OnTheHost()), loss_fn(), momentum(net)).train(1, points(3))
        weights[-1].append(net.head.weight.asnumpy())
    np.testing.assert_array_equal(weights[0], weights[1])
    np.testing.assert_array_equal(weights[0], weights[2])
    assert np.abs(weights[0][1] - weights[0][0]).max() > 1e-3
    with pytest.raises(ValueError, match="compile must be 'step', 'network' or 'off', got 'of'"):
        Model(net, loss_fn(), momentum(net), compile="of")


def built(net: nn.Cell, loss: nn.Cell, optimizer: nn.Cell, **options: Any) -> ms.Model:
    return ms.Model(amp.build_train_network(net, optimizer, loss, **options))


def test_network_must_be_a_cell() -> None:
    with pytest.raises(TypeError, match="Model: network must be a Cell, got function"):
        Model(lambda x: x)


@in_graph_mode
def test_dynamic_shapes(mode: int) -> None:
    net = Mlp()
    net.set_inputs(Tensor(shape=[None, 6], dtype=ms.float32))
    loss = loss_fn()
    loss.set_inputs(Tensor(shape=[None, 4], dtype=ms.float32), Tensor(shape=[None], dtype=ms.int32))
    model = Model(net, loss, momentum(net))
    assert [tuple(t.shape) for t in model.train_network.get_inputs()] == [(-1, 6), (-1,)]
    model.train(1, points(2))


def test_without_mindspore_the_error_names_the_extra() -> None:
    code = "import sys; sys.modules['mindspore'] = None\nimport boost_ext\nboost_ext.Model"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert "ImportError: this needs mindspore, which could not be imported" in done.stderr
    assert "pip install 'boost_ext[mindspore]'" in done.stderr


def test_other_attributes_of_the_package() -> None:
    with pytest.raises(AttributeError, match="module 'boost_ext' has no attribute 'model_'"):
        _ = boost_ext.model_
