"""Each rule beside its oracle, element by element, within what the rounding of float32 explains."""

from __future__ import annotations

import numpy as np
import pytest

from boost_ext import ops
from dtypes import DTYPES, SIZES, assert_same_bits, normal
from rounding import Rounded, assert_within

from .steps import EACH_ELEMENTWISE, EACH_RULE, KINDS, VARIANTS, Training, gradient

pytestmark = pytest.mark.usefixtures("isa")

SHAPES = [(), (1,), (0,), (7, 5), (16, 33), (2, 0), (3, 2, 4), (65,), (4097,), (2, 4100)]


@pytest.mark.parametrize("size", sorted({*SIZES, 4095, 4096, 4097}))
@EACH_RULE
def test_sizes(rng, rule, size):
    training = Training(rule, [normal(rng, size)], weight_decay=0.01)
    for first in (True, False):
        training.step([gradient(rng, size)], first)


@EACH_RULE
def test_several_steps(rng, rule):
    """With everything on: each step, and the whole way, on which the bounds add up."""
    n = len(SHAPES)
    lr = [rule.lr / (1 + i % 3) for i in range(n)]
    more = {"weight_decay": [0.0, 0.01, 0.3] * 3 + [0.1], "ratio": [1.0, 0.7] * 5, "centralize": [False, True] * 5}
    weights = [normal(rng, s) for s in SHAPES]
    start = [w.copy() for w in weights]
    training = Training(rule, weights, lr=lr, inv_scale=1 / 1000, **more)
    exact = [Rounded(w) for w in start]
    state = [[Rounded(x) for x in s] for s in training.state]
    for t in range(6):
        grads = [gradient(rng, s, scale=1000) for s in SHAPES]
        training.step(grads, first=t == 0)
        moments = training.exact(exact, [Rounded(g) for g in grads], state, first=t == 0)
        exact = [m.w for m in moments]
        state = [list(s) for s in zip(*(m.state for m in moments), strict=True)]
    for w, e, was in zip(weights, exact, start, strict=True):
        assert_within(w, e)
        moved = e.value != was
        if moved.sum() > 1:  # the bounds say something
            assert np.median(e.error[moved] / np.abs(e.value - was)[moved]) < 1e-2


@EACH_RULE
def test_many_tensors(rng, rule):
    """Each gets the bits that it gets alone, which test_sizes holds to the oracle."""
    weights = [normal(rng, n) for n in rng.integers(0, 90, 500)]
    grads = [gradient(rng, w.shape) for w in weights]
    rates = list(rng.uniform(0, 0.1, 500))
    alone = [w.copy() for w in weights]
    state, states_alone = rule.states(weights), rule.states(weights)
    rule(weights, grads, state, lr=rates)
    for i, w in enumerate(alone):
        rule([w], [grads[i]], [[s[i]] for s in states_alone], lr=rates[i])
        assert_same_bits(weights[i], w)
    for s, t in zip(state, states_alone, strict=True):
        for a, b in zip(s, t, strict=True):
            assert_same_bits(a, b)


@EACH_ELEMENTWISE
def test_long_blocks(rng, rule):
    """A large tensor gets the bits of its parts, which have short ones."""
    size = 2_000_001
    weights, grads, ends = normal(rng, size), gradient(rng, size), range(9000, size, 9000)
    parts = np.split(weights.copy(), ends)
    state, of_parts = rule.states([weights]), rule.states(parts)
    rule([weights], [grads], state)
    rule(parts, np.split(grads, ends), of_parts)
    assert_same_bits(weights, np.concatenate(parts))
    for s, t in zip(state, of_parts, strict=True):
        assert_same_bits(s[0], np.concatenate(t))


@pytest.mark.parametrize("masters", [False, True])
@pytest.mark.parametrize("of_gradient", DTYPES)
@pytest.mark.parametrize("of_weight", DTYPES)
@EACH_RULE
def test_dtypes(rng, rule, of_weight, of_gradient, masters):
    shapes = [(5, 33), (70,), ()]
    training = Training(rule, [normal(rng, s, of_weight) for s in shapes], masters, centralize=True, weight_decay=0.01)
    for t in range(3):
        training.step([gradient(rng, s, of_gradient) for s in shapes], first=t == 0)


@EACH_RULE
def test_mixtures_in_one_list(rng, rule):
    weights = [normal(rng, 100 + i, KINDS[i % 3]) for i in range(9)]
    training = Training(rule, weights, masters=True)
    for t in range(3):
        training.step([gradient(rng, w.shape, KINDS[i // 3]) for i, w in enumerate(weights)], first=t == 0)


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
def test_a_master_gathers_what_the_weight_cannot_hold(rng, kind):
    """A hundred steps, each far below the weight's last place."""
    weight, master = np.ones(50, kind), np.ones(50, np.float32)
    alone = weight.copy()
    grad = np.full(50, 2.0**-12, kind)
    for _ in range(100):
        ops.sgd_step([weight], [grad], lr=1.0, masters=[master])
        ops.sgd_step([alone], [grad], lr=1.0)
    assert_same_bits(alone, np.ones(50, kind))
    assert_same_bits(master, np.full(50, 1 - 100 * 2.0**-12, np.float32))
    assert_same_bits(weight, master.astype(kind))


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
@EACH_RULE
def test_a_master_follows_a_weight_that_was_set(rng, rule, kind):
    """The last three: what its master rounds to stays; the others are taken from the weight, nan as well."""
    loaded = normal(rng, 40, kind)
    weight, master = loaded.copy(), normal(rng, 40)
    master[-3:] = np.float32(1 + 2.0**-20), np.float32(-0.0), 1e6 if kind == np.float16 else np.inf
    weight[-3:] = 1, 0, np.inf
    expected = np.concatenate([weight[:-3].astype(np.float32), master[-3:]])
    grad = gradient(rng, 40)
    grad[-1] = 0
    one, two = rule.states([weight]), rule.states([weight])
    wide = [expected.copy()]
    rule([weight], [grad], one, masters=[master])
    rule(wide, [grad], two)
    assert_same_bits(master, wide[0])
    with np.errstate(over="ignore"):
        stored = wide[0].astype(kind)
    nan = np.isnan(stored)  # which has other bits on other devices
    assert_same_bits(weight[~nan], stored[~nan])
    assert np.isnan(weight[nan]).all()
    weight[7] = np.nan
    rule([weight], [grad], one, masters=[master], step=2)
    assert np.isnan(master[7])
    assert np.isnan(weight[7])


@pytest.mark.parametrize("kind", KINDS[1:], ids=str)
@EACH_RULE
def test_a_master_follows_where_gradients_are_centralized(rng, rule, kind):
    """Before the mean of a row, in which a decay of the gradient counts."""
    weight, grad = normal(rng, (4, 1500), kind), gradient(rng, (4, 1500))
    wide = [weight.astype(np.float32)]
    master = wide[0] + 10
    one, two = rule.states([weight]), rule.states([weight])
    rule([weight], [grad], one, masters=[master], centralize=True, weight_decay=0.01)
    rule(wide, [grad], two, centralize=True, weight_decay=0.01)
    assert_same_bits(master, wide[0])
    assert_same_bits(weight, wide[0].astype(kind))


@EACH_ELEMENTWISE
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 77, -1])
def test_bad_gradients_stay_where_they_are(rng, rule, place, bad):
    weight, grad = normal(rng, 100), gradient(rng, 100)
    grad[place] = bad
    state = rule.states([weight])
    rule([weight], [grad], state)
    for array in (weight, *(s[0] for s in state)):
        finite = np.isfinite(array)
        assert finite.sum() in (99, 100)
        assert np.delete(finite, place).all()
    assert not np.isfinite(weight[place])
    rule([weight], [gradient(rng, 100)], state, step=2)
    assert np.isfinite(np.delete(weight, place)).all()
    if rule.name != "adagrad" or rule.hyper["update_slots"]:
        assert not np.isfinite(weight[place])


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_bad_gradients_and_lamb(rng, bad):
    """The norm of the direction is nan or inf then, and the ratio 1."""
    weights, grads = [normal(rng, 100), normal(rng, 50)], [gradient(rng, 100), gradient(rng, 50)]
    fresh = [w.copy() for w in weights]
    grads[0][5] = bad
    VARIANTS["lamb"](weights, grads, VARIANTS["lamb"].states(weights))
    assert not np.isfinite(weights[0][5])
    assert np.isfinite(np.delete(weights[0], 5)).all()
    VARIANTS["lamb"](fresh[1:], grads[1:], VARIANTS["lamb"].states(fresh[1:]))
    assert_same_bits(weights[1], fresh[1])


@pytest.mark.parametrize("rows", [1, 3, 5])
@pytest.mark.parametrize("width", [1, 5, 15, 16, 17, 33, 4095, 4097])
@EACH_RULE
def test_centralized_rows(rng, rule, rows, width):
    """A row is a block then: lanes beyond its end hold minus the mean, and must not get into Lamb's norms."""
    training = Training(rule, [normal(rng, (rows, width))], centralize=True)
    training.step([gradient(rng, (rows, width)) + np.float32(3)], first=True)


@pytest.mark.parametrize("which", ["w", "r"])
def test_lamb_where_a_norm_is_zero(rng, which):
    rule = VARIANTS["lamb"]
    weight = np.zeros(40, np.float32) if which == "w" else normal(rng, 40)
    grad = gradient(rng, 40) if which == "w" else np.zeros(40, np.float32)
    before = weight.copy()
    training = Training(rule, [weight])
    training.step([grad])
    assert np.array_equal(weight, before) == (which == "r")


@pytest.mark.parametrize("name", ["adagrad", "proximal_adagrad-plain"])
def test_no_step_where_nothing_was_accumulated(rng, name):
    weight, grad = normal(rng, 100), gradient(rng, 100)
    grad[::3] = 0
    before, accum = weight.copy(), np.zeros(100, np.float32)
    VARIANTS[name]([weight], [grad], [[accum]])
    assert_same_bits(weight[::3], before[::3])
    np.testing.assert_allclose(np.abs(weight - before)[1::3], 0.01, rtol=1e-4)


def test_frozen_slots(rng):
    weight, grad, accum = normal(rng, 100), gradient(rng, 100), np.zeros(100, np.float32)
    accum[::2] = 0.25
    before = weight.copy(), accum.copy()
    ops.adagrad_step([weight], [grad], [accum], lr=0.5, update_slots=False)
    assert_same_bits(accum, before[1])
    assert_same_bits(weight[1::2], before[0][1::2])
    assert_same_bits(weight[::2], (before[0] - np.float32(0.5) * (grad / np.float32(0.5)))[::2])


def test_variance_that_rounds_below_zero(rng):
    """A constant gradient: its variance is rounding noise, of either sign."""
    rule = VARIANTS["centered_rmsprop"]
    weight, state = normal(rng, 400), [np.zeros(400, np.float32) for _ in range(3)]
    grad = rng.uniform(0.5, 2, 400).astype(np.float32)
    negative = 0
    for _ in range(300):
        rule([weight], [grad], [[s] for s in state])
        negative += int((state[1] - state[0] * state[0] < -RMS_EPSILON / 2).sum())
        assert np.isfinite(weight).all()
        assert np.isfinite(state[2]).all()
    assert negative > 0


RMS_EPSILON = VARIANTS["centered_rmsprop"].hyper["epsilon"]


def test_first_step_of_sgd(rng):
    """Where `first` says so, dampening does not apply and whatever the momentum holds is forgotten."""
    weights, grads = [normal(rng, 30) for _ in range(2)], [gradient(rng, 30) for _ in range(2)]
    accum = [np.full(30, np.nan, np.float32), normal(rng, 30)]
    was = accum[1].copy()
    ops.sgd_step(weights, grads, accum, lr=0.1, momentum=0.5, dampening=0.75, first=[True, False])
    assert_same_bits(accum[0], grads[0])
    assert_same_bits(accum[1], np.float32(0.5) * was + np.float32(0.25) * grads[1])


def test_schedule_free_averages_what_z_was(rng):
    """Of steps of one weight x is the mean of all z; a rate of 0 changes nothing but the average."""
    weight = normal(rng, 50)
    y, z, mean = weight.copy(), np.full(50, np.nan, np.float32), np.zeros(50)
    for t in range(1, 41):
        grad = gradient(rng, 50)
        ops.schedule_free_sgd_step([y], [grad], [z], lr=0.5, averaging_weight=1 / t, momentum=0.8, first=t == 1)
        mean += z
    np.testing.assert_allclose((y - 0.2 * z) / 0.8, mean / 40, rtol=1e-5, atol=1e-6)
    before = y.copy(), z.copy()
    ops.schedule_free_sgd_step([y], [grad], [z], lr=0.0, averaging_weight=0.0)
    assert_same_bits(y, before[0])
    assert_same_bits(z, before[1])


def test_schedule_free_begins_at_the_weights(rng):
    """Whatever the state holds, of those that have none yet."""
    weights, grads = [normal(rng, 30) for _ in range(2)], [gradient(rng, 30) for _ in range(2)]
    before = [w.copy() for w in weights]
    z, v = [np.full(30, np.nan, np.float32), before[1].copy()], [np.zeros(30, np.float32) for _ in range(2)]
    settings = {"lr": 0.1, "step": 1, "averaging_weight": 1.0, "weight_decay": 0.1}
    ops.schedule_free_adamw_step(weights, grads, z, v, first=[True, False], **settings)
    for w, g, a, b in zip(weights, grads, z, before, strict=True):
        assert_same_bits(w, a)
        np.testing.assert_allclose(a, b - 0.1 * (np.sign(g) + 0.1 * b), rtol=1e-5, atol=1e-5)


def test_ftrl_without_a_learning_rate(rng):
    weight, grad = normal(rng, 50), gradient(rng, 50)
    before, accum, linear = weight.copy(), np.full(50, 0.1, np.float32), np.ones(50, np.float32)
    ops.ftrl_step([weight], [grad], [accum], [linear], lr=0.0)
    assert_same_bits(weight, before)
    assert_same_bits(linear, 1 + grad)
    assert_same_bits(accum, np.float32(0.1) + grad * grad)


def test_ftrl_is_sparse(rng):
    """|z| <= l1 makes a weight exactly 0."""
    weight, grad = np.zeros(200, np.float32), gradient(rng, 200)
    accum, linear = np.full(200, 0.1, np.float32), np.zeros(200, np.float32)
    ops.ftrl_step([weight], [grad], [accum], [linear], lr=0.1, l1=0.05)
    np.testing.assert_array_equal(weight == 0, np.abs(linear) <= np.float32(0.05))
    assert 0 < np.count_nonzero(weight) < 200


def test_one_array_is_a_list_of_one(rng):
    for rule in VARIANTS.values():
        one, grad = normal(rng, 33, np.float16), gradient(rng, 33)
        two, masters = one.copy(), [one.astype(np.float32) for _ in range(2)]
        states = rule.states([one]), rule.states([two])
        rule(one, grad, [s[0] for s in states[0]], masters=masters[0])
        rule((two,), (grad,), [tuple(s) for s in states[1]], masters=(masters[1],))
        assert_same_bits(one, two)
        assert_same_bits(*masters)
