"""State in 8 and 16 bits: bit for bit what storage rules make of a float32 step, the bounds, the mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from boost_ext import _core, ops
from dtypes import assert_same_bits, normal

from .narrow_state import BF16, BLOCK, Stored, key, random_bits, to_bfloat16
from .steps import FACTS, KINDS, VARIANTS, Rule, gradient

pytestmark = pytest.mark.usefixtures("isa")

RULES = {n: r for n, r in VARIANTS.items() if FACTS[r.name]["narrow_state"] and not n.startswith("adam-amsgrad")}
EACH_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
EACH_KIND = pytest.mark.parametrize("kind", ["bfloat16", "uint8"])
SIZES = [0, 1, 15, 16, 17, 255, 256, 257, 1023, 1024, 1025, 4095, 4096, 4097, 9001]
SHAPES = [*((n,) for n in SIZES), (), (3, 300), (5, 2000), (2, 0), (7, 256), (600, 3)]


def stepped(rule: Rule, weights: Any, grads: Any, state: Any, step: int, **more: Any) -> None:
    """One native step; `state[k][i]` is a Stored."""
    scales = [[s.scale for s in states] for states in state]
    arrays = [[s.array for s in states] for states in state]
    call = getattr(ops, f"{rule.name}_step")
    call(weights, grads, *arrays, lr=rule.lr, step=step, scales=scales, **{**rule.hyper, **more})


def emulated(rule: Rule, weights: Any, grads: Any, state: Any, step: int, seed: int, **more: Any) -> list[Any]:
    """The same by a step on float32 state, which other tests compare with the oracle, and NumPy's storage."""
    wide = [[s.floats() for s in states] for states in state]
    options = {**rule.hyper, **more} | ({"step": step} if rule.corrected else {})
    getattr(ops, f"{rule.name}_step")(weights, grads, *wide, lr=rule.lr, **options)
    stored = []
    for k, states in enumerate(state):
        stored.append([Stored(s.kind, s.array.shape, k) for s in states])
        for i, s in enumerate(stored[k]):
            s.store(wide[k][i], key(seed, step, i))
    return stored


def assert_stored(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        for one, two in zip(a, b, strict=True):
            assert_same_bits(one.array, two.array)
            if one.scale is not None:
                assert_same_bits(one.scale, two.scale)


def make(rule: Rule, shapes: Any, kind: str | list[str]) -> list[list[Stored]]:
    kinds = [kind] * len(shapes) if isinstance(kind, str) else kind
    return [[Stored(x, s, k) for x, s in zip(kinds, shapes, strict=True)] for k in range(len(rule.start))]


@EACH_KIND
@EACH_RULE
def test_as_numpy_stores_it(rng, rule, kind):
    """Around the lanes, blocks and chunks, with rows that end within a block, each centralized or not."""
    weights = [normal(rng, s) for s in SHAPES]
    state = make(rule, SHAPES, kind)
    more = {"centralize": [len(s) == 2 and s[0] != 5 for s in SHAPES], "weight_decay": 0.01, "seed": 5}
    for step in range(1, 5):
        grads = [gradient(rng, s) for s in SHAPES]
        others, moved = [w.copy() for w in weights], [w.copy() for w in weights]
        expected = emulated(rule, others, grads, state, step, **more)
        stepped(rule, moved, grads, state, step, **more)
        assert_stored(state, expected)
        if rule.name == "lamb":
            check_lamb(rule, weights, moved, state, step)
        else:
            for a, b in zip(moved, others, strict=True):
                assert_same_bits(a, b)
        weights = moved


@EACH_KIND
def test_long_blocks(rng, kind):
    """Of a tensor that is large enough for them: they end where a block of codes ends."""
    rule, size = RULES["adam"], 2_000_001
    state = make(rule, [(size,)], kind)
    weights, grads = [normal(rng, size)], [gradient(rng, size)]
    others = [w.copy() for w in weights]
    expected = emulated(rule, others, grads, state, 1, 0)
    stepped(rule, weights, grads, state, 1)
    assert_stored(state, expected)
    assert_same_bits(weights[0], others[0])


def check_lamb(rule: Rule, before: Any, after: Any, state: Any, step: int) -> None:
    """It steps by the moments as they are stored."""
    b1, b2, eps = (rule.hyper[name] for name in ("beta1", "beta2", "eps"))
    for i, (w, got) in enumerate(zip(before, after, strict=True)):
        m, v = (s[i].floats().astype(np.float64) for s in state)
        r = m / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps) + 0.01 * w
        of_w, of_r = np.linalg.norm(np.ravel(w)), np.linalg.norm(np.ravel(r))
        trust = of_w / of_r if of_w > 0 and of_r > 0 else 1.0
        np.testing.assert_allclose(got, w - rule.lr * trust * r, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("rule", [RULES["adam"], RULES["lamb"]], ids=["adam", "lamb"])
def test_mixtures(rng, rule):
    """500 tensors, each with state of its own kind, and half weights beside masters."""
    shapes = [(int(n),) for n in rng.integers(0, 90, 499)] + [(3000,)]
    kinds = [("float32", "bfloat16", "uint8")[i % 3] for i in range(500)]
    weights = [normal(rng, s, KINDS[i % 2]) for i, s in enumerate(shapes)]
    grads = [gradient(rng, s, KINDS[i // 2 % 3]) for i, s in enumerate(shapes)]
    masters = [None if w.dtype == np.float32 else w.astype(np.float32) for w in weights]
    state = make(rule, shapes, kinds)
    for step in (1, 2):
        others = [w.copy() for w in weights], [None if m is None else m.copy() for m in masters]
        expected = emulated(rule, others[0], grads, state, step, 0, masters=others[1])
        stepped(rule, weights, grads, state, step, masters=masters)
        assert_stored(state, expected)
        if rule.name != "lamb":
            for a, b in zip(weights, others[0], strict=True):
                assert_same_bits(a, b)


@EACH_KIND
@EACH_RULE
def test_same_bits_for_threads_and_instruction_sets(rule, kind, threads, isa):
    shapes = [(200_003,), (7,), (0,), (100, 700)]
    results = []
    try:
        for name, count in [("baseline", 1), (isa, 1), (isa, 2), (isa, 3)]:
            _core.set_isa(name)
            threads(count)
            rng = np.random.default_rng(3)
            weights, state = [normal(rng, s) for s in shapes], make(rule, shapes, kind)
            for step in (1, 2):
                stepped(rule, weights, [gradient(rng, s) for s in shapes], state, step, centralize=True)
            results.append((weights, state))
    finally:
        _core.set_isa(isa)
    for weights, state in results[1:]:
        assert_stored(state, results[0][1])
        for a, b in zip(weights, results[0][0], strict=True):
            assert_same_bits(a, b)


@EACH_KIND
def test_the_mean_is_kept(kind):
    """A hundred additions, each a 16th of the spacing: nearest rounding would lose all of them."""
    n, steps = 20_000, 100
    state = Stored(kind, n, 0)
    start = np.ones(n, np.float32)
    state.store(start, key(0))
    assert (state.floats() == 1).all()
    added = np.float32(2.0**-12 if kind == "bfloat16" else 2.0**-9)
    weight, grad = np.zeros(n, np.float32), np.full(n, -added, np.float32)
    for step in range(1, steps + 1):
        before = state.floats()
        moved = before - added
        nearest = moved.astype(BF16) if kind == "bfloat16" else ops.dequantize_state(*ops.quantize_state(moved))
        if step == 1:
            np.testing.assert_array_equal(nearest.astype(np.float32), before)
        ops.momentum_step([weight], [grad], [state.array], lr=1.0, step=step, momentum=1.0, scales=[[state.scale]])
    got = state.floats().astype(np.float64)
    deviation = got.std()
    assert deviation > 0
    assert abs(got.mean() - (1 - steps * added)) < 5 * deviation / n**0.5
    # The weights have gone where float32 would have taken them, too: the sum of all momenta.
    exact = -sum(1 - added * t for t in range(1, steps + 1))
    assert abs(weight.mean(dtype=np.float64) - exact) < 5 * weight.std() / n**0.5


def test_a_second_moment_is_never_lost():
    """Beside one that is 10^16 times larger; a first moment over eps alone would throw the weight away."""
    weights, grads = np.zeros(300, np.float32), np.full(300, 1e-8, np.float32)
    grads[[0, 270]] = 1.0
    m, v = Stored("uint8", 300, 0), Stored("uint8", 300, 1)
    for step in range(1, 20):
        ops.adam_step(
            [weights], [grads], [m.array], [v.array], lr=0.1, step=step, scales=[[m.scale], [v.scale]], eps=1e-16
        )
        assert (v.array > 0).all()
    assert np.abs(weights).max() < 0.1 * 20 * 1.1


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e38])
def test_a_block_that_cannot_be_stored_becomes_nan(bad, rng):
    """Only that one: and the weights of this step are what they would be."""
    weight, grad, state = normal(rng, 600), gradient(rng, 600), Stored("uint8", 600, 0)
    grad[300] = bad
    other = weight.copy()
    ops.momentum_step([other], [grad], [np.zeros(600, np.float32)], lr=0.1)
    ops.momentum_step([weight], [grad], [state.array], lr=0.1, step=1, scales=[[state.scale]])
    assert_same_bits(weight, other)
    np.testing.assert_array_equal(np.isnan(state.floats()), np.arange(600) // BLOCK == 1)


def test_bfloat16_keeps_inf_and_nan(rng):
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1.5], np.float32)
    state, grad = np.zeros(6, BF16), values.copy()
    ops.momentum_step([np.zeros(6, np.float32)], [grad], [state], lr=0.1, step=1)
    assert_same_bits(state[[0, 1, 3, 5]], values.astype(BF16)[[0, 1, 3, 5]])
    assert np.isnan(state[2])


def test_rows(rng):
    """bfloat16: listed rows within a rounding of float32, the others as they were."""
    weight, values = normal(rng, (40, 33)), gradient(rng, (5, 33))
    index = np.array([7, 0, 39, 12, 20], np.int32)
    wide = [np.abs(normal(rng, (40, 33))).astype(BF16).astype(np.float32) for _ in range(2)]
    narrow = [s.astype(BF16) for s in wide]
    other = weight.copy()
    ops.adam_step(other, values, *wide, lr=0.1, step=3, indices=index)
    ops.adam_step(weight, values, *narrow, lr=0.1, step=3, indices=index)
    assert_same_bits(weight, other)
    for k in range(2):
        for r, row in enumerate(wide[k]):
            if r not in index:
                assert_same_bits(narrow[k][r], row.astype(BF16))
                continue
            expected = to_bfloat16(row, random_bits(key(0, 3, 0, r), 33, k))
            assert_same_bits(narrow[k][r], expected)


def refused(error: type[Exception], text: str, state: Any, rule: str = "adam", **more: Any) -> None:
    weights, grads = [np.ones(300, np.float32)], [np.ones(300, np.float32)]
    before = [a.tobytes() for s in state for a in s]
    with pytest.raises(error, match=f"^{rule}_step: {text}$"):
        getattr(ops, f"{rule}_step")(weights, grads, *state, lr=0.1, **more)
    assert (weights[0] == 1).all()
    assert [a.tobytes() for s in state for a in s] == before


def test_what_is_refused():
    codes = [[np.zeros(300, np.uint8)], [np.zeros(300, np.uint8)]]
    scales = [[np.zeros(2, np.float32)], [np.zeros(2, np.float32)]]
    half = [[np.zeros(300, BF16)]]
    refused(ValueError, "scales must be given with uint8 state, got none", codes, step=1)
    refused(ValueError, "scales must hold one list for each of the 2 states, got 1", codes, step=1, scales=scales[:1])
    refused(TypeError, "scales must hold a list of arrays for each state, got int", codes, step=1, scales=3)
    for bad, error, text in (
        ([None], ValueError, r"scales\[1\]\[0\] must have 2 elements, got 0"),
        ([np.zeros(3, np.float32)], ValueError, r"scales\[1\]\[0\] must have 2 elements, got 3"),
        ([np.zeros(2, np.float16)], TypeError, r"scales\[1\]\[0\] must be float32, got float16"),
        ([], ValueError, r"scales\[1\] must hold as many arrays as moments2 \(1\), got 0"),
        (scales[0], ValueError, r"scales\[\d\]\[0\] is written and must not overlap other .*"),
    ):
        refused(error, text, codes, step=1, scales=[scales[0], bad])
    refused(ValueError, "step must be given with bfloat16 state, for its random bits, got none", half, "momentum")
    refused(ValueError, r"seed must be >= 0 and < 2\*\*63, got -1", half, "momentum", step=1, seed=-1)
    refused(TypeError, r"accum\[0\] must be float32, got bfloat16", half, "adagrad")
    wide = [[np.zeros(300, np.float32)]] * 2
    refused(TypeError, r"moments1\[0\] must be float32, got uint8", [*codes, wide[0]], step=1)
    text = r"scales\[0\]\[0\] must be empty beside a bfloat16 state, got 2 elements"
    refused(ValueError, text, half, "momentum", step=1, scales=scales[:1])
    with pytest.raises(ValueError, match=r"^adam_step: indices must be left out with uint8 state, got rows$"):
        ops.adam_step(
            np.ones((2, 150), np.float32),
            np.ones((1, 150), np.float32),
            *(c[0].reshape(2, 150) for c in codes),
            lr=0.1,
            step=1,
            indices=np.array([1], np.int32),
        )
