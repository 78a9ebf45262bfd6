"""The projection of AdaSum's cost goes through what was measured."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.adasum_projection import GATHER, MEAN, MEASURED, PROJECTED, SUM, projections
from benchmarks.adasum_traffic import bytes_sent, least_bytes

from boost_ext.adasum import schedule

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


class TestBytes:
    @pytest.mark.parametrize("ranks", [2, 4, 8, 64, 512])
    def test_a_power_of_two_sends_the_least_but_for_the_dot_products(self, ranks: int) -> None:
        n, tensors = 512 * 16 * 3000, 60
        sent = bytes_sent(schedule(ranks - 1, 1, ranks), n, 4, tensors)
        # 48 bytes a tensor from each of 2, 4, ... ranks.
        dots = sum(48 * tensors * ((2 << i) - 1) for i in range(ranks.bit_length() - 1))
        assert sent == least_bytes(n, 4, ranks) + dots
        assert dots < 0.02 * sent

    def test_by_hand(self) -> None:
        """Four ranks, 64 elements: halves of 32 and 16, then 16 to each of three others."""
        sent = 4 * (32 + 16 + 3 * 16) + 48 * (1 + 3)
        assert bytes_sent(schedule(0, 1, 4), 64, 4, 1) == sent
        # By sums of two, and of two slots: twice; at the second level all four ranks add up dots, and that is a gather.
        sent = 4 * (2 * 32 + 2 * 16 + 3 * 16) + 48 * (2 * 1 + 3)
        assert bytes_sent(schedule(0, 1, 4), 64, 4, 1, gathers_in_groups=False) == sent

    def test_the_odd_one_out(self) -> None:
        """Three ranks: the last one gives its vector; each gathers the two halves, and one empty one."""
        assert bytes_sent(schedule(2, 1, 3), 64, 2, 1) == 2 * (64 + 2 * 32)
        assert bytes_sent(schedule(0, 1, 3), 64, 2, 1) == 2 * (64 + 32 + 2 * 32) + 48
        assert bytes_sent(schedule(1, 1, 3), 64, 2, 1) == 2 * (32 + 2 * 32) + 48

    def test_devices_share_the_work(self) -> None:
        """Two nodes of four: a quarter each, of which half is exchanged; then an eighth goes to seven others."""
        n = 8 * 16 * 1000
        assert bytes_sent(schedule(5, 4, 2), n, 4, 1) == n * 4 // 8 + 48 * 7 + 7 * n * 4 // 8

    def test_one_rank_sends_nothing(self) -> None:
        assert bytes_sent(schedule(0, 1, 1), 1000, 4, 3) == 0
