"""TrainingState: a training that is killed and started again has the bits of one that was not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from mindspore.train.callback import LossMonitor
from rich.console import Console
from tests.ms.networks import Weight

import boost_ext
from boost_ext import Model, boost
from boost_ext.callbacks import TrainingState
from boost_ext.distributed import save_rank_state

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", ["plain", "boost"])
def test_a_killed_training_has_the_bits_of_one_that_was_not(which: str, tmp_path: Path) -> None:
    """mindspore.Model in GRAPH_MODE; boost_ext.Model in PYNATIVE_MODE with evaluation and callbacks that count."""
    seed = np.random.SeedSequence().entropy % 1000
    path = os.pathsep.join([str(ROOT), str(Path(boost_ext.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).with_name("killed.py")), which, str(tmp_path), str(seed)]
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, timeout=400
    )
    assert run.returncode == 0, run.stderr[-4000:]
    whole, killed = (dict(np.load(tmp_path / f"{name}.npz")) for name in ("whole", "killed"))
    assert whole.keys() == killed.keys()
    assert whole["steps"] == killed["steps"] == 35
    for name, value in whole.items():
        assert value.tobytes() == killed[name].tobytes(), (seed, name)
    expected, noted = ((tmp_path / f"{name}.txt").read_text().splitlines() for name in ("whole", "killed"))
    assert len(expected) == 35 < len(noted), "some steps were made twice"
    assert set(noted) == set(expected), seed
    assert any(float(line.split()[3]) for line in expected), "some batches overflow"
    starts = [int(found) for found in re.findall(r"TrainingState: resumed at step (\d+) of 35", run.stdout)]
    assert starts
    assert all(start > 0 and start % 3 == 0 for start in starts)
    assert run.stdout.count("complete at step 35: nothing to train") == 1
    assert sorted(p.name for p in (tmp_path / "killed").iterdir()) == ["rank0-33.ckpt", "rank0-35.ckpt"]


def batches(count: int = 4, shuffle: bool = False) -> Any:
    x = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    return ms.dataset.NumpySlicesDataset({"x": x}, shuffle=shuffle).batch(1)


class Seen(ms.Callback):
    def __init__(self, stop_at: int = 0, fail_at: int = 0) -> None:
        super().__init__()
        self.steps: list[tuple[int, int, int]] = []
        self.stop_at, self.fail_at = stop_at, fail_at

    def on_train_step_end(self, run_context: Any) -> None:
        seen = run_context.original_args()
        batch = int(seen.train_dataset_element[0].asnumpy().reshape(-1)[0]) // 2
        self.steps.append((seen.cur_epoch_num, seen.cur_step_num, batch))
        if seen.cur_step_num == self.fail_at:
            raise InterruptedError
        if seen.cur_step_num == self.stop_at:
            run_context.request_stop()


def cell() -> nn.Cell:
    net = Weight()
    return boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.01), compile="off")


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., tuple[list[tuple[int, int, int]], str]]:
    """Train a new cell; what a callback saw, and what was printed."""

    def run(
        epochs: int = 2, data: Any = None, stop_at: int = 0, fail_at: int = 0, **kwargs: Any
    ) -> tuple[list[tuple[int, int, int]], str]:
        printed, seen = StringIO(), Seen(stop_at, fail_at)
        state = TrainingState(tmp_path / "s", console=Console(file=printed), **{"every": 3, **kwargs})
        try:
            ms.Model(cell()).train(epochs, batches() if data is None else data, [state, seen])
        except InterruptedError:
            assert fail_at
        return seen.steps, printed.getvalue()

    return run


def test_epochs_steps_and_batches_continue(train) -> None:
    whole = [(1 + i // 4, i + 1, i % 4) for i in range(12)]
    seen, printed = train(3, fail_at=7)
    assert (seen, printed) == (whole[:7], "")
    seen, printed = train(3, fail_at=9)  # from 6, in an epoch; the state of 9 is saved at the beginning of 10
    assert seen == whole[6:9]
    assert "TrainingState: resumed at step 6 of 12, after 2 of 4 batches of its epoch (" in printed
    seen, printed = train(2)
    assert seen == whole[6:8]
    seen, printed = train(2)
    assert seen == []
    assert "TrainingState: complete at step 8: nothing to train (" in printed
    seen, printed = train(4)  # more epochs than before, from the end of one
    assert seen == [(1 + i // 4, i + 1, i % 4) for i in range(8, 16)]
    assert "resumed at step 8 of 16, after 0 of 4 batches of its epoch" in printed


def test_a_training_that_a_callback_stopped_is_complete(train) -> None:
    assert [step for _, step, _ in train(stop_at=5)[0]] == [1, 2, 3, 4, 5]
    seen, printed = train()
    assert seen == []
    assert "complete at step 5: nothing to train" in printed


@pytest.mark.parametrize("exact", [True, False])
def test_the_order_of_a_shuffled_dataset_continues(train, exact: bool) -> None:
    def data() -> Any:
        ms.set_seed(5)
        return batches(6, shuffle=True)

    whole, _ = train(data=data(), fail_at=12, every=100)
    assert [batch for _, _, batch in whole[:6]] != [batch for _, _, batch in whole[6:]]
    train(data=data(), fail_at=11)
    fast = ms.dataset.config.get_fast_recovery()
    assert train(data=data(), exact=exact)[0] == whole[9:]
    assert ms.dataset.config.get_fast_recovery() == fast


def test_what_must_be_the_same_again(train, tmp_path: Path) -> None:
    ms.set_seed(5)
    train(fail_at=7)
    with pytest.raises(ValueError, match=r"^TrainingState: train_dataset must have 4 batches, .*, got 3$"):
        train(data=batches(3))
    ms.set_seed(6)
    with pytest.raises(ValueError, match=r"^TrainingState: the seed of the dataset .* must be 5, .*, got 6$"):
        train()
    ms.set_seed(5)
    with pytest.raises(ValueError, match=r"^TrainingState: folder must hold no states with resume=False, got '.*ckpt'"):
        train(resume=False)
    assert train()[0][0][1] == 7


def test_an_unseeded_shuffle_is_told_of(train, tmp_path: Path) -> None:
    ms.dataset.config.set_seed(5489)  # the default
    data = batches(shuffle=True)
    assert "the dataset is shuffled: without mindspore.set_seed a resumed run sees another order" in train(data=data)[1]


def test_a_state_of_a_loop_has_no_place(tmp_path: Path) -> None:
    one = cell()
    one(Tensor([[1.0, 2.0]]))
    save_rank_state(one, tmp_path)
    with pytest.raises(ValueError, match="TrainingState: folder must hold states that a TrainingState has saved, got"):
        ms.Model(cell()).train(1, batches(), [TrainingState(tmp_path)])


def test_who_may_use_it(tmp_path: Path) -> None:
    state = TrainingState(tmp_path)
    with pytest.raises(ValueError, match=r"^TrainingState: it must be the first callback, got LossMonitor before it$"):
        ms.Model(cell()).train(1, batches(), [LossMonitor(), TrainingState(tmp_path / "b")])
    net = Weight()
    plain = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.01))
    with pytest.raises(TypeError, match=r"^TrainingState: the training cell must be one of boost_ext, got Train"):
        ms.Model(plain).train(1, batches(), [TrainingState(tmp_path / "b")])
    Model(cell()).train(1, batches(), [state])
    with pytest.raises(ValueError, match=r"^TrainingState: folder must be that of one training, got a second"):
        Model(cell()).train(1, batches(), [state])


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        ({"folder": 3}, TypeError, "folder must be a str or a Path, got int"),
        ({"every": 0}, ValueError, "every must be >= 1, got 0"),
        ({"every": 1.0}, TypeError, "every must be an int, got float"),
        ({"keep": 1}, ValueError, "keep must be >= 2, got 1"),
        ({"keep": True}, TypeError, "keep must be an int, got bool"),
        ({"resume": 1}, TypeError, "resume must be a bool, got int"),
        ({"exact": None}, TypeError, "exact must be a bool, got NoneType"),
    ],
)
def test_arguments(kwargs: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^TrainingState: {re.escape(message)}$"):
        TrainingState(**{"folder": "states", **kwargs})
