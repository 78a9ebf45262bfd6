from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops


def state(scale: float, iteration: int = 1, last: int = 0, bad: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.array([scale], np.float32), np.array([iteration, last, bad], np.int32)


def read(scale: np.ndarray, counters: np.ndarray) -> oracle.LossScale:
    return oracle.LossScale(float(scale[0]), *map(int, counters))


@given(
    overflows=st.lists(st.booleans(), max_size=60),
    factor=st.sampled_from([2.0, 4.0, 1.5]),
    window=st.integers(1, 7),
    max_scale=st.sampled_from([1.0, 2.0**10, 2.0**64]),
    start=st.sampled_from([1.0, 2.0**9, 2.0**24]),
)
def test_a_training(overflows, factor, window, max_scale, start):
    scale, counters = state(start)
    expected = read(scale, counters)
    for overflow in overflows:
        ops.loss_scale_update(scale, counters, overflow, factor=factor, window=window, max_scale=max_scale)
        expected = oracle.loss_scale_update(expected, overflow, factor, window, max_scale)
        expected = expected._replace(scale=float(np.float32(expected.scale)))
        assert read(scale, counters) == expected


def test_growth_after_each_window():
    scale, counters = state(1024)
    scales = []
    for _ in range(7):
        ops.loss_scale_update(scale, counters, False, window=3)
        scales.append(float(scale[0]))
    assert scales == [1024, 1024, 2048, 2048, 2048, 4096, 4096]


def test_overflow_divides_and_starts_the_window_again():
    scale, counters = state(1024, iteration=3)
    ops.loss_scale_update(scale, counters, True, window=3)
    assert read(scale, counters) == (512, 4, 3, 1)
    for _ in range(2):
        ops.loss_scale_update(scale, counters, False, window=3)
    assert read(scale, counters) == (512, 6, 3, 0)
    ops.loss_scale_update(scale, counters, False, window=3)
    assert read(scale, counters) == (1024, 7, 6, 0)


def test_growth_undoes_an_overflow_bit_for_bit():
    for exponent in range(1, 60):
        scale, counters = state(2.0**exponent)
        ops.loss_scale_update(scale, counters, True, window=1)
        ops.loss_scale_update(scale, counters, False, window=1)
        assert scale[0] == 2.0**exponent


def test_bounds():
    scale, counters = state(1.5)
    ops.loss_scale_update(scale, counters, True)
    assert scale[0] == 1
    scale, counters = state(2.0**64)
    ops.loss_scale_update(scale, counters, False, window=1)
    assert scale[0] == 2.0**64
    scale, counters = state(3e38)
    ops.loss_scale_update(scale, counters, False, window=1, max_scale=float(np.finfo(np.float32).max))
    assert scale[0] == np.finfo(np.float32).max


def test_the_1001st_overflow_in_a_row_raises():
    scale, counters = state(2.0**24)
    for _ in range(1000):
        ops.loss_scale_update(scale, counters, True)
    with pytest.raises(RuntimeError, match=r"^loss_scale_update: 1001 overflows in a row at loss scale 1;"):
        ops.loss_scale_update(scale, counters, True)


def test_one_good_step_forgives():
    scale, counters = state(2.0**24)
    for overflow in [True] * 1000 + [False] + [True] * 1000:
        ops.loss_scale_update(scale, counters, overflow)
    assert counters[2] == 1000


def test_a_scalar_of_any_shape():
    scale, counters = np.array(8, np.float32), np.array([[1, 0, 0]], np.int32)
    ops.loss_scale_update(scale, counters, True)
    assert scale == 4


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"factor": 1}, "factor must be finite and > 1, got 1"),
        ({"factor": 0.5}, "factor must be finite and > 1, got 0.5"),
        ({"factor": float("inf")}, "factor must be finite and > 1, got inf"),
        ({"factor": float("nan")}, "factor must be finite and > 1, got nan"),
        ({"window": 0}, "window must be >= 1, got 0"),
        ({"max_scale": 0.5}, "max_scale must be a finite float32 >= 1, got 0.5"),
        ({"max_scale": float("inf")}, "max_scale must be a finite float32 >= 1, got inf"),
        ({"max_scale": 1e39}, "max_scale must be a finite float32 >= 1, got 1e\\+39"),
    ],
)
def test_rules_that_make_no_sense(rule, text):
    scale, counters = state(8)
    with pytest.raises(ValueError, match=f"^loss_scale_update: {text}$"):
        ops.loss_scale_update(scale, counters, True, **rule)
    assert read(scale, counters) == (8, 1, 0, 0)
