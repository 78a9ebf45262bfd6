from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import masks
from boost_ext import ops
from dtypes import DTYPES, SIZES, assert_close, assert_same_bits, normal
from masks import philox

pytestmark = pytest.mark.usefixtures("isa")

SEED = 0x0123_4567_89AB_CDEF
# The known answers of the authors' Random123 library for Philox4x32: rounds, counter, key, words.
KNOWN = [
    (7, 0x0, 0x0, [0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48]),
    (10, 0x0, 0x0, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (10, 2**128 - 1, 2**64 - 1, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
]


def check(x: np.ndarray, p: float, draw: int = 0, stream: int = 0, shared: int = 1, seed: int = SEED) -> None:
    """The mask bit for bit, the values to the rounding of the storage type."""
    before = x.copy()
    got = ops.dropout(x, p, seed, draw=draw, stream=stream, shared=shared)
    expected, kept = masks.dropout(x, p, seed, draw, stream, shared)
    assert got.shape == x.shape
    assert not got[~kept].astype(np.float32).any()
    assert_close(got, expected, abs(expected), roundings=2)
    assert_same_bits(x, before)


@pytest.mark.parametrize(("rounds", "counter", "key", "words"), KNOWN)
def test_the_oracle_gives_the_known_answers(rounds, counter, key, words):
    block, draw, stream = counter % 2**64, counter >> 64 & 0xFFFFFFFF, counter >> 96
    assert philox(key, np.uint64(block), draw, stream, rounds)[0].tolist() == words


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    check(normal(rng, size, dtype), 0.3, draw=5, stream=2)


@pytest.mark.parametrize("p", [0, 1e-9, 2.0**-16, 0.1, 0.5, 0.999, 1 - 2.0**-16, 1 - 1e-9, 1])
@pytest.mark.parametrize("dtype", DTYPES)
def test_shares(rng, dtype, p):
    x = normal(rng, 5000, dtype)
    x[[7, 8, 9]] = 0.0, -0.0, 1e-3
    check(x, p)


@pytest.mark.parametrize("shared", [1, 2, 3, 16, 25, 100, 5000])
@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_that_share_a_draw(rng, dtype, shared):
    x = abs(normal(rng, 7 * 16384 // shared * shared + shared, dtype)) + dtype.type(1)
    check(x, 0.4, shared=shared)
    kept = (ops.dropout(x, 0.4, SEED, shared=shared) != 0).reshape(-1, shared)
    assert (kept.all(axis=1) | ~kept.any(axis=1)).all()


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("draw", [0, 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("stream", [0, 2**32 - 1])
def test_keys(rng, seed, draw, stream):
    check(normal(rng, 200), 0.5, draw, stream, seed=seed)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_place(rng, dtype):
    x = normal(rng, 20_001, dtype)
    expected = ops.dropout(x, 0.5, 3)
    assert ops.dropout(x, 0.5, 3, out=x) is x
    assert_same_bits(x, expected)


@pytest.mark.parametrize("shared", [1, 10])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("p", [0.5, 1])
def test_what_is_dropped_is_zero_whatever_it_was(p, bad, shared):
    y = ops.dropout(np.full(1000, bad, np.float32), p, 3, shared=shared)
    _, kept = masks.dropout(np.ones(1000), p, 3, shared=shared)
    expected = np.where(kept, np.float32(bad), np.float32(0))
    nan = np.isnan(expected)  # which nan it is, each device decides: 0x7fffffff on a GPU
    assert np.isnan(y[nan]).all()
    assert_same_bits(y[~nan], expected[~nan])


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_threads_do_not_matter(rng, threads, count):
    threads(count)
    check(normal(rng, 300_007), 0.2)
    check(normal(rng, 300_000), 0.2, shared=30_000)


def test_draws_are_as_often_kept_as_p_says_and_independent():
    """Of each place over passes, of neighbours, and of two seeds, streams and draws."""
    n, p = 200_000, 0.3
    ones = np.ones(n, np.float32)
    masks = [ops.dropout(ones, p, s, draw=d, stream=r) != 0 for s, d, r in [(1, 0, 0), (2, 0, 0), (1, 1, 0), (1, 0, 1)]]
    spread = 5 * np.sqrt(p * (1 - p) / n)
    for mask in masks:
        assert abs(mask.mean() - (1 - p)) < spread
        for shift in (1, 2, 3, 4, 8, 16, 64):
            assert abs(np.corrcoef(mask[:-shift], mask[shift:])[0, 1]) < 5 / np.sqrt(n)
    for i, mask in enumerate(masks):
        for other in masks[:i]:
            assert abs(np.corrcoef(mask, other)[0, 1]) < 5 / np.sqrt(n)
    places = np.sum([ops.dropout(ones[:1000], p, 1, draw=d) != 0 for d in range(400)], axis=0)
    assert abs(places - 400 * (1 - p)).max() < 5.5 * np.sqrt(400 * p * (1 - p))


def test_the_draw_may_be_an_array(rng):
    x = normal(rng, 100)
    for draw in (0, 3, -1):
        got = ops.dropout(x, 0.5, 1, draw=np.array([draw], np.int32))
        assert_same_bits(got, ops.dropout(x, 0.5, 1, draw=draw % 2**32))


@given(
    seed=st.integers(0, 2**64 - 1),
    size=st.integers(0, 400),
    p=st.floats(0, 1),
    draw=st.integers(0, 2**32 - 1),
    stream=st.integers(0, 2**32 - 1),
)
def test_any_arguments(seed, size, p, draw, stream):
    check(np.linspace(-2, 2, size, dtype=np.float32), p, draw, stream, seed=seed)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"p": -0.1}, ValueError, "p must be in 0..1, got -0.1"),
        ({"p": 1.1}, ValueError, "p must be in 0..1, got 1.1"),
        ({"p": np.nan}, ValueError, "p must be in 0..1, got nan"),
        ({"p": "1"}, TypeError, "p must be a number, got str"),
        ({"seed": -1}, ValueError, r"seed must be >= 0 and < 2\*\*64, got -1"),
        ({"seed": 2**64}, ValueError, r"seed must be >= 0 and < 2\*\*64, got"),
        ({"seed": 0.5}, TypeError, "seed must be an integer, got float"),
        ({"draw": 2**32}, ValueError, r"draw must be >= 0 and < 2\*\*32, got"),
        ({"draw": None}, TypeError, "draw must be an integer, got NoneType"),
        ({"draw": np.zeros(2, np.int32)}, ValueError, "draw must have 1 elements, got 2"),
        ({"stream": -1}, ValueError, r"stream must be >= 0 and < 2\*\*32, got -1"),
        ({"shared": 0}, ValueError, "shared must be >= 1 and divide"),
        ({"shared": 7}, ValueError, "shared must be >= 1 and divide the 10 elements of x, got 7"),
        ({"out": np.zeros(9, np.float32)}, ValueError, "out must have 10 elements, got 9"),
        ({"out": np.zeros(10, np.float16)}, TypeError, "out must be float32, got float16"),
    ],
)
def test_errors(arguments, error, text):
    x = np.ones(10, np.float32)
    with pytest.raises(error, match=f"^dropout: {text}"):
        ops.dropout(x, **{"p": 0.5, "seed": 1, **arguments})
