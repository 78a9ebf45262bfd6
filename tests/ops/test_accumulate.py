from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(accumulators: list[np.ndarray], grads: list[np.ndarray], factor: float, first: bool) -> None:
    """Against the oracle, and bit for bit against the two roundings that the specification names."""
    a = [x.astype(np.float64) for x in accumulators]
    g = [x.astype(np.float64) for x in grads]
    with np.errstate(all="ignore"):
        products = [np.float32(factor) * x.astype(np.float32) for x in grads]
        expected = [p if first else x + p for x, p in zip(accumulators, products, strict=True)]
    untouched = [x.copy() for x in grads]
    assert ops.accumulate(accumulators, grads, factor, first) is accumulators
    for got, e, x, y in zip(accumulators, expected, a, g, strict=True):
        assert_same_bits(got, e)
        magnitude = abs(factor * y) + (0 if first else abs(x))
        assert_close(got, oracle.accumulate(x, y, factor, first), magnitude, roundings=2)
    for got, e in zip(grads, untouched, strict=True):
        assert_same_bits(got, e)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [False, True])
def test_sizes(rng, dtype, size, first):
    check([normal(rng, size)], [normal(rng, size, dtype)], 1 / 3, first)


@pytest.mark.parametrize("factor", [0, 1, -1, 2.0**-24, 0.1, -1e-3, 65536])
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors(rng, dtype, factor):
    check([normal(rng, 333)], [normal(rng, 333, dtype)], factor, False)
    check([normal(rng, 333)], [normal(rng, 333, dtype)], factor, True)


@pytest.mark.parametrize("first", [False, True])
def test_many_tensors_of_all_shapes_and_types(rng, first):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (2, 0), (40000,)] * 20
    kinds = list(FLOATS.values())
    grads = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
    check([normal(rng, s) for s in shapes], grads, 0.25, first)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 65, 16385])
@pytest.mark.parametrize("old", [np.nan, np.inf, -np.inf])
def test_first_forgets_whatever_was_there(rng, size, old):
    grad = normal(rng, size)
    total = np.full(size, old, np.float32)
    ops.accumulate(total, grad, 0.5, True)
    assert_same_bits(total, np.float32(0.5) * grad)


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 77, -1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_elements_stay_where_they_are(rng, dtype, bad, place, first):
    grad, total = normal(rng, 100, dtype), normal(rng, 100)
    grad[place] = bad
    ops.accumulate(total, grad, 0.5, first)
    finite = np.isfinite(total)
    assert not finite[place]
    assert finite.sum() == 99


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mean_of_the_unscaled_gradients(rng, dtype, steps):
    """What it is for: N micro-batches at a loss scale; powers of two are exact."""
    scale = 1024.0
    grads = [(rng.integers(-64, 64, 500) / 8).astype(dtype) for _ in range(steps)]
    total = np.full(500, np.nan, np.float32)
    for i, grad in enumerate(grads):
        ops.accumulate(total, grad, 1 / (scale * steps), first=i == 0)
    mean = np.mean([g.astype(np.float64) for g in grads], axis=0) / scale
    np.testing.assert_allclose(total, mean, rtol=1e-6, atol=1e-9)


@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 300), max_size=6), first=st.booleans())
def test_splitting_does_not_matter(seed, cuts, first):
    rng = np.random.default_rng(seed)
    whole, grad = normal(rng, 300), normal(rng, 300)
    parts = np.split(whole.copy(), sorted(cuts))
    ops.accumulate(parts, np.split(grad, sorted(cuts)), 0.3, first)
    ops.accumulate(whole, grad, 0.3, first)
    assert_same_bits(np.concatenate(parts), whole)


@pytest.mark.parametrize("count", [1, 2, 4, 7, 64])
@pytest.mark.parametrize("first", [False, True])
def test_threads_do_not_matter(rng, threads, count, first):
    threads(count)
    kinds = list(FLOATS.values())
    sizes = [200_003, 1, 65_536, 0, 17]
    check([normal(rng, n) for n in sizes], [normal(rng, n, kinds[n % 3]) for n in sizes], 1 / 3, first)


def test_one_gradient_may_feed_several_accumulators(rng):
    grad, one, two = normal(rng, 50), normal(rng, 50), normal(rng, 50)
    expected = [one + grad, two + grad, one[:20] + grad[10:30]]
    third = one[:20].copy()
    ops.accumulate([one, two, third], [grad, grad, grad[10:30]], 1)
    for got, e in zip([one, two, third], expected, strict=True):
        assert_same_bits(got, e)


def test_an_accumulator_may_not_be_listed_twice(rng):
    total, grad = normal(rng, 10), normal(rng, 10)
    before = total.copy()
    for other in (total, total[:8], total[3:]):
        grads = [grad, grad[: other.size]]
        with pytest.raises(ValueError, match=r"^accumulate: accumulators\[[01]\] is written and must not overlap"):
            ops.accumulate([total, other], grads, 1)
    assert_same_bits(total, before)


@pytest.mark.parametrize("first", [False, True])
def test_an_accumulator_may_not_be_its_gradient(rng, first):
    total = normal(rng, 10)
    before = total.copy()
    for grad in (total, total[:]):
        with pytest.raises(ValueError, match=r"^accumulate: accumulators\[0\] is written and must not overlap"):
            ops.accumulate([total], [grad], 1, first)
    assert_same_bits(total, before)


@pytest.mark.parametrize(
    ("factor", "text"),
    [(np.inf, "must be finite, got inf"), (np.nan, "must be finite, got nan"), (1e39, "must be finite in float32")],
)
def test_factor_must_be_finite(rng, factor, text):
    total, grad = normal(rng, 10), normal(rng, 10)
    before = total.copy()
    with pytest.raises(ValueError, match=f"^accumulate: factor {text}"):
        ops.accumulate(total, grad, factor)
    assert_same_bits(total, before)


@pytest.mark.parametrize("factor", [True, "1", None])
def test_factor_must_be_a_number(rng, factor):
    with pytest.raises(TypeError, match=r"^accumulate: factor must be a number, got "):
        ops.accumulate(normal(rng, 3), normal(rng, 3), factor)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float64"])
def test_accumulators_are_float32(rng, kind):
    dtype = FLOATS.get(kind, np.dtype(np.float64))
    with pytest.raises(TypeError, match=rf"^accumulate: accumulators\[0\] must be float32, got {kind}$"):
        ops.accumulate(np.zeros(3, dtype), normal(rng, 3), 1)


def test_lists_must_fit(rng):
    with pytest.raises(ValueError, match=r"^accumulate: accumulators must hold as many arrays as grads \(2\), got 1$"):
        ops.accumulate([normal(rng, 3)], [normal(rng, 3)] * 2, 1)
    with pytest.raises(ValueError, match=r"^accumulate: accumulators\[0\] must have 4 elements, got 3$"):
        ops.accumulate([normal(rng, 3)], [normal(rng, 4)], 1)
