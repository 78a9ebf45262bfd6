"""The report: what the page says, read as a browser would read it."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.html_page import Page
from typer.testing import CliRunner

from boost_ext import report as run_report
from boost_ext.cli.commands import app
from boost_ext.report.log import End, Header, LineSearch, Parameters, RunLogWriter, Step, TensorOverflow
from boost_ext.report.plots import stretches

HOSTILE = "<script>alert('$x$')</script>&_"
PLAN = {
    "level": "O1",
    "mode": "auto",
    "features": {
        "less_bn": {
            "status": "applied",
            "reason": "level O1 has it",
            "details": {"removed": ["block.bn1", f"{HOSTILE}.bn2"], "share": 0.5},
            "ignored": [],
        },
        "adasum": {"status": "skipped", "reason": "it needs ranks", "details": {}, "ignored": ["device_number"]},
    },
}


def overflow(name: str, inf: int, nan: int = 0, first: int = 0, largest: float = 1.0) -> TensorOverflow:
    return TensorOverflow(name=name, inf=inf, nan=nan, first_index=first, largest=largest)


def full_steps(count: int = 200) -> list[Step]:
    """Everything a training cell can tell. Steps 10, 20, … overflow, each in b, every other one in a too."""
    result = []
    for i in range(1, count + 1):
        found = i % 10 == 0
        tensors = (overflow("b", 2, 1, 5, 60000.0), *([overflow("a", 1)] if i % 20 == 0 else []))
        result.append(
            Step(
                step=i,
                epoch=1 + i // 100,
                loss=math.nan if i == 50 else 2.0 / i,
                loss_scale=2.0 ** (10 - i // 100),
                overflow=found,
                overflowed=tensors if found else None,
                largest_gradient=1.0 / i,
                gradient_norm=2.0 / i,
                frozen_share=(0.0, 0.5)[i % 2],
                freeze_index=i % 2,
                micro_batch=i % 4,
                line_search=LineSearch(
                    accepted=i % 4 != 0, rho=0.55 * (i % 4 != 0), failed_in_a_row=(1 + i // 100) * (i % 4 == 0)
                ),
                seconds=2.0 if i == 1 else 0.010,
                elapsed=0.01 * i,
                slots={"source": 0.006, HOSTILE: 0.003},
            )
        )
    return result


def write(path: Path, steps: list[Step], *, end: End | None = None, **header: Any) -> Path:
    with RunLogWriter(path, Header(started="2026-01-02T03:04:05+00:00", **header)) as log:
        for step in steps:
            log.write(step)
        if end is not None:
            log.write(end)
    return path


def page_of(*paths: Path) -> Page:
    return Page(run_report.html([run_report.read(path) for path in paths]))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("full") / "full.jsonl",
        full_steps(),
        end=End(),
        name=HOSTILE,
        versions={"boost_ext": "0.1.0", "mindspore": "2.10.0"},
        mode="GRAPH_MODE",
        device="CPU",
        cell="BoostTrainOneStepCell",
        observed=True,
        network="Net",
        optimizer="Momentum",
        parameters=Parameters(tensors=3, elements=1234567),
        steps_per_epoch=100,
        plan=PLAN,
    )


@pytest.fixture(scope="module")
def page(full: Path) -> Page:
    """Drawn once: nine panels take a second or two."""
    return page_of(full)


def test_summary_and_header(page: Page) -> None:
    assert page.headings[0] == f"Training run {HOSTILE}"
    expected = {
        "steps recorded": "200",
        "last step": "200",
        "last loss": "0.01",
        "steps that overflowed": "20",
        "last loss scale": "256",
        "mean frozen share": "25.0%",
        "micro-batches a step, at most": "3",
        "line search accepted": "75.0%",
        "line searches failed in a row, at most": "3",
        "ms a step (median)": "10",
        "ms, first step": "2000",
        "seconds in all": "2",
        "ms in slot source (median)": "6",
    }
    assert {key: page.row("summary", key) for key in expected} == {key: [value] for key, value in expected.items()}
    expected = {
        "file": "full.jsonl",
        "started": "2026-01-02T03:04:05+00:00",
        "ended": "at the end",
        "training cell": "BoostTrainOneStepCell",
        "network": "Net",
        "optimizer": "Momentum",
        "trained parameters": "1,234,567 elements in 3 tensors",
        "mode": "GRAPH_MODE",
        "device": "CPU",
        "steps an epoch": "100",
        "recorded": "every step",
        "mindspore": "2.10.0",
    }
    assert {key: page.row("header", key) for key in expected} == {key: [value] for key, value in expected.items()}


def test_overflowing_tensors_the_most_frequent_first(page: Page) -> None:
    rows = page.tables["overflows"]
    assert rows[1:] == [["b", "20", "40", "20", "10", "5", "60000"], ["a", "10", "10", "0", "20", "0", "1"]]
    assert rows[0][:4] == ["tensor", "steps", "inf", "nan"]


def test_many_overflowing_tensors_are_counted(tmp_path: Path) -> None:
    tensors = tuple(overflow(f"w{i}", 1) for i in range(250))
    page = page_of(write(tmp_path / "run.jsonl", [Step(step=1, overflow=True, overflowed=tensors)]))
    assert len(page.tables["overflows"]) == 202
    assert page.tables["overflows"][-1] == ["and 50 more"]


def test_plan_and_freezing(page: Page) -> None:
    assert page.row("plan", "less_bn") == [
        "applied",
        "level O1 has it",
        f"removed: block.bn1, {HOSTILE}.bn2; share: 0.5",
    ]
    assert page.row("plan", "adasum") == ["skipped", "it needs ranks; device_number", ""]
    assert page.row("plan", "level") == ["O1"]
    assert page.row("freezing", "0") == ["100", "50.0%", "0.0%", "10"]
    assert page.row("freezing", "1") == ["100", "50.0%", "50.0%", "10"]


def test_a_plan_of_another_form_is_shown_too(tmp_path: Path) -> None:
    page = page_of(write(tmp_path / "run.jsonl", full_steps(3), plan={"features": ["x<y", "z"], "n": 1}))
    assert page.row("plan", "features") == ["x<y, z"]
    assert page.row("plan", "n") == ["1"]


def test_all_plots_are_there_and_labelled(page: Page) -> None:
    labels = {
        "loss": "loss",
        "largest_gradient": "largest gradient",
        "gradient_norm": "gradient norm",
        "frozen_share": "frozen share",
        "accepted": "line search accepted",
        "rho": "step length",
        "seconds": "seconds a step",
        "loss_scale": "loss scale",
        "slots": "ms a step",
    }
    assert list(page.figures) == list(labels)
    for name, label in labels.items():
        assert {label, "step"} <= set(page.figures[name])
    assert HOSTILE in page.figures["slots"]


def test_overflows_and_broken_losses_are_marked(page: Page) -> None:
    """20 overflows and one nan: as many crosses as that."""
    styles = page.styles
    marked = {name: len([s for s in styles[name] if s.startswith("use") and "stroke: #cc3311" in s]) for name in styles}
    assert (marked["loss_scale"], marked["loss"], marked["seconds"]) == (20, 1, 0)


def test_nothing_leaves_the_page_and_nothing_runs(full: Path) -> None:
    text = run_report.html([run_report.read(full)] * 2)
    page = Page(text)
    assert page.tables["summary"][0] == ["", f"{HOSTILE} (1)", f"{HOSTILE} (2)"], "runs of one name are numbered"
    assert not page.elements & {"script", "link", "iframe", "object", "embed", "img", "image", "foreignobject"}
    assert page.links
    assert all(link.startswith("#") for link in page.links), page.links
    assert "default-src 'none'" in text


def test_means_of_stretches() -> None:
    values = np.arange(1000.0)
    values[10:20] = np.nan
    values[25] = np.inf
    np.testing.assert_array_equal(stretches(values[:100], 100), values[:100])
    expected = [values[i : i + 10][np.isfinite(values[i : i + 10])] for i in range(0, 1000, 10)]
    np.testing.assert_array_equal(stretches(values, 100), [part.mean() if len(part) else np.nan for part in expected])


def test_two_runs_are_compared(full: Path, page: Page, tmp_path: Path) -> None:
    other = write(
        tmp_path / "other.jsonl",
        [Step(step=i, loss=1.0, elapsed=0.1 * i) for i in range(1, 4)],
        end=End(error="ValueError: <b>"),
        cell="TrainOneStepCell",
        every=5,
    )
    alone, page = page, page_of(full, other)
    assert page.headings[0] == "2 training runs"
    assert page.tables["summary"][0] == ["", HOSTILE, "other.jsonl"]
    assert page.row("summary", "steps recorded") == ["200", "3"]
    assert page.row("summary", "last loss scale") == ["256", "-"]
    assert page.row("header", "ended") == ["at the end", "by an error: ValueError: <b>"]
    assert page.row("header", "recorded") == ["every step", "every 5 steps"]
    assert "not of boost_ext" in page.row("header", "training cell")[1]
    assert "seconds since the start" in page.figures["loss_over_time"]
    assert "loss_over_time" not in alone.figures
    assert f"Plan: {HOSTILE}" in page.headings
    assert "Plan: other.jsonl" not in page.headings

    def drawn(panel: str, colour: str) -> bool:
        return any(colour in style for style in page.styles[panel])

    assert [drawn("loss", colour) for colour in ("#0072b2", "#d55e00", "#009e73")] == [True, True, False]
    assert not drawn("loss_scale", "#d55e00"), "a run keeps its colour, and is only where it has data"


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [Step(step=1)],
        [Step(step=1, loss=math.nan)],
        [Step(step=1, loss=-1.0, loss_scale=1.0, overflow=False)],
        [Step(step=i, loss=math.inf, loss_scale=math.inf, largest_gradient=0.0, seconds=0.0) for i in range(3)],
        full_steps(1),
        full_steps(2),
    ],
    ids=["none", "bare", "nan", "negative", "infinite", "one", "two"],
)
def test_runs_with_little_in_them(tmp_path: Path, steps: list[Step]) -> None:
    page = page_of(write(tmp_path / "run.jsonl", steps))
    assert page.row("summary", "steps recorded") == [str(len(steps))]
    assert page.row("header", "ended") == ["no end was recorded: killed, or still going"]
    assert ("No step was recorded." in page.text) == (not page.figures)


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    spike = 12_345
    steps = [Step(step=i, loss=1e6 if i == spike else 1.0 + i % 7, loss_scale=2.0**10) for i in range(1, 30_001)]
    path = write(tmp_path / "long.jsonl", steps)
    run = run_report.read(path)
    text = run_report.html([run])
    assert len(text) < 200_000
    panel = text[text.index('id="panel-loss"') :]
    drawn = re.search(r'<path d="([^"]*)"[^>]*stroke: #0072b2; stroke-opacity: 0.3', panel)[1]
    heights = sorted(float(height) for height in re.findall(r"[ML] \S+ (\S+)", drawn))
    assert heights[0] + 50 < heights[5], "the spike is drawn"


def test_no_run_is_an_error() -> None:
    with pytest.raises(ValueError, match="runs must hold at least one run, got none"):
        run_report.html([])


def test_the_page_never_replaces_a_log(full: Path) -> None:
    before = full.read_bytes()
    with pytest.raises(ValueError, match=r"output must not be a run log, got .*full\.jsonl"):
        run_report.write([run_report.read(full)], full)
    assert full.read_bytes() == before


def test_the_command(full: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", str(full)])
    assert result.exit_code == 0, result.output
    assert "full.html" in result.output
    assert Page(full.with_suffix(".html").read_text(encoding="utf-8")).row("summary", "steps recorded") == ["200"]
    output = tmp_path / "new" / "both.html"
    result = CliRunner().invoke(app, ["report", str(full), str(full), "-o", str(output)])
    assert result.exit_code == 0, result.output
    assert Page(output.read_text(encoding="utf-8")).headings[0] == "2 training runs"
    assert [path.name for path in output.parent.iterdir()] == ["both.html"], "no file in parts is left"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("", "the file is empty"),
        ("hello", "this is no run log"),
        ('{"kind": "header", "schema_version": 99}', "schema_version in line 1 must be 1, 2 or 3, got 99"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_file(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    if content is not None:
        path.write_text(content)
    result = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "out.html")])
    assert result.exit_code == 1
    assert message in result.output
    assert not (tmp_path / "out.html").exists()


@pytest.mark.parametrize("module", ["jinja2", "matplotlib"])
def test_without_a_package_the_command_says_what_to_install(full: Path, module: str) -> None:
    code = f"import sys; sys.modules[{module!r}] = None\nfrom boost_ext.cli.commands import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", code, "report", str(full)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert f"this needs {module}" in done.stderr
    assert "pip install 'boost_ext[report]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_jinja2_the_function_does_too(full: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r"^this needs jinja2, .*pip install 'boost_ext\[report\]'$"):
        run_report.html([run_report.read(full)])


def test_reading_and_drawing_need_no_mindspore(full: Path) -> None:
    code = "import sys; sys.modules['mindspore'] = None\nfrom boost_ext import run_report, run_log\n"
    code += f"assert len(run_report.html([run_report.read({str(full)!r})])) > 10000"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
