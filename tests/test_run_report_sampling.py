"""Fewer points for a plot: against the plain definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from boost_ext.run_report.sampling import extremes, mean_by_bucket, running_mean

LOSSES = hnp.arrays(np.float64, st.integers(0, 200), elements=st.floats(-1e3, 1e3) | st.just(math.nan))


def mean(part: np.ndarray) -> float:
    part = part[np.isfinite(part)]
    return float(part.mean()) if len(part) else math.nan


@given(hnp.arrays(np.float64, st.integers(0, 300)), st.integers(1, 40))
def test_extremes(values: np.ndarray, buckets: int) -> None:
    at = extremes(values, buckets)
    finite = np.flatnonzero(np.isfinite(values))
    assert set(at) <= set(finite)
    assert list(at) == sorted(set(at))
    assert len(at) <= 2 * buckets + 2
    if len(finite):
        assert {finite[0], finite[-1]} <= set(at)
        assert values[at].min() == values[finite].min()
        assert values[at].max() == values[finite].max()


@given(LOSSES, st.integers(1, 50), st.integers(2, 300))
def test_running_mean(values: np.ndarray, width: int, points: int) -> None:
    at, means = running_mean(values, width, points)
    assert len(at) == min(len(values), points)
    if len(values):
        assert (at[0], at[-1]) == (0, len(values) - 1)
    np.testing.assert_allclose(means, [mean(values[max(0, i + 1 - width) : i + 1]) for i in at], atol=1e-9)


def test_a_spike_leaves_no_trace_behind_its_window() -> None:
    values = np.ones(100)
    values[10] = 1e30
    _, means = running_mean(values, 5, 100)
    np.testing.assert_array_equal(means[15:], np.ones(85))
    np.testing.assert_allclose(means[10:15], 2e29)


@given(LOSSES, st.integers(1, 50))
def test_mean_by_bucket(values: np.ndarray, buckets: int) -> None:
    means = mean_by_bucket(values, buckets)
    if len(values) <= buckets:
        np.testing.assert_array_equal(means, values)
        return
    edges = np.linspace(0, len(values), buckets + 1).astype(int)
    np.testing.assert_allclose(means, [mean(values[a:b]) for a, b in itertools.pairwise(edges)], atol=1e-9)
