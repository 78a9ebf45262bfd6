from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(grads: list[np.ndarray]) -> None:
    exact = [g.astype(np.float64) for g in grads]
    assert ops.centralize(grads) is grads
    for g, e in zip(grads, exact, strict=True):
        magnitude = abs(e)
        if e.ndim >= 2 and e.size:
            magnitude = magnitude + abs(e.mean(axis=tuple(range(1, e.ndim)), keepdims=True))
        assert_close(g, oracle.centralize(e), magnitude, roundings=2)  # of the mean, and of the difference


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    check([normal(rng, (3, size), dtype) + np.asarray(0.5, dtype)])


@pytest.mark.parametrize("shape", [(8, 4, 3, 3), (1, 7), (7, 1), (2, 3, 5), (0, 4), (4, 0), (1, 1, 1), (40000, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(rng, dtype, shape):
    check([normal(rng, shape, dtype)])


def test_many_tensors_of_all_shapes_and_types(rng):
    shapes = [(), (3,), (0, 2), (2, 3, 4), (1, 1), (3, 4097), (64, 65), (2, 0)] * 20
    kinds = list(FLOATS.values())
    check([normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)])


@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_of_different_lengths(rng, dtype):
    """On CUDA blocks share a row, and wait for one another's sums."""
    kinds = [(3, 65_535), (2, 65_537), (1, 200_000), (3, 8200), (4, 70_008), (2, 2)]
    grads = [normal(rng, s, dtype) + np.asarray(0.25, dtype) for s in kinds]
    grads[4][1, 5] = np.nan  # of this row alone
    rest = np.delete(grads[4].astype(np.float64), 1, axis=0)
    check([g for i, g in enumerate(grads) if i != 4])
    ops.centralize([grads[4], grads[0]])
    assert np.isnan(grads[4][1].astype(np.float32)).all()
    assert_close(np.delete(grads[4], 1, axis=0), oracle.centralize(rest), abs(rest) + 0.3, roundings=2)


@pytest.mark.parametrize("shape", [(), (1,), (17,), (5000,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_fewer_than_two_axes_are_left_alone(rng, dtype, shape):
    grad = normal(rng, shape, dtype)
    before = np.copy(grad)
    ops.centralize([grad])
    assert_same_bits(grad, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_rows_become_zero(dtype):
    grad = np.repeat(np.arange(-3, 4), 4097).reshape(7, 4097).astype(dtype)
    ops.centralize(grad)
    np.testing.assert_array_equal(grad, np.zeros((7, 4097)))


@pytest.mark.parametrize("width", [2, 17, 64, 4097])
def test_row_means_vanish(rng, width):
    grad = normal(rng, (5, width)) + 3
    ops.centralize(grad)
    assert (abs(grad.astype(np.float64).mean(axis=1)) <= 6 * 2.0**-24).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_idempotent(rng, dtype):
    """Rows whose mean is exactly zero stay as they are, so a second centralization changes nothing."""
    half = rng.integers(-8, 8, (6, 500)).astype(dtype)
    grad = np.concatenate([half, -half], axis=1) + np.asarray(2, dtype)
    ops.centralize(grad)
    once = grad.copy()
    ops.centralize(grad)
    assert_same_bits(grad, once)
    np.testing.assert_array_equal(once, np.concatenate([half, -half], axis=1))


def test_mean_is_summed_in_float64():
    """The float32 sum of these loses the ones; their mean is 1."""
    grad = np.array([[2.0**25, 1, 3, -(2.0**25)]], np.float32)
    ops.centralize(grad)
    np.testing.assert_array_equal(grad[0, 1:3], [0, 2])


def test_rows_do_not_depend_on_each_other(rng):
    grad = normal(rng, (9, 333))
    alone = [grad[i : i + 1].copy() for i in range(9)]
    ops.centralize(grad)
    ops.centralize(alone)
    assert_same_bits(np.concatenate(alone), grad)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("place", [0, -1])
def test_inf_and_nan_stay_in_their_row(rng, dtype, bad, place):
    grad = normal(rng, (4, 100), dtype)
    clean = grad.copy()
    ops.centralize(clean)
    grad[2, place] = bad
    ops.centralize(grad)
    assert not np.isfinite(grad[2].astype(np.float32)).any()
    assert np.isnan(grad[2].astype(np.float32)[place])
    assert_same_bits(grad[[0, 1, 3]], clean[[0, 1, 3]])


def test_tied_tensors_are_centralized_once(rng):
    tied = normal(rng, (8, 50))
    alone = tied.copy()
    ops.centralize(alone)
    ops.centralize([tied, normal(rng, (2, 2)), tied])
    assert_same_bits(tied, alone)


def test_a_flat_view_of_a_tensor_does_not_hide_it(rng):
    """The same memory, listed as a vector and as a matrix: the matrix is centralized, or the call refused."""
    grad = normal(rng, (8, 50))
    expected = grad.copy()
    ops.centralize(expected)
    with suppress(ValueError):
        ops.centralize([grad.reshape(-1), grad])
        assert_same_bits(grad, expected)


@pytest.mark.parametrize("rows", [slice(0, 3), slice(1, 4)])
def test_partial_overlaps_are_refused(rng, rows):
    grad = normal(rng, (4, 10))
    before = grad.copy()
    with pytest.raises(ValueError, match=r"^centralize: grads\[[01]\] is written and must not overlap"):
        ops.centralize([grad, grad[rows]])
    assert_same_bits(grad, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_into_other_tensors(rng, dtype):
    """The same bits as in place, and the gradients are only read; what has fewer than two axes is copied."""
    shapes = [(8, 4, 3, 3), (), (17,), (0, 2), (5, 0), (3, 4097), (1, 1), (64, 65), (4099,)]
    grads = [np.asarray(normal(rng, s, dtype) + np.asarray(0.5, dtype)) for s in shapes]
    before = [g.copy() for g in grads]
    out = [np.full(s, np.nan, dtype) for s in shapes]
    assert ops.centralize(grads, out) is out
    in_place = ops.centralize([g.copy() for g in grads])
    for g, b, o, p in zip(grads, before, out, in_place, strict=True):
        assert_same_bits(g, b)
        assert_same_bits(o, p)


def test_into_other_tensors_gradients_may_share_memory(rng):
    grad = normal(rng, (6, 20))
    expected = ops.centralize(grad.copy())
    out = [np.empty_like(grad), np.empty_like(grad), np.empty((3, 20), np.float32), np.empty(120, np.float32)]
    ops.centralize([grad, grad, grad[1:4], grad.reshape(-1)], out)
    assert_same_bits(out[0], expected)
    assert_same_bits(out[1], expected)
    assert_same_bits(out[2], expected[1:4])
    assert_same_bits(out[3], grad.reshape(-1))


def test_into_some_of_the_gradients(rng):
    grads = [normal(rng, (6, 20)), normal(rng, (2, 5)), normal(rng, (9,))]
    expected = ops.centralize([g.copy() for g in grads])
    kept = grads[1].copy()
    other = np.empty_like(kept)
    ops.centralize(grads, [grads[0], other, grads[2]])
    assert_same_bits(grads[1], kept)
    for got, e in zip([grads[0], other, grads[2]], expected, strict=True):
        assert_same_bits(got, e)


def test_out_must_fit(rng):
    a, b = normal(rng, (6, 20)), normal(rng, (6, 20))
    with pytest.raises(ValueError, match=r"^centralize: out must"):
        ops.centralize([a], [])
    with pytest.raises(ValueError, match=r"^centralize: out\[0\] must"):
        ops.centralize([a], [np.empty((5, 20), np.float32)])
    with pytest.raises(TypeError, match=r"^centralize: out\[0\] must be float32"):
        ops.centralize([a], [np.empty((6, 20), np.float16)])
    readonly = np.empty_like(a)
    readonly.flags.writeable = False
    with pytest.raises(ValueError, match=r"^centralize: out\[0\] must be writable"):
        ops.centralize([a], [readonly])
    with pytest.raises(ValueError, match=r"is written and must not overlap"):
        ops.centralize([a, b], [b, np.empty_like(b)])
    out = np.empty_like(a)
    with pytest.raises(ValueError, match=r"is written and must not overlap"):
        ops.centralize([a, b], [out, out])
