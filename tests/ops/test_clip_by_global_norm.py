from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import DTYPES, SIZES, SUMMED, assert_close, normal


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 64.0])
def test_sizes(rng, dtype, size, scale):
    grads = [normal(rng, size, dtype), normal(rng, (3, 2), dtype)]
    clip_norm = 0.5 * oracle.global_norm(grads) / scale
    expected, norm = oracle.clip_by_global_norm(grads, clip_norm, scale)
    assert ops.clip_by_global_norm(grads, clip_norm, scale=scale) == pytest.approx(
        norm, rel=1e-13 + SUMMED[dtype.name] / 2
    )
    for got, want in zip(grads, expected, strict=True):
        assert_close(got, want, np.abs(want), roundings=2)


def test_gradients_that_are_short_enough_keep_every_bit(rng):
    grads = [normal(rng, 100), normal(rng, 5000)]
    before = [g.copy() for g in grads]
    norm = ops.clip_by_global_norm(grads, oracle.global_norm(grads))
    assert norm == ops.clip_by_global_norm(grads, 1e30)
    for got, want in zip(grads, before, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_is_said_and_not_spread(rng, value):
    grads = [normal(rng, 5000), normal(rng, 3)]
    grads[1][2] = value
    before = grads[0].copy()
    assert not math.isfinite(ops.clip_by_global_norm(grads, 1e-3))
    np.testing.assert_array_equal(grads[0], before)


@given(factor=st.floats(1.5, 1e6), n=st.integers(1, 300), parts=st.integers(1, 4))
def test_the_new_norm_is_the_bound_and_the_direction_stays(factor, n, parts):
    grads = [normal(np.random.default_rng(n + i), n) for i in range(parts)]
    before = np.concatenate([g.astype(np.float64) for g in grads])
    norm = ops.clip_by_global_norm(grads, clip_norm := oracle.global_norm(grads) / factor)
    assert ops.global_norm(grads) == pytest.approx(clip_norm, rel=1e-6)
    np.testing.assert_allclose(np.concatenate(grads) * (norm / clip_norm), before, rtol=3e-7, atol=1e-37)


def test_no_elements_and_zeros():
    assert ops.clip_by_global_norm([np.empty(0, np.float32)], 1.0) == 0
    zeros = np.zeros(7, np.float32)
    assert ops.clip_by_global_norm(zeros, 1.0) == 0
    np.testing.assert_array_equal(zeros, 0)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((np.ones(2, np.float32), 0.0), {}, ValueError, "clip_norm must be finite and > 0, got 0"),
        ((np.ones(2, np.float32), math.nan), {}, ValueError, "clip_norm must be finite and > 0, got nan"),
        ((np.ones(2, np.float32), math.inf), {}, ValueError, "clip_norm must be finite and > 0, got inf"),
        ((np.ones(2, np.float32), 1.0), {"scale": -1.0}, ValueError, "scale must be finite and > 0, got -1"),
        ((np.ones(2, np.float32), "1"), {}, TypeError, "clip_norm must be a number, got str"),
        ((np.ones(2, np.int32), 1.0), {}, TypeError, r"grads\[0\] must be float32, float16 or bfloat16, got int32"),
    ],
)
def test_errors(arguments, options, error, message):
    with pytest.raises(error, match=f"clip_by_global_norm: {message}"):
        ops.clip_by_global_norm(*arguments, **options)


def test_a_read_only_array_is_refused_before_anything_is_written(rng):
    grads = [normal(rng, 10), normal(rng, 10)]
    before = grads[0].copy()
    grads[1].flags.writeable = False
    with pytest.raises(ValueError, match=r"clip_by_global_norm: grads\[1\] must be writable"):
        ops.clip_by_global_norm(grads, 1e-3)
    np.testing.assert_array_equal(grads[0], before)
