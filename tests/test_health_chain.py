"""HealthMonitor on a chain of layers that trains: nan goes through forward, backward and the optimizer's step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from boost_ext.health import Fault, HealthMonitor

LAYERS = 6
NAMES = [f"{i}.{kind}" for i in range(LAYERS) for kind in ("weight", "bias")]
Step = tuple[dict[str, np.ndarray], float]


def backward(weights: dict[str, np.ndarray], x: np.ndarray) -> Step:
    """The gradients and the loss of tanh layers, the last one linear, with the mean square as the loss."""
    inputs = []
    for i in range(LAYERS):
        inputs.append(x)
        x = x @ weights[f"{i}.weight"] + weights[f"{i}.bias"]
        x = x if i == LAYERS - 1 else np.tanh(x)
    loss, back = float(np.mean(x * x)), 2 * x / x.size
    found = {}
    for i in reversed(range(LAYERS)):
        found[f"{i}.weight"], found[f"{i}.bias"] = inputs[i].T @ back, back.sum(0)
        back = (back @ weights[f"{i}.weight"].T) * (1 - inputs[i] ** 2)
    return {name: found[name] for name in NAMES}, loss


def train(monitor: HealthMonitor, rng: Any, *, after: bool, loss: bool, bad: Any) -> Fault | None:
    """SGD until a fault is found; `bad` spoils something of a step, given its number, gradients and input."""
    weights = {n: rng.standard_normal((8, 8) if n.endswith("weight") else 8, np.float32) / 3 for n in NAMES}
    for step in range(1, 60):
        x = rng.standard_normal((4, 8), np.float32)
        bad(step, {}, x, weights)
        gradients, value = backward(weights, x)
        bad(step, gradients, x, weights)
        for now in ("before", "after"):
            if (now == "after") is after:
                given = {"loss": value} if loss else {}
                health = monitor.check(step, gradients=gradients, weights=weights, **given)
                if health is not None and health.fault is not None:
                    return health.fault
            if now == "before":
                for name, w in weights.items():
                    w -= np.float32(0.1) * gradients[name]
    return None


def trials(**arguments: Any) -> Iterator[tuple[Fault | None, int, str]]:
    """40 runs in each order, with a nan in one gradient: what was found, beside the step and the tensor."""
    for seed, after, loss in itertools.product(range(40), (False, True), (False, True)):
        rng = np.random.default_rng(seed)
        at, who = int(rng.integers(1, 40)), str(rng.choice(NAMES))

        def spoil(step: int, gradients: Any, *_: Any, at: int = at, who: str = who) -> None:
            if step == at and gradients:
                gradients[who].reshape(-1)[0] = np.nan

        yield train(HealthMonitor(**arguments), rng, after=after, loss=loss, bad=spoil), at, who


@pytest.mark.parametrize("every", [1, 10, 1000])
def test_the_tensor_and_the_step_are_exact(every: int) -> None:
    for fault, at, who in trials(every=every):
        assert fault is not None
        assert str(fault) == f"step {at}: the gradient of {who} holds 0 inf, 1 nan, first at 0"


def test_without_a_look_at_each_step_no_tensor_is_blamed_that_is_not_known() -> None:
    several = 0
    for fault, at, who in trials(every=10, watch=False):
        assert fault is not None
        if fault.after is None:
            assert (fault.step, fault.of, fault.name) == (at, "gradient", who)
            continue
        assert fault.after < at <= fault.step
        if fault.among is None:
            assert fault.name == who
        else:
            several += 1
            assert who in fault.among
            assert str(fault).startswith(f"at or before step {fault.step}, after step {fault.after}: inf or nan, first")
    assert several > 80


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("every", [1, 10])
def test_bad_data_are_not_blamed_on_a_weight(every: int, after: bool) -> None:
    def spoil(step: int, gradients: Any, x: np.ndarray, *_: Any) -> None:
        if step == 13 and not gradients:
            x[0, 0] = np.nan

    fault = train(HealthMonitor(every=every), np.random.default_rng(0), after=after, loss=True, bad=spoil)
    assert fault is not None
    assert (fault.step, fault.after, fault.of) == (13, None, "loss")
    # After the optimizer's step all weights are nan too, and a weight that was nan before it looks the same.
    assert str(fault) == (
        "step 13: inf or nan, first seen in the loss, 0.weight, 0.bias and 10 more"
        if after
        else "step 13: the loss is nan"
    )


@pytest.mark.parametrize("every", [1, 10])
def test_a_weight_that_went_bad_by_itself(every: int) -> None:
    def spoil(step: int, gradients: Any, _: Any, weights: dict[str, np.ndarray]) -> None:
        if step == 13 and not gradients:
            weights["2.bias"][3] = np.nan

    fault = train(HealthMonitor(every=every), np.random.default_rng(0), after=False, loss=True, bad=spoil)
    when = "step 13" if every == 1 else "at or before step 13, after step 10"  # weights are looked at every 10 steps
    assert str(fault) == f"{when}: 2.bias holds 0 inf, 1 nan, first at 3"


def test_an_infinite_weight_that_nothing_shows() -> None:
    """tanh of inf is 1: loss and gradients stay finite."""

    def spoil(step: int, gradients: Any, _: Any, weights: dict[str, np.ndarray]) -> None:
        if step == 13 and not gradients:
            weights["2.bias"][3] = np.inf

    fault = train(HealthMonitor(every=10), np.random.default_rng(0), after=False, loss=True, bad=spoil)
    assert str(fault) == "at or before step 20, after step 10: 2.bias holds 1 inf, 0 nan, first at 3"


def test_a_run_that_is_looked_at_for_the_first_time_late() -> None:
    tensors = {"a": np.float32([1, np.nan]), "b": np.float32([np.inf]), "c": np.ones(2, np.float32)}
    health = HealthMonitor(rank=3).check(7, gradients=tensors, weights=tensors)
    assert health is not None
    assert health.line() == "at or before step 7, after step 0, rank 3: inf or nan, first seen in a, b"
    assert health.fault is not None
    assert (health.fault.among, health.fault.inf, health.fault.nan) == (("a", "b"), 1, 1)


def test_of_weights_alone_none_is_blamed() -> None:
    """A backward pass that was nan from the last layer on spoils all at once."""
    monitor = HealthMonitor()
    for value in (1, np.nan):
        tensors = {name: np.float32([1, value]) for name in NAMES[:2]}
        health = monitor.check(int(np.isnan(value)) + 4, weights=tensors)
    assert health is not None
    assert str(health.fault) == "step 5: inf or nan, first seen in 0.weight, 0.bias"


def test_the_gradients_of_a_step_are_exact_beside_finite_weights() -> None:
    """As where a loss scale skips the step."""
    gradients = {"a": np.float32([1, np.nan]), "b": np.float32([np.inf])}
    health = HealthMonitor().check(7, gradients=gradients, weights={"a": np.ones(2, np.float32)})
    assert health is not None
    assert str(health.fault) == "step 7: the gradient of b holds 1 inf, 0 nan, first at 0"
