from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, LARGEST, SIZES, TINY, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def product(grad: np.ndarray, inv_scale: float) -> np.ndarray:
    """In float32, as the kernels multiply, then in the storage type."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (grad.astype(np.float32) * np.float32(inv_scale)).astype(grad.dtype)


def as_report(tensor: ops.TensorReport) -> oracle.Finiteness:
    return oracle.Finiteness(tensor.inf, tensor.nan, tensor.first, tensor.max_abs)


def check(grads: list[np.ndarray], inv_scale: float) -> ops.FiniteReport:
    """One call with and one without the report, against NumPy's product and the oracle's look at it."""
    again = [g.copy() for g in grads]
    expected = [product(g, inv_scale) for g in grads]
    found = ops.unscale_and_check(again, inv_scale)
    report = ops.unscale_and_check(grads, inv_scale, report=True)
    for g, a, e in zip(grads, again, expected, strict=True):
        nan = np.isnan(e.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(g.astype(np.float32)), nan)
        assert_same_bits(g[~nan], e[~nan])
        assert_same_bits(a, g)
    seen = [oracle.check(e.astype(np.float64)) for e in expected]
    assert [as_report(t) for t in report.tensors] == seen
    assert found is bool(report) is any(f.first is not None for f in seen)
    return report


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inv_scale", [1, 2**-16, 1 / 3])
def test_sizes(rng, dtype, size, inv_scale):
    grad = normal(rng, size, dtype)
    exact = grad.astype(np.float64)
    assert not check([grad], inv_scale)
    assert_close(grad, oracle.unscale(exact, inv_scale), abs(exact) * inv_scale, roundings=2)


@pytest.mark.parametrize("size", [1, 15, 16, 17, 64, 65, 16383, 16384, 16385, 32769])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("inv_scale", [1, 0.5])
def test_bad_element_is_found_wherever_it_is(rng, dtype, size, bad, inv_scale):
    for place in sorted({0, size // 2, size - 1, min(16384, size - 1)}):
        grads = [normal(rng, 3, dtype), normal(rng, size, dtype), normal(rng, 3, dtype)]
        grads[1][place] = bad
        report = check(grads, inv_scale)
        assert report.tensors[1].first == place
        assert [t.found for t in report.tensors] == [False, True, False]


@pytest.mark.parametrize("dtype", DTYPES)
def test_bad_elements_are_counted_over_blocks(rng, dtype):
    grad = normal(rng, 50000, dtype)
    grad[[40000, 16384, 49999]] = np.inf
    grad[[16390, 33000]] = np.nan
    report = check([grad], 0.25)
    assert as_report(report.tensors[0])[:3] == (3, 2, 16384)


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_but_bad_elements(dtype):
    report = check([np.full(100, np.nan, dtype), np.full(100, -np.inf, dtype)], 0.5)
    assert [as_report(t) for t in report.tensors] == [(0, 100, 0, 0.0), (100, 0, 0, 0.0)]


@pytest.mark.parametrize("dtype", DTYPES)
def test_overflow_of_the_product_is_found(dtype):
    largest = np.full(20, LARGEST[dtype.name]).astype(dtype)
    grads = [largest.copy(), np.ones(20, dtype), -largest]
    report = check(grads, 4)
    assert [t.inf for t in report.tensors] == [20, 0, 20]


@pytest.mark.parametrize("dtype", DTYPES)
def test_largest_finite_numbers_are_fine(dtype):
    largest = np.full(20, LARGEST[dtype.name]).astype(dtype)
    report = check([largest], 1)
    assert not report
    assert report.tensors[0].max_abs == LARGEST[dtype.name]


@pytest.mark.parametrize("dtype", DTYPES)
def test_smallest_numbers_are_kept(dtype):
    steps = np.arange(-40, 41) * TINY[dtype.name]
    check([steps.astype(dtype)], 1)
    check([steps.astype(dtype)], 0.5)
    check([steps.astype(dtype)], 8)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
@pytest.mark.parametrize("inv_scale", [1, 0.5, 1 / 3, 3])
def test_every_half_is_rounded_right(kind, inv_scale):
    check([np.arange(2**16, dtype=np.uint16).view(FLOATS[kind])], inv_scale)


def test_minus_zero_stays(rng):
    grad = np.array([-0.0, 0.0, -1.0], np.float32)
    ops.unscale_and_check(grad, 0.5)
    assert_same_bits(grad, np.array([-0.0, 0.0, -0.5], np.float32))


def test_many_tensors_of_all_shapes_and_types(rng):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (2, 0)] * 30
    kinds = list(FLOATS.values())
    grads = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(shapes)]
    grads[-2][-1] = np.nan
    report = check(grads, 0.125)
    assert len(report.tensors) == len(grads)
    assert str(report) == f"tensor {len(grads) - 2}: 0 inf, 1 nan, first at 4096"


@given(seed=st.integers(0, 2**32 - 1), cuts=st.lists(st.integers(0, 300), max_size=6))
def test_splitting_does_not_matter(seed, cuts):
    rng = np.random.default_rng(seed)
    whole = normal(rng, 300)
    whole[rng.integers(300)] = rng.choice([np.inf, np.nan, 1.0])
    parts = np.split(whole.copy(), sorted(cuts))
    of_whole = ops.unscale_and_check(whole, 0.3, report=True).tensors[0]
    of_parts = ops.unscale_and_check(parts, 0.3, report=True).tensors
    assert_same_bits(np.concatenate(parts), whole)
    assert sum(t.inf for t in of_parts) == of_whole.inf
    assert sum(t.nan for t in of_parts) == of_whole.nan
    assert max(t.max_abs for t in of_parts) == of_whole.max_abs
    firsts = [s + t.first for s, t in zip([0, *sorted(cuts)], of_parts, strict=True) if t.found]
    assert (min(firsts) if firsts else None) == of_whole.first


@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_of_one_only_reads(rng, dtype):
    grad = normal(rng, 100, dtype)
    grad[7] = np.nan
    before = grad.copy()
    grad.flags.writeable = False
    assert ops.unscale_and_check([grad, grad[50:]], 1)
    assert_same_bits(grad, before)


def test_signaling_nan_is_not_touched_by_a_scale_of_one():
    grad = np.array([0x7F800001, 0xFFC00123], np.uint32).view(np.float32)
    before = grad.copy()
    assert ops.unscale_and_check(grad, 1)
    assert_same_bits(grad, before)


def test_tied_tensors_are_multiplied_once(rng):
    tied, other = normal(rng, 100), normal(rng, 3)
    tied[5] = np.inf
    expected = product(tied, 0.5)
    report = ops.unscale_and_check([tied, other, tied, tied.reshape(10, 10)], 0.5, report=True)
    assert_same_bits(tied, expected)
    assert [t.first for t in report.tensors] == [5, None, 5, 5]
    assert report.tensors[0] == report.tensors[2] == report.tensors[3]


def test_empty_tensors_are_never_tied():
    memory = np.ones(4, np.float32)
    report = ops.unscale_and_check([memory[:0], memory, memory[:0]], 0.5, report=True)
    assert [t.max_abs for t in report.tensors] == [0, 0.5, 0]


@pytest.mark.parametrize("part", [slice(1, 9), slice(0, 9), slice(9, 10)])
def test_partial_overlaps_are_refused(rng, part):
    grad = normal(rng, 10)
    before = grad.copy()
    with pytest.raises(ValueError, match=r"^unscale_and_check: grads\[[01]\] is written and must not overlap"):
        ops.unscale_and_check([grad, grad[part]], 0.5)
    with pytest.raises(ValueError, match="is written and must not overlap"):
        ops.unscale_and_check([grad[part], grad, grad], 0.5)
    assert_same_bits(grad, before)


@pytest.mark.parametrize("inv_scale", [0, -1, 1e39, -1e39, 1e-50, 5e-324])
def test_inv_scale_must_be_a_positive_float32(rng, inv_scale):
    grad = normal(rng, 10)
    before = grad.copy()
    with pytest.raises(ValueError, match=r"^unscale_and_check: inv_scale must be a positive float32, got "):
        ops.unscale_and_check(grad, inv_scale)
    assert_same_bits(grad, before)


@pytest.mark.parametrize("inv_scale", [np.inf, -np.inf, np.nan])
def test_inv_scale_must_be_finite(inv_scale):
    with pytest.raises(ValueError, match=r"^unscale_and_check: inv_scale must be finite, got "):
        ops.unscale_and_check(np.ones(3, np.float32), inv_scale)


def test_report_reads_well():
    report = ops.unscale_and_check([np.array([1, np.inf, np.nan], np.float32), np.ones(2, np.float32)], 1, report=True)
    assert str(report) == "tensor 0: 1 inf, 1 nan, first at 1"
    assert str(ops.unscale_and_check(np.ones(2, np.float32), 1, report=True)) == "all 1 tensors are finite"
