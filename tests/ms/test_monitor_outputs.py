"""Where BoostMonitor writes to besides its log, and what it refuses."""

from __future__ import annotations

import io
import math
import re
import struct
import warnings
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore import Tensor, nn
from mindspore.train import summary_pb2
from rich.console import Console
from tests.html_page import Page
from tests.ms.monitored import LOG, Fake, cell_of, quiet, records
from tests.ms.tiers import in_graph_mode

from boost_ext import report as run_report
from boost_ext.callbacks import BoostMonitor
from boost_ext.report.log import Header, Step


def test_lines_on_the_console() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=40)
    cell = cell_of()
    monitor = BoostMonitor(per_print_steps=3, console=console)
    for i in range(1, 8):
        monitor.record(cell, cell(Tensor([math.inf if i in (1, 2, 4) else 0.0, 1.0])), epoch=1)
    lines = [re.sub(r"[\d.e+-]+ ms", "T ms", line) for line in screen.getvalue().splitlines()]
    assert len(lines) == 2
    assert re.fullmatch(
        r"epoch 1 step 3  loss [\d.]+  lr 0.01  scale 4  T ms  2 overflowed, last w \(1 inf, 0 nan, first at 0\)",
        lines[0],
    )
    assert lines[1].endswith("1 overflowed, last w (1 inf, 0 nan, first at 0)")
    assert not LOG.exists()


def test_no_line_with_per_print_steps_0(capsys: pytest.CaptureFixture[str]) -> None:
    cell = Fake()
    with quiet() as monitor:
        for _ in range(200):
            monitor.record(cell, 1.0)
    assert capsys.readouterr().out == ""


def test_summary_record() -> None:
    """What mindspore.SummaryRecord wrote, read with its own protocol."""
    cell = Fake(overflow=True, loss_scale=8.0)
    with ms.SummaryRecord("summary", num_process=1) as summary:
        monitor = BoostMonitor(per_print_steps=0, summary=summary)
        for loss in (1.5, math.inf):
            monitor.record(cell, loss, seconds=0.5)
    events = {}
    (path,) = Path("summary").glob("*summary*")
    content = path.read_bytes()
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        event = summary_pb2.Event.FromString(content[12 : 12 + size])
        content = content[16 + size :]
        if event.summary.value:
            events[event.step] = {value.tag: value.scalar_value for value in event.summary.value}
    assert set(events) == {1, 2}
    assert events[1] == {
        "boost/loss": 1.5,
        "boost/loss_scale": 8.0,
        "boost/overflow": 1.0,
        "boost/largest_gradient": 2.5,
        "boost/frozen_share": 0.25,
        "boost/micro_batch": 3.0,
        "boost/line_search/rho": pytest.approx(0.55),
        "boost/seconds": 0.5,
        "boost/slots/source": 0.5,
        "boost/slots/apply": 0.25,
    }
    assert events[2]["boost/loss"] == math.inf


class Kept:
    """A writer that keeps what it gets, until it breaks."""

    def __init__(self, breaks_at: int = 100) -> None:
        self.records: list[Any] = []
        self.closed, self.breaks_at = 0, breaks_at

    def write(self, record: Any) -> None:
        if len(self.records) >= self.breaks_at:
            raise RuntimeError("no route to the server")
        self.records.append(record)

    def close(self) -> None:
        self.closed += 1


def test_writers_get_what_the_log_gets() -> None:
    kept, cell = Kept(), Fake(loss_scale=8.0)
    with BoostMonitor(LOG, per_print_steps=0, writers=[kept]) as monitor:
        monitor.record_metrics({"accuracy": 0.5})
        for loss in (1.5, 2.5):
            monitor.record(cell, loss)
    assert kept.records == records()
    assert [record.kind for record in kept.records] == ["header", "evaluation", "step", "step", "end"]
    assert kept.closed == 1


def test_a_writer_that_breaks_ends_no_training() -> None:
    cell, broken = Fake(), Kept(breaks_at=2)
    with BoostMonitor(per_print_steps=0, writers=[broken, kept := Kept()]) as monitor:
        monitor.record(cell, 1.0)
        with pytest.warns(UserWarning, match="BoostMonitor: Kept could not be written: no route to the server"):
            monitor.record(cell, 2.0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            monitor.record(cell, 3.0)
    assert [record.kind for record in kept.records] == ["header", *3 * ["step"], "end"]
    with pytest.raises(RuntimeError, match="no route"):
        BoostMonitor(per_print_steps=0, writers=[Kept(breaks_at=0)]).record(cell, 1.0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"path": 3}, TypeError, "path must be a str or a Path, got int"),
        ({"every": 0}, ValueError, "every must be at least 1, got 0"),
        ({"every": True}, TypeError, "every must be an int, got bool"),
        ({"per_print_steps": -1}, ValueError, "per_print_steps must be at least 0, got -1"),
        ({"instrument": 1}, TypeError, "instrument must be a bool, got int"),
        ({"resume": -1, "path": "x"}, ValueError, "resume must be at least 0, got -1"),
        ({"resume": 3}, ValueError, "resume needs the path of the log to go on with"),
        ({"summary": "directory"}, TypeError, "summary must be a mindspore.SummaryRecord, got str"),
        ({"writers": ["directory"]}, TypeError, "writers must hold writers of records, got str"),
        ({"per_print_steps": 0}, ValueError, "nothing to record to: give path, summary, writers or per_print_steps"),
        ({"evry": 2}, TypeError, r"unknown argument 'evry', did you mean 'every'\? Known: \['path', 'every', "),
    ],
)
def test_arguments(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^BoostMonitor: {message}"):
        BoostMonitor(**arguments)


def test_wrong_cells() -> None:
    monitor = quiet()
    with pytest.raises(TypeError, match="BoostMonitor: the training cell must be a Cell, got NoneType"):
        monitor.record(None, 1.0)
    with pytest.raises(ValueError, match="BoostMonitor: instrument needs a training cell of boost_ext, got Dense"):
        quiet(instrument=True).record(nn.Dense(1, 1), 1.0)
    assert not LOG.exists()
    monitor.record(Fake(), 1.0)
    with pytest.raises(ValueError, match="got another Fake; give it a monitor of its own"):
        monitor.record(Fake(), 1.0)
    monitor.close()


def test_a_callback_of_another_rank_records_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boost_ext.ms.training.monitor.GlobalComm.INITED", True)
    monkeypatch.setattr("boost_ext.ms.training.monitor.get_rank", lambda: 1)
    monkeypatch.setattr("boost_ext.ms.training.monitor.rank_count", lambda: 4)
    cell = Fake()
    with quiet() as monitor:
        monitor.record(cell, 1.0)
    assert not LOG.exists()
    with BoostMonitor("run-{rank}.jsonl", per_print_steps=0) as monitor:
        monitor.record(cell, 1.0)
    header = records(Path("run-1.jsonl"))[0]
    assert isinstance(header, Header)
    assert (header.rank, header.ranks) == (1, 4)


@in_graph_mode
def test_the_documentation_runs(mode: int) -> None:
    text = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    *first, guarded = blocks
    assert "__main__" in guarded
    names: dict[str, Any] = {}
    for block in first:
        exec(block, names)
    assert names["health"].last.line() == "step 20  4 tensors finite", "the page shows this line"
    assert [record.kind for record in names["slowest"].records] == ["step"]
    freezing, loop = (run_report.read(f"runs/{name}.jsonl") for name in ("freezing", "loop"))
    assert (len(freezing), len(loop)) == (60, 20)
    assert freezing.header.plan["features"]["grad_freeze"]["status"] == "applied"
    assert freezing.end is not None
    assert loop.columns["loss"][-1] < loop.columns["loss"][0] * 1.5
    page = Page(run_report.html([freezing, loop]))
    assert page.row("summary", "steps recorded") == ["60", "20"]
    assert set(freezing.slots) == set(re.findall(r"`(source|guard|apply|update_scale)`", text))
    fields = set(re.findall(r"`(\w+)`", text[text.index("| of each step") : text.index("The header has")]))
    assert set(Step.model_fields) - {"kind"} <= fields, "the table names every field"
    exec(guarded, {**names, "__name__": "__main__"})
    assert list(Path("summary").glob("*summary*"))
