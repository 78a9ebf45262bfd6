"""Checkpoints: ours and those of mindspore.nn's optimizers are the same files; a training goes on bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.networks import mlp_batch
from tests.ms.optim.cases import CASES, CLASSES, SHAPES, arrays, gradients, parameters
from tests.ms.tiers import standard

from boost_ext import amp, boost, optim

# Where mindspore.nn's operators take no 0-d and empty tensors.
FLAT = {name: shape for name, shape in SHAPES.items() if shape and 0 not in shape}


def steps(optimizer: nn.Optimizer, params: list[Parameter], which: range) -> None:
    for step in which:
        optimizer(gradients(step, params))


def through_a_file(source: nn.Optimizer, target: nn.Optimizer, path: Path) -> tuple[set[str], set[str]]:
    """Names that the target did not find, and names that it had no use for."""
    ms.save_checkpoint(source, str(path))
    missing, unused = ms.load_param_into_net(target, ms.load_checkpoint(str(path)))
    return {n.split(".")[0] for n in missing}, {n.split(".")[0] for n in unused}


EXCHANGED = [name for name, case in CASES.items() if case.theirs is not None]
MODES = [pytest.param(ms.PYNATIVE_MODE, name, id=f"pynative-{name}") for name in EXCHANGED]
MODES += [pytest.param(ms.GRAPH_MODE, name, id=f"graph-{name}") for name in ("Adam", "RMSProp")]


@pytest.mark.parametrize(("mode", "name"), MODES, indirect=["mode"])
def test_from_mindspore(mode: int, name: str, tmp_path: Path) -> None:
    """Five steps of mindspore.nn and five of ours are ten steps of mindspore.nn."""
    case = CASES[name]
    theirs, ours = parameters(FLAT), parameters(FLAT)
    first, second = case.make_theirs(theirs), case.make(ours)
    steps(second, ours, range(100, 102))  # it may have moved before
    steps(first, theirs, range(5))
    missing, unused = through_a_file(first, second, tmp_path / "theirs.ckpt")
    assert not missing
    assert unused == ({"accum", "stat"} if name == "SGD" else set())  # without momentum it needs neither
    steps(first, theirs, range(5, 10))
    steps(second, ours, range(5, 10))
    close(name, ours, theirs)
    assert second.global_step.asnumpy() == [10]


@pytest.mark.parametrize(("mode", "name"), MODES, indirect=["mode"])
def test_to_mindspore(mode: int, name: str, tmp_path: Path) -> None:
    """Five steps of ours and five of mindspore.nn are ten steps of ours."""
    case = CASES[name]
    theirs, ours = parameters(FLAT), parameters(FLAT)
    first, second = case.make(ours), case.make_theirs(theirs)
    steps(first, ours, range(5))
    missing, unused = through_a_file(first, second, tmp_path / "ours.ckpt")
    assert missing == ({"accum", "stat"} if name == "SGD" else set())
    assert not unused
    steps(first, ours, range(5, 10))
    steps(second, theirs, range(5, 10))
    close(name, theirs, ours)


def close(name: str, got: list[Parameter], expected: list[Parameter]) -> None:
    # AdamWeightDecay of mindspore.nn computes 1 - beta2 in float32, which makes v wrong by 5e-5.
    tolerance = {"rtol": 5e-4, "atol": 1e-4} if name == "AdamWeightDecay" else {"rtol": 5e-5, "atol": 5e-6}
    for a, b in zip(arrays(got), arrays(expected), strict=True):
        np.testing.assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if hasattr(nn, case.ours.__name__)])
def test_names_shapes_and_dtypes_are_mindspores(name: str) -> None:
    """Of those that do not run on the CPU as well."""
    case = CASES[name]
    theirs = getattr(nn, case.ours.__name__)(parameters(FLAT), learning_rate=0.1, **case.arguments)
    ours = {p.name: (tuple(p.shape), p.dtype) for p in case.make(parameters(FLAT)).get_parameters()}
    expected = {p.name: (tuple(p.shape), p.dtype) for p in theirs.get_parameters()}
    # Without a first moment mindspore.nn.AdaFactor has one without a name.
    expected = {n: of for n, of in expected.items() if not n.startswith("Parameter")}
    if name == "SGD":
        expected = {n: of for n, of in expected.items() if n in ours}
    assert ours == expected


class Mixed(nn.Cell):
    """A float32 and a half layer, and the loss times a weight."""

    def __init__(self, half: Any) -> None:
        super().__init__()
        self.first, self.head, self.half = nn.Dense(6, 16), nn.Dense(16, 4, dtype=half), half
        rng = np.random.default_rng(0)
        for p in self.trainable_params():
            p.set_data(Tensor((0.3 * rng.standard_normal(p.shape)).astype(np.float32)).astype(p.dtype))
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        hidden = ops.relu(self.first(x)).astype(self.half)
        return self.loss(self.head(hidden).astype(ms.float32), y) * weight


RESUMED = [pytest.param(ms.PYNATIVE_MODE, name, id=f"pynative-{name}") for name in CLASSES]
RESUMED += [pytest.param(ms.PYNATIVE_MODE, "SGD-dampening", id="pynative-SGD-dampening")]
RESUMED += [pytest.param(ms.GRAPH_MODE, name, id=f"graph-{name}") for name in ("Adam", "Lamb", "FTRL")]


@pytest.mark.parametrize(("mode", "name"), RESUMED, indirect=["mode"])
@standard(lambda p: p.name in ("SGD-dampening", "AdaFactor", "RMSProp") or p.graph)
def test_resumed_training_is_bit_for_bit(mode: int, name: str) -> None:
    """Masters and the loss scale too; every fourth batch overflows."""

    def cell() -> nn.Cell:
        net = Mixed(ms.float16)
        optimizer = CASES[name].make(net.trainable_params(), 0.01, weight_decay=0.01)
        manager = amp.DynamicLossScaleManager(2.0**8, 2, 3)
        return amp.build_train_network(net, optimizer, level="O0", loss_scale_manager=manager).set_train()

    def train(step: nn.Cell, which: range) -> list[bytes]:
        outputs = []
        for i in which:
            weight = Tensor(np.inf if i % 4 == 3 else 1.0, ms.float32)
            outputs += [t.asnumpy().tobytes() for t in step(*mlp_batch(i, 16), weight)]
        return outputs

    whole, resumed = cell(), cell()
    train(whole, range(5))
    half = whole.state_dict()
    expected = train(whole, range(5, 10))
    assert any(key.startswith("master.") for key in half)
    train(resumed, range(2))
    resumed.load_state_dict(half)
    assert train(resumed, range(5, 10)) == expected
    end = whole.state_dict()
    for key, value in resumed.state_dict().items():
        assert value.asnumpy().tobytes() == end[key].asnumpy().tobytes(), key


FROZEN = [pytest.param(ms.PYNATIVE_MODE, name, id=f"pynative-{name}") for name in ("LARS", *CLASSES)]
FROZEN += [pytest.param(ms.GRAPH_MODE, "LARS", id="graph-LARS")]
# The others keep what Adam does, under other names.
SHAPED = {"LARS", "SGD", "Adam", "ScheduleFreeAdamW", "AdaFactor", "Muon", "Apollo", "GaLore", "FTRL"}


@pytest.mark.parametrize(("mode", "name"), FROZEN, indirect=["mode"])
@standard(lambda p: p.name in SHAPED)
def test_resumed_while_freezing(mode: int, name: str, tmp_path: Path) -> None:
    """Of the optimizers that each step some of the parameters, one state is saved, by MindSpore too."""

    def cell() -> nn.Cell:
        net = Mixed(ms.float16)
        optimizer = CASES[name if name != "LARS" else "Momentum"].make(net.trainable_params(), 0.01, weight_decay=0.01)
        optimizer = optim.LARS(optimizer, coefficient=0.1) if name == "LARS" else optimizer
        freeze = boost.GradientFreeze(3, 1, 0.5, 8).freeze_generate(net, optimizer)[1]
        return boost.BoostTrainOneStepCell(net, freeze, compile="off").set_train()

    def train(step: nn.Cell, which: range) -> list[bytes]:
        return [step(*mlp_batch(i, 16), Tensor(1.0, ms.float32))[0].asnumpy().tobytes() for i in which]

    whole, resumed, loaded = cell(), cell(), cell()
    train(whole, range(4))
    half = whole.state_dict()
    ms.save_checkpoint(whole, str(tmp_path / "half.ckpt"))
    ms.load_param_into_net(loaded, ms.load_checkpoint(str(tmp_path / "half.ckpt")), strict_load=True)
    for p in loaded.get_parameters():
        np.testing.assert_array_equal(p.asnumpy(), half.get(p.name, p).asnumpy(), err_msg=p.name)
    expected = train(whole, range(4, 8))
    train(resumed, range(1))
    resumed.load_state_dict(half)
    assert train(resumed, range(4, 8)) == expected


@pytest.mark.parametrize(
    "name", [name for name in CLASSES if CASES[name].theirs and name not in ("SGD", "AdamOffload", "AdamWeightDecay")]
)
def test_names_of_lars_are_mindspores(name: str) -> None:
    case = CASES[name]
    ours, theirs = optim.LARS(case.make(parameters(FLAT))), nn.LARS(case.make_theirs(parameters(FLAT)))
    named = [{p.name: (tuple(p.shape), p.dtype) for p in o.get_parameters()} for o in (ours, theirs)]
    assert named[0] == named[1]
