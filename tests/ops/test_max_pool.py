"""Max pooling: the maxima, their places, and what goes back there, with all instruction sets."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import _core
from dtypes import assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

WINDOWS = [
    *((2, 2, 2, 2), (3, 3, 2, 2), (3, 3, 1, 1)),  # with loops of their own
    *((1, 1, 1, 1), (2, 3, 3, 2), (3, 2, 2, 1), (5, 2, 1, 3), (2, 2, 4, 5), (16, 16, 3, 7)),
]
IMAGES = [(1, 1), (2, 2), (3, 5), (10, 10), (7, 33), (34, 67)]
CASES = [
    ((kh, kw, sh, sw, top, left), image)
    for kh, kw, sh, sw in WINDOWS
    for top, left in sorted({(0, 0), (0, kw // 2), (kh // 2, 0), (kh // 2, kw // 2)})
    for image in IMAGES
    if image[0] + 2 * top >= kh and image[1] + 2 * left >= kw
]


def pooled_size(image, windows):
    """With as much padding behind the image as before."""
    kh, kw, sh, sw, top, left = windows
    return (image[0] + 2 * top - kh) // sh + 1, (image[1] + 2 * left - kw) // sw + 1


def max_pool(x, windows, out=None):
    y = np.full((*x.shape[:-2], *(out or pooled_size(x.shape[-2:], windows))), -7, np.float32)
    places = np.full(y.shape, 255, np.uint8)
    _core.call("max_pool", x, np.array(windows, np.int32), y, places)
    return y, places


def max_pool_gradient(dy, places, windows, image):
    dx = np.full((*dy.shape[:-2], *image), -7, np.float32)
    _core.call("max_pool_gradient", dy, places, np.array(windows, np.int32), dx)
    return dx


@pytest.mark.parametrize(("windows", "image"), CASES, ids=str)
def test_max_pool(rng, windows, image):
    """Integers, so that there are ties, and sums are exact."""
    x = rng.integers(-3, 4, (3, *image)).astype(np.float32)
    x[rng.random(x.shape) < 0.2] = -np.inf
    x[1, rng.random(image) < 0.1] = np.nan
    x[2, rng.random(image) < 0.1] = -0.0
    y, places = max_pool(x, windows)
    expected, at = oracle.max_pool(x, y.shape[1:], windows)
    assert_same_bits(y, expected.astype(np.float32))
    np.testing.assert_array_equal(places, at)

    dy = rng.integers(-9, 10, y.shape).astype(np.float32)
    dx = max_pool_gradient(dy, places, windows, image)
    np.testing.assert_array_equal(dx, oracle.max_pool_gradient(dy, at, image, windows))


@pytest.mark.parametrize("image", [(2, 3), (9, 12), (14, 14)])
def test_more_padding_behind_the_image(rng, image):
    """As in the mode `same`, whose windows may be larger than the image."""
    x, windows = normal(rng, (2, *image)), (4, 5, 1, 2, 1, 2)
    out = (image[0], -(-image[1] // 2))
    y, places = max_pool(x, windows, out)
    expected, at = oracle.max_pool(x, out, windows)
    np.testing.assert_array_equal(y, expected)
    dx = max_pool_gradient(y, places, windows, image)
    np.testing.assert_allclose(dx, oracle.max_pool_gradient(y, at, image, windows), rtol=1e-6)


def test_any_axes_before_the_image(rng):
    x, windows = normal(rng, (2, 3, 5, 8, 9)), (2, 2, 2, 2, 0, 0)
    y, places = max_pool(x, windows)
    expected, at = max_pool(x.reshape(30, 8, 9), windows)
    assert_same_bits(y, expected.reshape(2, 3, 5, 4, 4))
    assert_same_bits(max_pool(x[0, 0, 0], windows)[0], y[0, 0, 0])
    dx = max_pool_gradient(y, places, windows, (8, 9))
    assert_same_bits(dx, max_pool_gradient(expected, at, windows, (8, 9)).reshape(x.shape))


def test_nothing_to_pool():
    y, places = max_pool(np.empty((0, 4, 4), np.float32), (2, 2, 2, 2, 0, 0))
    assert y.shape == (0, 2, 2)
    assert max_pool_gradient(y, places, (2, 2, 2, 2, 0, 0), (4, 4)).shape == (0, 4, 4)
    nothing = np.empty((3, 0, 2), np.float32)
    dx = max_pool_gradient(nothing, nothing.astype(np.uint8), (2, 2, 2, 2, 0, 0), (4, 4))
    np.testing.assert_array_equal(dx, np.zeros((3, 4, 4)))


def test_a_sum_of_negative_zeros_is_zero():
    """MindSpore adds to zero, too."""
    y, places = max_pool(np.ones((1, 2, 2), np.float32), (2, 2, 2, 2, 0, 0))
    dx = max_pool_gradient(-0.0 * y, places, (2, 2, 2, 2, 0, 0), (2, 2))
    assert_same_bits(dx, np.zeros((1, 2, 2), np.float32))


@pytest.mark.parametrize(
    ("windows", "out", "message"),
    [
        ((2, 2, 2), (2, 2), "windows must have 6 elements, got 3"),
        ((0, 2, 1, 1, 0, 0), (2, 2), "must be positive, got 0 x 2 and 1 x 1"),
        ((2, 2, 1, -1, 0, 0), (2, 2), "must be positive, got 2 x 2 and 1 x -1"),
        ((17, 16, 1, 1, 8, 8), (2, 2), "at most 256 elements, got 17 x 16"),
        ((2, 2, 1, 1, 0, 2), (2, 2), "padding must be less than the window, got 0 x 2"),
        ((2, 2, 1, 1, -1, 0), (2, 2), "padding must be less than the window, got -1 x 0"),
        ((2, 2, 2, 2, 0, 0), (3, 2), "each of the 3 x 2 windows must hold an element of the 4 x 4"),
        ((3, 3, 2, 2, 1, 1), (2, 4), "each of the 2 x 4 windows must hold an element of the 4 x 4"),
    ],
)
def test_windows_that_are_refused(windows, out, message):
    x = np.ones((2, 4, 4), np.float32)
    with pytest.raises(ValueError, match=f"max_pool: .*{message}"):
        max_pool(x, windows, out)
    y = np.ones((2, *out), np.float32)
    with pytest.raises(ValueError, match=f"max_pool_gradient: .*{message}"):
        max_pool_gradient(y, y.astype(np.uint8), windows, (4, 4))


def test_arrays_that_are_refused():
    x, windows = np.ones((2, 4, 4), np.float32), np.array((2, 2, 2, 2, 0, 0), np.int32)
    y, places = np.ones((2, 2, 2), np.float32), np.ones((2, 2, 2), np.uint8)
    with pytest.raises(TypeError, match="x must be float32, got float64"):
        _core.call("max_pool", x.astype(np.float64), windows, y, places)
    with pytest.raises(TypeError, match="places must be uint8, got int8"):
        _core.call("max_pool", x, windows, y, places.astype(np.int8))
    with pytest.raises(ValueError, match="y must have 8 elements, got 4"):
        _core.call("max_pool", x, windows, y[:1], places[:1])
    with pytest.raises(ValueError, match="places must have 8 elements, got 4"):
        _core.call("max_pool_gradient", y, places[:1], windows, x)
    with pytest.raises(ValueError, match="as many axes"):
        _core.call("max_pool", x, windows, y.reshape(1, 2, 2, 2), places)


@pytest.mark.parametrize("windows", [(2, 2, 2, 2, 0, 0), (3, 3, 2, 2, 1, 1), (3, 3, 1, 1, 1, 1), (4, 4, 3, 3, 0, 0)])
def test_the_number_of_threads_changes_no_bit(rng, threads, windows):
    x = normal(rng, (701, 31, 30))

    def results():
        y, places = max_pool(x, windows)
        return y, places, max_pool_gradient(y, places, windows, x.shape[1:])

    threads(1)
    alone = results()
    threads(2)
    for got, expected in zip(results(), alone, strict=True):
        assert_same_bits(got, expected)
