"""The health of tensors on the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.html_page import Page

from boost_ext import run_report
from boost_ext.health import HealthMonitor
from boost_ext.report.log import Header, Health, RunLogWriter, Step, TensorHealth


def made(path: Path, bad: int | None = 3) -> Path:
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal(8).astype(np.float32) for name in ("<a>", "b")}
    with HealthMonitor(path, rank=1, sample=8) as monitor:
        for step in range(1, 6):
            gradients = {"<a>": np.float32([step, 0]), "b": np.zeros(2, np.float32)}
            if step == bad:
                gradients["<a>"][1] = np.nan
            monitor.check(step, gradients=gradients, weights=weights)
            for weight in weights.values():
                weight *= np.float32(0.99)
    return path


def test_the_page_names_the_fault(tmp_path):
    page = Page(run_report.html([run_report.read(made(tmp_path / "run.jsonl"))]))
    assert page.row("faults", "3") == ["1", "gradient", "<a>", "0", "1", "1"]
    assert page.row("health", "<a>") == ["1", "3", "0", "0", "5", "5", "50.0%", "0.01"]
    assert page.row("health", "b") == ["0", "-", "0", "5", "0", "0", "100.0%", "0.01"]
    assert "Health of the tensors, in 5 looks" in page.headings
    assert {"norm", "update_ratio"} <= set(page.figures)


def test_a_run_without_faults_has_no_such_table(tmp_path):
    one, two = (run_report.read(made(tmp_path / name, bad=None)) for name in ("one.jsonl", "two.jsonl"))
    page = Page(run_report.html([one, two]))
    assert "faults" not in page.tables
    assert [h for h in page.headings if h.startswith("Health")] == [
        f"Health of the tensors, in 5 looks: {name}" for name in ("one.jsonl", "two.jsonl")
    ]


def test_spreads_are_quantiles(tmp_path):
    run = run_report.read(made(tmp_path / "run.jsonl"))
    steps, (least, median, largest) = run.looks.spread("gradient", "norm")
    assert steps.tolist() == [1, 2, 3, 4, 5]
    assert least.tolist() == [0] * 5
    assert largest.tolist() == [1, 2, 3, 4, 5]
    assert median.tolist() == [0.5, 1, 1.5, 2, 2.5]
    assert np.isnan(run.looks.spread("update", "norm")[1]).all()


def test_a_resumed_run_forgets_what_it_made_again(tmp_path):
    path, header = tmp_path / "run.jsonl", Header(started="2025-01-01T12:00:00+00:00")

    def look(step: int, norm: float) -> Health:
        seen = TensorHealth(of="gradient", name="w", elements=1, zeros=0, largest=norm, norm=norm)
        return Health(step=step, tensors=(seen,))

    with RunLogWriter(path, header) as writer:
        for step in (1, 2, 3):
            writer.write(Step(step=step))
            writer.write(look(step, 1.0))
    with RunLogWriter(path, header, resume=True) as writer:
        writer.write(Step(step=2))
        writer.write(look(2, 5.0))
    steps, (_, median, _) = run_report.read(path).looks.spread("gradient", "norm")
    assert (steps.tolist(), median.tolist()) == ([1, 2], [1, 5])


def test_a_fault_that_came_up_between_two_looks(tmp_path):
    bad = {"a": np.float32([np.nan, 1]), "b": np.float32([np.nan, np.inf])}
    with HealthMonitor(tmp_path / "run.jsonl", every=4) as monitor:
        monitor.check(8, gradients=bad, weights=bad)
    run = run_report.read(tmp_path / "run.jsonl")
    assert run.looks.faults == [monitor.first_fault]
    assert Page(run_report.html([run])).row("faults", "1 to 8") == ["-", "weight", "a, b", "1", "2", "-"]
