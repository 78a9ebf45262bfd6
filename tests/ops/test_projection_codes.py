"""pca_project and pca_back_project of a matrix in int8 codes, and the codes themselves."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import boost_ext
import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, UNIT, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

# Around the lanes, the blocks that share a scale, and the blocks of the kernels.
WIDTHS = [0, 1, 15, 16, 17, 255, 256, 257, 511, 513, 4095, 4096, 4097, 16_385, 33_000]
# A lane's 16 products and sums of a block, the scale, and 16 blocks, each with one vector that crosses into the next.
ROUNDINGS = 64


def codes_of(rng: np.random.Generator, k: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    codes = rng.integers(-127, 128, (k, n), np.int8)
    return codes, np.ldexp(rng.random((k, -(-n // 256)), np.float32), rng.integers(-9, 1, (k, 1))).astype(np.float32)


def check(codes: np.ndarray, scale: np.ndarray, sizes: list[int], rng: np.random.Generator, kinds=None) -> None:
    """Both ops on tensors of these sizes, against float64."""
    kinds = kinds or [np.dtype(np.float32)]
    exact = oracle.dequantize_projection(codes.astype(np.float64), scale.astype(np.float64))
    grads = [normal(rng, size, kinds[i % len(kinds)]) for i, size in enumerate(sizes)]
    wide = [g.astype(np.float64) for g in grads]
    out = ops.pca_project(codes, grads, scale=scale)
    assert (out.dtype, out.shape) == (np.float32, (len(codes),))
    assert_close(out, oracle.pca_project(exact, wide), oracle.pca_project(abs(exact), list(map(abs, wide))), ROUNDINGS)

    vectors = [normal(rng, len(codes)) for _ in range(3)]
    for count in (1, 2, 3):
        images = [[np.full_like(g, np.nan) for g in grads] for _ in range(count)]
        assert ops.pca_back_project(codes, vectors[:count], images, scale=scale) is images
        for v, tensors in zip(vectors, images, strict=False):
            expected = oracle.pca_back_project(exact, v.astype(np.float64), wide)
            bound = oracle.pca_back_project(abs(exact), abs(v.astype(np.float64)), wide)
            for actual, e, m in zip(tensors, expected, bound, strict=True):
                assert_close(actual, e, m, 3 * len(codes))  # a product, another one and a sum a row


@pytest.mark.parametrize("n", WIDTHS)
def test_sizes(rng, n):
    check(*codes_of(rng, 5, n), [n], rng)


@pytest.mark.parametrize("k", [1, 2, 3, 4, 7, 8, 9, 33, 200])
def test_rows(rng, k):
    check(*codes_of(rng, k, 1100), [1100], rng)


def test_tensors_that_begin_anywhere_in_a_block(rng):
    sizes = [10, 246, 0, 1, 255, 300, 4096 + 7, 3, 512, 8200, 17, *range(1, 40)]
    check(*codes_of(rng, 6, sum(sizes)), sizes, rng, list(FLOATS.values()))


@given(st.integers(1, 9), st.lists(st.integers(0, 600), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_any_tensors(k, sizes, seed):
    rng = np.random.default_rng(seed)
    check(*codes_of(rng, k, sum(sizes)), sizes, rng)


def test_codes_and_scale_anywhere_in_memory(rng):
    codes, scale = codes_of(rng, 3, 1000)
    g, v = normal(rng, 1000), normal(rng, 3)
    image = np.empty(1000, np.float32)
    product = ops.pca_project(codes, g, scale=scale)
    ops.pca_back_project(codes, [v], [image], scale=scale)
    memory, scales = np.empty(codes.size + 64, np.int8), np.empty(scale.size + 8, np.float32)
    for start in (1, 2, 4, 8, 31):
        there = memory[start : start + codes.size].reshape(codes.shape)
        there[...] = codes
        its = scales[start % 5 : start % 5 + scale.size].reshape(scale.shape)
        its[...] = scale
        assert_same_bits(ops.pca_project(there, g, scale=its), product)
        assert_same_bits(ops.pca_back_project(there, [v], [np.empty(1000, np.float32)], scale=its)[0], image)


@pytest.mark.parametrize("place", [0, 255, 256, 999])
def test_inf_and_nan_propagate(rng, place):
    codes, scale = np.ones((3, 1000), np.int8), np.ones((3, 4), np.float32)
    codes[1, place], codes[2] = 0, -1
    g = normal(rng, 1000)
    g[place] = -np.inf
    np.testing.assert_array_equal(ops.pca_project(codes, g, scale=scale), [-np.inf, np.nan, np.inf])
    g[place] = np.nan
    assert np.isnan(ops.pca_project(codes, g, scale=scale)).all()
    scale[2, place // 256] = np.inf
    image = ops.pca_back_project(codes, [np.ones(3, np.float32)], [np.empty(1000, np.float32)], scale=scale)[0]
    np.testing.assert_array_equal(np.isinf(image), np.arange(1000) // 256 == place // 256)


def test_errors(rng):
    codes, scale = codes_of(rng, 2, 300)
    g, v = normal(rng, 300), normal(rng, 2)
    expected = r"scale must be a \(2, 2\) matrix beside an int8 P, one for each row and 256 columns"
    wrong = [
        (codes, None, ValueError, f"{expected}, got None"),
        (codes, scale[:, :1].copy(), ValueError, rf"{expected}, got \(2, 1\)"),
        (codes, scale.T.copy()[:1], ValueError, rf"{expected}, got \(1, 2\)"),
        (codes, scale.reshape(-1), ValueError, f"{expected}, got 1 axes"),
        (codes, scale.astype(np.float64), TypeError, "scale must be float32, got float64"),
        (normal(rng, (2, 300)), scale, ValueError, "scale must be None beside a float32 P, got an array"),
        (codes.view(np.uint8), scale, TypeError, "P must be float32, float16, bfloat16 or int8, got uint8"),
        (codes[:, :299].copy(), scale, ValueError, "P must have one column for each of the 300 elements .*, got 299"),
    ]
    for P, s, error, text in wrong:
        with pytest.raises(error, match=f"^pca_project: {text}$"):
            ops.pca_project(P, g, scale=s)
        with pytest.raises(error, match=f"^pca_back_project: {text}$"):
            ops.pca_back_project(P, [v], [g.copy()], scale=s)
    shared = np.empty(6, np.float32)
    with pytest.raises(ValueError, match=r"^pca_project: out is written .*, but it overlaps scale$"):
        ops.pca_project(codes, g, shared[3:5], scale=shared[:4].reshape(2, 2))


@pytest.mark.parametrize("n", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_quantize_projection(rng, n, dtype):
    P = (normal(rng, (3, n)) * np.ldexp(1.0, rng.integers(-9, 9, (3, 1)))).astype(dtype)
    P[1, 3:700] = 0
    codes, scale = ops.quantize_projection(P)
    assert (codes.dtype, codes.shape) == (np.int8, P.shape)
    assert (scale.dtype, scale.shape) == (np.float32, (3, -(-n // 256)))
    nearest, exact = oracle.quantize_projection(P.astype(np.float64))
    np.testing.assert_allclose(scale, exact, rtol=2 * UNIT["float32"], atol=0)
    each = np.repeat(exact, 256, axis=1)[:, :n]
    quotient = P / np.where(each > 0, each, 1)
    clear = abs(quotient - nearest) < 0.4999  # of ties, float32 may see one more or less
    np.testing.assert_array_equal(codes[clear], nearest[clear])
    back = ops.dequantize_projection(codes, scale)
    assert_same_bits(back, oracle.dequantize_projection(codes.astype(np.float32), scale))
    assert (abs(back - P.astype(np.float64)) <= each * (0.5 + 2.0**-15)).all()


def test_codes_round_half_to_even():
    P = np.zeros((1, 300), np.float32)
    P[0, :6] = 127, 0.5, 1.5, -2.5, -3.5, -127
    codes, scale = ops.quantize_projection(P)
    np.testing.assert_array_equal(codes[0, :8], [127, 0, 2, -2, -4, -127, 0, 0])
    np.testing.assert_array_equal(scale, [[1, 0]])


@pytest.mark.parametrize("largest", [1e-45, 1e-44, 3e-38, 1e-38, 3.4e38])
def test_codes_at_the_ends_of_float32(largest):
    P = np.full((1, 4), largest, np.float32) * np.array([1, -1, 0.5, 0], np.float32)
    codes, scale = ops.quantize_projection(P)
    assert abs(codes.astype(int)).max() <= 127
    np.testing.assert_allclose(ops.dequantize_projection(codes, scale), P, rtol=0, atol=largest / 126 + 1e-43)


def test_quantized_twice_is_quantized_once(rng):
    codes, scale = ops.quantize_projection(normal(rng, (40, 40_000)))  # large enough for several threads
    again = ops.quantize_projection(ops.dequantize_projection(codes, scale))
    assert_same_bits(again[0], codes)
    np.testing.assert_allclose(again[1], scale, rtol=1e-6)


def test_what_cannot_be_quantized(rng):
    for bad in (np.nan, np.inf, -np.inf, 1e39):
        P = np.zeros((3, 700))
        P[1, -1] = bad
        with pytest.raises(ValueError, match=r"^quantize_projection: P must be finite in float32, got .* in row 1$"):
            ops.quantize_projection(P)
    with pytest.raises(ValueError, match=r"^quantize_projection: P must be a \(k, n\) matrix, got 1 axes$"):
        ops.quantize_projection(np.zeros(3))
    codes, scale = codes_of(rng, 2, 300)
    with pytest.raises(TypeError, match=r"^dequantize_projection: codes must be int8 and scale float32, got int16 "):
        ops.dequantize_projection(codes.astype(np.int16), scale)
    text = re.escape("codes must be (k, n) and scale (k, ceil(n / 256)), got (2, 300) and (1, 2)")
    with pytest.raises(ValueError, match=f"^dequantize_projection: {text}$"):
        ops.dequantize_projection(codes, scale[:1])


def test_orthonormal_rows_stay_nearly_so(rng):
    """The share of a direction that int8 turns away: 127 steps to the largest of 256 elements."""
    P = np.linalg.qr(rng.standard_normal((6000, 8)))[0].T.astype(np.float32, order="C")
    codes, scale = ops.quantize_projection(P)
    v = normal(rng, 8)
    image = ops.pca_back_project(codes, [v], [np.empty(6000, np.float32)], scale=scale)[0]
    expected = v @ P
    assert image @ expected / np.linalg.norm(image) / np.linalg.norm(expected) > 0.9999
    np.testing.assert_allclose(ops.pca_project(codes, image, scale=scale), v, atol=2e-2)
    assert boost_ext.num_threads() == 3
