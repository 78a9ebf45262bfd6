"""The log of a run: standard JSON, readable after a crash, and clear about files that are something else."""

from __future__ import annotations

import json
import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boost_ext import report as run_report
from boost_ext.report.log import (
    End,
    Header,
    LineSearch,
    Parameters,
    RunLogWriter,
    Step,
    TensorOverflow,
    iterate,
)

HEADER = Header(started="2026-01-02T03:04:05+00:00", name="first", parameters=Parameters(tensors=2, elements=10))
OVERFLOW = TensorOverflow(name="conv.weight", inf=3, nan=1, first_index=17, largest=65504.0)


def write(path: Path, *records: Step | End, header: Header = HEADER) -> Path:
    with RunLogWriter(path, header) as log:
        for record in records:
            log.write(record)
    return path


def steps(*numbers: int) -> list[Step]:
    return [Step(step=n, loss=float(n), elapsed=0.5 * n) for n in numbers]


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    step = Step(
        step=1,
        epoch=1,
        loss=0.1,
        loss_scale=1024.0,
        overflow=True,
        overflowed=(OVERFLOW,),
        largest_gradient=3.5,
        frozen_share=0.25,
        freeze_index=1,
        micro_batch=2,
        line_search=LineSearch(accepted=True, rho=0.55),
        seconds=0.01,
        elapsed=0.02,
        slots={"source": 0.007, "apply": 0.002},
    )
    path = write(tmp_path / "new" / "run.jsonl", step, End(error="ValueError: x"))
    assert list(iterate(path)) == [HEADER, step, End(error="ValueError: x")]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 5e-324, 1.7976931348623157e308, 0.1])
def test_every_float_survives_in_standard_json(tmp_path: Path, value: float) -> None:
    record = Step(step=1, loss=value, line_search=LineSearch(accepted=False, rho=value), slots={"source": value})
    path = write(tmp_path / "run.jsonl", record)
    for line in path.read_text().splitlines():
        json.loads(line, parse_constant=_no_constant)
    read = list(iterate(path))[1]
    assert isinstance(read, Step)
    assert read.line_search is not None
    assert read.slots is not None
    for got in (read.loss, read.line_search.rho, read.slots["source"]):
        np.testing.assert_equal(got, value)


def test_a_plan_of_any_content_is_standard_json(tmp_path: Path) -> None:
    plan = {"a": math.nan, 1: (np.float32(0.5), Path("x")), "deep": {"set": {"one"}, "none": None, "yes": np.bool_(1)}}
    path = write(tmp_path / "run.jsonl", header=Header(started="", plan=plan))
    json.loads(path.read_text(), parse_constant=_no_constant)
    (header,) = iterate(path)
    assert isinstance(header, Header)
    assert header.plan == {"a": "nan", "1": [0.5, "x"], "deep": {"set": ["one"], "none": None, "yes": True}}


def test_each_line_is_in_the_file_before_the_next_step(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    log = RunLogWriter(path, HEADER)
    for step in steps(1, 2):
        log.write(step)
        assert list(iterate(path))[-1] == step
    log.close()


def test_a_crash_in_the_middle_of_a_line_loses_only_that_line(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", *steps(1, 2, 3))
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for size in range(last, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert list(iterate(path)) == [HEADER, *steps(1, 2)], size
    path.write_bytes(whole[:-1])  # whole but for the newline
    assert list(iterate(path)) == [HEADER, *steps(1, 2, 3)]


@pytest.mark.parametrize("room", range(0, 45, 7))
def test_a_full_disk_loses_whole_lines(tmp_path: Path, room: int) -> None:
    """The limit of a file's size writes as much as there is room for, as a full disk does."""
    path = tmp_path / "run.jsonl"
    log = RunLogWriter(path, HEADER)
    log.write(steps(1)[0])
    with limited(path.stat().st_size + room):
        for step in steps(2, 3):
            with pytest.raises(OSError, match="File too large"):
                log.write(step)
        assert list(iterate(path)) == [HEADER, *steps(1)]
    log.write(steps(4)[0])
    log.close()
    assert list(iterate(path)) == [HEADER, *steps(1, 4)]
    before = path.read_bytes()
    with limited(len(before) + room):
        with pytest.raises(OSError, match="File too large"):
            RunLogWriter(path, HEADER, resume=True)
        with pytest.raises(OSError, match="File too large"):
            RunLogWriter(tmp_path / "new.jsonl", HEADER.model_copy(update={"name": "x" * 1000}))
    assert path.read_bytes() == before
    assert not (tmp_path / "new.jsonl").exists(), "a log without a header is none"


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file of this process grows beyond it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_log_is_not_overwritten(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", *steps(1))
    with pytest.raises(FileExistsError, match=r"path must be a new file, got .*run\.jsonl.*resume=True"):
        RunLogWriter(path, HEADER)
    assert list(iterate(path)) == [HEADER, *steps(1)]


@pytest.mark.parametrize("cut", [0, 5], ids=["after a line", "within a line"])
def test_a_resumed_run_takes_the_place_of_its_steps(tmp_path: Path, cut: int) -> None:
    overflow = Step(step=3, loss=3.0, elapsed=1.5, overflow=True, overflowed=(OVERFLOW,))
    path = write(tmp_path / "run.jsonl", *steps(1, 2), overflow, *steps(4))
    path.write_bytes(path.read_bytes()[: -cut or None])
    with RunLogWriter(path, HEADER, resume=True) as log:
        for number in (3, 4, 5):
            log.write(Step(step=number, loss=-1.0, elapsed=0.25 * (number - 2)))
    run = run_report.read(path)
    np.testing.assert_array_equal(run.columns["step"], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(run.columns["loss"], [1, 2, -1, -1, -1])
    np.testing.assert_array_equal(run.columns["elapsed"], [0.5, 1.0, 1.25, 1.5, 1.75])
    assert run.resumed_at == (3,)
    assert run.overflows() == []


def test_resuming_needs_a_log(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\n")
    with pytest.raises(ValueError, match=r"notes\.txt: line 1 must be a header, got 'mine'; this is no run log"):
        RunLogWriter(path, HEADER, resume=True)
    assert path.read_text() == "mine\n"


def test_resuming_what_is_not_there_begins_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with RunLogWriter(path, HEADER, resume=True) as log:
        log.write(steps(1)[0])
    assert list(iterate(path)) == [HEADER, *steps(1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b"\n", "line 1 must be a header, got ''"),
        (b"step,loss\n1,2\n", r"line 1 must be a header, got 'step,loss'; this is no run log"),
        (b"\x80\x04\x95\xff\x00" * 100, "this is no run log"),
        (b"[1]\n", "line 1 must be a header"),
        (b'{"kind": "step", "step": 1}\n', "line 1 must be a header"),
        (b'{"kind": "header"}\n', "schema_version in line 1 must be 1, 2 or 3, got None"),
        (
            b'{"kind": "header", "schema_version": 99, "new": 1}\n',
            "schema_version in line 1 must be 1, 2 or 3, got 99",
        ),
        (b'{"kind": "header", "schema_version": 1}\n', "the header in line 1: started: Field required"),
    ],
)
def test_a_file_that_is_no_log_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "other.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^run log .*other\.jsonl: .*{message}"):
        list(iterate(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"kind": "step", "step": "one"}', "line 3 is no record: step.step: Input should be a valid integer"),
        ('{"kind": "step", "step": 2, "los": 1}', "line 3 is no record: step.los: Extra inputs"),
        ('{"kind": "stop"}', "line 3 is no record"),
        ("", "line 3 is no record"),
        ('{"kind": "header", "schema_version": 4}', "schema_version in line 3 must be 1, 2 or 3, got 4"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "run.jsonl", *steps(1))
    text = path.read_text()
    for rest in ("", Step(step=3).model_dump_json() + "\n"):
        path.write_text(f"{text}{line}\n{rest}")
        with pytest.raises(ValueError, match=message):
            list(iterate(path))


def test_progress_ends_with_the_whole_file(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", *steps(*range(1, 9001)))
    calls: list[tuple[int, int]] = []
    run_report.read(path, lambda done, total: calls.append((done, total)))
    size = path.stat().st_size
    assert calls[-1] == (size, size)
    assert len(calls) == 3
    assert calls == sorted(calls)


def test_columns_keep_their_places(tmp_path: Path) -> None:
    """A quantity that comes late, or is missing in between, is nan there and shifts nothing."""
    path = write(
        tmp_path / "run.jsonl",
        Step(step=1, loss=math.inf),
        Step(step=2, slots={"source": 1.0}),
        Step(step=3, loss=2.0, line_search=LineSearch(accepted=True, rho=0.5), slots={"apply": 2.0}),
    )
    run = run_report.read(path)
    nan = math.nan
    assert set(run.columns) == {"step", "loss", "accepted", "rho"}
    np.testing.assert_array_equal(run.columns["loss"], [math.inf, nan, 2])
    np.testing.assert_array_equal(run.columns["accepted"], [nan, nan, 1])
    np.testing.assert_array_equal(run.columns["rho"], [nan, nan, 0.5])
    np.testing.assert_array_equal(run.slots["source"], [nan, 1, nan])
    np.testing.assert_array_equal(run.slots["apply"], [nan, nan, 2])
    assert run.end is None


def test_an_end_in_the_middle_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", *steps(1), End(), *steps(2))
    assert run_report.read(path).end is None
    path = write(tmp_path / "again.jsonl", *steps(1), End(), *steps(2), End(error="Stop: now"))
    assert run_report.read(path).end == End(error="Stop: now")


def test_a_line_for_the_console() -> None:
    overflow = Step(step=7, overflow=True, overflowed=(OVERFLOW, OVERFLOW))
    step = Step(
        step=8,
        epoch=2,
        loss=0.12345,
        loss_scale=1024.0,
        frozen_share=0.25,
        line_search=LineSearch(accepted=True, rho=0.55),
        seconds=0.0123,
    )
    assert step.line(3, overflow) == (
        "epoch 2 step 8  loss 0.1235  scale 1024  frozen 25%  line search 0.55  12.3 ms  "
        "3 overflowed, last conv.weight (3 inf, 1 nan, first at 17) and 1 more"
    )
    assert Step(step=1, line_search=LineSearch(accepted=False, rho=0)).line() == "step 1  line search failed"
    failed = LineSearch(accepted=False, rho=0, failed_in_a_row=5)
    assert Step(step=9, line_search=failed).line() == "step 9  line search failed 5 times in a row"
    scalars = {"line_search/rho": 0.0, "line_search/failed_in_a_row": 5.0}
    assert Step(step=9, line_search=failed).scalars() == scalars


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
def test_any_losses_survive(tmp_path_factory: pytest.TempPathFactory, losses: list[float]) -> None:
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    write(path, *(Step(step=i, loss=loss) for i, loss in enumerate(losses, 1)))
    np.testing.assert_array_equal(run_report.read(path).columns["loss"], losses)
