"""State in 8 and 16 bits, and split masters: a step on 60 tensors of 25e6 elements beside the same step on float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import split
from boost_ext.bench.frameworks import bfloat16
from boost_ext.bench.harness import Case, Peer

from .bench_optimizer_step import LR, RULES, Rule, data

NAMES = ("momentum", "adam", "adam_weight_decay", "lamb")
BYTES = {"float32": 4.0, "bfloat16": 2.0, "uint8": 1 + 4 / 256}


def cases(quick: bool) -> Iterator[Case]:
    n = 300_000 if quick else 25_000_000
    for rule in RULES:
        if rule.name in NAMES:
            yield from stored(rule, n, 60)
        if rule.name == "adamw":
            yield from mastered(rule, n, 60)


class Step:
    """One rule on state of one storage."""

    def __init__(self, rule: Rule, start: Any, gradient: Any, kind: str, count: int) -> None:
        self.rule, self.start, self.flat = rule, start, start.copy()
        self.weights, self.grads = split(self.flat, count), split(gradient, count)
        zeros = bfloat16(np.zeros(start.size, np.float32)) if kind == "bfloat16" else np.zeros(start.size, kind)
        self.flat_state = [zeros.copy() for _ in rule.start]
        self.state = [split(s, count) for s in self.flat_state]
        self.scales = None
        if kind == "uint8":
            self.scales = [[np.zeros(-(-s.size // 256), np.float32) for s in states] for states in self.state]

    def __call__(self) -> Any:
        step = getattr(ops, f"{self.rule.name}_step")
        keywords = {"step": 1, **self.rule.keywords}
        step(self.weights, self.grads, *self.state, lr=LR, scales=self.scales, **keywords)
        return self.weights

    def reset(self) -> None:
        self.flat[...] = self.start
        for s in self.flat_state:
            s[...] = 0


def stored(rule: Rule, n: int, count: int) -> Iterator[Case]:
    start, gradient = data(n)
    pairs = zip(split(start, count), split(gradient, count), strict=True)
    reference = [rule.answer(w.astype(np.float64), g.astype(np.float64)) for w, g in pairs]
    for kind in ("bfloat16", "uint8"):
        if kind == "bfloat16" and bfloat16(start[:1]) is None:
            continue
        ours, wide = Step(rule, start, gradient, kind, count), Step(rule, start, gradient, "float32", count)
        per_element = rule.traffic + (BYTES[kind] - 4) * len(rule.start) * (2 if rule.sweeps == 1 else 3)
        yield Case(
            f"{rule.name}_step, {kind} state, {count} tensors, {n:.1e}",
            ours=ours,
            reference=lambda: reference,
            peers=(Peer("float32 state", wide),),
            traffic=int(per_element * n),
            access="update",
            tolerance=0.05 if rule.name == "lamb" else 1e-5,  # which steps by rounded moments
            reset=ours.reset,
        )


class MasteredStep(Step):
    """The same on bfloat16 weights and gradients, with masters of some dtype."""

    def __init__(self, rule: Rule, start: Any, gradient: Any, kind: str, masters: str, count: int) -> None:
        super().__init__(rule, start, gradient, kind, count)
        self.first = start.astype(masters) if masters == "float32" else np.zeros(start.size, masters)
        self.flat_masters = self.first.copy()
        self.masters = split(self.flat_masters, count)

    def __call__(self) -> Any:
        keywords = {"step": 1, **self.rule.keywords, "masters": self.masters, "scales": self.scales}
        ops.adamw_step(self.weights, self.grads, *self.state, lr=LR, **keywords)
        return self.weights

    def reset(self) -> None:
        super().reset()
        self.flat_masters[...] = self.first


def mastered(rule: Rule, n: int, count: int) -> Iterator[Case]:
    """Beside float32 masters, with float32 state and with the same state."""
    start, gradient = (bfloat16(x) for x in data(n))
    if start is None:
        return
    pairs = zip(split(start, count), split(gradient, count), strict=True)
    reference = [rule.answer(w.astype(np.float64), g.astype(np.float64)) for w, g in pairs]
    for bits in (16, 8):
        ours, wide, same = (
            MasteredStep(rule, start, gradient, kind, masters, count)
            for kind, masters in (("uint8", f"int{bits}"), ("float32", "float32"), ("uint8", "float32"))
        )
        yield Case(
            f"adamw_step bf16, uint8 state, split{bits} masters, {count} tensors, {n:.1e}",
            ours=ours,
            reference=lambda: reference,
            peers=(Peer("float32 masters, uint8 state", same, 1), Peer("float32 masters and state", wide)),
            traffic=int((2 + 4 + bits // 4 + 4 * BYTES["uint8"]) * n),
            access="update",
            tolerance=2.0**-8,
            reset=ours.reset,
        )
