"""The batch norm of training: values, gradients and moving statistics, with all instruction sets."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import _core
from dtypes import assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

SHAPES = [
    *((1, 1, 2), (2, 1, 1), (6, 3, 1), (3, 5, 4), (4, 70, 1), (130, 20, 4), (5, 40, 9), (2, 3, 15), (3, 67, 3)),
    *((1, 1, 16), (3, 2, 16), (7, 5, 49), (2, 3, 63), (2, 3, 64), (4, 3, 65), (3, 2, 196), (300, 2, 17)),
    *((1, 2, 1023), (2, 2, 1025), (3, 1, 4095), (2, 1, 4097), (1, 2, 8200), (3, 1, 12544)),
]
EPSILON, MOMENTUM = 1e-5, 0.9


def floats(n: int) -> np.ndarray:
    return np.empty(n, np.float32)


def batch_norm(x, gamma, beta, moving=None, epsilon=EPSILON, momentum=MOMENTUM):
    c = x.shape[1]
    y, mean, rstd = np.empty_like(x), floats(c), floats(c)
    moving_mean, moving_variance = moving or (np.zeros(c, np.float32), np.ones(c, np.float32))
    numbers = np.array([epsilon]), np.array([momentum])
    _core.call("batch_norm", x, gamma, beta, *numbers, moving_mean, moving_variance, y, mean, rstd)
    return y, mean, rstd


def batch_norm_gradient(dy, x, gamma, mean, rstd):
    dx, dgamma, dbeta = np.empty_like(x), np.empty_like(gamma), np.empty_like(gamma)
    _core.call("batch_norm_gradient", dy, x, gamma, mean, rstd, dx, dgamma, dbeta)
    return dx, dgamma, dbeta


def case(rng, shape):
    c = shape[1]
    x = normal(rng, shape) + normal(rng, (1, c, 1)) * np.float32(3)
    return x, normal(rng, shape), normal(rng, c), normal(rng, c)


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients(rng, shape):
    x, dy, gamma, beta = case(rng, shape)
    y, mean, rstd = batch_norm(x, gamma, beta)
    exact, means, variances = oracle.batch_norm(x, gamma, beta, EPSILON)
    factors = 1 / np.sqrt(variances + EPSILON)
    assert_close(mean, means, abs(x.astype(np.float64)).mean((0, 2)), roundings=1)
    assert_close(rstd, factors, factors, roundings=2)
    normed = (abs(x.astype(np.float64)) + abs(means)[:, None]) * factors[:, None]
    assert_close(y, exact, normed * abs(gamma)[:, None] + abs(beta)[:, None], roundings=6)

    dx, dgamma, dbeta = batch_norm_gradient(dy, x, gamma, mean, rstd)
    exact_dx, exact_dgamma, exact_dbeta = oracle.batch_norm_gradient(dy, x, mean, rstd, gamma)
    magnitudes, scale = abs(dy.astype(np.float64)), (abs(gamma) * factors)[:, None]
    products = (magnitudes * normed).mean((0, 2))[:, None]
    terms = magnitudes + magnitudes.mean((0, 2))[:, None] + normed * products
    assert_close(dx, exact_dx, scale * terms, roundings=40)
    assert_close(dgamma, exact_dgamma, (magnitudes * normed).sum((0, 2)), roundings=40)
    assert_close(dbeta, exact_dbeta, magnitudes.sum((0, 2)), roundings=32)


@pytest.mark.parametrize("shape", [(8, 3, 1), (4, 3, 4), (4, 3, 60), (4, 2, 5000)])
@pytest.mark.parametrize("offset", [1e3, -1e5])
def test_a_mean_far_above_the_deviation(rng, shape, offset):
    """The squares are those of differences, so that nothing of the variance is lost."""
    c = shape[1]
    x = (normal(rng, shape) + np.float32(offset)).astype(np.float32)
    one = np.ones(c, np.float32)
    y, mean, rstd = batch_norm(x, one, 0 * one)
    exact, means, variances = oracle.batch_norm(x, one, 0 * one, EPSILON)
    np.testing.assert_allclose(mean, means, rtol=6e-8)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(variances + EPSILON), rtol=4e-7)
    assert abs(y - exact).max() <= 2.0**-24 * abs(offset) / np.sqrt(variances.min()) + 1e-6


@pytest.mark.parametrize("shape", [(6, 3, 1), (5, 4, 9), (3, 2, 33), (2, 2, 5000), (1, 3, 2)])
@pytest.mark.parametrize("momentum", [0.0, 0.7, 1.0])
def test_moving_statistics(rng, shape, momentum):
    c = shape[1]
    mean, variance = np.zeros(c), np.ones(c)
    moving = np.zeros(c, np.float32), np.ones(c, np.float32)
    for _ in range(3):
        x, _, gamma, beta = case(rng, shape)
        batch_norm(x, gamma, beta, moving, momentum=momentum)
        _, means, variances = oracle.batch_norm(x, gamma, beta, EPSILON)
        size = x.size // c
        mean = momentum * mean + (1 - momentum) * means
        variance = momentum * variance + (1 - momentum) * variances * size / (size - 1)
    np.testing.assert_allclose(moving[0], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(moving[1], variance, rtol=1e-6)


def test_one_element_has_no_unbiased_variance():
    x, one = np.array([[[3.0], [-4.0]]], np.float32), np.ones(2, np.float32)
    moving = np.zeros(2, np.float32), one.copy()
    y, mean, rstd = batch_norm(x, one, 5 * one, moving)
    np.testing.assert_array_equal(y, np.full_like(x, 5))
    np.testing.assert_array_equal(mean, [3, -4])
    np.testing.assert_allclose(moving[0], [0.3, -0.4], rtol=1e-6)
    assert np.isnan(moving[1]).all()
    dx, dgamma, dbeta = batch_norm_gradient(x, x, one, mean, rstd)
    for found, expected in ((dx, 0), (dgamma, 0), (dbeta, [3, -4])):
        np.testing.assert_array_equal(found, np.broadcast_to(expected, found.shape))


@pytest.mark.parametrize("shape", [(3, 2, 5), (3, 2, 40), (2, 2, 5000)])
def test_a_channel_without_variance(shape):
    x, one = np.full(shape, 0.1, np.float32), np.ones(2, np.float32)
    y, _, rstd = batch_norm(x, one, 3 * one, epsilon=1e-6)
    np.testing.assert_allclose(y, 3, rtol=1e-5)
    np.testing.assert_allclose(rstd, 1e3, rtol=1e-5)
    assert np.isinf(batch_norm(x, one, one, epsilon=0.0)[2]).all() or np.isfinite(rstd).all()


@pytest.mark.parametrize("special", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(("shape", "at"), [((3, 4, 9), (1, 2, 8)), ((3, 4, 40), (0, 2, 38)), ((2, 4, 5000), (1, 2, 0))])
def test_what_is_not_finite_stays_in_its_channel(rng, special, shape, at):
    x, dy, gamma, beta = case(rng, shape)
    others = [0, 1, 3]
    spoilt = x.copy()
    spoilt[at] = special
    moving = np.zeros(4, np.float32), np.ones(4, np.float32)
    y, mean, rstd = batch_norm(spoilt, gamma, beta, moving)
    plain, mean, rstd = batch_norm(x, gamma, beta)
    assert np.isnan(y[:, 2]).all()
    assert not np.isfinite([moving[0][2], moving[1][2]]).any()
    assert_same_bits(y[:, others], plain[:, others])
    wrong = dy.copy()
    wrong[at] = special
    dx, dgamma, dbeta = batch_norm_gradient(wrong, x, gamma, mean, rstd)
    assert not np.isfinite(dx[:, 2]).any()
    np.testing.assert_array_equal(dbeta[2], special)
    for found, finite in zip((dx, dgamma, dbeta), batch_norm_gradient(dy, x, gamma, mean, rstd), strict=True):
        axis = found.ndim // 2
        assert_same_bits(found.take(others, axis), finite.take(others, axis))


@pytest.mark.parametrize("shape", [(0, 3, 2), (2, 3), (2, 3, 4, 4)])
def test_x_has_three_axes(shape):
    x, one = np.ones(shape, np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match="batch_norm: x must have three axes"):
        batch_norm(x, one, one)
    with pytest.raises(ValueError, match="batch_norm_gradient: x must have three axes"):
        batch_norm_gradient(x, x, one, one, one)


@pytest.mark.parametrize("momentum", [-0.1, 1.5, np.nan])
def test_momentum_is_a_share(momentum):
    x, one = np.ones((2, 3, 4), np.float32), np.ones(3, np.float32)
    with pytest.raises(ValueError, match="batch_norm: momentum must be"):
        batch_norm(x, one, one, momentum=momentum)


def results(rng):
    for shape in ((4, 33, 2500), (40, 300, 49), (16, 900, 16), (64, 1200, 4), (3, 7, 5)):
        x, dy, gamma, beta = case(rng, shape)
        moving = beta.copy(), gamma.copy()
        y, mean, rstd = batch_norm(x, gamma, beta, moving)
        yield from (y, mean, rstd, *moving)
        yield from batch_norm_gradient(dy, x, gamma, mean, rstd)


def test_the_number_of_threads_changes_no_bit(threads):
    threads(1)
    alone = list(results(np.random.default_rng(2)))
    threads(4)
    for got, expected in zip(results(np.random.default_rng(2)), alone, strict=True):
        assert_same_bits(got, expected)


def test_all_instruction_sets_have_the_same_bits(isa):
    got = list(results(np.random.default_rng(3)))
    _core.set_isa("baseline")
    try:
        expected = list(results(np.random.default_rng(3)))
    finally:
        _core.set_isa(isa)
    for a, b in zip(got, expected, strict=True):
        assert_same_bits(a, b)
