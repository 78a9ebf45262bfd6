from __future__ import annotations

import math

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, LARGEST, SIZES, SUMMED, TINY, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(tensors: list[np.ndarray]) -> None:
    norm = ops.global_norm(tensors)
    assert isinstance(norm, float)
    # Squares of float32 are exact in float64, and all terms are positive: one rounding a sum of lane or block.
    summed = max(SUMMED[t.dtype.name] for t in tensors) / 2  # the norm is a root
    assert norm == pytest.approx(oracle.global_norm(tensors), rel=1e-13 + summed, abs=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    check([normal(rng, size, dtype)])


def test_many_tensors_of_all_shapes_and_types(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (2, 0)] * 30
    kinds = list(FLOATS.values())
    check([normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [s for s in SIZES if s > 0])
def test_every_element_counts(dtype, size):
    tensor = np.zeros(size, dtype)
    for place in (0, size // 2, size - 1):
        tensor[place] = -3
        assert ops.global_norm(tensor) == 3
        tensor[place] = 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_squares_neither_overflow_nor_vanish(dtype):
    largest, tiny = LARGEST[dtype.name], TINY[dtype.name]
    assert ops.global_norm(np.full(4, largest).astype(dtype)) == 2 * largest
    assert ops.global_norm(np.full(4, tiny).astype(dtype)) == 2 * tiny


@pytest.mark.parametrize("size", [3, 64, 5000, 3 * 4096 + 1])
@pytest.mark.parametrize("among", [0.0, 1.0, 1e20, 3e38, 1e-25, 1e-38])
def test_bfloat16_squares_beyond_float32(rng, size, among):
    """Four squares are summed in float32, and again in float64 where that overflows, or little is left of it."""
    bfloat16 = FLOATS["bfloat16"]
    for size_of_all in (1e-30, 1e-19, 1e18, 1e25, 0.0):
        tensor = (size_of_all * rng.standard_normal(size)).astype(bfloat16)
        for place in (0, size // 2, size - 1):
            tensor[place] = among
            check([tensor])


def test_no_elements():
    assert ops.global_norm([np.empty(0, np.float32), np.empty((3, 0), np.float16)]) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("place", [0, 4095, 4096, -1])
def test_inf_and_nan_propagate(rng, dtype, place):
    tensor = normal(rng, 5000, dtype)
    tensor[place] = -np.inf
    assert ops.global_norm([normal(rng, 3), tensor]) == math.inf
    tensor[place] = np.nan
    assert math.isnan(ops.global_norm([tensor, normal(rng, 3)]))


def test_pythagoras_over_tensors(rng):
    tensors = [normal(rng, n) for n in (5000, 7, 64)]
    parts = [ops.global_norm(t) for t in tensors]
    assert ops.global_norm(tensors) == pytest.approx(math.hypot(*parts), rel=1e-14)


def test_a_power_of_two_scales_every_bit(rng):
    tensor = normal(rng, 20000)
    assert ops.global_norm(tensor * 64) == ops.global_norm(tensor) * 64


def test_read_only_arrays_are_welcome(rng):
    tensor = normal(rng, 100)
    tensor.flags.writeable = False
    check([tensor, tensor])
