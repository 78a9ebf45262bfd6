from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

# A block is 64 lanes of 64 products and 63 sums, and two sums join the accumulators. Blocks add up in float64.
ROUNDINGS = 64 + 63 + 2


def check(P: np.ndarray, grads: list[np.ndarray]) -> None:
    exact = P.astype(np.float64), [g.astype(np.float64) for g in grads]
    magnitude = oracle.pca_project(abs(exact[0]), [abs(g) for g in exact[1]])
    out = ops.pca_project(P, grads)
    assert out.dtype == np.float32
    assert out.shape == (len(P),)
    assert_close(out, oracle.pca_project(*exact), magnitude, ROUNDINGS)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    check(normal(rng, (5, size), dtype), [normal(rng, size, dtype)])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 8, 9, 33])
def test_rows(rng, rows):
    check(normal(rng, (rows, 4100)), [normal(rng, 4100)])


@pytest.mark.parametrize("of_P", DTYPES)
@pytest.mark.parametrize("of_grads", DTYPES)
def test_storage_types_mix(rng, of_P, of_grads):
    check(normal(rng, (3, 9000), of_P), [normal(rng, 9000, of_grads)])


def test_error_does_not_grow_with_the_size(rng):
    check(rng.random((2, 1_000_003), np.float32), [rng.random(1_000_003, np.float32)])


def test_many_tensors_of_all_shapes_and_types(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (64, 65), (2, 0, 5)] * 20
    kinds = list(FLOATS.values())
    grads = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
    check(normal(rng, (4, sum(g.size for g in grads))), grads)


def test_one_array_is_a_list_of_one(rng):
    P, g = normal(rng, (3, 24)), normal(rng, (2, 3, 4))
    assert_same_bits(ops.pca_project(P, g), ops.pca_project(P, [g]))
    assert_same_bits(ops.pca_project(P, (g,)), ops.pca_project(P, [g]))


def test_out_is_filled_and_returned(rng):
    P, g = normal(rng, (3, 24)), normal(rng, 24)
    out = np.full(3, np.nan, np.float32)
    assert ops.pca_project(P, g, out) is out
    assert_same_bits(out, ops.pca_project(P, g))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [s for s in SIZES if s > 0])
def test_rows_of_the_identity_pick_elements(rng, dtype, size):
    """First and last column, and the elements beside each block: nothing is left out or counted twice."""
    picked = sorted({i for b in range(0, size + 1, 4096) for i in (b - 1, b)} & set(range(size)))
    picked = sorted({*picked, size - 1})
    P = np.zeros((len(picked), size), dtype)
    P[np.arange(len(picked)), picked] = 1
    grad = normal(rng, size, dtype)
    assert_same_bits(ops.pca_project(P, grad), grad[picked].astype(np.float32))


def test_no_elements_give_zeros():
    out = np.full(4, np.nan, np.float32)
    ops.pca_project(np.empty((4, 0), np.float32), [np.empty((0, 3), np.float16)], out)
    np.testing.assert_array_equal(out, np.zeros(4))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 4095, 4096, -1])
def test_inf_and_nan_propagate(rng, dtype, place):
    P = np.ones((2, 5000), dtype)
    P[1, place] = 0
    grad = normal(rng, 5000, dtype)
    grad[place] = -np.inf
    out = ops.pca_project(P, grad)
    assert out[0] == -np.inf
    assert np.isnan(out[1])  # 0 * inf
    grad[place] = np.nan
    assert np.isnan(ops.pca_project(P, grad)).all()


def test_infinity_stays_in_its_row(rng):
    P = normal(rng, (3, 5000))
    grad = normal(rng, 5000)
    before = ops.pca_project(P, grad)
    P[1, -1] = np.inf
    assert_same_bits(ops.pca_project(P, grad)[[0, 2]], before[[0, 2]])


def test_a_power_of_two_scales_every_bit(rng):
    P, grad = normal(rng, (4, 20000)), normal(rng, 20000)
    assert_same_bits(ops.pca_project(P, grad * 1024), ops.pca_project(P, grad) * 1024)
