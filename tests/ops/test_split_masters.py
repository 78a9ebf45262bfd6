"""Split masters: every float32 parted and joined, trainings beside float32 masters, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from boost_ext import _core, ops
from dtypes import assert_same_bits, bits, normal

from .narrow_state import Stored, join_master, split_master
from .steps import EACH_RULE, VARIANTS, Rule, gradient

pytestmark = pytest.mark.usefixtures("isa")

BF16 = np.dtype(ml_dtypes.bfloat16)
RESIDUALS = {"split16": np.dtype(np.int16), "split8": np.dtype(np.int8)}
EACH_RESIDUAL = pytest.mark.parametrize("kind", RESIDUALS.values(), ids=RESIDUALS)
SIZES = [0, 1, 255, 256, 257, 5000]
LOWER = [0, 1, 0x7F, 0x80, 0x81, 0x17F, 0x180, 0x7F7F, 0x7F80, 0x7FFF, 0x8000, 0x8001, 0x807F, 0x8080, 0xFF7F, 0xFF80]


def split(master: np.ndarray, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    weight, residual = split_master(master, 8 * np.dtype(kind).itemsize)
    return weight.view(BF16), residual


def joined(weight: np.ndarray, residual: np.ndarray) -> np.ndarray:
    return join_master(weight.view(np.uint16), residual)


def seen(weight: np.ndarray, residual: np.ndarray) -> np.ndarray:
    """The masters that a step reads: with a decay of 1, the momentum that begins with no gradient. -0 + -0 is -0."""
    moment, zero = np.full(weight.shape, -0.0, np.float32), np.full(weight.shape, -0.0, np.float32)
    ops.momentum_step([weight], [zero], [moment], lr=0.0, momentum=0.0, weight_decay=1.0, masters=[residual])
    return moment


def parted(master: np.ndarray, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """What a step writes that goes from -0 to `master`."""
    weight, residual = np.full(master.shape, -0.0, BF16), np.zeros(master.shape, kind)
    ops.sgd_step([weight], [(bits(master) ^ np.uint32(1 << 31)).view(np.float32)], lr=1.0, masters=[residual])
    return weight, residual


@EACH_RESIDUAL
def test_parted_and_joined(rng, kind):
    """Every bfloat16 with the lower halves where rounding changes, and some others."""
    lower = np.concatenate([LOWER, [0xFFFF], rng.integers(0, 65536, 12)]).astype(np.uint32)
    master = ((np.arange(65536, dtype=np.uint32)[:, None] << 16) | lower).reshape(-1).view(np.float32)
    weight, residual = parted(master, kind)
    expected = split(master, kind)
    nan = np.isnan(master)
    assert_same_bits(weight[~nan], expected[0][~nan])
    assert_same_bits(residual, expected[1])
    assert np.isnan(weight[nan]).all()
    back = seen(weight, residual)
    assert_same_bits(back[~nan], joined(*expected)[~nan])
    assert np.isnan(back[nan]).all()
    m = bits(master)[~nan].astype(np.int64)
    error = np.abs(bits(back)[~nan].astype(np.int64) - m)
    assert error.max() == (0 if kind == np.int16 else 128)
    finite = np.isfinite(back[~nan])
    normals = finite & (m & 0x7F800000 != 0)
    with np.errstate(over="ignore"):
        off = np.abs(back[~nan][normals].astype(np.float64) - master[~nan][normals])
    assert (off <= (0 if kind == np.int16 else 2.0**-16) * np.abs(master[~nan][normals].astype(np.float64))).all()
    # What rounds to inf, and what becomes it.
    assert ((m[~finite] & 0x7FFFFFFF) >= (0x7F800000 if kind == np.int16 else 0x7F7FFF80)).all()


@pytest.mark.exhaustive
@EACH_RESIDUAL
def test_every_float32(kind):
    """16 bits give it back; 8 bits what float64 NumPy says."""
    chunk = 1 << 20
    offsets = np.arange(chunk, dtype=np.uint32)
    for begin in range(0, 1 << 32, chunk):
        master = (offsets + np.uint32(begin)).view(np.float32)
        back = seen(*parted(master, kind))
        expected = master if kind == np.int16 else joined(*split(master, kind))
        if not np.array_equal(bits(back), bits(expected)):
            nan = np.isnan(master)
            assert_same_bits(back[~nan], expected[~nan])
            assert np.isnan(back[nan]).all()


def test_the_nearest_weight():
    """Half a spacing above 1, 1 + 2^-7 and their negatives goes away from 0; a float32 master rounds to even there."""
    master = np.float32([1 + 2.0**-8, 1 + 3 * 2.0**-8, -1 - 2.0**-8, 1 + 2.0**-8 - 2.0**-23])
    weight, residual = parted(master, np.int16)
    expected = np.float32([1 + 2.0**-7, 1 + 2.0**-6, -1 - 2.0**-7, 1])
    assert_same_bits(weight, expected.astype(BF16))
    np.testing.assert_array_equal(residual, [-32768, -32768, -32768, 32767])


@EACH_RESIDUAL
def test_a_weight_that_was_set(rng, kind):
    """It is its new value but for half a spacing; 0 and -0 stay so near to it that no bfloat16 lies between."""
    _, residual = split(normal(rng, 1000), kind)
    weight = normal(rng, 1000, BF16)
    weight[:4], weight[4:8] = 0, -0.0
    residual[:4] = residual[4:8] = np.array([np.iinfo(kind).min, -1, 1, np.iinfo(kind).max])
    exact = weight.astype(np.float64)
    got = seen(weight.copy(), residual)
    assert (np.abs(got[8:] - exact[8:]) <= 2.0**-8 * np.abs(exact[8:])).all()
    assert (np.abs(got[:8]) < 2.0**-134).all()
    np.testing.assert_array_equal(np.signbit(got[:8]), np.signbit(exact[:8]))
    np.testing.assert_array_equal(got[[0, 1, 4, 5]], 0)
    assert_same_bits(seen(weight, np.zeros(1000, kind))[:8], exact[:8].astype(np.float32))  # with no residual, exactly


def make(rng: np.random.Generator, shapes: Any, kind: Any) -> tuple[Any, Any, Any, Any]:
    """Weights and residuals, and the same masters in float32 with their weights."""
    masters = [joined(*split(normal(rng, s), kind)) for s in shapes]
    pairs = [split(m, kind) for m in masters]
    return [w for w, _ in pairs], [r for _, r in pairs], [m.astype(BF16) for m in masters], masters


SHAPES = [*((n,) for n in SIZES), (), (5, 33), (3, 300), (5, 2000), (600, 3), (2, 0)]


@EACH_RULE
def test_every_rule_as_with_float32_masters(rng, rule):
    """Bit for bit, with decay and centralized rows; the weight is the nearest one."""
    weights, residuals, others, masters = make(rng, SHAPES, np.int16)
    states = rule.states(weights), rule.states(weights)
    more: dict[str, Any] = {"weight_decay": 0.01, "centralize": [len(s) == 2 for s in SHAPES], "inv_scale": 0.5}
    for t in range(1, 5):
        grads = [gradient(rng, s, BF16 if t % 2 else np.float32) for s in SHAPES]
        more |= {"first": t == 1} if rule.begins else {}
        rule(weights, grads, states[0], step=t, masters=residuals, **more)
        rule(others, grads, states[1], step=t, masters=masters, **more)
        for w, r, m in zip(weights, residuals, masters, strict=True):
            assert_same_bits(joined(w, r), m)
            assert_same_bits(w, split(m, np.int16)[0])
        for a, b in zip(*states, strict=True):
            for one, two in zip(a, b, strict=True):
                assert_same_bits(one, two)


NARROW = {n: VARIANTS[n] for n in ("adamw", "momentum", "lion", "lamb")}


class Trained:
    """`steps` of a rule on gradients that do not depend on the weights."""

    def __init__(self, rule: Rule, state: str, weights: Any, masters: Any, steps: int, **more: Any) -> None:
        self.weights, self.masters = weights, masters
        self.state = [[Stored(state, w.shape, k) for w in weights] for k in range(len(rule.start))]
        call, rng = getattr(ops, f"{rule.name}_step"), np.random.default_rng(11)
        grads = [[gradient(rng, w.shape, BF16) for w in weights] for _ in range(16)]
        for t in range(1, steps + 1):
            scales = [[s.scale for s in states] for states in self.state]
            arrays = [[s.array for s in states] for states in self.state]
            more = {"scales": scales, "weight_decay": 0.01, "masters": masters, **more}
            call(weights, grads[t * 5 % 16], *arrays, lr=1e-4, step=t, **{**rule.hyper, **more})


def check_bits_of_float32(sixteen: Trained, wide: Trained) -> None:
    for a, b in zip(sixteen.state, wide.state, strict=True):
        for one, two in zip(a, b, strict=True):
            assert_same_bits(one.array, two.array)
    for w, r, m in zip(sixteen.weights, sixteen.masters, wide.masters, strict=True):
        assert_same_bits(joined(w, r), m)


EACH_STATE = pytest.mark.parametrize("state", ["float32", "bfloat16", "uint8"])


@EACH_STATE
@pytest.mark.parametrize("rule", NARROW.values(), ids=NARROW)
def test_narrow_state(rng, rule, state):
    weights, residuals, others, masters = make(rng, [(n,) for n in SIZES], np.int16)
    check_bits_of_float32(Trained(rule, state, weights, residuals, 5), Trained(rule, state, others, masters, 5))


@EACH_STATE
@pytest.mark.parametrize("rule", [NARROW["adamw"], NARROW["momentum"]], ids=["adamw", "momentum"])
def test_a_thousand_steps(rng, rule, state):
    """16 bits: the float32 master, bit for bit. 8 bits: close to it, and much closer than without a master."""
    steps = 1000
    weights, residuals, others, masters = make(rng, [(n,) for n in SIZES], np.int8)  # which 16 bits hold, too
    alone = Trained(rule, state, [w.copy() for w in others], None, steps)
    eight = Trained(rule, state, [w.copy() for w in weights], [r.copy() for r in residuals], steps)
    wide = Trained(rule, state, others, masters, steps)
    sixteen = Trained(rule, state, weights, [r.astype(np.int16) * np.int16(256) for r in residuals], steps)
    check_bits_of_float32(sixteen, wide)
    exact = np.concatenate([m.astype(np.float64) for m in wide.masters])
    of_eight = np.concatenate([joined(w, r) for w, r in zip(eight.weights, eight.masters, strict=True)]) - exact
    of_none = np.concatenate([w.astype(np.float64) for w in alone.weights]) - exact
    assert np.sqrt((of_eight**2).mean()) < 0.1 * np.sqrt((of_none**2).mean())
    # Each step rounds to 2^-16 at most.
    assert (np.abs(of_eight) <= steps * 2.0**-16 * 1.1 * (np.abs(exact) + 0.2)).all()


@pytest.mark.parametrize("kind", RESIDUALS.values(), ids=RESIDUALS)
@pytest.mark.parametrize("name", ["adamw", "lamb", "adan", "lion-cautious"])
def test_same_bits_for_threads_and_instruction_sets(kind, name, threads, isa):
    rule, results = VARIANTS[name], []
    shapes = [(200_003,), (7,), (0,), (100, 700)]
    try:
        for at, count in [("baseline", 1), (isa, 1), (isa, 2), (isa, 3)]:
            _core.set_isa(at)
            threads(count)
            rng = np.random.default_rng(3)
            weights, residuals, _, _ = make(rng, shapes, kind)
            state = rule.states(weights)
            for t in (1, 2):
                grads = [gradient(rng, s) for s in shapes]
                rule(weights, grads, state, step=t, masters=residuals, centralize=True, weight_decay=0.1)
            results.append([*weights, *residuals])
    finally:
        _core.set_isa(isa)
    for result in results[1:]:
        for a, b in zip(result, results[0], strict=True):
            assert_same_bits(a, b)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 77, -1])
@EACH_RESIDUAL
def test_bad_gradients_stay_where_they_are(rng, kind, place, bad):
    (weight,), (residual,), _, _ = make(rng, [(100,)], kind)
    grad = gradient(rng, 100)
    grad[place] = bad
    ops.momentum_step([weight], [grad], [np.zeros(100, np.float32)], lr=0.1, masters=[residual])
    assert np.isfinite(np.delete(weight.astype(np.float32), place)).all()
    assert residual[place] == 0
    expected = np.float32(-0.1) * np.float32(bad)
    np.testing.assert_array_equal(weight[place].astype(np.float32), expected)


@pytest.mark.parametrize("of_gradient", [np.float32, np.float16, BF16], ids=["float32", "float16", "bfloat16"])
@EACH_RESIDUAL
def test_rows(rng, kind, of_gradient):
    """Listed rows as float32 masters have them, centralized; the others as they were."""
    (weight,), (residual,), (other,), (master,) = make(rng, [(40, 33)], kind)
    before = weight.copy(), residual.copy()
    index = np.array([7, 0, 39, 12, 20, 7], np.int32)
    state = np.zeros((40, 33), np.float32), np.zeros((40, 33), np.float32)
    settings = {"lr": 0.01, "indices": index, "centralize": True, "weight_decay": 0.1}
    values = gradient(rng, (6, 33), of_gradient)
    ops.momentum_step(weight, values, state[0], masters=residual, **settings)
    ops.momentum_step(other, values, state[1], masters=master, **settings)
    assert_same_bits(state[0], state[1])
    listed = np.isin(np.arange(40), index)
    expected = split(master, kind)
    for got, was, new in zip((weight, residual), before, expected, strict=True):
        assert_same_bits(got[~listed], was[~listed])
        assert_same_bits(got[listed], new[listed])


def test_mixtures_in_one_list(rng):
    """Float32 weights, half weights beside float32 masters, both kinds of split masters: each as it is alone."""
    kinds = [None, np.float32, np.int16, np.int8, np.float32]
    dtypes = [np.float32, np.float16, BF16, BF16, BF16]
    weights = [normal(rng, 700, d) for d in dtypes]
    grads = [gradient(rng, 700) for _ in kinds]
    masters = [
        None if k is None else w.astype(k) if k == np.float32 else np.zeros(700, k)
        for k, w in zip(kinds, weights, strict=True)
    ]
    alone = [w.copy() for w in weights], [None if m is None else m.copy() for m in masters]
    rule = VARIANTS["adamw"]
    states = rule.states(weights), rule.states(weights)
    rule(weights, grads, states[0], masters=masters)
    for i, kind in enumerate(kinds):
        options = {} if kind is None else {"masters": [alone[1][i]]}
        rule([alone[0][i]], grads[i : i + 1], [[s[i]] for s in states[1]], **options)
        assert_same_bits(weights[i], alone[0][i])
        if kind is not None:
            assert_same_bits(masters[i], alone[1][i])


def test_skipped(rng):
    (weight,), (residual,), _, _ = make(rng, [(300,)], np.int16)
    before = weight.copy(), residual.copy()
    ops.sgd_step([weight], [gradient(rng, 300)], lr=0.1, masters=[residual], skip=np.ones(1, np.float32))
    assert_same_bits(weight, before[0])
    assert_same_bits(residual, before[1])


@pytest.mark.parametrize(
    ("dtype", "master", "error", "text"),
    [
        (
            "float16",
            np.zeros(6, np.int16),
            TypeError,
            r"masters\[0\] must be float32 beside a float16 parameter, got int16",
        ),
        (
            "float16",
            np.zeros(6, np.int8),
            TypeError,
            r"masters\[0\] must be float32 beside a float16 parameter, got int8",
        ),
        (
            "float32",
            np.zeros(6, np.int16),
            ValueError,
            r"masters\[0\] must be empty beside a float32 parameter, got 6 .*",
        ),
        ("bfloat16", np.zeros(6, np.uint8), TypeError, r"masters\[0\] must be float32, int16 or int8, got uint8"),
        ("bfloat16", np.zeros(6, np.float64), TypeError, r"masters\[0\] must be float32, int16 or int8, got float64"),
        ("bfloat16", np.zeros(5, np.int16), ValueError, r"masters\[0\] must have 6 elements, got 5"),
        ("bfloat16", None, ValueError, r"masters\[0\] must have 6 elements, got 0"),
    ],
)
def test_what_is_refused(dtype, master, error, text):
    weight = np.ones(6, np.dtype(dtype) if dtype != "bfloat16" else BF16)
    grad, moment = np.ones(6, np.float32), np.zeros(6, np.float32)
    with pytest.raises(error, match=f"^momentum_step: {text}$"):
        ops.momentum_step([weight], [grad], [moment], lr=0.1, masters=[master])
    assert (weight == 1).all()
    assert (moment == 0).all()


@EACH_RESIDUAL
def test_ops_without_split_masters(kind):
    weight, grad, master = np.ones((2, 3), BF16), np.ones((2, 3), np.float32), np.zeros((2, 3), kind)
    text = rf"masters\[0\] must be float32, got {kind.name}$"
    with pytest.raises(TypeError, match=f"^muon_step: {text}"):
        ops.muon_step([weight], [grad], [np.zeros((2, 3), np.float32)], lr=0.1, step=1, masters=[master])
    rows, columns = [np.zeros(2, np.float32)], [np.zeros(3, np.float32)]
    with pytest.raises(TypeError, match=f"^adafactor_step: {text}"):
        ops.adafactor_step([weight], [grad], rows, columns, [None], step=1, masters=[master])
    assert (weight == 1).all()
