"""The native layers of graphs: values and gradients, with all instruction sets."""

from __future__ import annotations

import numpy as np
import pytest

import boost_ext
import oracle
from boost_ext import _core
from dtypes import DTYPES, FLOATS, SIZES, UNIT, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

APPROXIMATE = pytest.mark.parametrize("tanh", [False, True], ids=["exact", "tanh"])
SHAPES = [(1, 1), (1, 64), (3, 17), (64, 16), (65, 31), (129, 65), (5, 512), (700, 48), (1000, 3)]


def flag(value: bool) -> np.ndarray:
    return np.array([value])


def gelu(x: np.ndarray, tanh: bool) -> np.ndarray:
    y = np.empty_like(x)
    _core.call("gelu", x, flag(tanh), y)
    return y


def gelu_gradient(dy: np.ndarray, x: np.ndarray, tanh: bool) -> np.ndarray:
    dx = np.empty_like(x)
    _core.call("gelu_gradient", dy, x, flag(tanh), dx)
    return dx


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@APPROXIMATE
def test_gelu(rng, tanh, dtype, size):
    x, dy = normal(rng, size, dtype), normal(rng, size, dtype)
    x *= dtype.type(3)
    wide = x.astype(np.float64)
    assert_close(gelu(x, tanh), oracle.gelu(wide, tanh), abs(wide), roundings=12)
    slope = oracle.gelu_slope(wide, tanh)
    assert_close(gelu_gradient(dy, x, tanh), dy * slope, abs(dy.astype(np.float64)) * (1 + abs(wide)), roundings=12)


@APPROXIMATE
def test_gelu_of_every_magnitude(tanh):
    """Small relative errors wherever float32 has normal numbers to hold the result."""
    x = np.concatenate([np.linspace(-13, 13, 200001), np.geomspace(1e-30, 1e30, 2001), -np.geomspace(1e-30, 12, 2001)])
    x = x.astype(np.float32)
    exact = oracle.gelu(x, tanh)
    got = gelu(x, tanh)
    seen = abs(exact) > 1e-37
    # e^u has the error of u, four roundings of it or six: u is x^2 / 2, or a polynomial.
    below = np.maximum(-x.astype(np.float64), 0)
    u = 2 * np.sqrt(2 / np.pi) * (below + 0.044715 * below**3) * 6 if tanh else below**2 / 2 * 4
    allowed = (12 + u) * UNIT["float32"]
    assert (abs(got - exact) <= abs(exact) * allowed + 2e-38)[seen].all()
    assert (abs(got) < 2e-37)[~seen].all()


@APPROXIMATE
def test_gelu_of_infinity_and_nan(tanh):
    x = np.array([np.inf, np.nan, 0, -0.0, 3e38, -3e38], np.float32)
    got, slope = gelu(x, tanh), gelu_gradient(np.ones_like(x), x, tanh)
    assert np.isposinf(got[0])
    assert np.isnan(got[1])
    assert np.isnan(slope[1])
    np.testing.assert_array_equal(got[2:], [0, 0, np.float32(3e38), 0])
    np.testing.assert_allclose(slope[2:], [0.5, 0.5, 1, 0], atol=3e-7)
    assert np.signbit(got[3])


@APPROXIMATE
def test_the_slope_is_that_of_the_value(tanh):
    points, weights = np.polynomial.legendre.leggauss(40)
    for low, high in ((-4, -1), (-1, 0.5), (0.5, 3)):
        half = (high - low) / 2
        area = half * weights @ oracle.gelu_slope(low + half * (points + 1), tanh)
        assert area == pytest.approx(float(oracle.gelu(high, tanh) - oracle.gelu(low, tanh)), abs=1e-10)


def layer_norm(x, gamma, beta, epsilon):
    y = np.empty_like(x)
    _core.call("layer_norm", x, gamma, beta, np.array([epsilon]), y)
    return y


def layer_norm_gradient(dy, x, gamma, epsilon):
    dx, dgamma, dbeta = np.empty_like(x), np.empty_like(gamma), np.empty_like(gamma)
    _core.call("layer_norm_gradient", dy, x, gamma, np.array([epsilon]), dx, dgamma, dbeta)
    return dx, dgamma, dbeta


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(rng, dtype, shape):
    x, dy = normal(rng, shape, dtype), normal(rng, shape, dtype)
    x += normal(rng, (shape[0], 1), dtype) * dtype.type(3)
    gamma, beta = normal(rng, shape[1]), normal(rng, shape[1])
    wide = x.astype(np.float64)
    # The mean is rounded before it is subtracted.
    exact, means, factors = oracle.layer_norm(x, gamma, beta, 1e-5)
    normed = (abs(wide) + abs(means)[:, None]) * factors[:, None]
    assert_close(layer_norm(x, gamma, beta, 1e-5), exact, normed * abs(gamma) + abs(beta), roundings=6)

    dx, dgamma, dbeta = layer_norm_gradient(dy, x, gamma, 1e-5)
    exact_dx, exact_dgamma, exact_dbeta = oracle.layer_norm_gradient(dy, x, means, factors, gamma)
    h = abs(dy * gamma.astype(np.float64))
    terms = h + h.mean(1, keepdims=True) + normed * (h * normed).mean(1, keepdims=True)
    assert_close(dx, exact_dx, factors[:, None] * terms, roundings=8)
    magnitudes = abs(dy.astype(np.float64))
    assert_close(dgamma, exact_dgamma, (magnitudes * normed).sum(0), roundings=64)
    assert_close(dbeta, exact_dbeta, magnitudes.sum(0), roundings=64)


def test_a_row_without_variance():
    x, one = np.full((2, 20), 7, np.float32), np.ones(20, np.float32)
    np.testing.assert_array_equal(layer_norm(x, one, 3 * one, 1e-6), 3)
    dx, dgamma, _ = layer_norm_gradient(np.tile(np.arange(20, dtype=np.float32), (2, 1)), x, one, 1e-6)
    np.testing.assert_array_equal(dgamma, 0)
    np.testing.assert_allclose(dx[0], 1e3 * (np.arange(20) - 9.5), rtol=1e-5)


def test_a_nan_stays_in_its_row(rng):
    x, one = normal(rng, (3, 40)), np.ones(40, np.float32)
    x[1, 5] = np.nan
    for out in (layer_norm(x, one, one, 1e-6), layer_norm_gradient(one * x[[0]].T[:3], x, one, 1e-6)[0]):
        assert np.isnan(out[1]).all()
        assert np.isfinite(out[[0, 2]]).all()


@pytest.mark.parametrize("shape", [(3, 0), (12,), (2, 3, 4)])
def test_layer_norm_takes_a_matrix(shape):
    x, one = np.ones(shape, np.float32), np.ones(shape[-1], np.float32)
    with pytest.raises(ValueError, match="layer_norm: x must have two axes"):
        layer_norm(x, one, one, 1e-6)


@pytest.mark.parametrize("shape", [*SHAPES, (0, 5)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_row_sum(rng, dtype, shape):
    x, out = normal(rng, shape, dtype), np.empty(shape[1], np.float32)
    _core.call("row_sum", x, out)
    wide = x.astype(np.float64)
    assert_close(out, wide.sum(0), abs(wide).sum(0), roundings=64)


PRODUCTS = [
    *((1, 1, 1, 1), (1, 9, 7, 33), (2, 8, 128, 32), (1, 17, 129, 65), (3, 70, 300, 100), (1, 300, 257, 600)),
    *((1, 5, 0, 4), (2, 0, 3, 4), (0, 3, 4, 5), (1, 1, 500, 1), (40, 33, 34, 35), (1, 600, 3, 70)),
]
"""How many, rows, inner size, columns: around tiles of 4 or 8 by 16 or 32, slabs of 128, blocks of 512 by 256."""
THIN = [(1, 16, 260, 530), (1, 17, 128, 33), (1, 32, 131, 257), (1, 33, 129, 256), (1, 300, 32, 70), (1, 300, 33, 70)]
"""Around 32 rows, or 32 rows of both factors, and strips of 256 columns."""


def matmul(a, b, sizes, transpose_a, transpose_b):
    count, m, _, n = sizes
    out = np.full((count, m, n), np.nan, np.float32)
    _core.call("matmul", a, b, np.array(sizes, np.int32), flag(transpose_a), flag(transpose_b), out)
    return out


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("sizes", PRODUCTS + THIN, ids=str)
def test_matmul(rng, sizes, transpose_a, transpose_b):
    count, m, k, n = sizes
    a = normal(rng, (count, k, m) if transpose_a else (count, m, k))
    b = normal(rng, (count, n, k) if transpose_b else (count, k, n))
    out = matmul(a, b, sizes, transpose_a, transpose_b)
    if count == 1:  # thin ones have a kernel of their own; several are never thin
        pair = matmul(np.concatenate([a, a]), np.concatenate([b, b]), (2, m, k, n), transpose_a, transpose_b)
        assert_same_bits(pair[1:], out)
    left = a.astype(np.float64).swapaxes(1, 2) if transpose_a else a.astype(np.float64)
    right = b.astype(np.float64).swapaxes(1, 2) if transpose_b else b.astype(np.float64)
    assert_close(out, left @ right, abs(left) @ abs(right), roundings=max(k, 1))


def test_long_sums_of_large_products(rng, threads):
    """A thread packs 2048 columns of 512 rows at a time, and goes on with the sums after that."""
    m, k, n = 512, 2050, 260
    a, b = normal(rng, (1, m, k)), normal(rng, (1, k, n))
    threads(1)
    out = matmul(a, b, (1, m, k, n), False, False)
    threads(3)
    assert_same_bits(matmul(a, b, (1, m, k, n), False, False), out)
    left, right = a.astype(np.float64), b.astype(np.float64)
    assert_close(out, left @ right, abs(left) @ abs(right), roundings=k)


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("sizes", [s for s in PRODUCTS + THIN if s[0] < 3], ids=str)
def test_products_of_medium_precision(rng, sizes, transpose_a, transpose_b):
    """Those of factors that are rounded to bfloat16, where the CPU multiplies these; otherwise as before."""
    _, m, k, n = sizes
    a = normal(rng, (2, k, m) if transpose_a else (2, m, k))
    b = normal(rng, (2, n, k) if transpose_b else (2, k, n))
    out = matmul(a, b, (2, m, k, n), transpose_a, transpose_b)
    if _core.has_narrow_products():
        a, b = a.astype(FLOATS["bfloat16"]), b.astype(FLOATS["bfloat16"])
    a, b = a.astype(np.float64), b.astype(np.float64)
    left, right = a.swapaxes(1, 2) if transpose_a else a, b.swapaxes(1, 2) if transpose_b else b
    assert_close(out, left @ right, abs(left) @ abs(right), roundings=max(k, 1))
    assert_same_bits(matmul(a.astype(np.float32), b.astype(np.float32), (2, m, k, n), transpose_a, transpose_b), out)


@pytest.mark.usefixtures("medium_precision")
def test_few_rows_are_multiplied_in_float32(rng):
    a, b = normal(rng, (1, 32, 200)), normal(rng, (1, 200, 70))
    out = matmul(a, b, (1, 32, 200, 70), False, False)
    wide = a.astype(np.float64), b.astype(np.float64)
    assert_close(out, wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1]), roundings=200)


def test_precisions():
    assert boost_ext.float32_matmul_precision() == "highest"
    with pytest.raises(ValueError, match="precision must be one of highest, medium, got high"):
        boost_ext.set_float32_matmul_precision("high")
    assert not _core.has_narrow_products()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.usefixtures("precision")
def test_an_inf_stays_in_its_row_and_column(rng, count):
    a, b = normal(rng, (count, 9, 40)), normal(rng, (count, 40, 35))
    a[0, 3, 7], b[0, 5, 34] = np.inf, np.nan
    out = matmul(a, b, (count, 9, 40, 35), False, False)[0]
    assert not np.isfinite(out[3]).any()
    assert np.isnan(out[:, 34]).all()
    assert np.isfinite(np.delete(out[:, :34], 3, axis=0)).all()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([1, 2, 3], "matmul: sizes must hold 4 numbers, got 3"),
        ([1, 2, -3, 2], "matmul: sizes must be >= 0, got -3"),
        ([1, 2, 4, 2], "matmul: [ab] must have 8 elements, got 6"),
        ([1, 2, 3, 3], "matmul: (b must have 9|out must have 6) elements, got"),
    ],
)
def test_sizes_of_matmul(sizes, message):
    a, b, out = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(ValueError, match=message):
        _core.call("matmul", a, b, np.array(sizes, np.int32), flag(False), flag(False), out)


def cross_entropy(x, labels, ignored=-100, mean=True):
    loss, lse = np.empty(1, np.float32), np.empty(len(x), np.float32)
    _core.call("cross_entropy", x, labels, np.array([ignored], np.int32), flag(mean), loss, lse)
    return loss, lse


def cross_entropy_gradient(x, labels, lse, dloss, ignored=-100, mean=True):
    dx, scale = np.empty_like(x), np.array([dloss], np.float32)
    _core.call("cross_entropy_gradient", x, labels, lse, scale, np.array([ignored], np.int32), flag(mean), dx)
    return dx


@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cross_entropy(rng, dtype, shape, mean):
    x = normal(rng, shape, dtype) * dtype.type(4)
    labels = rng.integers(0, shape[1], shape[0]).astype(np.int32)
    labels[1::5] = -7
    loss, lse = cross_entropy(x, labels, -7, mean)
    exact, sums = oracle.cross_entropy(x, labels, -7, mean)
    wide = x.astype(np.float64)
    assert_close(lse, sums, 1 + abs(sums), roundings=4)
    assert_close(loss, [exact], (1 + abs(sums) + abs(wide).max()).sum() / (len(x) if mean else 1), roundings=4)
    dx = cross_entropy_gradient(x, labels, lse, 3.0, -7, mean)
    exact_dx = oracle.cross_entropy_gradient(x, labels, 3.0, -7, mean)
    share = abs(exact_dx) + 3 / (max((labels != -7).sum(), 1) if mean else 1) * (exact_dx != 0)
    spread = 10 + abs(wide).max() + abs(sums).max()  # what rounding x - lse costs of its exponential
    assert_close(dx, exact_dx, share * spread, roundings=4)
    assert not dx[labels == -7].any()


def test_logits_that_are_far_apart(rng):
    x = np.array([[1e4, -1e4, 0], [-np.inf, 2, 1], [88, 88, 88], [-1e30, 1e30, 0]], np.float32)
    labels = np.array([0, 1, 2, 1], np.int32)
    loss, lse = cross_entropy(x, labels, mean=False)
    np.testing.assert_allclose(loss, np.log(1 + np.exp(-1)) + np.log(3), rtol=1e-5)
    dx = cross_entropy_gradient(x, labels, lse, 1.0, mean=False)
    np.testing.assert_array_equal(dx[[0, 3]], 0)
    assert dx[1, 0] == 0
    np.testing.assert_allclose(dx.sum(1), 0, atol=1e-5)


def test_a_nan_among_logits(rng):
    x = normal(rng, (3, 50))
    x[1, 49] = np.nan
    loss, lse = cross_entropy(x, np.zeros(3, np.int32))
    assert np.isnan(loss[0])
    np.testing.assert_array_equal(np.isnan(lse), [False, True, False])


def test_no_row_counts():
    x, labels = np.ones((2, 3), np.float32), np.full(2, -100, np.int32)
    assert np.isnan(cross_entropy(x, labels)[0][0])
    assert cross_entropy(x, labels, mean=False)[0][0] == 0


@pytest.mark.parametrize("label", [-1, 3, 2**31 - 1])
def test_a_label_of_no_class_is_refused(label):
    with pytest.raises(ValueError, match=rf"labels must be in 0\.\.2, got {label} in row 1"):
        cross_entropy(np.ones((2, 3), np.float32), np.array([0, label], np.int32))


def softmax(x):
    y = np.empty_like(x)
    _core.call("softmax", x, y)
    return y


def softmax_gradient(dy, y):
    dx = np.empty_like(y)
    _core.call("softmax_gradient", dy, y, dx)
    return dx


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax(rng, shape):
    x, dy = normal(rng, shape) * np.float32(4), normal(rng, shape)
    y = softmax(x)
    exact = oracle.softmax(x)
    # x less the largest is rounded once, before it is the exponent.
    assert_close(y, exact, exact * (2 + np.ptp(x, 1)[:, None]), roundings=4)
    dx = softmax_gradient(dy, y)
    assert_close(dx, oracle.softmax_gradient(dy, y), y * abs(dy).max(1, keepdims=True), roundings=4)
    np.testing.assert_allclose(y.sum(1, dtype=np.float64), 1, atol=1e-6)


def test_softmax_of_what_is_far_apart():
    x = np.array([[1e4, -1e4, 0], [-np.inf, 2, 2], [3e38, 3e38, -3e38]], np.float32)
    np.testing.assert_array_equal(softmax(x), [[1, 0, 0], [0, 0.5, 0.5], [0.5, 0.5, 0]])


@pytest.mark.parametrize("place", [0, 15, 16, 49])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_softmax_of_a_row_without_shares(rng, place, value):
    x = normal(rng, (3, 50))
    x[1, place] = value
    np.testing.assert_array_equal(np.isnan(softmax(x)).any(1), [False, True, False])
    assert np.isnan(softmax(np.full((1, 20), -np.inf, np.float32))).all()


def test_sizes_of_softmax():
    x, y = np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)
    with pytest.raises(ValueError, match="y"):
        _core.call("softmax", x, y)
    with pytest.raises(ValueError, match="softmax: x must have two axes"):
        _core.call("softmax", np.ones(3, np.float32), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="softmax_gradient: dy must have two axes, the last of one element or more"):
        _core.call("softmax_gradient", np.ones((2, 0), np.float32), np.ones((2, 0), np.float32), y)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [
        ((7,), (0,)),
        ((5, 3), (1, 0)),
        ((129, 70), (1, 0)),
        ((67, 195), (1, 0)),
        ((4, 9, 3, 2, 8), (2, 0, 3, 1, 4)),
        ((3, 4, 2, 9, 8), (1, 3, 0, 2, 4)),
        ((2, 3, 20, 33), (0, 1, 3, 2)),
        ((2, 17, 3, 33), (0, 2, 1, 3)),
        ((3, 1, 5, 1), (3, 2, 1, 0)),
        ((2, 2, 2, 2, 2, 2, 2, 2), (7, 5, 3, 1, 6, 4, 2, 0)),
        ((3, 0, 2), (2, 0, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [*DTYPES, np.float64, np.int8, np.int32])
def test_axes_in_another_order(rng, dtype, shape, axes):
    x = rng.integers(-100, 100, shape).astype(dtype)
    moved = x.transpose(axes)
    out = np.empty(moved.shape, dtype)
    strides = [stride / x.itemsize for stride in moved.strides]
    _core.call("strided_copy", x, np.array(moved.shape, np.float64), np.array(strides, np.float64), out)
    assert_same_bits(out, np.ascontiguousarray(moved))


def test_strides_beyond_the_array_are_refused():
    x, out = np.zeros((2, 3), np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(ValueError, match="strides must stay within x"):
        _core.call("strided_copy", x, np.array([3.0, 2.0]), np.array([1.0, 4.0]), out)
    with pytest.raises(ValueError, match="shape and strides"):
        _core.call("strided_copy", x, np.array([3.0, 2.0]), np.array([1.0]), out)


def test_the_number_of_threads_changes_no_bit(rng, threads):
    x, dy = normal(rng, (3000, 200)), normal(rng, (3000, 200))
    gamma, labels = normal(rng, 200), rng.integers(0, 200, 3000).astype(np.int32)

    def results():
        loss, lse = cross_entropy(x, labels)
        yield from (gelu(x, False), gelu_gradient(dy, x, True), layer_norm(x, gamma, gamma, 1e-5), loss, lse)
        yield from layer_norm_gradient(dy, x, gamma, 1e-5)
        yield cross_entropy_gradient(x, labels, lse, 1.0)
        yield from (softmax(x), softmax_gradient(dy, softmax(x)))

    threads(1)
    alone = list(results())
    threads(4)
    for got, expected in zip(results(), alone, strict=True):
        assert_same_bits(got, expected)


def test_all_instruction_sets_have_the_same_bits(rng, isa):
    x = normal(rng, (70, 37)) * np.float32(4)
    labels = np.arange(70, dtype=np.int32) % 37

    def results():
        loss, lse = cross_entropy(x, labels)
        yield from (gelu(x, False), gelu(x, True), gelu_gradient(x, x, False), layer_norm(x, x[0], x[1], 1e-5))
        yield from layer_norm_gradient(x, x, x[0], 1e-5)
        yield from (loss, lse, cross_entropy_gradient(x, labels, lse, 2.0))
        yield from (softmax(x), softmax_gradient(x, softmax(x)))

    got = list(results())
    _core.set_isa("baseline")
    try:
        expected = list(results())
    finally:
        _core.set_isa(isa)
    for a, b in zip(got, expected, strict=True):
        assert_same_bits(a, b)
