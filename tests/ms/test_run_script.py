"""boost-ext run: a script of MindSpore's users trains as under python, to the bit, and the report says with what."""

from __future__ import annotations

import io
import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import boost_ext.nn
from boost_ext.cli.script_edits import edited
from boost_ext.ms.training import swaps
from boost_ext.ms.training.first_step import is_library
from boost_ext.scripts import Record

SCRIPT = Path(__file__).with_name("training_forms.py")


def plainly(script: Path, mode: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """In this process, to which nothing was done; losses by form, and the types of what training steps returned."""
    monkeypatch.setattr(sys, "argv", [str(script), str(mode)])
    seen = runpy.run_path(str(script))
    return seen["losses"], seen["kinds"]


def test_the_same_losses(mode: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "boost_ext", "run", str(SCRIPT), str(mode)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    losses, kinds = plainly(SCRIPT, mode, monkeypatch)
    assert json.loads(done.stdout.splitlines()[-1]) == [losses, kinds]
    assert len(losses) == 8
    assert all(len(set(values)) > 1 for values in losses.values())
    plain_output = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch:")]
    assert [line for line in done.stdout.splitlines() if line.startswith("epoch:")] == plain_output  # LossMonitor's

    report = done.stderr.split("training_forms.py ended after")[1]
    steps = dict(re.findall(r"training_forms.py:\d+: (\S+): (\d+) steps in [\d.]+ s, the first took ", report))
    assert steps == {"mindspore.Model": "6", "nn.TrainOneStepCell": "3", "amp.build_train_network": "3"}
    assert "nn.TrainOneStepCell stayed MindSpore's: ValueError: TrainOneStepCell: return_grad must be False" in report
    derived = "a class derived from nn.TrainOneStepCell runs its own code"
    assert re.findall(r"training_forms.py:\d+: (\S+) stayed MindSpore's: a class.*", report) == ["Clipping"]
    assert f"Clipping stayed MindSpore's: {derived}" in report
    assert "own cell made the last ones: TypeError: " in report
    assert "network must return one Tensor, the loss" in report
    assert done.stderr.count("nn.Momentum steps as one native call, on its own state") == 4
    assert done.stderr.count("PYNATIVE_MODE: the step is one graph") == (4 if mode == ms.PYNATIVE_MODE else 0)


def test_the_same_losses_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What --dry proposes. The forms that run leaves to MindSpore are an error when written like that."""
    source = SCRIPT.read_text().replace(", with_two_losses, with_gradients):", "):")
    (tmp_path / "before.py").write_text(source)
    (tmp_path / "after.py").write_text(edited(source, "O0", {})[0])
    before, _ = plainly(tmp_path / "before.py", ms.PYNATIVE_MODE, monkeypatch)
    after, kinds = plainly(tmp_path / "after.py", ms.PYNATIVE_MODE, monkeypatch)
    assert before == after
    assert kinds == {**dict.fromkeys(("cell", "subclass", "amp", "function"), "Tensor"), "model": "tuple"}


def test_a_toolkit_whose_name_begins_like_mindspores_is_no_library() -> None:
    """Its networks are searched for what a graph would do once, and its lines are named in the report."""
    for package in (ms, boost_ext):
        assert is_library(str(package.__file__))
        assert not is_library(f"{Path(str(package.__file__)).parent}_rl/network.py")


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)
        self.conv2, self.bn2 = nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)
        self.fc = nn.Dense(1, 3)

    def construct(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        return self.fc(ops.relu(y + x).mean((2, 3)))


def loss_fn() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


@pytest.fixture
def at_level(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], io.StringIO]:
    """The objects that a run makes, with no class of MindSpore's changed in this process."""

    def at_level(level: str) -> io.StringIO:
        said = io.StringIO()
        run = swaps._Run(Record("train.py", file=said), level, where="train.py:1", what="nn.TrainOneStepCell")
        monkeypatch.setattr(swaps, "_run", run, raising=False)
        return said

    return at_level


class TestLevels:
    def test_model(self, at_level: Callable[[str], io.StringIO]) -> None:
        said, net = at_level("O1"), Net()
        model = swaps._model(net, loss_fn(), optimizer=nn.Momentum(net.trainable_params(), 0.1, 0.9))
        assert isinstance(model, ms.Model)
        assert model.plan.level == "O1"
        assert model.plan.applies("grad_centralization")
        assert "boost plan: level O1, mode auto" in said.getvalue()

    def test_cell_and_function(self, at_level: Callable[[str], io.StringIO]) -> None:
        at_level("O2")
        for make in (
            lambda net, optimizer: swaps.TrainOneStepCell(nn.WithLossCell(net, loss_fn()), optimizer),
            lambda net, optimizer: swaps._built(net, optimizer, loss_fn(), level="O0"),
        ):
            net = Net()
            cell = make(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
            assert isinstance(cell, nn.TrainOneStepCell)
            assert (cell.plan.level, cell.plan.applies("less_bn"), cell.plan.applies("grad_freeze")) == (
                "O2",
                True,
                True,
            )

    def test_a_level_of_mindspore_boost(self, at_level: Callable[[str], io.StringIO]) -> None:
        at_level("O0")
        with pytest.raises(ValueError, match=r"boost_level 'O1' is that of mindspore.boost; --level O1 trains with"):
            swaps._model(Net(), loss_fn(), boost_level="O1")


def test_a_network_that_boost_has_begun_to_change(at_level: Callable[[str], io.StringIO]) -> None:
    """MindSpore would train something else than the script has made."""
    at_level("O1")

    def fails(net: nn.Cell, changes: bool) -> None:
        if changes:
            net.bn1 = nn.ReLU()
        raise ValueError("of boost")

    with pytest.raises(ValueError, match="of boost"):
        swaps._made("mindspore.Model", fails, (Net(), True), {})
    assert swaps._made("mindspore.Model", fails, (), {"net": Net(), "changes": False}) is None


def test_a_loss_scale_cell(at_level: Callable[[str], io.StringIO]) -> None:
    said = at_level("O0")
    net = Net()
    scale = nn.DynamicLossScaleUpdateCell(2.0**4, 2, 1000)
    cell = swaps.TrainOneStepWithLossScaleCell(
        nn.WithLossCell(net, loss_fn()), nn.FTRL(net.trainable_params(), l1=0.1), scale_sense=scale
    )
    assert "the optimizer steps as it is: nn.FTRL has l1" in said.getvalue()
    assert isinstance(cell, nn.TrainOneStepWithLossScaleCell)
    loss, overflow, used = cell(Tensor(np.ones((2, 1, 4, 4), np.float32)), Tensor([0, 1], ms.int32))
    assert (np.isfinite(float(loss)), bool(overflow), float(used)) == (True, False, 16.0)


def test_many_shapes_in_pynative_mode(at_level: Callable[[str], io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore's cell goes on where ours was: the same Parameters, momentum too."""
    monkeypatch.setattr(swaps, "_SHAPES", 1)
    losses, parameters = [], []
    for kind in (nn.TrainOneStepCell, swaps.TrainOneStepCell):
        said = at_level("O0")
        ms.set_seed(3)
        net = Net()
        cell = kind(
            nn.WithLossCell(net, loss_fn()), nn.Momentum(net.trainable_params(), 0.1, 0.9), sens=2.0
        ).set_train()
        inputs = [
            (np.random.default_rng(size).standard_normal((size, 1, 4, 4)), np.arange(size) % 3) for size in (2, 3, 4)
        ]
        parameters.append(len(cell.parameters_dict()))
        losses.append([float(cell(Tensor(x, ms.float32), Tensor(y, ms.int32))) for x, y in inputs])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    assert "would compile the step for each of more than 1 shapes" in said.getvalue()
    assert len(cell.parameters_dict()) == parameters[-1], "the cell that has taken over is no child"
    assert cell.steps_made == 1, "of the first shape"


def noisy(x: Tensor) -> Tensor:
    return x * np.random.random()  # noqa: NPY002


class TestPythonInTheNetwork:
    """A compiled network would run it once: PYNATIVE_MODE stays eager then."""

    class Counts(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            self.calls = 1
            return x

    class Prints(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return self.shown(x)

        def shown(self, x: Tensor) -> Tensor:
            print(x.shape)
            return x

    class Draws(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return noisy(x)

    class Scales(nn.Cell):
        def construct(self, x: Tensor) -> Tensor:
            return x / np.sqrt(2.0)

    @pytest.mark.parametrize(
        ("cell", "why"),
        [
            (Counts, "TestPythonInTheNetwork.Counts.construct sets calls"),
            (Prints, "TestPythonInTheNetwork.Prints.shown uses print"),
            (Draws, "noisy uses np"),
            (Scales, ""),
            (Net, ""),
        ],
    )
    def test_found(self, cell: type[nn.Cell], why: str) -> None:
        assert swaps._python_of(nn.SequentialCell(nn.Dense(2, 2), cell())) == why

    def test_hooks(self) -> None:
        net = nn.Dense(2, 2)
        net.register_forward_hook(lambda cell, inputs, output: None)
        assert swaps._python_of(nn.SequentialCell(net)) == "Dense has hooks"


class Doubled(boost_ext.nn.TrainOneStepCell):
    def construct(self, *inputs: Tensor) -> Tensor:
        return 2 * self.network(*inputs)


def test_a_subclass_of_our_cell_runs_its_construct() -> None:
    net = nn.WithLossCell(Net(), loss_fn())
    inputs = Tensor(np.ones((2, 1, 4, 4), np.float32)), Tensor([0, 1], ms.int32)
    doubled = Doubled(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    np.testing.assert_allclose(float(doubled(*inputs)), 2 * float(net(*inputs)), rtol=1e-6)
