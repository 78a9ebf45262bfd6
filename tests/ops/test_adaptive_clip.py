from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(grads: list[np.ndarray], weights: list[np.ndarray], clipping: float, **more: float) -> None:
    wide = [(g.astype(np.float64), w.astype(np.float64)) for g, w in zip(grads, weights, strict=True)]
    untouched = [w.copy() for w in weights]
    assert ops.adaptive_clip(grads, weights, clipping, **more) is grads
    for got, (g, w) in zip(grads, wide, strict=True):
        expected = oracle.adaptive_clip(g, w, clipping, more.get("eps", 1e-3), more.get("scale", 1))
        assert_close(got, expected, abs(expected), roundings=2)  # of the factor, and of the product
    for got, e in zip(weights, untouched, strict=True):
        assert_same_bits(got, e)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    """One unit of three is within its limit."""
    grad, weight = normal(rng, (3, size), dtype), normal(rng, (3, size))
    weight[1] *= 1000
    check([grad], [weight], 0.5)


@pytest.mark.parametrize("shape", [(), (1,), (17,), (5000,), (8, 4, 3, 3), (1, 7), (7, 1), (0, 4), (4, 0), (5000, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes(rng, dtype, shape):
    check([normal(rng, shape, dtype)], [normal(rng, shape, dtype)], 0.3)


def test_many_tensors_of_all_shapes_and_types(rng, threads):
    shapes = [(), (3,), (0, 2), (2, 3, 4), (1, 1), (3, 4097), (64, 65), (2, 0), (9, 1025)] * 20
    kinds = list(FLOATS.values())
    found = []
    for count in (1, 3):
        threads(count)
        rng = np.random.default_rng(7)
        grads = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
        check(grads, [normal(rng, s, kinds[i // 3 % 3]) for i, s in enumerate(shapes)], 0.5)
        found.append(grads)
    for one, three in zip(*found, strict=True):
        assert_same_bits(one, three)


@pytest.mark.parametrize("scale", [1.0, 1024.0, 2.0**-20])
def test_a_loss_scale_stays_in_the_gradients(rng, scale):
    grad, weight = normal(rng, (5, 33)), normal(rng, (5, 33))
    scaled = grad * np.float32(scale)
    ops.adaptive_clip([grad], [weight], 0.25)
    ops.adaptive_clip([scaled], [weight], 0.25, scale=scale)
    assert_same_bits(scaled, grad * np.float32(scale))


def test_weights_of_zeros_count_as_eps(rng):
    grad = normal(rng, (2, 100))
    ops.adaptive_clip(grad, np.zeros((2, 100), np.float32), 0.5, eps=0.25)
    np.testing.assert_allclose(np.linalg.norm(grad.astype(np.float64), axis=1), 0.125, rtol=1e-6)
    ops.adaptive_clip(grad, np.zeros((2, 100), np.float32), 0.5, eps=0)
    np.testing.assert_array_equal(grad, 0)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("of", ["grads", "weights"])
def test_a_unit_with_inf_or_nan_is_left_as_it_is(rng, of, bad):
    grad, weight = normal(rng, (3, 70)), normal(rng, (3, 70))
    (grad if of == "grads" else weight)[1, 69] = bad
    before = grad.copy()
    ops.adaptive_clip(grad, weight, 0.01)
    assert_same_bits(grad[1], before[1])
    assert (abs(grad[[0, 2]]) < abs(before[[0, 2]])).all()


def test_shapes_must_agree(rng):
    with pytest.raises(ValueError, match=r"^adaptive_clip: grads\[1\] must have the shape of weights\[1\]"):
        ops.adaptive_clip([normal(rng, 6), normal(rng, (2, 3))], [normal(rng, 6), normal(rng, (3, 2))])
