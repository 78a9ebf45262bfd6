"""Learning rates and metrics in the report."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from tests.test_run_report import HOSTILE, full_steps, page_of, write

from boost_ext import report as run_report
from boost_ext.report.log import Evaluation, Header, RunLogWriter, Step


def test_learning_rates_and_metrics(tmp_path: Path) -> None:
    """Names of metrics are the user's; rates that come later, and a run that was resumed in the middle."""
    path = tmp_path / "run.jsonl"
    with RunLogWriter(path, Header(started="now")) as log:
        for i in range(1, 5):
            log.write(Step(step=i, learning_rates=(0.1 / i, 0.5) if i > 1 else None))
            log.write(Evaluation(step=i, metrics={HOSTILE: float(i), "roc": math.nan}))
    with RunLogWriter(path, Header(started="then"), resume=True) as log:
        log.write(Step(step=3, learning_rates=(0.7, 0.6)))
        log.write(Evaluation(step=3, metrics={HOSTILE: 9.0}))
    run = run_report.read(path)
    assert {name: list(steps) for name, (steps, _) in run.metrics.items()} == {HOSTILE: [1, 2, 3], "roc": [1, 2]}
    assert list(run.metrics[HOSTILE][1]) == [1, 2, 9]
    np.testing.assert_array_equal(run.learning_rates["0"], [np.nan, 0.05, 0.7])
    page = page_of(path)
    assert page.row("summary", "last learning rate") == ["0.7, 0.6"]
    assert page.row("summary", f"last {HOSTILE}") == ["9"]
    assert page.row("summary", f"{HOSTILE}, smallest to largest") == ["1 to 9"]
    assert HOSTILE in page.figures["metrics"]
    assert "script" not in page.elements


def test_logs_of_version_1_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "old.jsonl", full_steps(3))
    path.write_text(path.read_text().replace('"schema_version":3', '"schema_version":1'))
    run = run_report.read(path)
    assert (len(run), run.learning_rates, run.metrics) == (3, {}, {})
    assert {"metrics", "learning_rate"}.isdisjoint(page_of(path).figures)
