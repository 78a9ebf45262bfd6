"""Dense arrays in another order than C's, such as channels_last: ops that go element by element take them as they lie,
where all tensors of a place share the order; the others refuse them."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boost_ext import _core, ops
from dtypes import FLOATS, normal

from .cases import CASES, Case, f32, label, leaves
from .producers import ByFunctions, Producer
from .steps import FACTS
from .test_arguments import refused

ANY_ORDER = {
    *(op for op, taken in _core.schemas().items() if any(a["any_order"] for a in taken)),
    *(f"{rule}_step" for rule in FACTS),
}
ELEMENTWISE = [c for c in CASES if c.op in ANY_ORDER and "indices" not in c.arrays]


def turned(array: np.ndarray) -> np.ndarray:
    return np.asfortranarray(array)


def of_elements(case: Case, name: str) -> bool:
    return case.op in ANY_ORDER and "indices" not in case.arrays and not case.arrays[name].alone


def replaced(value: Any, new: Any) -> Any:
    return [replaced(v, new) for v in value] if isinstance(value, list) else new(value)


@pytest.mark.parametrize("kind", [np.asarray, Producer, ByFunctions], ids=lambda k: k.__name__)
@pytest.mark.parametrize("case", ELEMENTWISE, ids=label)
def test_another_order_has_the_same_result(case, kind, rng):
    arguments = case.make(rng)
    here = {n: replaced(v, np.copy) for n, v in arguments.items()}
    there = {n: replaced(v, turned) if of_elements(case, n) else v for n, v in arguments.items()}
    expected = case(here)
    got = case({n: replaced(v, kind) for n, v in there.items()})
    if case.op in ("global_norm", "unscale_and_check"):
        assert got == pytest.approx(expected, rel=1e-14)
    for one, two in zip(leaves([*here.values()]), leaves([*there.values()]), strict=True):
        np.testing.assert_allclose(two, one, rtol=3e-6)  # a GPU has its own powf, and ftrl takes powers' difference


@pytest.mark.parametrize(
    ("case", "name"), [(c, n) for c in CASES for n in c.arrays], ids=lambda x: x if isinstance(x, str) else label(x)
)
def test_one_argument_alone_in_another_order(case, name, rng):
    """Refused: its elements would meet others' that are not theirs."""
    arguments = case.make(rng)
    count = sum(not turned(a).flags.c_contiguous for a in leaves([arguments[name]]))
    arguments[name] = replaced(arguments[name], turned)
    if count == 0:
        case(arguments)
        return
    if of_elements(case, name) and sum(of_elements(case, n) for n in case.arrays) == 1:
        case(arguments)
        return
    text = r"\S+ must be C-contiguous, got a strided array$"
    if of_elements(case, name):
        text = r"\S+ must have its elements in the order of \S+, the same shape and strides, got (C|another) order$"
    refused(case, arguments, ValueError, text)


@st.composite
def orders(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=5)))
    return shape, tuple(draw(st.permutations(range(len(shape)))))


def laid_out(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """The same elements, in memory along axes `order`."""
    return array.transpose(order).copy().transpose(np.argsort(order))


@given(orders(), st.sampled_from(sorted(FLOATS)))
def test_every_order_of_axes(order, kind):
    shape, axes = order
    rng = np.random.default_rng(1)
    sums, grads = normal(rng, shape), normal(rng, shape, FLOATS[kind])
    expected = sums.copy()
    ops.accumulate(expected, grads, 0.5)
    there = laid_out(sums, axes)
    ops.accumulate(Producer(there), Producer(laid_out(grads, axes)), 0.5)
    np.testing.assert_array_equal(there, expected)


def test_only_the_same_order_will_do(rng):
    """All pairs of orders of four axes, of which no two extents are the same; then of equal extents."""
    for shape in ((2, 3, 4, 5), (3, 3, 3, 3)):
        array = f32(rng, *shape)
        for one, two in itertools.product(itertools.permutations(range(4)), repeat=2):
            sums, grads = laid_out(array, one), laid_out(array, two)
            if one == two:
                ops.accumulate(sums, grads, 1.0)
                np.testing.assert_array_equal(sums, 2 * array)
                continue
            with pytest.raises(ValueError, match="must have its elements in the order of grads"):
                ops.accumulate(sums, grads, 1.0)


def test_other_shapes_of_one_size_have_other_orders(rng):
    sums, grads = turned(f32(rng, 6, 4)), turned(f32(rng, 4, 6))
    with pytest.raises(ValueError, match="must have its elements in the order of grads"):
        ops.accumulate(sums, grads, 1.0)
    video = [laid_out(f32(rng, *shape), (0, 2, 3, 4, 1)) for shape in ((2, 3, 4, 5, 6), (2, 4, 3, 5, 6))]
    with pytest.raises(ValueError, match="must have its elements in the order of grads"):
        ops.accumulate(*video, 1.0)


def test_axes_of_one_element_do_not_matter(rng):
    sums, grads = f32(rng, 3, 1, 4), f32(rng, 3, 4)
    expected = sums + grads[:, None]
    there = turned(sums)
    ops.accumulate(there, turned(grads), 1.0)
    np.testing.assert_array_equal(there, expected)
    ops.centralize(np.lib.stride_tricks.as_strided(sums, (1, 3, 1, 4), (4, 16, 4, 4)))


def test_centralization_in_a_step_needs_rows(rng):
    tensors = [turned(f32(rng, 3, 4)) for _ in range(3)]
    text = r"^momentum_step: params\[1\] must be C-contiguous to be centralized, got another order of elements$"
    with pytest.raises(ValueError, match=text):
        ops.momentum_step(*([f32(rng, 5), t] for t in tensors), lr=0.1, centralize=True)
    ops.momentum_step(*([f32(rng, 5), t] for t in tensors), lr=0.1, centralize=[True, False])


def test_rows_of_a_step_need_rows(rng):
    with pytest.raises(ValueError, match=r"^momentum_step: params must be C-contiguous, got a strided array$"):
        ops.momentum_step(turned(f32(rng, 3, 4)), f32(rng, 1, 4), f32(rng, 3, 4), lr=0.1, indices=np.zeros(1, np.int32))


def test_masters_and_coded_state_share_the_order(rng):
    params, grads, moments = f32(rng, 8, 40).astype(np.float16), f32(rng, 8, 40), f32(rng, 8, 40)
    codes = ops.quantize_state(moments)
    masters = params.astype(np.float32)
    one = [params.copy(), grads, codes[0].copy(), masters.copy(), codes[1].copy()]
    flat = [np.ascontiguousarray(a.T) if a.ndim == 2 else a.copy() for a in (params, grads, moments)]
    state = ops.quantize_state(flat[2])
    there = [flat[0].T, flat[1].T, state[0].T, np.ascontiguousarray(masters.T).T, state[1]]
    for p, g, m, w, scales in (one, there):
        ops.momentum_step([p], [g], [m], lr=0.1, step=1, masters=[w], scales=[[scales]])
    np.testing.assert_allclose(there[3], one[3], rtol=1e-6, atol=0.02)
    with pytest.raises(ValueError, match=r"^momentum_step: moments\[0\] must have its elements in the order of params"):
        ops.momentum_step(*([a] for a in (*there[:2], one[2])), lr=0.1, step=1, masters=[there[3]], scales=[[one[4]]])


def test_new_results_share_the_order(rng):
    a, b = turned(f32(rng, 3, 4)), turned(f32(rng, 3, 4))
    total = ops.adasum_pair(a, b)
    assert total.strides == a.strides
    np.testing.assert_allclose(total, ops.adasum_pair(a.copy("C"), b.copy("C")), rtol=1e-6)


def test_a_report_counts_along_the_memory(rng):
    array = turned(f32(rng, 3, 4))
    array[1, 2] = np.inf
    report = ops.unscale_and_check(array, 1.0, report=True)
    assert report.tensors[0].first == 2 * 3 + 1
    assert ops.clip_by_global_norm(turned(f32(rng, 3, 4)), 1.0) > 0
    assert len(ops.lars_ratios(array, array)) == 2


def test_a_matrix_and_its_transpose_are_one_tensor(rng):
    array = f32(rng, 3, 4)
    expected = array * 0.5
    ops.unscale_and_check([array, array.T], 0.5)
    np.testing.assert_array_equal(array, expected)
    with pytest.raises(ValueError, match=re.escape("params[1] is written and must not overlap")):
        ops.sgd_step([array, array.T], [array.copy(), array.copy().T], lr=0.1)
