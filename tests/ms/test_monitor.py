"""BoostMonitor under Model, in loops of one's own, on our cells and on others."""

from __future__ import annotations

import errno
import itertools
import json
import math
import warnings
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from rich.console import Console
from tests.html_page import Page
from tests.ms.monitored import LOG, Fake, batches, cell_of, model_of, quiet, records, steps
from tests.ms.networks import Mlp, classes
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import amp
from boost_ext import report as run_report
from boost_ext.callbacks import BoostMonitor
from boost_ext.report.log import End, LineSearch, RunLogWriter, Step, TensorOverflow


def test_everything_that_a_cell_tells_is_recorded() -> None:
    overflowed = {"name": "w", "inf": 1, "nan": 2, "first_index": 3, "largest": 4.0}
    cell = Fake(overflow=True, overflowed=[overflowed])
    with quiet(name="mine", instrument=True) as monitor:
        monitor.record(cell, Tensor(0.5), epoch=2, seconds=0.125)
    header, step, end = records()
    assert cell.instrumented == [True]
    assert step.elapsed > 0
    assert step.model_copy(update={"elapsed": None}) == Step(
        step=1,
        epoch=2,
        loss=0.5,
        loss_scale=8.0,
        overflow=True,
        overflowed=(TensorOverflow(**overflowed),),
        largest_gradient=2.5,
        frozen_share=0.25,
        freeze_index=2,
        micro_batch=3,
        line_search=LineSearch(accepted=True, rho=0.55),
        seconds=0.125,
        slots={"source": 0.5, "apply": 0.25},
    )
    assert (header.name, header.cell, header.observed, header.parameters.elements) == ("mine", "Fake", True, 6)
    assert end == End()


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_a_loop_of_ones_own(mode: int, compile: str) -> None:
    """Real cells: the overflow has the name of its weight, and the losses are those of the cell."""
    cell = cell_of(compile=compile)
    losses = []
    with quiet(instrument=compile == "step") as monitor:
        for x in ([1.0, 2.0], [math.nan, math.inf], [3.0, -4.0]):
            outputs = cell(Tensor(x))
            losses.append(float(outputs[0].asnumpy()))
            monitor.record(cell, outputs)
    header, *made, end = records()
    assert header.mode == ("PYNATIVE_MODE" if mode == ms.PYNATIVE_MODE else "GRAPH_MODE")
    assert (header.cell, header.network, header.optimizer) == (type(cell).__name__, "Weight", "SGD")
    assert (header.parameters.tensors, header.parameters.elements) == (1, 2)
    assert header.versions["mindspore"] == ms.__version__
    np.testing.assert_array_equal([step.loss for step in made], losses)
    assert [(step.step, step.overflow, step.largest_gradient) for step in made] == [
        (1, False, 2.0),
        (2, True, 0.0),
        (3, False, 4.0),
    ]
    assert made[1].overflowed == (TensorOverflow(name="w", inf=1, nan=1, first_index=0, largest=0.0),)
    assert made[0].seconds is None
    assert all(step.seconds > 0 for step in made[1:])
    if compile == "step":
        assert made[0].slots is None
        assert all(set(step.slots) == {"source", "guard", "apply", "update_scale"} for step in made[1:])
        assert all(sum(step.slots.values()) <= step.seconds for step in made[1:])
    else:
        assert all(step.slots is None for step in made)
    assert end == End()


@in_graph_mode
def test_under_model(mode: int) -> None:
    manager = amp.DynamicLossScaleManager(2.0**10, 2, 1000)
    config = {"boost": {"mode": "manual", "grad_freeze": True}, "grad_freeze": {"total_steps": 64}}
    model = model_of(boost_config_dict=config, loss_scale_manager=manager)
    model.train(2, batches(4, bad=(0, 1, 2)), callbacks=[quiet(instrument=True)])
    header, *made, end = records()
    assert header.plan == json.loads(json.dumps(model.plan.as_dict()))
    assert (header.network, header.steps_per_epoch) == ("Mlp", 4)
    assert [(step.step, step.epoch) for step in made] == [(i + 1, 1 + i // 4) for i in range(8)]
    # A frozen first layer does not see the inf in its input.
    assert {step.overflow for step in made} == {False, True}
    scales = [1024.0] + [step.loss_scale for step in made]
    assert [after < before for before, after in itertools.pairwise(scales)] == [step.overflow for step in made]
    for step in made:
        names = {tensor.name for tensor in step.overflowed or ()}
        assert names <= {p.name for p in model.train_network.network.trainable_params()}
        assert bool(names) == step.overflow
    assert {step.freeze_index for step in made} > {0}
    assert any(step.frozen_share > 0 for step in made)
    assert all(0 < sum(step.slots.values()) <= step.seconds for step in made)
    assert end == End()
    page = Page(run_report.html([run_report.read(LOG)]))
    assert page.row("summary", "steps that overflowed") == [str(sum(step.overflow for step in made))]
    assert page.row("plan", "grad_freeze")[0] == "applied"
    assert "freezing" in page.tables


@in_graph_mode
def test_dim_reduce_tells_of_its_line_search(mode: int) -> None:
    projection = np.linalg.qr(np.random.default_rng(0).standard_normal((368, 2)))[0].T
    np.save("pca.npy", np.ascontiguousarray(projection, np.float32))
    config = {"boost": {"mode": "manual", "dim_reduce": True}}
    config["dim_reduce"] = {"n_components": 2, "pca_mat_path": "pca.npy"}
    model = model_of(boost_config_dict=config)
    model.train(1, batches(3), callbacks=[quiet()])
    searches = [step.line_search for step in steps()]
    assert len(searches) == 3
    assert all(search.accepted == (search.rho > 0) == (search.failed_in_a_row == 0) for search in searches)


def test_mindspores_model_takes_our_cell(mode: int) -> None:
    cell = cell_of(classes(Mlp()))
    ms.Model(cell).train(1, batches(3, bad=(2,)), callbacks=quiet())
    assert [step.overflow for step in steps()] == [False, False, True]
    assert records()[0].observed


def test_a_cell_inside_another_one_is_found() -> None:
    class Outer(nn.Cell):
        def __init__(self, network: nn.Cell) -> None:
            super().__init__(auto_prefix=False)
            self.network = network

    inner = Fake()
    with quiet() as monitor:
        monitor.record(Outer(Outer(inner)), 1.0)
        monitor.record(inner, 1.0)
    assert [record.kind for record in records()] == ["header", "step", "step", "end"]
    assert records()[0].cell == "Fake"


@pytest.mark.filterwarnings("ignore:BoostMonitor")
def test_a_cell_of_mindspore_tells_loss_and_time(mode: int) -> None:
    with pytest.warns(UserWarning, match="TrainOneStepCell is no training cell of boost_ext") as warned:
        model_of(ms.Model).train(1, batches(3), callbacks=quiet())
    assert sum("BoostMonitor" in str(warning.message) for warning in warned) == 1
    header, first, second, third, end = records()
    assert (header.observed, header.plan, header.parameters.elements) == (False, None, 368)
    assert first.loss > second.loss > 0
    assert first.seconds > 0
    assert (third.overflow, third.loss_scale, third.frozen_share) == (None, None, None)
    assert end == End()


def test_overflow_and_scale_are_taken_from_the_outputs_of_other_cells() -> None:
    cell = nn.Flatten()
    monitor = quiet(every=10)
    with pytest.warns(UserWarning, match="Flatten is no training cell"):
        monitor.record(cell, (Tensor(1.0), Tensor(False), Tensor(2.0)))
    for i in range(2, 6):
        monitor.record(cell, (Tensor(1.0), Tensor(i == 3), Tensor(2.0**i)))
    monitor.close()
    assert [(step.step, step.overflow, step.loss_scale) for step in steps()] == [(1, False, 2.0), (3, True, 8.0)]


def test_every_few_steps_but_each_overflow() -> None:
    cell = cell_of()
    with quiet(every=4) as monitor:
        for i in range(1, 10):
            outputs = cell(Tensor([math.inf if i == 6 else 1.0, 1.0]))
            monitor.record(cell, outputs, seconds=float(i))
    made = steps()
    assert [step.step for step in made] == [1, 4, 6, 8]
    assert [step.overflow for step in made] == [False, False, True, False]
    assert [step.seconds for step in made] == [1.0, 3.0, 5.5, 7.5], "the mean since the last record"


@pytest.mark.parametrize(
    ("outputs", "loss"),
    [
        (Tensor([1.0, 2.0]), 1.5),
        (Tensor(1.5, ms.bfloat16), 1.5),
        (Tensor(1.5, ms.float16), 1.5),
        ((Tensor(1.5),), 1.5),
        (np.float32(1.5), 1.5),
        (1.5, 1.5),
    ],
)
def test_losses_of_all_kinds(outputs: Any, loss: float) -> None:
    with quiet() as monitor:
        monitor.record(Fake(), outputs)
    assert steps()[0].loss == loss


def test_an_output_that_is_no_loss_is_said() -> None:
    monitor, cell = quiet(), Fake()
    with pytest.warns(UserWarning, match="no loss is recorded, since the training cell returns dict"):
        monitor.record(cell, {"loss": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor.record(cell, {"loss": 1})
    monitor.close()
    assert [step.loss for step in steps()] == [None, None]


class Stop(ms.Callback):
    """Raises in a step."""

    def on_train_step_end(self, run_context: Any) -> None:
        if run_context.original_args().cur_step_num == 2:
            raise RuntimeError("out of <memory>")


def test_a_run_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match="out of"):
        model_of().train(1, batches(4), callbacks=[quiet(), Stop()])
    assert [step.step for step in steps()] == [1, 2]
    assert records()[-1] == End(error="RuntimeError: out of <memory>")
    assert run_report.read(LOG).end == records()[-1]


def test_training_in_several_calls_and_with_evaluations() -> None:
    model, monitor = model_of(), quiet()
    model.fit(2, batches(3), batches(2), callbacks=[monitor])
    model.train(1, batches(3), callbacks=[monitor])
    assert [step.step for step in steps()] == list(range(1, 10))
    kinds = [record.kind for record in records()]
    fitted = [*["step"] * 3, "evaluation"] * 2
    assert kinds == ["header", *fitted, "end", *["step"] * 3, "end"], "an evaluation does not end a run"


def test_a_killed_run_is_readable_and_resumes() -> None:
    cell = cell_of()
    killed = quiet()
    for _ in range(5):
        killed.record(cell, cell(Tensor([1.0, 1.0])))
    with LOG.open("ab") as file:
        file.write(b'{"kind":"step","st')
    assert [step.step for step in steps()] == [1, 2, 3, 4, 5]
    with quiet(resume=3) as monitor:
        for _ in range(4):
            monitor.record(cell, cell(Tensor([1.0, 1.0])))
    run = run_report.read(LOG)
    np.testing.assert_array_equal(run.columns["step"], [1, 2, 3, 4, 5, 6, 7])
    assert run.resumed_at == (4,)
    killed.close()


def test_a_full_disk_costs_lines_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five steps, of which there is no room for the second and third, nor for what is printed."""
    cell, write, full = Fake(), RunLogWriter.write, False

    def writes(self: RunLogWriter, record: Any) -> None:
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, record)

    monkeypatch.setattr(RunLogWriter, "write", writes)
    warned = r"BoostMonitor: {} could not be written: .*No space left on device; the training continues"
    with Path("/dev/full").open("w", buffering=1) as file:
        monitor = BoostMonitor(LOG, per_print_steps=1, console=Console(file=file))
        with pytest.warns(UserWarning, match=warned.format("the console")):
            monitor.record(cell, Tensor(1.0))
        full = True
        with pytest.warns(UserWarning, match=warned.format("run.jsonl")):
            monitor.record(cell, Tensor(1.0))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # said once
            monitor.record(cell, Tensor(1.0))
            full = False
            monitor.record(cell, Tensor(1.0))
            full = True
            monitor.close()
        with suppress(OSError):
            file.close()
    assert [step.step for step in steps()] == [1, 4]


def test_a_disk_that_is_full_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log begins when there is room for its header; a path that can never be written is an error at once."""
    cell = Fake()
    Path("full.jsonl").symlink_to("/dev/full")
    monitor = quiet(Path("full.jsonl"), resume=0)
    with pytest.warns(UserWarning, match=r"BoostMonitor: full\.jsonl could not be written: .*No space left"):
        monitor.record(cell, Tensor(1.0))
    Path("full.jsonl").unlink()
    monitor.record(cell, Tensor(1.0))
    monitor.close()
    header, step, _ = records(Path("full.jsonl"))
    assert (header.kind, step.step) == ("header", 2)
    assert Path("/dev/full").is_char_device()
    Path("file").touch()
    with pytest.raises(OSError, match="file"):
        quiet(Path("file") / "run.jsonl").record(cell, Tensor(1.0))


def test_a_run_that_is_made_again_keeps_the_logs_of_those_before() -> None:
    cell, seen = cell_of(), Console(file=StringIO(), width=200)
    for number in range(1, 4):
        with BoostMonitor(LOG, per_print_steps=0, console=seen) as monitor:
            for _ in range(number):
                monitor.record(cell, cell(Tensor([1.0, 1.0])))
    lengths = {path.name: len(run_report.read(path)) for path in Path().glob("*.jsonl")}
    assert lengths == {"run.1.jsonl": 1, "run.2.jsonl": 2, "run.jsonl": 3}
    assert "BoostMonitor: run.jsonl was there already, and is now run.2.jsonl" in seen.file.getvalue()


def test_a_file_that_is_no_log_stops_before_anything_is_trained() -> None:
    LOG.write_text("mine")
    model = model_of()
    before = model.train_network.observe()["step"]
    message = r"BoostMonitor: path must be a new file or a run log, got run\.jsonl, which is neither; give another path"
    with pytest.raises(FileExistsError, match=message):
        model.train(1, batches(2), callbacks=[quiet()])
    assert model.train_network.observe()["step"] == before
    assert LOG.read_text() == "mine"
