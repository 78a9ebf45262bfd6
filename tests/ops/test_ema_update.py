from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(averages: list[np.ndarray], weights: list[np.ndarray], decay: float) -> None:
    """Against the oracle, and bit for bit against the roundings that the specification names."""
    rate = np.float32(1 - decay)
    with np.errstate(all="ignore"):
        expected = [a + rate * (w.astype(np.float32) - a) for a, w in zip(averages, weights, strict=True)]
    before = [a.astype(np.float64) for a in averages]
    untouched = [w.copy() for w in weights]
    assert ops.ema_update(averages, weights, decay) is averages
    for got, e, a, w in zip(averages, expected, before, weights, strict=True):
        assert_same_bits(got, e)
        wide = w.astype(np.float64)
        assert_close(got, oracle.ema_update(a, wide, decay), abs(a) + abs(wide), roundings=3)
    for got, e in zip(weights, untouched, strict=True):
        assert_same_bits(got, e)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    check([normal(rng, size)], [normal(rng, size, dtype)], 0.9)


@pytest.mark.parametrize("decay", [0, 0.5, 0.999, 0.99999, 1 - 2.0**-24, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_decays(rng, dtype, decay):
    check([normal(rng, 333)], [normal(rng, 333, dtype)], decay)


def test_many_tensors_of_all_shapes_and_types(rng, threads):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (2, 0), (40000,)] * 20
    kinds = list(FLOATS.values())
    for count in (1, 2, 7):
        threads(count)
        weights = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
        check([normal(rng, s) for s in shapes], weights, 0.75)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 77, -1])
def test_bad_elements_stay_where_they_are(rng, bad, place):
    weight, average = normal(rng, 100), normal(rng, 100)
    weight[place] = bad
    ops.ema_update(average, weight, 0.5)
    finite = np.isfinite(average)
    assert not finite[place]
    assert finite.sum() == 99


def test_a_constant_weight_is_reached_as_the_powers_of_decay(rng):
    weight = np.full(50, 2.0, np.float32)
    average = np.zeros(50, np.float32)
    for _ in range(20):
        ops.ema_update(average, weight, 0.9)
    np.testing.assert_allclose(average, 2 * (1 - 0.9**20), rtol=1e-6)


@pytest.mark.parametrize("decay", [-1e-9, 1.0000001, np.inf, np.nan])
def test_decay_must_be_from_0_to_1(rng, decay):
    average = normal(rng, 3)
    before = average.copy()
    text = "finite" if not np.isfinite(decay) else "from 0 to 1"
    with pytest.raises(ValueError, match=f"^ema_update: decay must be {text}, got "):
        ops.ema_update(average, normal(rng, 3), decay)
    assert_same_bits(average, before)
