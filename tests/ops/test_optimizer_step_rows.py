"""Sparse gradients: some rows of one tensor, stepped as the whole tensor would be, and nothing else touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boost_ext import ops
from dtypes import DTYPES, assert_same_bits, normal

from .steps import EACH_ELEMENTWISE, ELEMENTWISE, Rule, gradient

pytestmark = pytest.mark.usefixtures("isa")

ROWS = 11


def rows_of(*index: int) -> np.ndarray:
    return np.array(index, np.int32)


def table(rng: np.random.Generator, rule: Rule, shape: Any, dtype: Any = np.float32) -> tuple[np.ndarray, list[Any]]:
    """Weights, and states as after some steps."""
    return normal(rng, shape, dtype), [x + abs(normal(rng, shape)) for x in rule.start]


def check(rule: Rule, weight: Any, state: Any, index: np.ndarray, values: Any, master: Any = None, **more: Any) -> None:
    """Bit for bit: the listed rows as in a dense step, the others as before."""
    written = [weight, *state, *([] if master is None else [master])]
    before = [a.copy() for a in written]
    dense = [a.copy() for a in written]
    grad = np.zeros(weight.shape, np.float64)
    np.add.at(grad, index, values.astype(np.float64))
    masters = {} if master is None else {"masters": dense[-1]}
    rule(dense[0], grad.astype(np.float32), dense[1 : 1 + len(state)], **masters, **more)
    masters = {} if master is None else {"masters": master}
    rule(weight, values, state, indices=index, **masters, **more)
    listed = np.isin(np.arange(len(weight)), index)
    for got, stepped, was in zip(written, dense, before, strict=True):
        assert_same_bits(got[listed], stepped[listed])
        assert_same_bits(got[~listed], was[~listed])


INDICES = {
    "none": rows_of(),
    "one": rows_of(3),
    "first and last": rows_of(0, ROWS - 1),
    "unsorted": rows_of(9, 2, 5, 0),
    "duplicates": rows_of(4, 1, 4, 4, 10, 1),
    "all": np.arange(ROWS, dtype=np.int32)[::-1].copy(),
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES.keys())
@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, 1), (ROWS, 17), (ROWS, 3, 16), (ROWS, 0), (ROWS, 4097)])
@EACH_ELEMENTWISE
def test_only_these_rows(rng, rule, shape, index):
    weight, state = table(rng, rule, shape)
    check(rule, weight, state, index, gradient(rng, (len(index), *shape[1:])), weight_decay=0.1)


@pytest.mark.parametrize("of_gradient", DTYPES)
@pytest.mark.parametrize("of_weight", DTYPES)
@pytest.mark.parametrize("mastered", [False, True])
@EACH_ELEMENTWISE
def test_dtypes(rng, rule, of_weight, of_gradient, mastered):
    weight, state = table(rng, rule, (ROWS, 33), of_weight)
    master = weight.astype(np.float32) if mastered and of_weight != np.float32 else None
    values = gradient(rng, (6, 33), of_gradient)
    check(rule, weight, state, INDICES["duplicates"], values, master, inv_scale=0.3, ratio=0.7, weight_decay=0.01)


@EACH_ELEMENTWISE
def test_settings_of_one_tensor(rng, rule):
    weight, state = table(rng, rule, (ROWS, 33))
    more = {"first": [True]} if rule.begins else {}
    values = gradient(rng, (4, 33))
    check(rule, weight, state, INDICES["unsorted"], values, centralize=[True], lr=[0.5], weight_decay=[0.1], **more)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_many_rows_on_threads(rng, threads, count):
    threads(count)
    rule = ELEMENTWISE["adam"]
    weight, state = table(rng, rule, (5000, 65))
    index = rng.integers(0, 5000, 3000).astype(np.int32)
    check(rule, weight, state, index, gradient(rng, (3000, 65)), weight_decay=0.1)


def test_a_row_that_is_much_of_a_long_list_is_summed_in_order(rng):
    """Large values that cancel one another: the sum depends on the order, also in float64."""
    rule = ELEMENTWISE["momentum"]
    weight, state = table(rng, rule, (70000, 2))
    index = rng.integers(0, len(weight), 9000).astype(np.int32)
    often = rng.permutation(len(index))[:3000]
    index[often] = 65536 + 300
    values = gradient(rng, (len(index), 2))
    values[often[:500]], values[often[500:1000]] = 2.0**60, -(2.0**60)
    wide = values[index == index[often[0]]].astype(np.float64)
    assert (np.float32(np.add.reduce(wide)) != np.float32(np.add.reduce(wide[::-1]))).all()
    check(rule, weight, state, index, values)


@given(seed=st.integers(0, 2**32 - 1), index=st.lists(st.integers(0, ROWS - 1), max_size=20), width=st.integers(1, 40))
def test_any_indices(seed, index, width):
    rng = np.random.default_rng(seed)
    rule = list(ELEMENTWISE.values())[seed % len(ELEMENTWISE)]
    weight, state = table(rng, rule, (ROWS, width))
    check(rule, weight, state, rows_of(*index), gradient(rng, (len(index), width)))


def test_duplicates_are_summed_in_float64(rng):
    weight, values = np.zeros((2, 20), np.float32), np.ones((3, 20), np.float32)
    values[0], values[1] = 2.0**30, -(2.0**30)
    ops.sgd_step(weight, values, lr=1.0, indices=rows_of(1, 1, 1))
    assert_same_bits(weight[1], np.full(20, -1, np.float32))


def test_bad_values_reach_only_their_elements(rng):
    for rule in ELEMENTWISE.values():
        weight, state = table(rng, rule, (ROWS, 20))
        values = gradient(rng, (2, 20))
        values[1, 7] = np.nan
        rule(weight, values, state, indices=rows_of(8, 2))
        assert np.flatnonzero(~np.isfinite(weight)).tolist() == [2 * 20 + 7]


def arguments(rng: np.random.Generator) -> dict[str, Any]:
    weight = normal(rng, (5, 4), np.float16)
    return {
        "params": weight,
        "grads": normal(rng, (2, 4)),
        "moments": normal(rng, (5, 4)),
        "masters": weight.astype(np.float32),
        "indices": rows_of(0, 4),
        "lr": 0.1,
    }


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"indices": np.array([0, 4])}, TypeError, "indices must be int32, got int64"),
        ({"indices": np.array([0, 4], np.float32)}, TypeError, "indices must be int32, got float32"),
        ({"indices": rows_of(0, 1, 2)}, ValueError, "grads must have 12 elements, got 8"),
        ({"indices": [0, 4]}, TypeError, "indices must be an array .*, got list"),
        ({"moments": np.zeros((4, 4), np.float32)}, ValueError, "moments must have 20 elements, got 16"),
        ({"moments": [np.zeros((5, 4), np.float32)]}, TypeError, "moments must be an array .*, got list"),
        ({"masters": np.zeros((4, 4), np.float32)}, ValueError, "masters must have 20 elements, got 16"),
        ({"masters": np.zeros((5, 4), np.float16)}, TypeError, "masters must be float32, got float16"),
        ({"masters": []}, TypeError, "masters must be an array .*, got list"),
        ({"params": np.zeros((), np.float32), "masters": None}, ValueError, "params must have rows, got a scalar"),
        ({"params": np.zeros((5, 4), np.float32)}, ValueError, "masters must be empty beside a float32 parameter"),
        ({"lr": [0.1, 0.1]}, ValueError, "lr must hold one value, or one for each of the 1 parameters, got 2"),
        ({"lr": -1.0}, ValueError, "lr must be finite and >= 0, got -1"),
        ({"momentum": -1.0}, ValueError, "momentum must be >= 0, got -1"),
    ],
)
def test_errors(rng, change, error, text):
    call = {**arguments(rng), **change}
    written = [np.asarray(call[n]) for n in ("params", "moments", "masters") if call[n] is not None]
    before = [a.tobytes() for a in written]
    with pytest.raises(error, match=f"^momentum_step: {text}"):
        ops.momentum_step(**call)
    assert [a.tobytes() for a in written] == before


@pytest.mark.parametrize(
    ("index", "text"),
    [(rows_of(0, 5), r"indices\[1\] must be in \[0, 5\), got 5"), (rows_of(-1, 1), r"indices\[0\] must be .*, got -1")],
)
def test_indices_out_of_range(rng, index, text):
    """Where the host can read them."""
    call = {**arguments(rng), "indices": index}
    before = call["params"].copy()
    with pytest.raises(ValueError, match=f"^momentum_step: {text}"):
        ops.momentum_step(**call)
    assert_same_bits(call["params"], before)


def test_settings_are_checked_without_rows(rng):
    for index in (rows_of(), rows_of(0)):
        with pytest.raises(ValueError, match=r"^sgd_step: lr must be finite and >= 0, got -1$"):
            ops.sgd_step(normal(rng, (5, 4)), normal(rng, (len(index), 4)), lr=-1.0, indices=index)


def test_lamb_has_no_rows(rng):
    state = normal(rng, (5, 4)), normal(rng, (5, 4))
    with pytest.raises(ValueError, match=r"^lamb_step: indices must be left out, since norms go over the whole"):
        ops.lamb_step(normal(rng, (5, 4)), normal(rng, (1, 4)), *state, lr=0.1, step=1, indices=rows_of(0))
