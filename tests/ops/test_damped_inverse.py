from __future__ import annotations

import numpy as np
import pytest

import kfac
from boost_ext import ops
from dtypes import assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("isa")


def positive(rng: np.random.Generator, batch: int, n: int) -> np.ndarray:
    root = rng.standard_normal((batch, n, n + 3))
    return root @ root.transpose(0, 2, 1) / n


@pytest.mark.parametrize("n", [1, 2, 3, 15, 16, 17, 64, 127, 128, 129])
def test_sizes(rng, n):
    matrices = positive(rng, 3, n)
    out = np.full((3, n, n), np.nan, np.float32)
    assert ops.damped_inverse(matrices, out, factor=0.5, damping=0.1) is True
    exact = np.stack([kfac.damped_inverse(0.5 * m, 0.1) for m in matrices])
    largest = abs(exact).max(axis=(1, 2), keepdims=True)
    # The condition is at most some hundred: float64 leaves far more than float32 keeps.
    assert_close(out, exact, np.broadcast_to(largest * 1e-3, exact.shape), roundings=1)
    assert_same_bits(out, np.ascontiguousarray(out.transpose(0, 2, 1)))


def test_a_large_matrix_is_shared_by_threads(rng, threads):
    matrices = positive(rng, 1, 401)
    exact = kfac.damped_inverse(matrices[0], 0.5)
    found = []
    for count in (1, 3):
        threads(count)
        out = np.full((1, 401, 401), np.nan, np.float32)
        assert ops.damped_inverse(matrices, out, damping=0.5)
        assert_close(out, exact[None], np.full(out.shape, 1e-3 * abs(exact).max()), roundings=1)
        found.append(out)
    assert_same_bits(*found)


def test_ill_conditioned(rng):
    """A rank of one and little damping: condition 1e7, of which float32 arithmetic would leave nothing."""
    v = rng.standard_normal(40)
    matrices = np.outer(v, v)[None]
    out = np.empty((1, 40, 40), np.float32)
    assert ops.damped_inverse(matrices, out, damping=1e-5)
    exact = 1e5 * (np.eye(40) - np.outer(v, v) / (1e-5 + v @ v))  # Sherman & Morrison
    np.testing.assert_allclose(out[0], exact, rtol=1e-4, atol=1e-3)


def test_only_the_upper_triangle_is_read(rng):
    matrices = positive(rng, 2, 9)
    one, two = (np.empty((2, 9, 9), np.float32) for _ in range(2))
    ops.damped_inverse(matrices, one)
    matrices[(slice(None), *np.tril_indices(9, -1))] = np.nan
    assert ops.damped_inverse(matrices, two)
    assert_same_bits(one, two)


def test_diagonals():
    out = np.empty(3, np.float32)
    assert ops.damped_inverse(np.array([0.0, 1.0, 3.0]), out, factor=2.0, damping=0.5)
    np.testing.assert_array_equal(out, np.float32([2, 1 / 2.5, 1 / 6.5]))


def test_a_list_has_numbers_of_its_own(rng):
    matrices = [positive(rng, 2, 4), np.ones(3), positive(rng, 1, 7)]
    out = [np.empty(m.shape, np.float32) for m in matrices]
    factor, damping = [1.0, 2.0, 0.5], [0.1, 1.0, 0.3]
    assert ops.damped_inverse(matrices, out, factor=factor, damping=damping)
    for m, o, f, d in zip(matrices, out, factor, damping, strict=True):
        alone = np.empty_like(o)
        assert ops.damped_inverse(m, alone, factor=f, damping=d)
        assert_same_bits(o, alone)
    np.testing.assert_allclose(out[0][1], np.linalg.inv(matrices[0][1] + 0.1 * np.eye(4)), rtol=1e-5)


@pytest.mark.parametrize("bad", ["negative", "singular", "inf", "nan", "too small"])
def test_what_cannot_be_inverted_stays(rng, bad):
    matrices = positive(rng, 3, 5)
    if bad == "negative":
        matrices[1] -= 100 * np.eye(5)
    elif bad == "singular":
        matrices[1] = 0
    elif bad == "too small":
        matrices[1] = 1e-40 * np.eye(5)
    else:
        matrices[1, 4, 4] = float(bad)
    out = np.full((3, 5, 5), 7, np.float32)
    assert ops.damped_inverse(matrices, out) is False
    np.testing.assert_array_equal(out[1], np.full((5, 5), 7))
    for i in (0, 2):
        np.testing.assert_allclose(out[i] @ matrices[i], np.eye(5), atol=1e-4)
    diagonal = np.full(2, 7, np.float32)
    assert not ops.damped_inverse(np.array([1.0, 0.0]), diagonal)
    np.testing.assert_array_equal(diagonal, [7, 7])


def test_an_inverse_beyond_float32_stays():
    """Though the reciprocals of its pivots are not: the first element is 1e30 + (1e-25 / 1e-30)^2 * 1e30."""
    matrices = np.array([[[1e-30, 1e-25], [1e-25, 1e-20 + 1e-30]], [[2.0, 0.0], [0.0, 4.0]]])
    out = np.full((2, 2, 2), 7, np.float32)
    assert not ops.damped_inverse(matrices, out)
    np.testing.assert_array_equal(out, [[[7, 7], [7, 7]], [[0.5, 0], [0, 0.25]]])


def test_subnormal_damping_is_no_error():
    out = np.empty((1, 2, 2), np.float32)
    assert ops.damped_inverse(np.eye(2)[None], out, damping=5e-324)
    np.testing.assert_array_equal(out[0], np.eye(2))


@pytest.mark.parametrize("shape", [(2, 2), (2, 2, 3), (2, 3, 2), (0, 2, 2)])
def test_shapes(shape):
    text = r"^damped_inverse: matrices\[0\] must have shape \(batch, b, b\) or \(d,\), got "
    with pytest.raises(ValueError, match=text):
        ops.damped_inverse([np.ones(shape)], [np.ones(shape, np.float32)])


def test_errors():
    m, out = np.eye(2)[None], np.ones((1, 2, 2), np.float32)
    with pytest.raises(ValueError, match=r"^damped_inverse: damping must be >= 0, got -1$"):
        ops.damped_inverse(m, out, damping=-1.0)
    with pytest.raises(ValueError, match=r"^damped_inverse: factor must be finite, got nan$"):
        ops.damped_inverse(m, out, factor=np.nan)
    with pytest.raises(ValueError, match=r"^damped_inverse: damping must hold 1 numbers, got 2$"):
        ops.damped_inverse(m, out, damping=[0.1, 0.2])
    with pytest.raises(ValueError, match=r"^damped_inverse: out\[0\] must have the shape of matrices"):
        ops.damped_inverse([m], [np.ones(4, np.float32)])
