"""The native guard and update behind GroupLossScaleManager. The manager itself: tests/ms/test_group_loss_scale.py."""

from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import _core, ops
from dtypes import FLOATS, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")

SHAPES = [(), (3,), (0,), (2, 3, 4), (4097,), (40000,)] * 4


def scales_of(*values: float) -> list[np.ndarray]:
    return [np.float32([v]) for v in values]


def guard(grads, groups, scales):
    found = np.full(len(scales), 9, np.int32)
    report = np.full((len(grads), 4), -9.0)
    answer = _core.call("group_unscale_and_check", np.asarray(groups, np.int32), found, report, scales, grads)
    return answer, found.tolist(), report


def test_each_group_has_its_scale(rng):
    """Group by group it is unscale_and_check."""
    kinds = list(FLOATS.values())
    grads = [normal(rng, s, kinds[i % 3]) for i, s in enumerate(SHAPES)]
    groups = [(7 * i) % 4 for i in range(len(grads))]
    scales = scales_of(1, 3, 2**15, 1000)
    expected = [g.copy() for g in grads]
    reports = {}
    for k, scale in enumerate(scales):
        members = [i for i, group in enumerate(groups) if group == k]
        report = ops.unscale_and_check([expected[i] for i in members], 1 / float(scale[0]), report=True)
        reports.update(zip(members, report.tensors, strict=True))
    answer, found, report = guard(grads, groups, scales)
    assert not answer
    assert found == [0, 0, 0, 0]
    for i, (got, e) in enumerate(zip(grads, expected, strict=True)):
        assert_same_bits(got, e)
        assert report[i].tolist() == [0, 0, -1, reports[i].max_abs]


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_overflow_is_found_in_its_group(rng, bad, group):
    grads = [normal(rng, 100) for _ in range(6)]
    groups = [0, 1, 2, 0, 1, 2]
    grads[group + 3][42] = bad
    answer, found, report = guard(grads, groups, scales_of(2, 4, 8))
    assert answer
    assert found == [int(k == group) for k in range(3)]
    assert report[group + 3, :3].tolist() == [np.isinf(bad), np.isnan(bad), 42]
    assert (np.delete(report, group + 3, axis=0)[:, 2] == -1).all()


def test_a_group_without_gradients_is_not_judged(rng):
    answer, found, _ = guard([normal(rng, 3)], [1], scales_of(2, 2, 2))
    assert not answer
    assert found == [-1, 0, -1]


def test_tied_gradients_of_one_group_are_multiplied_once(rng):
    grad, other = normal(rng, 10), normal(rng, 5)
    before, beside = grad.copy(), other.copy()
    guard([grad, other, grad], [0, 1, 0], scales_of(4, 2))
    assert_same_bits(grad, before / np.float32(4))
    assert_same_bits(other, beside / np.float32(2))


def refused(error, text, grads, groups, scales, found=None, report=None):
    found = np.zeros(len(scales), np.int32) if found is None else found
    report = np.zeros((len(grads), 4)) if report is None else report
    before = [g.copy() for g in grads]
    with pytest.raises(error, match=f"^group_unscale_and_check: {text}"):
        _core.call("group_unscale_and_check", groups, found, report, scales, grads)
    for g, b in zip(grads, before, strict=True):
        assert_same_bits(g, b)
    assert not found.any()
    assert not report.any()


def test_what_is_refused(rng):
    one, two = normal(rng, 8), normal(rng, 8)
    pair = np.int32([0, 1])
    refused(ValueError, r"groups\[1\] must be from 0 to 1, got 2", [one, two], np.int32([0, 2]), scales_of(2, 2))
    refused(ValueError, r"groups\[0\] must be from 0 to 1, got -1", [one, two], np.int32([-1, 0]), scales_of(2, 2))
    refused(TypeError, "groups must be int32, got int64", [one], np.array([0]), scales_of(2))
    refused(ValueError, "groups must have 2 elements, got 1", [one, two], np.int32([0]), scales_of(2))
    for bad in (0, 0.5, -1, np.inf, np.nan):
        refused(ValueError, r"scales\[1\] must be finite and >= 1, got ", [one, two], pair, scales_of(2, bad))
    refused(ValueError, r"grads\[[01]\] is written and must not overlap", [one, one], pair, scales_of(2, 2))
    refused(
        ValueError, r"grads\[[01]\] is written and must not overlap", [one, one[:4]], np.int32([0, 0]), scales_of(2)
    )
    refused(
        ValueError, "report must have 8 elements, got 4", [one, two], pair, scales_of(2, 2), report=np.zeros((1, 4))
    )
    # Its size says how many scales there are: here the second one is taken for a gradient.
    refused(
        ValueError, "groups must have 3 elements, got 2", [one, two], pair, scales_of(2, 2), found=np.zeros(1, np.int32)
    )


def test_a_scale_may_not_be_a_gradient():
    """The gradient of a sum is the scale itself, where a compiler has folded the product away."""
    scale = np.float32([4])
    refused(ValueError, r"grads\[0\] is written and must not overlap", [scale], np.int32([0]), [scale])


def update(scales, found, overflows=0, max_scale=2.0**64):
    count = np.int32([overflows])
    _core.call("group_loss_scale_update", np.float32([max_scale]), count, np.asarray(found, np.int32), scales)
    return int(count[0])


@pytest.mark.parametrize("found", [[0, 1, -1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [-1, -1, -1, 1]])
def test_update(found):
    before = [1.0, 4096.0, 123.5, 2.0**40]
    scales = scales_of(*before)
    assert update(scales, found, overflows=5) == (6 if 1 in found else 0)
    expected = [oracle.group_loss_scale_update(s, f, 2.0**64) for s, f in zip(before, found, strict=True)]
    np.testing.assert_array_equal(np.concatenate(scales), np.float32(expected))


def test_a_thousand_steps_double_a_scale_and_two_overflows_halve_it():
    scales = scales_of(4096, 4096)
    for _ in range(1000):
        update(scales, [0, -1])
    assert scales[0][0] == pytest.approx(8192, rel=1e-4)
    assert scales[1][0] == 4096
    update(scales, [0, 1])
    update(scales, [0, 1])
    assert scales[1][0] == pytest.approx(2048, rel=1e-6)


def test_bounds():
    scales = scales_of(1.2, 63.99, 64)
    for _ in range(3):
        update(scales, [1, 0, 0], max_scale=64)
    assert np.concatenate(scales).tolist() == [1, 64, 64]


def test_the_1001st_overflow_in_a_row():
    scales = scales_of(8, 8)
    assert update(scales, [0, 1], overflows=999) == 1000
    with pytest.raises(
        RuntimeError, match=r"^group_loss_scale_update: 1001 overflows in a row; the network or its inputs"
    ):
        update(scales, [0, 1], overflows=1000)


@pytest.mark.parametrize("bad", [0.5, np.inf, np.nan, 1e39])
def test_max_scale_must_be_a_finite_float32(bad):
    scales = scales_of(8)
    with pytest.raises(ValueError, match=r"^group_loss_scale_update: max_scale must be a finite float32 >= 1, got "):
        update(scales, [0], max_scale=bad)
    assert scales[0][0] == 8
