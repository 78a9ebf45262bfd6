from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import UNIT, assert_close, assert_same_bits

pytestmark = pytest.mark.usefixtures("isa")

TYPES = [np.dtype(np.float32), np.dtype(np.float64)]
SIZES = [1, 2, 3, 15, 16, 17, 32, 33, 63, 64, 65]


def problem(rng: np.random.Generator, k: int, dtype: np.dtype) -> tuple[np.ndarray, ...]:
    """A symmetric positive definite B, a step, and a difference of gradients with positive curvature."""
    root = rng.standard_normal((k, k))
    B = (root @ root.T / k + np.eye(k)).astype(dtype)
    B = np.triu(B) + np.triu(B, 1).T
    s = rng.standard_normal(k).astype(dtype)
    y = (s + 0.3 * rng.standard_normal(k)).astype(dtype)
    if y @ s <= 0:
        y = -y
    return B, s, y


def magnitude(B: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The update with every term made positive: what rounding errors are relative to."""
    rho = 1 / (y.astype(np.float64) @ s)
    u = abs(B.astype(np.float64)) @ abs(y)
    s = abs(s.astype(np.float64))
    outer = np.outer(s, u)
    return abs(B) + rho * (outer + outer.T) + rho * (1 + rho * (abs(y) @ u)) * np.outer(s, s)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_sizes(rng, dtype, k):
    B, s, y = problem(rng, k, dtype)
    wide = [x.astype(np.float64) for x in (B, s, y)]
    scale = magnitude(B, s, y)
    assert ops.bfgs_update(B, s, y) is True
    # Float64 arithmetic: sums of k terms, in both this and the oracle. One rounding to B's dtype.
    rounding = 4 * (k + 4) * UNIT["float64"] / UNIT["float32"]
    assert_close(B, oracle.bfgs_update(*wide), scale * rounding, roundings=1)
    assert_same_bits(B, B.T)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_many_updates_keep_the_last_bit_of_symmetry_and_stay_positive(rng, dtype):
    B, _, _ = problem(rng, 17, dtype)
    for _ in range(50):
        _, s, y = problem(rng, 17, dtype)
        assert ops.bfgs_update(B, s, y)
        assert_same_bits(B, B.T)
    assert np.linalg.eigvalsh(B.astype(np.float64)).min() > 0


@given(k=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
def test_secant_equation(k, seed):
    """B_next y = s"""
    B, s, y = problem(np.random.default_rng(seed), k, np.dtype(np.float64))
    scale = magnitude(B, s, y)
    ops.bfgs_update(B, s, y)
    assert (abs(B @ y - s) <= 8 * (k + 4) * UNIT["float64"] * (scale @ abs(y))).all()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_secant_equation_on_storage(rng, dtype):
    B, s, y = problem(rng, 32, dtype)
    ops.bfgs_update(B, s, y)
    wide = B.astype(np.float64)
    bound = 1.01 * UNIT[dtype.name] * (abs(wide) @ abs(y)) + 1e-12
    assert (abs(wide @ y - s) <= bound).all()


def test_exact_quadratic_is_learnt(rng):
    """On a quadratic with Hessian H, k updates along conjugate steps make B the inverse of H."""
    k = 6
    H, _, _ = problem(rng, k, np.dtype(np.float64))
    B = np.eye(k)
    for s in np.linalg.eigh(H)[1].T:
        assert ops.bfgs_update(B, np.ascontiguousarray(s), H @ s)
    np.testing.assert_allclose(B @ H, np.eye(k), atol=1e-10)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("curvature", ["negative", "zero", "nan first", "nan last"])
def test_no_update_without_curvature(rng, dtype, curvature):
    B, s, y = problem(rng, 9, dtype)
    if curvature == "negative":
        y = -y
    elif curvature == "zero":
        y[:] = 0
    else:
        y[0 if curvature == "nan first" else -1] = np.nan
    before = B.copy()
    assert ops.bfgs_update(B, s, y) is False
    assert_same_bits(B, before)


def test_eps_is_a_strict_bound():
    s, y = np.array([2.0, 0.0]), np.array([0.25, 7.0])
    B = np.eye(2)
    assert not ops.bfgs_update(B, s, y, eps=0.5)
    assert_same_bits(B, np.eye(2))
    assert ops.bfgs_update(B, s, y, eps=np.nextafter(0.5, 0))


def test_curvature_is_summed_in_float64():
    """In float32 these sum to 0: 1e8 + 1 - 1e8."""
    s = np.ones(3, np.float32)
    y = np.array([1e8, 1, -1e8], np.float32)
    assert ops.bfgs_update(np.eye(3, dtype=np.float32), s, y, eps=0.5)


def test_one_by_one_matrix_becomes_the_secant():
    B = np.array([[3.0]])
    ops.bfgs_update(B, np.array([2.0]), np.array([4.0]))
    assert B[0, 0] == 0.5


@pytest.mark.parametrize("shape", [(4,), (2, 3), (0, 0), (1, 2, 2)])
def test_B_must_be_square(shape):
    with pytest.raises(ValueError, match=r"^bfgs_update: B must be a square \(k, k\) matrix with k >= 1, got "):
        ops.bfgs_update(np.ones(shape), np.ones(2), np.ones(2))


def test_eps_must_be_finite():
    with pytest.raises(ValueError, match=r"^bfgs_update: eps must be finite and >= 0, got nan$"):
        ops.bfgs_update(np.eye(2), np.ones(2), np.ones(2), eps=float("nan"))


def test_storage_types_must_agree():
    with pytest.raises(TypeError, match=r"^bfgs_update: s must be float32, got float64$"):
        ops.bfgs_update(np.eye(2, dtype=np.float32), np.ones(2), np.ones(2))
    with pytest.raises(TypeError, match=r"^bfgs_update: B must be float32 or float64, got float16$"):
        ops.bfgs_update(np.eye(2, dtype=np.float16), np.ones(2), np.ones(2))


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["B", "s", "y"])
def test_nothing_is_updated_with_inf_or_nan(where: str, bad: float):
    arrays = {"B": np.eye(3), "s": np.ones(3), "y": np.array([1.0, 2.0, 3.0])}
    arrays[where].flat[-1] = bad
    before = arrays["B"].copy()
    assert not ops.bfgs_update(**arrays)
    np.testing.assert_array_equal(arrays["B"], before)


def test_eps_must_not_be_negative():
    with pytest.raises(ValueError, match=r"^bfgs_update: eps must be finite and >= 0, got -1$"):
        ops.bfgs_update(np.eye(2), np.ones(2), np.ones(2), eps=-1)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_out_says_whether_it_updated(rng, dtype):
    B, s, y = problem(rng, 9, dtype)
    again, out = B.copy(), np.full(1, np.nan, np.float32)
    assert ops.bfgs_update(B, s, y, out=out) is out
    assert out == 1
    ops.bfgs_update(again, s, y)
    assert_same_bits(B, again)
    ops.bfgs_update(B, s, -y, out=out)
    assert out == 0
    assert_same_bits(B, again)


def test_out_is_one_float32():
    for out, error, message in (
        (np.ones(1), TypeError, "out must be float32, got float64"),
        (np.ones(2, np.float32), ValueError, "out must have 1 elements, got 2"),
    ):
        with pytest.raises(error, match=f"^bfgs_update: {message}$"):
            ops.bfgs_update(np.eye(2), np.ones(2), np.ones(2), out=out)
    B = np.eye(2, dtype=np.float32)
    with pytest.raises(ValueError, match=r"^bfgs_update: .* must not overlap other arguments"):
        ops.bfgs_update(B, np.ones(2, np.float32), np.ones(2, np.float32), out=B[0, :1])
