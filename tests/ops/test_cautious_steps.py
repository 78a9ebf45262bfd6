"""The flag `cautious`: no element moves against its gradient, but by its weight decay."""

from __future__ import annotations

import numpy as np
import pytest

from dtypes import assert_same_bits, normal

from .steps import CAUTIOUS, FACTS, Rule, Training, gradient

pytestmark = pytest.mark.usefixtures("isa")

EACH_RULE = pytest.mark.parametrize("rule", CAUTIOUS.values(), ids=CAUTIOUS)
WITH_FLAG = {rule for rule, facts in FACTS.items() if "cautious" in facts["hyper"]}


def test_all_rules_with_the_flag_are_here():
    assert {rule.name for rule in CAUTIOUS.values()} == WITH_FLAG


@EACH_RULE
def test_steps(rng, rule):
    shapes = [(), (0,), (17,), (3, 4100)]
    training = Training(rule, [normal(rng, s) for s in shapes], weight_decay=0.01, centralize=True, inv_scale=0.5)
    for _ in range(6):
        training.step([gradient(rng, s) for s in shapes])


@EACH_RULE
def test_what_moves(rng, rule):
    """Beside the same step without the flag, from the same state: the same where it agrees, nothing elsewhere."""
    plain = Rule(rule.name, rule.start, {**rule.hyper, "cautious": False})
    weight, state = normal(rng, 3000), rule.states([normal(rng, 3000)])
    for step in range(1, 6):
        grad = gradient(rng, 3000)
        grad[::50] = 0
        before, other, others = weight.copy(), weight.copy(), [[s[0].copy()] for s in state]
        plain([other], [grad], others, step=step)
        rule([weight], [grad], state, step=step)
        for one, two in zip(state, others, strict=True):
            assert_same_bits(one[0], two[0])
        agrees = (before - other) * grad > 0
        assert_same_bits(weight[agrees], other[agrees])
        against = (before - other) * grad < 0
        assert_same_bits(weight[against | (grad == 0)], before[against | (grad == 0)])
        assert step == 1 or 0 < against.sum() < agrees.sum()


@EACH_RULE
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_shows(rng, rule, bad):
    weight, grad, state = normal(rng, 40), gradient(rng, 40), rule.states([normal(rng, 40)])
    grad[7] = bad
    rule([weight], [grad], state)
    rule([weight], [gradient(rng, 40)], state, step=2)
    assert list(np.flatnonzero(~np.isfinite(weight))) == [7]
