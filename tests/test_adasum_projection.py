"""The projection of AdaSum's cost goes through what was measured."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.adasum_projection import GATHER, MEAN, MEASURED, PROJECTED, SUM, projections

from boost_ext.adasum import bytes_sent, least_bytes, schedule

N, TENSORS = 25_000_000, 60


def run(ranks: int, ours: float, mean: float, latency: float) -> dict[str, Any]:
    plan = schedule(0, 1, ranks)
    return {
        "ranks": ranks,
        "elements": N,
        "milliseconds": {"ours": ours, "all-reduce mean": mean, "latency of a gather": latency},
        "bytes": {
            "least": least_bytes(N, 4, ranks),
            "ours": bytes_sent(plan, N, 4, TENSORS, gathers_in_groups=False),
        },
    }


ROWS = [run(2, 635.0, 593.0, 0.87), run(4, 2076.0, 1212.0, 4.1)]  # docs/benchmarks.md


def test_a_measured_point_lies_in_its_band() -> None:
    lines = projections(ROWS, TENSORS)
    for row in ROWS:
        for name, key in MEASURED.items():
            band = [line["ranks"][str(row["ranks"])][name] for line in lines]
            assert min(band) - 1e-6 <= row["milliseconds"][key] <= max(band) + 1e-6, (row["ranks"], name)


def test_each_line_goes_through_its_own_run() -> None:
    for row, line in zip(ROWS, projections(ROWS, TENSORS), strict=True):
        projected = line["ranks"][str(row["ranks"])]
        assert projected[MEAN] == pytest.approx(row["milliseconds"]["all-reduce mean"])
        assert projected[SUM] == pytest.approx(row["milliseconds"]["ours"])


def test_more_ranks_cost_more_and_groups_that_gather_less() -> None:
    for line in projections(ROWS, TENSORS):
        for name in (MEAN, GATHER, SUM):
            costs = [line["ranks"][str(ranks)][name] for ranks in PROJECTED]
            assert costs == sorted(costs)
        assert all(cost[GATHER] <= cost[SUM] for cost in line["ranks"].values())
