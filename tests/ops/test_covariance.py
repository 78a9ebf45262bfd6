from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kfac
from boost_ext import ops
from dtypes import DTYPES, UNIT, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(actual: np.ndarray, rows: np.ndarray, size: int, factor: float) -> None:
    """Within the rounding of float32 sums of 128 products."""
    exact = kfac.blocks_of(kfac.covariance(rows, factor), size)
    bound = 129 * UNIT["float32"] * kfac.blocks_of(kfac.covariance(abs(rows), factor), size)
    assert actual.shape == exact.shape
    assert (abs(actual - exact) <= 1.01 * bound).all()
    np.testing.assert_array_equal(actual, actual.transpose(0, 2, 1))


def empty(d: int, size: int) -> np.ndarray:
    return np.full((-(-d // size), size, size), np.nan)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 7, 127, 128, 129, 300])
@pytest.mark.parametrize(("d", "size"), [(1, 1), (5, 5), (16, 16), (17, 17), (40, 16), (33, 32), (129, 128)])
def test_matrices(rng, dtype, rows, d, size):
    x = normal(rng, (rows, d), dtype)
    check(ops.covariance(x, empty(d, size), factor=0.25), x, size, 0.25)


def test_many_rows_are_cut_into_parts(rng):
    """The parts are added in order, and none is lost at an end."""
    for rows in (1023, 1024, 1025, 3000, 9001):
        x = normal(rng, (rows, 5))
        check(ops.covariance(x, empty(5, 5), factor=1 / rows), x, 5, 1 / rows)


@pytest.mark.parametrize("size", [520, 544, 600])
def test_blocks_larger_than_a_unit_of_work(rng, size):
    x = normal(rng, (70, 600))
    check(ops.covariance(x, empty(600, size)), x, size, 1.0)


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel": (1, 1)},
    {"kernel": (3, 3), "padding": (1, 1, 1, 1)},
    {"kernel": (3, 2), "stride": (2, 1), "padding": (0, 1, 1, 0)},
    {"kernel": (2, 3), "dilation": (2, 1), "padding": (2, 2, 0, 0)},
    {"kernel": (3, 3), "stride": (3, 2), "dilation": (1, 2), "padding": (1, 0, 2, 1)},
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [4, 100])
@pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
def test_convolutions(rng, dtype, size, settings):
    x = normal(rng, (3, 4, 7, 6), dtype)
    full = {"stride": (1, 1), "dilation": (1, 1), "padding": (0, 0, 0, 0)} | settings
    rows = kfac.patches(x, full["kernel"], full["stride"], full["dilation"], full["padding"])
    size = min(size, rows.shape[1])
    check(ops.covariance(x, empty(rows.shape[1], size), factor=0.5, **settings), rows, size, 0.5)


def test_the_image_as_a_kernel_sees_it_is_a_matrix(rng):
    x = normal(rng, (6, 2, 3, 3))
    one = ops.covariance(x, empty(18, 18), kernel=3)
    two = ops.covariance(x.reshape(6, 18), empty(18, 18))
    np.testing.assert_array_equal(one, two)


def test_indices():
    index = np.array([2, 0, 2, 2, -1, 7, 4], np.int32)
    counts = ops.covariance(index, np.full(5, np.nan), factor=0.5, one_hot=True)
    np.testing.assert_array_equal(counts, [0.5, 0, 1.5, 0, 0.5])


def test_no_rows():
    np.testing.assert_array_equal(ops.covariance(np.empty((0, 3), np.float32), empty(3, 2)), np.zeros((2, 2, 2)))


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_inf_and_nan_stay_with_their_features(rng, bad):
    x = normal(rng, (9, 40))
    x[3, 20] = bad
    out = ops.covariance(x, empty(40, 16))
    touched = ~np.isfinite(out)
    expected = np.zeros_like(touched)
    expected[1, 4, :] = expected[1, :, 4] = True
    np.testing.assert_array_equal(touched, expected)


def test_sums_are_wide():
    """2^24 + 1 in float32 is 2^24: what comes after the first 128 rows would be lost."""
    x = np.ones((129, 1), np.float32)
    x[0] = 2.0**13
    assert ops.covariance(x, empty(1, 1))[0, 0, 0] >= 2.0**26 + 1


@pytest.mark.parametrize("power", [-100, -45, -30, 30, 45, 80, 120])
def test_a_power_of_two_changes_no_bit(rng, power):
    """Though the squares are beyond float32."""
    x = normal(rng, (300, 2, 3, 3))
    one = ops.covariance(x, empty(8, 8), kernel=2)
    two = ops.covariance(x * np.float32(2.0**power), empty(8, 8), kernel=2, factor=2.0 ** (-2 * power))
    np.testing.assert_array_equal(one, two)
    largest = np.full((2, 1), np.finfo(np.float32).max)
    assert ops.covariance(largest, empty(1, 1))[0, 0, 0] == pytest.approx(2 * float(largest[0, 0]) ** 2)


@pytest.mark.parametrize("shape", [(2, 2), (3, 2, 2), (1, 2, 2), (2, 2, 3), (0, 3, 3)])
def test_shapes_of_out(shape):
    with pytest.raises(
        ValueError, match=r"^covariance: out must have shape \(blocks, b, b\) with as many blocks as 4 "
    ):
        ops.covariance(np.ones((3, 4), np.float32), np.ones(shape))


def test_errors():
    x, out = np.ones((3, 4), np.float32), np.ones((1, 4, 4))
    with pytest.raises(ValueError, match=r"^covariance: factor must be finite, got inf$"):
        ops.covariance(x, out, factor=np.inf)
    with pytest.raises(ValueError, match=r"^covariance: stride must hold 2 integers, got 3$"):
        ops.covariance(x, out, stride=(1, 2, 3))
    with pytest.raises(TypeError, match=r"^covariance: kernel must be an integer, got float$"):
        ops.covariance(x, out, kernel=1.5)
    with pytest.raises(ValueError, match=r"^covariance: channels, kernel, stride and dilation must be >= 1, got 0$"):
        ops.covariance(x, out, stride=0)
    with pytest.raises(ValueError, match=r"^covariance: x must have 0 elements, got 3$"):
        ops.covariance(np.ones(3, np.float32), out)
    with pytest.raises(ValueError, match=r"^covariance: out must have one axis for indices, got 2$"):
        ops.covariance(np.ones(3, np.int32), np.ones((2, 2)), one_hot=True)
