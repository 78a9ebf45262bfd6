"""The codes of 8-bit state, and random rounding: bounds, the mean, 500 steps beside float64 and the paper's code."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boost_ext import ops
from dtypes import assert_same_bits, normal

from .narrow_state import BLOCK, Stored, key, random_bits, to_codes

EACH_KIND = pytest.mark.parametrize("kind", ["bfloat16", "uint8"])


def test_random_bits_are_even_and_their_own():
    """For each of 16 bits, of each state, over elements, steps, tensors and seeds."""
    draws = [
        random_bits(key(*parts), 4096, k) for parts in ((0, 1, 0), (0, 2, 0), (0, 1, 1), (1, 1, 0)) for k in (0, 1)
    ]
    for bits in draws:
        for shift in range(16):
            assert abs((bits >> shift & 1).mean() - 0.5) < 5 * 0.5 / 64
    for i, one in enumerate(draws):
        for other in draws[:i]:
            assert abs(np.corrcoef(one, other)[0, 1]) < 5 / 64


def value(c: int, n: int) -> float:
    """(c / n)^4, linear between powers of two."""
    if c == 0:
        return 0.0
    k = int(np.log2(c))
    octave, mantissa = divmod(4 * (c / 2**k - 1), 1)
    return float(2.0 ** (4 * (k - np.log2(n)) + octave) * (1 + mantissa))


def spacing(y: np.ndarray, top: int) -> np.ndarray:
    """The distance of the two codes around y, of scale 1."""
    grid = np.array([value(c, top + 1) for c in range(top + 2)])
    c = np.clip(np.searchsorted(grid, y, side="right") - 1, 0, top - 1)
    return grid[c + 1] - grid[c]


@given(
    size=st.integers(0, 700),
    spread=st.floats(0, 20),
    exponent=st.integers(-140, 124),
    zeros=st.sampled_from([0.0, 0.3, 1.0]),
    non_negative=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_bounds(size, spread, exponent, zeros, non_negative, seed):
    """Half the distance of two codes for the nearest, one for the random one; and what that is of a block's largest."""
    rng = np.random.default_rng(seed)
    values = (10 ** rng.uniform(-spread, 0, size) * 2.0**exponent * (rng.random(size) >= zeros)).astype(np.float32)
    values = values if non_negative else np.copysign(values, rng.standard_normal(size)).astype(np.float32)
    top = 255 if non_negative else 127
    near, scales = ops.quantize_state(values, non_negative=non_negative)
    random, same_scales = to_codes(values, random_bits(key(seed), values.size, 0), non_negative)
    assert_same_bits(scales, same_scales)
    each = np.repeat(scales, BLOCK)[: values.size].astype(np.float64)
    largest = np.repeat([np.abs(values[i : i + BLOCK]).max() for i in range(0, values.size, BLOCK)], BLOCK)[
        : values.size
    ]
    assert (largest <= each * 31 / 32).all()
    assert ((each / 2 * 31 / 32 < largest) | (each == 2.0**-87)).all()
    gap = spacing(np.abs(values.astype(np.float64)) / each, top)
    for codes, share in ((near, 0.5), (random, 1.0)):
        got = ops.dequantize_state(codes, scales, non_negative=non_negative).astype(np.float64)
        # The smallest v above 0 is rounded up to the first code.
        bound = np.maximum(share * gap, 2.0**-32 if non_negative else 0) * each + 4e-7 * np.abs(values)
        assert (np.abs(got - values) <= bound).all()
        of_largest = (2 / 31 if non_negative else 4 / 31) * share * np.maximum(largest, 2.0**-88)
        assert (np.abs(got - values) <= of_largest).all()
        assert ((got == 0) | (np.signbit(got) == np.signbit(values))).all()
        if non_negative:
            assert ((got == 0) == (values == 0)).all()


@pytest.mark.parametrize("non_negative", [False, True])
def test_codes_stand_for_themselves(non_negative):
    """Whatever the random bits say; so state that nothing changes stays as it is."""
    codes = np.arange(256, dtype=np.uint8)
    codes = codes[codes != (255 if non_negative else 128)]  # beyond 31/32; -0
    for scale in (2.0**-80, 1.0, 2.0**100):
        values = ops.dequantize_state(codes, [scale], non_negative=non_negative)
        for again, scales in (
            ops.quantize_state(values, non_negative=non_negative),
            to_codes(values, np.full(255, 0), non_negative),
            to_codes(values, np.full(255, 65535), non_negative),
        ):
            np.testing.assert_array_equal(again, codes)
            assert scales == scale


@EACH_KIND
def test_every_value_keeps_its_mean(kind, rng):
    """Over many seeds, at many places between two codes."""
    values = np.clip(np.abs(normal(rng, 64)) ** 3, 1e-5, 4).astype(np.float32)  # from the fourth code on
    values[0] = 4.0
    total, seeds = np.zeros(64), 4000
    for seed in range(seeds):
        state = Stored(kind, 64, 1)
        state.store(values, key(seed))
        total += state.floats()
    widest = spacing(values / 8.0, 255) * 8.0 if kind == "uint8" else values * 2.0**-7
    # 2^-16 of a distance: what sixteen random bits can say.
    assert (np.abs(total / seeds - values) <= 5 * widest / 2 / seeds**0.5 + widest * 2.0**-16).all()


def dettmers(values: np.ndarray, non_negative: bool) -> np.ndarray:
    """The dynamic code of the paper, to the nearest: decades with twice the codes of the next smaller one."""
    bits, table = 8 - (not non_negative), [0.0, 1.0]
    for decade in range(bits):
        edges = np.linspace(0.1, 1, 2 ** (decade) + 1)
        table += list(10.0 ** (decade - bits + 1) * (edges[:-1] + edges[1:]) / 2)
    table = np.unique(table)
    blocks = np.abs(values).reshape(-1, BLOCK)
    largest = blocks.max(axis=1, keepdims=True) + 1e-300
    nearest = np.searchsorted((table[:-1] + table[1:]) / 2, blocks / largest)
    return np.copysign(table[nearest] * largest, values.reshape(-1, BLOCK)).reshape(-1)


@pytest.mark.parametrize(("spread", "limits"), [(0.3, (0.012, 0.06)), (1.0, (0.012, 0.9))])
def test_five_hundred_steps_of_adam(spread, limits):
    """Gradients of 10^spread sizes in one block, of which half grow fivefold on the way. The distance from float64, as
    a share of the way: less than that of the paper's code, which may lose a second moment."""
    n, rng = 4096, np.random.default_rng(1)
    size = 10 ** rng.normal(0, spread, n)
    drift = 0.3 * rng.standard_normal(n)
    weights = {kind: np.zeros(n, np.float32) for kind in ("bfloat16", "uint8")}
    state = {kind: [Stored(kind, n, k) for k in range(2)] for kind in weights}
    exact = [np.zeros(n) for _ in range(3)]
    paper = [np.zeros(n) for _ in range(3)]
    for t in range(1, 501):
        later = np.where((t > 170) & (np.arange(n) % 2 == 0), 5.0, 1.0)
        grad = (size * later * (drift + rng.standard_normal(n))).astype(np.float32)
        for kind, w in weights.items():
            m, v = state[kind]
            ops.adam_step([w], [grad], [m.array], [v.array], lr=1e-3, step=t, scales=[[m.scale], [v.scale]])
        for s in (exact, paper):
            s[1], s[2] = 0.9 * s[1] + 0.1 * grad, 0.999 * s[2] + 0.001 * grad.astype(np.float64) ** 2
            s[0] -= 1e-3 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * s[1] / (np.sqrt(s[2]) + 1e-8)
        paper[1:] = dettmers(paper[1], False), dettmers(paper[2], True)
    way = np.sqrt(np.mean(exact[0] ** 2))
    off = {kind: np.sqrt(np.mean((w - exact[0]) ** 2)) / way for kind, w in weights.items()}
    of_paper = np.sqrt(np.mean((paper[0] - exact[0]) ** 2)) / way
    assert off["bfloat16"] < limits[0]
    assert off["uint8"] < limits[1]
    assert off["uint8"] < of_paper


def test_what_the_conversions_refuse():
    for bad in (np.inf, np.nan, 1.5e38):
        with pytest.raises(
            ValueError, match=r"^quantize_state: values must be finite and at most 31/32 \* 2\*\*126, got others$"
        ):
            ops.quantize_state([1.0, bad])
    with pytest.raises(ValueError, match=r"^quantize_state: values must be >= 0, got -1.0$"):
        ops.quantize_state([0.0, -1.0], non_negative=True)
    with pytest.raises(TypeError, match=r"^dequantize_state: codes must be uint8, got int64$"):
        ops.dequantize_state([1, 2], [1.0])
    with pytest.raises(ValueError, match=r"^dequantize_state: scales must have 2 elements, got 1$"):
        ops.dequantize_state(np.zeros(257, np.uint8), [1.0])
