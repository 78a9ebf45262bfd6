from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, SUMMED, TINY, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def exact(a: np.ndarray) -> np.ndarray:
    return a.astype(np.float64)


def check_dots(actual: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Float64 sums in two orders: as many roundings as terms, at most."""
    magnitude = oracle.adasum_dots(abs(exact(a)), abs(exact(b)))
    error = abs(actual - oracle.adasum_dots(exact(a), exact(b)))
    assert (error <= (2 * max(a.size, 8) * 2.0**-53 + SUMMED[a.dtype.name]) * magnitude).all()


def check_sum(out: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """The coefficients are rounded to float32, then two products and a sum are."""
    ab, aa, bb = oracle.adasum_dots(exact(a), exact(b))
    of_a = 1 + abs(ab) / (2 * aa) if aa else 1.0
    of_b = 1 + abs(ab) / (2 * bb) if bb else 1.0
    magnitude = of_a * abs(exact(a)) + of_b * abs(exact(b))
    assert_close(out, oracle.adasum_pair(exact(a), exact(b)), magnitude, roundings=4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    a, b = normal(rng, size, dtype), normal(rng, size, dtype)
    dots = ops.adasum_dots(a, b)
    assert dots.shape == (1, 3)
    assert dots.dtype == np.float64
    check_dots(dots[0], a, b)
    out = ops.adasum_pair(a, b)
    assert out.dtype == dtype
    check_sum(out, a, b)
    assert_same_bits(ops.adasum_combine(a, b, dots), out)


def test_many_tensors_have_a_coefficient_each(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (64, 65)] * 20
    kinds = list(FLOATS.values())
    a = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
    b = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
    out = ops.adasum_pair(a, b)
    dots = ops.adasum_dots(a, b)
    for i in range(len(a)):
        assert out[i].shape == a[i].shape
        check_sum(out[i], a[i], b[i])
        check_dots(dots[i], a[i], b[i])
        assert_same_bits(np.asarray(ops.adasum_pair(a[i], b[i])), out[i])


def test_dots_need_float64():
    """A float32 sum would lose the ones, and the square of 1e30 would be inf."""
    a, b = np.array([1e8, 1, -1e8], np.float32), np.ones(3, np.float32)
    assert ops.adasum_dots(a, b)[0, 0] == 1
    huge = np.array([1e30], np.float32)
    assert ops.adasum_dots(huge, huge)[0, 1] == float(huge[0]) ** 2


@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1.0, 1e25])
@pytest.mark.parametrize("other", [1e-30, 1.0, 1e18, 1e25, 0.0])
def test_products_of_bfloat16_beyond_float32(rng, scale, other):
    """They are summed again in float64 where four in float32 overflow, or little is left of them."""
    a, b = ((s * rng.standard_normal(5000)).astype(FLOATS["bfloat16"]) for s in (scale, other))
    check_dots(ops.adasum_dots(a, b)[0], a, b)


def test_dots_of_parts_add_up(rng):
    """What makes AdaSum of a tensor that is split over ranks possible."""
    a, b = normal(rng, 10000), normal(rng, 10000)
    parts = sum(ops.adasum_dots(a[i : i + 2500].copy(), b[i : i + 2500].copy()) for i in range(0, 10000, 2500))
    whole = ops.adasum_dots(a, b)
    np.testing.assert_allclose(parts, whole, rtol=1e-12)
    halves = [ops.adasum_combine(a[i:j].copy(), b[i:j].copy(), parts) for i, j in ((0, 5000), (5000, 10000))]
    np.testing.assert_allclose(np.concatenate(halves), ops.adasum_pair(a, b), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [2, 17, 64, 4097, 33000])
def test_orthogonal_gradients_add(rng, dtype, size):
    a, b = normal(rng, size, dtype), normal(rng, size, dtype)
    a[size // 2 :] = 0
    b[: size // 2] = 0
    np.testing.assert_array_equal(ops.adasum_pair(a, b), a + b)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 17, 64, 4097, 33000])
def test_parallel_gradients_average(rng, dtype, size):
    a = normal(rng, size, dtype)
    a[abs(a) < 0.01] = 1  # half of a subnormal float16 would be rounded
    assert_same_bits(ops.adasum_pair(a, a.copy()), a)
    for factor in (2, 0.5, -1):  # the coefficients are 0, 3/4 or 3/2 here: exact
        b = (a.astype(np.float32) * np.float32(factor)).astype(dtype)
        mean = ((a.astype(np.float32) + b.astype(np.float32)) / 2).astype(dtype)
        np.testing.assert_array_equal(ops.adasum_pair(a, b), mean)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 17, 64, 4097])
def test_zero_gradient_leaves_the_other(rng, dtype, size):
    a, zero = normal(rng, size, dtype), np.zeros(size, dtype)
    np.testing.assert_array_equal(ops.adasum_pair(a, zero), a)
    np.testing.assert_array_equal(ops.adasum_pair(zero, a), a)
    np.testing.assert_array_equal(ops.adasum_pair(zero, zero), zero)


@pytest.mark.parametrize("dtype", DTYPES)
def test_smallest_numbers_are_no_zero_gradient(dtype):
    tiny = np.full(3, 2 * TINY[dtype.name]).astype(dtype)
    np.testing.assert_array_equal(ops.adasum_pair(tiny, tiny.copy()), tiny)


@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 200), scale=st.sampled_from([0.25, 2.0, 1024.0]))
def test_symmetric_and_equivariant(seed, size, scale):
    rng = np.random.default_rng(seed)
    a, b = normal(rng, size), normal(rng, size)
    out = ops.adasum_pair(a, b)
    assert_same_bits(ops.adasum_pair(b, a), out)
    factor = np.float32(scale)
    assert_same_bits(ops.adasum_pair(a * factor, b * factor), out * factor)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", ["a", "b"])
def test_out_may_be_an_input(rng, dtype, target):
    tensors = {n: [normal(rng, s, dtype) for s in ((5000,), (3, 4), ())] for n in "ab"}
    expected = ops.adasum_pair(**tensors)
    dots = ops.adasum_dots(**tensors)
    copies = {n: [t.copy() for t in ts] for n, ts in tensors.items()}
    assert ops.adasum_pair(**tensors, out=tensors[target]) is tensors[target]
    ops.adasum_combine(**copies, dots=dots, out=copies[target])
    for i, e in enumerate(expected):
        assert_same_bits(tensors[target][i], np.asarray(e))
        assert_same_bits(copies[target][i], np.asarray(e))


def test_a_and_b_may_be_one(rng):
    a = normal(rng, 100)
    assert_same_bits(ops.adasum_pair(a, a), a)
    expected = a.copy()
    ops.adasum_pair(a, a, out=a)
    assert_same_bits(a, expected)


@pytest.mark.parametrize("shift", [1, -1, 16])
def test_out_may_not_overlap_partially(rng, shift):
    memory, b = normal(rng, 200), normal(rng, 100)
    a, out = memory[50:150], memory[50 + shift : 150 + shift]
    before = memory.copy()
    with pytest.raises(ValueError, match=r"^adasum_pair: out\[0\] is written and must not overlap other arguments"):
        ops.adasum_pair(a, b, out)
    assert_same_bits(memory, before)


def test_out_may_not_be_another_tensors_input(rng):
    a, b = [normal(rng, 10), normal(rng, 10)], [normal(rng, 10), normal(rng, 10)]
    with pytest.raises(ValueError, match=r"^adasum_pair: out\[[01]\] is written and must not overlap"):
        ops.adasum_pair(a, b, [a[1], a[0]])
    with pytest.raises(ValueError, match=r"^adasum_pair: out\[[01]\] is written and must not overlap"):
        ops.adasum_pair(a, b, [a[0], a[0]])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 4096, -1])
def test_inf_and_nan_propagate_within_their_tensor(rng, dtype, bad, place):
    a = [normal(rng, 4100, dtype), normal(rng, 20, dtype)]
    b = [normal(rng, 4100, dtype), normal(rng, 20, dtype)]
    clean = ops.adasum_pair(a, b)
    a[0][place] = bad
    out = ops.adasum_pair(a, b)
    assert not np.isfinite(out[0].astype(np.float32)[place])
    assert_same_bits(out[1], clean[1])


def test_new_results_take_the_form_of_a(rng):
    a = normal(rng, (2, 3))
    assert isinstance(ops.adasum_pair(a, a), np.ndarray)
    assert isinstance(ops.adasum_pair([a], [a]), list)
    assert ops.adasum_pair((a,), (a,))[0].shape == (2, 3)


@pytest.mark.parametrize("op", [ops.adasum_pair, lambda a, b: ops.adasum_combine(a, b, np.ones((1, 3)))])
def test_results_are_only_allocated_for_numpy(op):
    with pytest.raises(
        ValueError, match=r"^adasum_.*: out must be given unless a holds NumPy or PyTorch arrays, got tuple$"
    ):
        op((object(),), (object(),))


def test_b_must_be_like_a(rng):
    a = normal(rng, 10)
    with pytest.raises(ValueError, match=r"^adasum_pair: b must hold as many arrays as a \(1\), got 2$"):
        ops.adasum_pair([a], [a, a])
    with pytest.raises(ValueError, match=r"^adasum_dots: b\[0\] must have 10 elements, got 9$"):
        ops.adasum_dots([a], [a[:9]])
    with pytest.raises(TypeError, match=r"^adasum_dots: b\[0\] must be float32, got float16$"):
        ops.adasum_dots([a], [a.astype(np.float16)])


def test_dots_must_have_a_row_a_tensor(rng):
    a = normal(rng, 10)
    with pytest.raises(ValueError, match=r"^adasum_combine: dots must have 6 elements, got 3$"):
        ops.adasum_combine([a, a], [a, a], np.ones((1, 3)))
