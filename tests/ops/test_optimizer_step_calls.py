"""What holds for every rule: properties of a step, and calls that are refused and have written nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boost_ext import _core, ops
from dtypes import assert_same_bits, normal

from .cases import leaves
from .steps import EACH_RULE, ELEMENTWISE, FACTS, KINDS, VARIANTS, Rule, gradient

pytestmark = pytest.mark.usefixtures("isa")

SEEDS = st.integers(0, 2**32 - 1)
RULES = st.sampled_from(sorted(VARIANTS))
AVERAGED = sorted(n for n in VARIANTS if n.startswith("schedule_free"))
STAY = sorted({n for n in VARIANTS if not n.startswith("rmsprop") and n != "centered_rmsprop"} - {*AVERAGED})


def copies(arrays: Any) -> Any:
    return [copies(a) for a in arrays] if isinstance(arrays, list) else arrays.copy()


def make(rule: Rule, seed: int, sizes: list[int], mixed: bool = True) -> tuple[Any, Any, Any]:
    """Weights, gradients and states as after some steps."""
    rng = np.random.default_rng(seed)
    kinds = [KINDS[i % 3] if mixed else KINDS[0] for i in range(len(sizes))]
    weights = [normal(rng, n, k) for n, k in zip(sizes, kinds, strict=True)]
    grads = [gradient(rng, n, k) for n, k in zip(sizes, reversed(kinds), strict=True)]
    return weights, grads, [[x + abs(normal(rng, n)) for n in sizes] for x in rule.start]


def same(one: Any, two: Any) -> None:
    for a, b in zip(leaves(one), leaves(two), strict=True):
        assert_same_bits(a, b)


SIZES = st.lists(st.integers(0, 100), min_size=1, max_size=6)


@given(name=st.sampled_from(STAY), seed=SEEDS, sizes=SIZES, decay=st.sampled_from([0.0, 0.1]))
def test_no_learning_rate_no_step(name, seed, sizes, decay):
    weights, grads, state = make(VARIANTS[name], seed, sizes)
    before = copies(weights)
    VARIANTS[name](weights, grads, state, lr=0.0, weight_decay=decay)
    same(weights, before)


@pytest.mark.parametrize("name", AVERAGED)
def test_no_learning_rate_averages_still(name):
    """z stays, and the weights move to it with their average."""
    rule = VARIANTS[name]
    weights, grads, state = make(rule, 0, [40, 1], mixed=False)
    before, z = copies(weights), copies(state[0])
    rule(weights, grads, state, lr=0.0, weight_decay=0.1, first=False)
    same(state[0], z)
    share = np.float32(rule.hyper["averaging_weight"])
    same(weights, [w + share * (to - w) for w, to in zip(before, z, strict=True)])


@given(name=st.sampled_from(["rmsprop", "centered_rmsprop"]), seed=SEEDS, sizes=SIZES)
def test_no_learning_rate_only_momentum(name, seed, sizes):
    """Their momentum is a step already: it goes on."""
    rule = VARIANTS[name]
    weights, grads, state = make(rule, seed, sizes, mixed=False)
    expected = [w - np.float32(0.5) * a for w, a in zip(weights, state[-1], strict=True)]
    rule(weights, grads, state, lr=0.0)
    same(weights, expected)


@given(name=RULES, seed=SEEDS, sizes=SIZES)
def test_no_weight_decay_is_none(name, seed, sizes):
    """Not given, 0, or one 0 for each tensor; and as if it had been added to the gradient before."""
    rule = VARIANTS[name]
    first = make(rule, seed, sizes)
    for decay in (0.0, [0.0] * len(sizes)):
        other = copies(list(first))
        rule(*other, weight_decay=decay)
        plain = copies(list(first))
        rule(*plain)
        same(other, plain)


@given(name=st.sampled_from(sorted(ELEMENTWISE)), seed=SEEDS, cuts=st.lists(st.integers(0, 300), max_size=5))
def test_splitting_does_not_matter(name, seed, cuts):
    rule = VARIANTS[name]
    weights, grads, state = make(rule, seed, [300])
    parts = [np.split(a[0].copy(), sorted(cuts)) for a in (weights, grads, *state)]
    rule(*parts[:2], parts[2:], weight_decay=0.1, inv_scale=0.3)
    rule(weights, grads, state, weight_decay=0.1, inv_scale=0.3)
    for whole, split in zip((weights, *state), (parts[0], *parts[2:]), strict=True):
        assert_same_bits(whole[0], np.concatenate(split))


@given(name=RULES, seed=SEEDS, sizes=SIZES)
def test_a_list_is_so_many_calls(name, seed, sizes):
    rule = VARIANTS[name]
    together = make(rule, seed, sizes)
    apart = copies(list(together))
    n = len(sizes)
    lr, decay, ratio = ([x / (1 + i) for i in range(n)] for x in (0.1, 0.2, 0.9))
    rule(*together, lr=lr, weight_decay=decay, ratio=ratio)
    for i in range(n):
        rule(apart[0][i], apart[1][i], [s[i] for s in apart[2]], lr=lr[i], weight_decay=decay[i], ratio=ratio[i])
    same(together, apart)


@EACH_RULE
def test_same_bits_for_threads_and_instruction_sets(rule, threads, isa):
    sizes = [200_003, 7, 0, 65, 70_000]
    results = []
    try:
        for name, count in [("baseline", 1), (isa, 1), (isa, 2), (isa, 3)]:
            _core.set_isa(name)
            threads(count)
            weights, grads, state = make(rule, 3, sizes)
            weights[-1], grads[-1] = weights[-1].reshape(100, 700), grads[-1].reshape(100, 700)
            rule(weights, grads, state, weight_decay=0.1, centralize=True)
            results.append((weights, *state))
    finally:
        _core.set_isa(isa)
    for other in results[1:]:
        same(list(results[0]), list(other))


def refused(rule: Rule, weights: Any, grads: Any, state: Any, error: type[Exception], text: str, **more: Any) -> None:
    written = list(leaves([weights, state, more.get("masters", [])]))
    before = [a.tobytes() for a in written]
    with pytest.raises(error, match=f"^{rule.name}_step: {text}$"):
        rule(weights, grads, state, **more)
    assert [a.tobytes() for a in written] == before


BAD_SETTINGS = [
    ("momentum", {"lr": -0.1}, ValueError, "lr must be finite and >= 0, got -0.1"),
    ("momentum", {"lr": np.inf}, ValueError, "lr must be finite and >= 0, got inf"),
    ("momentum", {"lr": 1e39}, ValueError, "lr must be finite and >= 0, got inf"),
    ("momentum", {"lr": np.nan}, ValueError, "lr must be finite and >= 0, got nan"),
    ("momentum", {"lr": "1"}, TypeError, "lr must be a number, got str"),
    ("momentum", {"lr": True}, TypeError, "lr must be a number, got bool"),
    ("momentum", {"lr": []}, ValueError, "lr must hold one value, or one for each tensor, got none"),
    ("momentum", {"lr": [0.1] * 3}, ValueError, "lr must hold one value, or one for each of the 2 parameters, got 3"),
    ("momentum", {"ratio": [1.0] * 3}, ValueError, "ratio must hold one value, or one for each of the 2 .*, got 3"),
    ("momentum", {"ratio": np.nan}, ValueError, "ratio must be finite, got nan"),
    ("momentum", {"weight_decay": -1}, ValueError, "weight_decay must be finite and >= 0, got -1"),
    ("momentum", {"weight_decay": None}, TypeError, "weight_decay must be a number, got NoneType"),
    ("momentum", {"inv_scale": np.inf}, ValueError, "inv_scale must be finite, got inf"),
    ("momentum", {"inv_scale": 1e30, "ratio": 1e30}, ValueError, r"inv_scale \* ratio must be finite in float32, .*"),
    ("momentum", {"centralize": 1}, TypeError, "centralize must be a bool, or one for each tensor, got int"),
    ("momentum", {"centralize": [True] * 3}, ValueError, "centralize must hold one value, .* 2 parameters, got 3"),
    ("momentum", {"momentum": -0.5}, ValueError, "momentum must be >= 0, got -0.5"),
    ("momentum", {"momentum": 1e39}, ValueError, r"momentum must be finite in float32, got 1e\+39"),
    ("momentum", {"use_nesterov": 1}, TypeError, "use_nesterov must be a bool, got int"),
    ("momentum", {"unheard_of": 1}, TypeError, r"unknown argument 'unheard_of', did you mean .*\? Known: \['lr', .*\]"),
    ("momentum", {"masters": []}, ValueError, "masters must hold one array, or None, for each tensor, got 0"),
    ("momentum", {"masters": [None]}, ValueError, r"masters must hold as many arrays as params \(2\), got 1"),
    ("sgd", {"momentum": 0.9}, ValueError, "accum must be given with momentum 0.9, got none"),
    ("sgd-momentum", {"dampening": -1.0}, ValueError, "dampening must be >= 0, got -1"),
    ("sgd-momentum", {"first": 0}, TypeError, "first must be a bool, or one for each tensor, got int"),
    ("adam", {"beta1": 1.0}, ValueError, r"beta1 must be in \[0, 1\), got 1"),
    ("adam", {"beta1": -0.1}, ValueError, r"beta1 must be in \[0, 1\), got -0.1"),
    ("adam", {"beta2": -0.1}, ValueError, r"beta2 must be in \[0, 1\), got -0.1"),
    ("adam", {"beta2": "x"}, TypeError, "beta2 must be a number, got str"),
    ("adam", {"eps": 0.0}, ValueError, "eps must be > 0 in float32, got 0"),
    ("adam", {"eps": 1e-60}, ValueError, "eps must be > 0 in float32, got 1e-60"),
    ("adam", {"step": 0}, ValueError, r"step must be >= 1 and < 2\*\*63, got 0"),
    ("adam", {"step": 2**63}, ValueError, r"step must be >= 1 and < 2\*\*63, got 9223372036854775808"),
    ("adam", {"step": 1.0}, TypeError, "step must be an integer, got float"),
    ("adam_weight_decay", {"eps": -1.0}, ValueError, "eps must be > 0 in float32, got -1"),
    ("lamb", {"beta2": 2.0}, ValueError, r"beta2 must be in \[0, 1\), got 2"),
    ("lion", {"cautious": 1}, TypeError, "cautious must be a bool, got int"),
    ("nadamw", {"momentum_decay": -1.0}, ValueError, "momentum_decay must be >= 0, got -1"),
    ("ademamix", {"alpha": -1.0}, ValueError, "alpha must be >= 0, got -1"),
    ("ademamix", {"beta3_steps": np.inf}, ValueError, "beta3_steps must be finite in float32, got inf"),
    ("ademamix", {"beta3": 0.0}, ValueError, r"beta3 must be in \(0, 1\), got 0"),
    ("adan", {"beta3": 1.0}, ValueError, r"beta3 must be in \[0, 1\), got 1"),
    ("adan", {"step": 0}, ValueError, r"step must be >= 1 and < 2\*\*63, got 0"),
    ("schedule_free_sgd", {"averaging_weight": 1.5}, ValueError, r"averaging_weight must be in \[0, 1\], got 1.5"),
    ("schedule_free_sgd", {"averaging_weight": np.nan}, ValueError, "averaging_weight must be finite .*, got nan"),
    ("schedule_free_sgd", {"momentum": 0.0}, ValueError, r"momentum must be in \(0, 1\), got 0"),
    ("schedule_free_adamw", {"beta1": 1.0}, ValueError, r"beta1 must be in \(0, 1\), got 1"),
    ("schedule_free_adamw", {"first": 1}, TypeError, "first must be a bool, or one for each tensor, got int"),
    ("adagrad", {"update_slots": 0.0}, TypeError, "update_slots must be a bool, got float"),
    ("proximal_adagrad", {"l1": -1.0}, ValueError, "l1 must be >= 0, got -1"),
    ("rmsprop", {"epsilon": 0}, ValueError, "epsilon must be > 0 in float32, got 0"),
    ("centered_rmsprop", {"decay": -0.5}, ValueError, "decay must be >= 0, got -0.5"),
    ("ftrl", {"lr_power": 0.5}, ValueError, "lr_power must be <= 0, got 0.5"),
    ("ftrl", {"l2": np.nan}, ValueError, "l2 must be finite in float32, got nan"),
]


@pytest.mark.parametrize(("name", "change", "error", "text"), BAD_SETTINGS)
def test_settings_that_are_refused(name, change, error, text):
    refused(VARIANTS[name], *make(VARIANTS[name], 1, [20, 30]), error, text, **change)


@EACH_RULE
def test_a_state_is_called_by_its_name(rule):
    weights, grads, state = make(rule, 1, [20, 30])
    for k in range(len(state)):
        for bad, error, text in (
            ([state[k][0]], ValueError, r"must hold as many arrays as params \(2\), got 1"),
            ([state[k][0], state[k][1][1:]], ValueError, "must have 30 elements, got 29"),
            ([state[k][0], state[k][1].astype(np.float16)], TypeError, "must be float32(, bfl.* uint8)?, got float16"),
            ([state[k][0], state[k][1].astype(np.float64)], TypeError, "must be float32(, bfl.* uint8)?, got float64"),
            ([state[k][0], None], TypeError, "must be an array .*, got None .*"),
        ):
            spelled = rf"{FACTS[rule.name]['states'][k]}(\[1\])? {text}"
            refused(rule, weights, grads, [*state[:k], bad, *state[k + 1 :]], error, spelled)


def test_masters_that_are_refused():
    rule = VARIANTS["momentum"]
    weights, grads, state = make(rule, 1, [20, 30])
    good = [None, weights[1].astype(np.float32)]
    for masters, error, text in (
        ([weights[0].copy(), good[1]], ValueError, r"masters\[0\] must be empty beside a float32 .*, got 20 elements"),
        ([None, None], ValueError, r"masters\[1\] must have 30 elements, got 0"),
        ([None, good[1][:-1]], ValueError, r"masters\[1\] must have 30 elements, got 29"),
        ([None, good[1].astype(np.float64)], TypeError, r"masters\[1\] must be float32, got float64"),
        ([None, state[0][1]], ValueError, r"\w+\[1\] is written and must not overlap other .* overlaps \w+\[1\]"),
        (5, TypeError, r"masters must be an array .*, got int"),
    ):
        refused(rule, weights, grads, state, error, text, masters=masters)
    rule(weights, grads, state, masters=good)


def test_one_bad_tensor_among_many():
    """The last of many; none of those before it has been stepped."""
    rule = VARIANTS["adam"]
    weights, grads, state = make(rule, 1, [200] * 50)
    refused(rule, weights, [*grads[:-1], grads[-1][1:]], state, ValueError, r"grads\[49\] must have 200 elements, .*")
    weights[-1].flags.writeable = False
    refused(rule, weights, grads, state, ValueError, r"params\[49\] must be writable, got a read-only array")
    weights[-1] = weights[0][:200]
    refused(rule, weights, grads, state, ValueError, r"params\[\d+\] is written and must not overlap .*")


def test_wrong_numbers_of_states():
    """Only the native function can be called so."""
    settings = ("adam", [0.9, 0.999, 1e-8, 0.0], 1.0, 1, [0.1], [], [], [], [], 0)
    a = [np.ones(3, np.float32) for _ in range(6)]
    for states, text in (
        ([[a[2]]], "2 to 3 lists of state, got 1"),
        ([[x] for x in a[2:]], "2 to 3 lists of state, got 4"),
    ):
        with pytest.raises(ValueError, match=f"^adam_step: rule adam must get {text}$"):
            _core.optimizer_step([a[0]], None, [a[1]], states, None, *settings)
    with pytest.raises(ValueError, match=r"^optimizer_step: rule must be one of sgd, momentum, .*, ftrl, got adamax$"):
        _core.optimizer_step([a[0]], None, [a[1]], [], None, "adamax", *settings[1:])
    with pytest.raises(ValueError, match=r"^adam_step: rule adam must get 5 hyperparameters, got 1$"):
        _core.optimizer_step([a[0]], None, [a[1]], [[a[2]], [a[3]]], None, "adam", [0.9], *settings[2:])


def test_float64_parameters_are_refused():
    with pytest.raises(TypeError, match=r"^sgd_step: params\[0\] must be float32, float16 or bfloat16, got float64$"):
        ops.sgd_step(np.ones(3), np.ones(3), lr=0.1)
