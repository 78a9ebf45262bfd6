from __future__ import annotations

import numpy as np
import pytest

import kfac
from boost_ext import ops
from dtypes import DTYPES, UNIT, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def factor(rng: np.random.Generator, d: int, size: int) -> np.ndarray:
    """Blocks with something in the place that belongs to no row: it must not be read."""
    if size == 0:
        return rng.standard_normal(d).astype(np.float32)
    count = -(-d // size)
    blocks = rng.standard_normal((count, size, size)).astype(np.float32)
    rest = d - (count - 1) * size
    blocks[-1, rest:, :] = blocks[-1, :, rest:] = np.nan
    return blocks


def check(out: np.ndarray, g: np.ndarray, left: np.ndarray, right: np.ndarray, scale: float) -> None:
    matrix = g.reshape(len(g), -1).astype(np.float64)
    L, R = kfac.from_blocks(left, matrix.shape[0]), kfac.from_blocks(right, matrix.shape[1])
    exact = scale * L @ matrix @ R
    magnitude = abs(scale) * abs(L) @ abs(matrix) @ abs(R)
    sums = 6 + sum(min(b.shape[-1], 129) + b.shape[-1] // 128 if b.ndim == 3 else 0 for b in (left, right))
    assert out.shape == g.shape
    assert (abs(out.reshape(exact.shape) - exact) <= 1.01 * sums * UNIT["float32"] * magnitude).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 17, 40])
@pytest.mark.parametrize("columns", [1, 15, 16, 17, 50])
@pytest.mark.parametrize("size", [(0, 0), (0, 16), (16, 0), (16, 16), (7, 20), (64, 64)])
def test_sizes(rng, dtype, rows, columns, size):
    g = normal(rng, (rows, columns), dtype)
    left = factor(rng, rows, min(size[0], rows))
    right = factor(rng, columns, min(size[1], columns))
    out = np.full(g.shape, np.nan, np.float32)
    assert ops.precondition(g, left, right, out, inv_scale=0.25) is out
    check(out, g, left, right, 0.25)


@pytest.mark.parametrize("size", [128, 129, 300])
def test_long_sums(rng, size):
    g = normal(rng, (size, 2, size // 2))
    left, right = factor(rng, size, size), factor(rng, size // 2 * 2, size // 2 * 2)
    out = np.empty_like(g)
    ops.precondition(g, left, right, out)
    check(out, g, left, right, 1.0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_sum_begins_anew_after_128_products(side):
    """2^24 + 1 in float32 is 2^24: of one long sum nothing would be left but the first product."""
    ones, one = np.ones((1, 256, 256), np.float32), np.ones(1, np.float32)
    g = np.ones((256, 1), np.float32)
    g[0] = 2.0**24
    g = g if side == "left" else g.T.copy()
    out = np.empty_like(g)
    ops.precondition(g, *((ones, one) if side == "left" else (one, ones)), out)
    np.testing.assert_array_equal(out, np.full_like(g, 2.0**24 + 128))


def test_more_rows_than_a_diagonal_is_cut_into(rng):
    g = normal(rng, (300, 5))
    left, right = factor(rng, 300, 0), factor(rng, 5, 5)
    out = np.empty_like(g)
    ops.precondition(g, left, right, out)
    check(out, g, left, right, 1.0)


@pytest.mark.parametrize("size", [290, 200])
def test_blocks_larger_than_a_unit_of_work(rng, threads, size):
    """Few gradients are cut smaller for more threads, which changes no bit."""
    g = normal(rng, (290, 530))
    left, right = factor(rng, 290, size), factor(rng, 530, 520)
    of_one, out = np.full(g.shape, np.nan, np.float32), np.full(g.shape, np.nan, np.float32)
    threads(1)
    ops.precondition(g, left, right, of_one)
    check(of_one, g, left, right, 1.0)
    threads(3)
    ops.precondition(g, left, right, out)
    assert_same_bits(out, of_one)


def test_identity_is_exact(rng):
    g = normal(rng, (20, 30))
    out = np.empty_like(g)
    ops.precondition(g, np.eye(20, dtype=np.float32)[None], np.stack([np.eye(16, dtype=np.float32)] * 2), out)
    np.testing.assert_array_equal(out, g)


def test_a_list_with_and_without_curvature(rng):
    none = np.empty(0, np.float32)
    grads = [normal(rng, (6, 8)), normal(rng, 40_001), normal(rng, 7), np.empty((0, 3), np.float32)]
    left, right = [factor(rng, 6, 4), none, none, none], [factor(rng, 8, 8), none, none, none]
    out = [np.full(g.shape, np.nan, np.float32) for g in grads]
    ops.precondition(grads, left, right, out, inv_scale=1 / 3)
    check(out[0], grads[0], left[0], right[0], np.float32(1 / 3))
    for g, o in zip(grads[1:], out[1:], strict=True):
        assert_same_bits(o, g * np.float32(1 / 3))


def test_factors_that_do_not_fit(rng):
    g, none = normal(rng, (6, 8)), np.empty(0, np.float32)
    fits = [factor(rng, 6, 3), factor(rng, 8, 8)]
    text = r"^precondition: right\[0\] must have shape \(blocks, b, b\) with as many blocks as 8 need, or \(d,\), got "
    for bad in (np.ones((8, 8), np.float32), np.ones((2, 8, 8), np.float32), np.ones((1, 7, 7), np.float32)):
        with pytest.raises(ValueError, match=text):
            ops.precondition(g, fits[0], bad, np.empty_like(g))
    with pytest.raises(ValueError, match=r"^precondition: left\[0\] must have 6 elements, got 5$"):
        ops.precondition(g, np.ones(5, np.float32), fits[1], np.empty_like(g))
    with pytest.raises(ValueError, match=r"^precondition: left\[0\] and right\[0\] must both be empty or none, "):
        ops.precondition(g, fits[0], none, np.empty_like(g))
    with pytest.raises(ValueError, match=r"^precondition: inv_scale must be finite, got inf$"):
        ops.precondition(g, *fits, np.empty_like(g), inv_scale=np.inf)
