"""The rules of optimizer_step as data: each variant with its settings, a call, and the same step by the oracle."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import oracle
from boost_ext import _core, ops
from dtypes import FLOATS, assert_same_bits, normal
from remembered import remembered
from rounding import Rounded, assert_within

FACTS: dict[str, dict[str, Any]] = {}
"""The rows of the native table of rules. The rules of matrices and AdaFactor have none."""
for name in _core.optimizer_rules():
    with suppress(ValueError):
        FACTS[name] = _core.rule_facts(name)


@dataclass(frozen=True)
class Rule:
    """`start`: what each state is filled with before the first step."""

    name: str
    start: tuple[float, ...]
    hyper: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.01

    @property
    def corrected(self) -> bool:
        return FACTS[self.name]["corrected"]

    @property
    def begins(self) -> bool:
        """Whether it asks which step is the first of a tensor."""
        return self.name.startswith(("sgd", "schedule_free"))

    @property
    def elementwise(self) -> bool:
        return self.name != "lamb"

    def states(self, weights: list[np.ndarray]) -> list[list[np.ndarray]]:
        return [[np.full(w.shape, x, np.float32) for w in weights] for x in self.start]

    def __call__(self, weights: Any, grads: Any, state: Any, *, lr: Any = None, step: int = 1, **options: Any) -> None:
        known = {"step": step} if self.corrected else {}
        rate = self.lr if lr is None else lr
        function = getattr(ops, f"{self.name}_step")
        assert function(weights, grads, *state, lr=rate, **known, **{**self.hyper, **options}) is None

    @remembered
    def exact(
        self, w: Any, g: Any, state: Any, lr: float, step: int, decay: float, first: bool, **ready: Any
    ) -> oracle.Moments:
        decoupled = FACTS[self.name]["decoupled"]
        u = oracle.ready_gradient(w, g, l2=0.0 if decoupled else decay, **ready)
        state = list(state) + [None] * ({"sgd": 1, "adam": 3}.get(self.name, len(state)) - len(state))
        more: dict[str, Any] = {"step": step} if self.corrected else {}
        more |= {"decay": decay} if decoupled else {}
        more |= {"first": first} if self.begins else {}
        return getattr(oracle, f"{self.name}_step")(w, u, *state, lr=lr, **more, **self.hyper)


MOMENTS = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
ADAM = {**MOMENTS, "use_nesterov": False}
EMA_MIX = {**MOMENTS, "beta3": 0.9999, "alpha": 5.0, "alpha_steps": 0.0, "beta3_steps": 0.0}
ADAN = {"beta1": 0.98, "beta2": 0.92, "beta3": 0.99, "eps": 1e-8}
NO_MOMENTUM = {"momentum": 0.0, "dampening": 0.0, "nesterov": False}
RMS = {"decay": 0.9, "momentum": 0.5, "epsilon": 1e-6}
VARIANTS = {
    "sgd": Rule("sgd", (), NO_MOMENTUM),
    "sgd-momentum": Rule("sgd", (0.0,), {"momentum": 0.9, "dampening": 0.25, "nesterov": False}),
    "sgd-nesterov": Rule("sgd", (0.0,), {"momentum": 0.9, "dampening": 0.0, "nesterov": True}),
    "momentum": Rule("momentum", (0.0,), {"momentum": 0.9, "use_nesterov": False}),
    "momentum-nesterov": Rule("momentum", (0.0,), {"momentum": 0.9, "use_nesterov": True}),
    "adam": Rule("adam", (0.0, 0.0), ADAM),
    "adam-without-momentum": Rule("adam", (0.0, 0.0), {**ADAM, "beta1": 0.0}),
    "adam-nesterov": Rule("adam", (0.0, 0.0), {**ADAM, "use_nesterov": True, "beta2": 0.99}),
    "adam-amsgrad": Rule("adam", (0.0, 0.0, 0.0), {**ADAM, "beta2": 0.5}),
    "adam-amsgrad-nesterov": Rule("adam", (0.0, 0.0, 0.0), {**ADAM, "beta2": 0.5, "use_nesterov": True}),
    "adam_weight_decay": Rule("adam_weight_decay", (0.0, 0.0), {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}),
    "adamw": Rule("adamw", (0.0, 0.0), MOMENTS),
    "lamb": Rule("lamb", (0.0, 0.0), {"beta1": 0.9, "beta2": 0.999, "eps": 1e-6}),
    "lion": Rule("lion", (0.0,), {"beta1": 0.9, "beta2": 0.99}),
    "lion-cautious": Rule("lion", (0.0,), {"beta1": 0.9, "beta2": 0.99, "cautious": True}),
    "nadamw": Rule("nadamw", (0.0, 0.0), {**MOMENTS, "momentum_decay": 0.004}),
    "nadamw-fast": Rule("nadamw", (0.0, 0.0), {**MOMENTS, "beta1": 0.5, "momentum_decay": 0.5}),
    "ademamix": Rule("ademamix", (0.0, 0.0, 0.0), EMA_MIX),
    "ademamix-schedules": Rule("ademamix", (0.0, 0.0, 0.0), {**EMA_MIX, "alpha_steps": 7.0, "beta3_steps": 12.0}),
    "ademamix-from-zero": Rule("ademamix", (0.0, 0.0, 0.0), {**EMA_MIX, "beta1": 0.0, "beta3_steps": 12.0}),
    "adan": Rule("adan", (0.0, 0.0, 0.0, 0.0), ADAN),
    "schedule_free_sgd": Rule("schedule_free_sgd", (0.5,), {"averaging_weight": 0.3, "momentum": 0.9}),
    "schedule_free_sgd-begins": Rule("schedule_free_sgd", (0.5,), {"averaging_weight": 1.0, "momentum": 0.6}),
    "schedule_free_adamw": Rule("schedule_free_adamw", (0.5, 0.0), {"averaging_weight": 0.3, **MOMENTS}),
    "adagrad": Rule("adagrad", (0.1,), {"update_slots": True}),
    "adagrad-frozen": Rule("adagrad", (0.1,), {"update_slots": False}),
    "proximal_adagrad": Rule("proximal_adagrad", (0.1,), {"l1": 0.05, "l2": 0.3}),
    "proximal_adagrad-plain": Rule("proximal_adagrad", (0.0,), {"l1": 0.0, "l2": 0.0}),
    "rmsprop": Rule("rmsprop", (1.0, 0.0), RMS),
    "centered_rmsprop": Rule("centered_rmsprop", (0.0, 1.0, 0.0), RMS),
    "ftrl": Rule("ftrl", (0.1, 0.0), {"l1": 0.01, "l2": 0.1, "lr_power": -0.5}),
    "ftrl-power": Rule("ftrl", (0.1, 0.0), {"l1": 0.0, "l2": 0.0, "lr_power": -0.3}),
    "ftrl-flat": Rule("ftrl", (0.0, 0.0), {"l1": 0.01, "l2": 0.0, "lr_power": 0.0}),
}
CAUTIOUS = {
    "momentum": Rule("momentum", (0.0,), {"momentum": 0.9, "use_nesterov": True, "cautious": True}),
    "adam": Rule("adam", (0.0, 0.0), {**ADAM, "cautious": True}),
    "adam_weight_decay": Rule("adam_weight_decay", (0.0, 0.0), {**MOMENTS, "cautious": True}),
    "adamw": Rule("adamw", (0.0, 0.0), {**MOMENTS, "cautious": True}),
    "lion": Rule("lion", (0.0,), {"beta1": 0.9, "beta2": 0.99, "cautious": True}),
    "nadamw": Rule("nadamw", (0.0, 0.0), {**MOMENTS, "momentum_decay": 0.004, "cautious": True}),
    "ademamix": Rule("ademamix", (0.0, 0.0, 0.0), {**EMA_MIX, "cautious": True}),
    "adan": Rule("adan", (0.0, 0.0, 0.0, 0.0), {**ADAN, "cautious": True}),
}
"""Those of the flag."""
EACH_RULE = pytest.mark.parametrize("rule", VARIANTS.values(), ids=VARIANTS.keys())
ELEMENTWISE = {n: r for n, r in VARIANTS.items() if r.elementwise}
EACH_ELEMENTWISE = pytest.mark.parametrize("rule", ELEMENTWISE.values(), ids=ELEMENTWISE.keys())


def gradient(rng: np.random.Generator, shape: Any, dtype: Any = np.float32, scale: float = 1.0) -> np.ndarray:
    """Elements of sizes that differ by orders of magnitude, as layers' do; none underflows when it is squared."""
    size = scale * 10 ** rng.uniform(-3, 0, shape)
    return np.asarray(size * (normal(rng, shape) + 0.2), np.float32).astype(dtype)


def per_tensor(value: Any, count: int) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value] * count


class Training:
    """Steps of one rule on a list of tensors, each step checked from what the last one has left: weights, states and
    masters within what rounding explains, gradients untouched."""

    def __init__(self, rule: Rule, weights: list[np.ndarray], masters: bool = False, **settings: Any) -> None:
        self.rule, self.weights, self.settings = rule, weights, settings
        self.state, self.t = rule.states(weights), 0
        self.masters = [None if w.dtype == np.float32 else w.astype(np.float32) for w in weights] if masters else None

    def setting(self, name: str, default: Any) -> list[Any]:
        return per_tensor(self.settings.get(name, default), len(self.weights))

    def exact(self, wide: list[Any], grads: list[Any], state: list[list[Any]], first: bool) -> list[oracle.Moments]:
        """The step after the last one, tensor by tensor, of the oracle."""
        scale = self.settings.get("inv_scale", 1.0)
        columns = (self.setting(*s) for s in (("lr", self.rule.lr), ("weight_decay", 0.0), ("ratio", 1.0)))
        centralize = self.setting("centralize", False)
        return [
            self.rule.exact(w, g, s, lr, self.t, decay, first, inv_scale=scale, ratio=ratio, centralized=centered)
            for w, g, s, lr, decay, ratio, centered in zip(
                wide, grads, zip(*state, strict=True) if state else [()] * len(wide), *columns, centralize, strict=True
            )
        ]

    def step(self, grads: list[np.ndarray], first: bool = False) -> None:
        self.t += 1
        sources = [
            w if m is None else m for w, m in zip(self.weights, self.masters or [None] * len(self.weights), strict=True)
        ]
        expected = self.exact(
            [Rounded(w) for w in sources],
            [Rounded(g) for g in grads],
            [[Rounded(x) for x in s] for s in self.state],
            first,
        )
        untouched = [g.copy() for g in grads]
        more = {"masters": self.masters} if self.masters else {}
        more |= {"first": first} if self.rule.begins else {}
        self.rule(self.weights, grads, self.state, step=self.t, **self.settings, **more)
        for i, (w, moments) in enumerate(zip(sources, expected, strict=True)):
            assert_within(w, moments.w, f"weights[{i}], step {self.t}")
            for k, s in enumerate(moments.state):
                assert_within(self.state[k][i], s, f"state {k} of weights[{i}], step {self.t}")
            assert_same_bits(grads[i], untouched[i])
            assert_same_bits(self.weights[i], w.astype(self.weights[i].dtype))


KINDS = list(FLOATS.values())
