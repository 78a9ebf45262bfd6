"""More elements than 32 bits count. np.zeros takes no memory before it is written, so these need almost none."""

from __future__ import annotations

import numpy as np
import pytest

from boost_ext import ops

LAST = 2**31 + 63


@pytest.fixture(scope="module")
def zeros() -> np.ndarray:
    return np.zeros(LAST + 1, np.float16)


@pytest.mark.slow
def test_global_norm_counts_to_the_end(zeros):
    zeros[[0, 2**31 - 1, 2**31, LAST]] = 2
    try:
        assert ops.global_norm([zeros, zeros[-1:]]) == np.sqrt(20)
    finally:
        zeros[[0, 2**31 - 1, 2**31, LAST]] = 0


@pytest.mark.slow
def test_unscale_and_check_finds_the_last_element(zeros):
    zeros[LAST] = np.inf
    try:
        (tensor,) = ops.unscale_and_check(zeros, 1, report=True).tensors
        assert (tensor.inf, tensor.nan, tensor.first, tensor.max_abs) == (1, 0, LAST, 0)
    finally:
        zeros[LAST] = 0


@pytest.mark.slow
def test_pca_project_reaches_the_end_of_P(zeros):
    P = zeros.reshape(2, -1)
    grad = np.zeros(P.shape[1], np.float16)
    P[1, -1], grad[-1] = 3, 1
    try:
        np.testing.assert_array_equal(ops.pca_project(P, grad), [0, 3])
    finally:
        P[1, -1] = 0


@pytest.mark.slow
def test_sgd_step_reaches_the_last_row(zeros):
    """Also memory: all that is touched is one row."""
    table = zeros.reshape(-1, 64)
    last = np.array([len(table) - 1], np.int32)
    try:
        ops.sgd_step(table, np.ones((1, 64), np.float16), lr=0.5, indices=last)
        np.testing.assert_array_equal(zeros[-65:], [0] + [-0.5] * 64)
    finally:
        zeros[-64:] = 0
