from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, LARGEST, SIZES, TINY, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(tensors: list[np.ndarray], scale: float = 1.0) -> np.ndarray:
    rows = ops.tensor_statistics(tensors, scale)
    assert rows.dtype == np.float64
    assert rows.shape == (len(tensors), 6)
    expected = np.array([oracle.tensor_statistics(t.astype(np.float64), scale) for t in tensors])
    np.testing.assert_array_equal(rows[:, [0, 1, 2, 4]], expected[:, [0, 1, 2, 4]])
    # A quotient of float64; squares of float32 are exact there, and their sum has positive terms alone. Four squares of
    # half precision are added with three roundings of float32.
    np.testing.assert_allclose(rows[:, 3], expected[:, 3], rtol=1e-15, atol=0)
    for row, of, tensor in zip(rows, expected, tensors, strict=True):
        np.testing.assert_allclose(row[5], of[5], rtol=1e-13 if tensor.dtype == np.float32 else 3 * 2.0**-24, atol=0)
    return rows


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1, 2.0**16, 3])
def test_sizes(rng, dtype, size, scale):
    tensor = normal(rng, size, dtype)
    tensor[::3] = 0
    tensor[1::7] *= -0.0
    check([tensor], scale)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 65, 16383, 16384, 16385, 32769])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_bad_element_is_found_wherever_it_is(rng, dtype, size, bad):
    for place in sorted({0, size // 2, size - 1, min(16384, size - 1)}):
        tensors = [normal(rng, 3, dtype), normal(rng, size, dtype), normal(rng, 3, dtype)]
        tensors[1][place] = bad
        rows = check(tensors)
        assert rows[:, 2].tolist() == [-1, place, -1]
        assert rows[1, :2].tolist() == [0 if np.isnan(bad) else 1, 1 if np.isnan(bad) else 0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_elements_are_counted_over_blocks(rng, dtype):
    tensor = normal(rng, 50000, dtype)
    tensor[[40000, 16384, 49999]] = np.inf, -np.inf, np.inf
    tensor[[16390, 33000]] = np.nan
    tensor[100:300] = 0
    assert check([tensor])[0, :3].tolist() == [3, 2, 16384]


@pytest.mark.parametrize("dtype", DTYPES)
def test_degenerate_tensors(dtype):
    of = [np.full(100, value, dtype) for value in (np.nan, -np.inf, 0.0, -0.0)]
    assert check([*of, np.empty((3, 0), dtype), np.array(-2, dtype)]).tolist() == [
        [0, 100, 0, 0, 0, 0],
        [100, 0, 0, 0, 0, 0],
        [0, 0, -1, 0, 100, 0],
        [0, 0, -1, 0, 100, 0],
        [0, 0, -1, 0, 0, 0],
        [0, 0, -1, 2, 0, 4],
    ]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_element_counts(dtype):
    for size in (17, 64, 4097, 16385):
        tensor = np.zeros(size, dtype)
        for place in (0, size // 2, size - 1):
            tensor[place] = -3
            assert ops.tensor_statistics(tensor).tolist() == [[0, 0, -1, 3, size - 1, 9]]
            tensor[place] = 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_smallest_number_is_no_zero_and_no_square_overflows(dtype):
    largest, tiny = LARGEST[dtype.name], TINY[dtype.name]
    rows = ops.tensor_statistics([np.full(4, v).astype(dtype) for v in (tiny, largest, -largest)])
    expected = [[0, 0, -1, v, 0, 4 * v**2] for v in (tiny, largest, largest)]
    assert rows.tolist() == expected


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_every_half(kind):
    every = np.arange(2**16, dtype=np.uint16).view(FLOATS[kind])
    check([every, every[1:].copy(), every[np.isfinite(every.astype(np.float32))]], 0.5)


def test_many_tensors_of_all_shapes_and_types(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (2, 0)] * 30
    kinds = list(FLOATS.values())
    tensors = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
    tensors[-2][-1] = np.nan
    check(tensors, 0.125)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_counts_and_magnitudes_are_those_of_the_check(rng, dtype):
    tensors = [normal(rng, n, dtype) for n in (3, 0, 40000)]
    tensors[2][[7, 20000]] = np.nan, np.inf
    rows = ops.tensor_statistics(tensors)
    report = ops.unscale_and_check(tensors, 1, report=True).tensors
    seen = [[t.inf, t.nan, -1 if t.first is None else t.first, t.max_abs] for t in report]
    assert rows[:, :4].tolist() == seen


@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_the_rows_of_parts_add_up(seed, cuts):
    rng = np.random.default_rng(seed)
    whole = normal(rng, 300)
    whole[rng.integers(0, 300, 3)] = rng.choice([np.inf, np.nan, 1.0, 0.0], 3)
    parts = ops.tensor_statistics(np.split(whole.copy(), sorted(cuts)))
    (row,) = ops.tensor_statistics([whole])
    assert parts[:, [0, 1, 4]].sum(axis=0).tolist() == row[[0, 1, 4]].tolist()
    assert parts[:, 3].max() == row[3]
    assert parts[:, 5].sum() == pytest.approx(row[5], rel=1e-14)


def test_a_power_of_two_moves_every_bit(rng):
    tensor = normal(rng, 20000)
    (plain,), (scaled,) = ops.tensor_statistics(tensor), ops.tensor_statistics(tensor * np.float32(64), 64)
    assert_same_bits(plain, scaled)


def test_a_given_out_is_written_and_returned(rng):
    tensor = normal(rng, 100)
    tensor.flags.writeable = False
    out = np.full((2, 6), np.nan)
    assert ops.tensor_statistics([tensor, tensor], np.float32([4]), out=out) is out
    assert_same_bits(out, ops.tensor_statistics([tensor, tensor], 4))


def test_refusals():
    tensor, out = np.ones(3, np.float32), np.zeros((1, 6))
    with pytest.raises(ValueError, match=r"^tensor_statistics: out must have 6 elements, got 5$"):
        ops.tensor_statistics(tensor, out=np.zeros(5))
    with pytest.raises(TypeError, match=r"^tensor_statistics: out must be float64, got float32$"):
        ops.tensor_statistics(tensor, out=np.zeros(6, np.float32))
    with pytest.raises(TypeError, match=r"^tensor_statistics: tensors\[0\] must be float32, float16 or bfloat16, got "):
        ops.tensor_statistics(np.ones(3), out=out)
    with pytest.raises(TypeError, match=r"^tensor_statistics: scale must be a number, got str$"):
        ops.tensor_statistics(tensor, "1", out=out)
    for scale in (0, -1):
        with pytest.raises(ValueError, match=r"^tensor_statistics: scale must be finite and > 0, got "):
            ops.tensor_statistics(tensor, scale, out=out)
    assert not out.any()
