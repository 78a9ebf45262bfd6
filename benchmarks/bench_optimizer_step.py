"""optimizer_step: each rule on one tensor of 25e6 elements, on 500 of 20e6 and on 60 tiny ones, beside MindSpore's
optimizers, PyTorch's and NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from boost_ext import ops
from boost_ext.bench.data import split, uniform
from boost_ext.bench.frameworks import bfloat16, mindspore_or_none, torch_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import optimizer_peers, torch_weights

LR = 0.1
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
RMS = {"decay": 0.9, "epsilon": 1e-10}


@dataclass(frozen=True)
class Rule:
    name: str
    answer: Callable[[Any, Any], Any]
    """The weights after the first step, of weights and gradients in float64."""
    start: tuple[float, ...] = ()
    """What the states hold before."""
    keywords: dict[str, Any] = field(default_factory=dict)
    mindspore: tuple[str, dict[str, Any]] | None = None
    torch: tuple[str, dict[str, Any]] | None = None
    numpy: Callable[..., None] | None = None
    sweeps: int = 1
    goals: tuple[float, float] = (2, 4)
    """Beside MindSpore: one large tensor, many tensors."""

    @property
    def traffic(self) -> int:
        """Bytes an element: reads gradients, reads and writes the others; a second sweep reads all but gradients."""
        states = len(self.start)
        return 4 * (1 + 2 * (1 + states)) if self.sweeps == 1 else 4 * (2 + 2 * states + 2 + states)

    def __call__(self, weights: Any, grads: Any, state: Any) -> Any:
        getattr(ops, f"{self.name}_step")(weights, grads, *state, lr=LR, **self.keywords)
        return weights


def adam(w: Any, g: Any) -> Any:
    """The corrections cancel in the first step."""
    return w - LR * g / (abs(g) + ADAM["eps"] / 0.001**0.5)


def adam_weight_decay(w: Any, g: Any) -> Any:
    return w - LR * (0.1 * g / (0.001**0.5 * abs(g) + 1e-6) + 0.01 * w)


def adamw(w: Any, g: Any) -> Any:
    """The corrections cancel in the first step."""
    return w - LR * (g / (abs(g) + ADAM["eps"]) + 0.01 * w)


def lion(w: Any, g: Any) -> Any:
    return w - LR * (np.sign(g) + 0.01 * w)


def nadamw(w: Any, g: Any) -> Any:
    """The moment is g / 10, which the corrections do not cancel."""
    now, after = (0.9 * (1 - 0.5 * 0.96 ** (0.004 * i)) for i in (1, 2))
    return w - LR * ((0.1 * after / (1 - now * after) + 1) * g / (abs(g) + ADAM["eps"]) + 0.01 * w)


def ademamix(w: Any, g: Any) -> Any:
    return w - LR * ((1 + 5 * 0.0001) * g / (abs(g) + ADAM["eps"]) + 0.01 * w)


def adan(w: Any, g: Any) -> Any:
    """The gradient has not changed yet."""
    return (w - LR * g / (abs(g) + 1e-8)) / (1 + LR * 0.01)


def schedule_free_sgd(w: Any, g: Any) -> Any:
    """Of z = 0 and a tenth of the way."""
    return 0.9 * w - LR * (1 - 0.9 * 0.9) * g


def schedule_free_adamw(w: Any, g: Any) -> Any:
    return schedule_free_sgd(w, g / (abs(g) + ADAM["eps"]) + 0.01 * w)


def lamb(w: Any, g: Any) -> Any:
    r = g / (abs(g) + 1e-6) + 0.01 * w
    return w - LR * np.linalg.norm(w) / np.linalg.norm(r) * r


def adagrad(w: Any, g: Any) -> Any:
    return w - LR * g / np.sqrt(0.1 + g * g)


def rmsprop(w: Any, g: Any) -> Any:
    return w - LR * g / np.sqrt(0.9 + 0.1 * g * g)


def centered_rmsprop(w: Any, g: Any) -> Any:
    return w - LR * g / np.sqrt(0.9 + 0.1 * g * g - (0.1 * g) ** 2)


def ftrl(w: Any, g: Any) -> Any:
    root = np.sqrt(0.1 + g * g)
    return ((root - np.sqrt(0.1)) * w - LR * g) / root


def numpy_momentum(w: Any, g: Any, a: Any) -> None:
    a *= np.float32(0.9)
    a += g
    w -= np.float32(LR) * a


def numpy_adam(w: Any, g: Any, m: Any, v: Any) -> None:
    """As after many steps: without bias correction, which would be another scalar."""
    m *= np.float32(0.9)
    m += np.float32(0.1) * g
    v *= np.float32(0.999)
    v += np.float32(0.001) * (g * g)
    rate = np.float32(LR * 0.001**0.5 / 0.1)
    w -= rate * m / (np.sqrt(v) + np.float32(1e-8))


def numpy_adagrad(w: Any, g: Any, h: Any) -> None:
    h += g * g
    w -= np.float32(LR) * g / np.sqrt(h)


SGD = lambda w, g: w - LR * g  # noqa: E731
RULES = (
    Rule("sgd", SGD, mindspore=("SGD", {}), torch=("SGD", {})),
    Rule(
        "momentum",
        SGD,
        (0.0,),
        {"momentum": 0.9},
        ("Momentum", {"momentum": 0.9}),
        ("SGD", {"momentum": 0.9}),
        numpy_momentum,
    ),
    Rule(
        "adam",
        adam,
        (0.0, 0.0),
        {**ADAM, "step": 1},
        ("Adam", ADAM),
        ("Adam", {}),
        numpy_adam,
        goals=(1, 4),
    ),
    Rule(
        "adam_weight_decay",
        adam_weight_decay,
        (0.0, 0.0),
        {"weight_decay": 0.01},
        ("AdamWeightDecay", {"weight_decay": 0.01}),
        goals=(2, 8),
    ),
    Rule("adamw", adamw, (0.0, 0.0), {"weight_decay": 0.01, "step": 1}, torch=("AdamW", {"weight_decay": 0.01})),
    Rule("lion", lion, (0.0,), {"weight_decay": 0.01}),
    Rule(
        "nadamw",
        nadamw,
        (0.0, 0.0),
        {"weight_decay": 0.01, "step": 1},
        torch=("NAdam", {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    ),
    Rule("ademamix", ademamix, (0.0, 0.0, 0.0), {"weight_decay": 0.01, "step": 1}),
    Rule("adan", adan, (0.0, 0.0, 0.0, 0.0), {"weight_decay": 0.01, "step": 1}),
    Rule("schedule_free_sgd", schedule_free_sgd, (0.0,), {"averaging_weight": 0.1}),
    Rule(
        "schedule_free_adamw",
        schedule_free_adamw,
        (0.0, 0.0),
        {"weight_decay": 0.01, "averaging_weight": 0.1, "step": 1},
    ),
    Rule("lamb", lamb, (0.0, 0.0), {"weight_decay": 0.01, "step": 1}, sweeps=2),  # MindSpore has none on CPU
    Rule(
        "adagrad",
        adagrad,
        (0.1,),
        {},
        ("Adagrad", {"accum": 0.1}),
        ("Adagrad", {"initial_accumulator_value": 0.1}),
        numpy_adagrad,
    ),
    Rule("proximal_adagrad", adagrad, (0.1,), {}, ("ProximalAdagrad", {"accum": 0.1})),
    Rule("rmsprop", rmsprop, (1.0, 0.0), RMS, ("RMSProp", RMS)),
    Rule("centered_rmsprop", centered_rmsprop, (0.0, 1.0, 0.0), RMS, ("RMSProp", {**RMS, "centered": True})),
    Rule("ftrl", ftrl, (0.1, 0.0), {}, ("FTRL", {"initial_accum": 0.1})),
)


def cases(rule: Rule, quick: bool) -> Iterator[Case]:
    large, many, count = (300_000, 200_000, 10) if quick else (25_000_000, 20_000_000, 500)
    yield from sized(rule, large, 1, bandwidth_goal=0.85, goal=rule.goals[0])
    yield from sized(rule, many, count, bandwidth_goal=0.8, goal=rule.goals[1])
    if not quick:
        yield from sized(rule, 18_000, 60, bandwidth_goal=None, goal=15)


def data(n: int) -> tuple[Any, Any]:
    """Weights, and gradients that are nowhere near the eps of a rule, which stands elsewhere in PyTorch's."""
    g = uniform(n, seed=2)
    return uniform(n, seed=1), np.float32(0.5) * g + np.copysign(np.float32(0.5), g)


def sized(rule: Rule, n: int, count: int, bandwidth_goal: float | None, goal: float) -> Iterator[Case]:
    start, gradient = data(n)
    flat, flat_state = start.copy(), [np.full(n, x, np.float32) for x in rule.start]
    weights, grads, *state = (split(a, count) for a in (flat, gradient, *flat_state))

    def reset() -> None:
        flat[...] = start
        for s, x in zip(flat_state, rule.start, strict=True):
            s.fill(x)

    def reference() -> Any:
        pairs = zip(split(start, count), grads, strict=True)
        return [rule.answer(w.astype(np.float64), g.astype(np.float64)) for w, g in pairs]

    tiny = bandwidth_goal is None
    yield Case(
        f"{rule.name}_step, {count} tensors, {n:.1e}",
        ours=lambda: rule(weights, grads, state),
        reference=reference,
        peers=(
            *_numpy(rule, weights, grads, state),
            *_torch(rule, split(start, count), grads),
            *_mindspore(rule, split(start, count), grads, goal, tiny),
        ),
        traffic=None if tiny else rule.traffic * n,
        access="update",
        bandwidth_goal=bandwidth_goal,
        reset=reset,
    )


def _numpy(rule: Rule, weights: Any, grads: Any, state: Any) -> Iterator[Peer]:
    step = rule.numpy
    if step is None:
        return

    def run() -> Any:
        for arrays in zip(weights, grads, *state, strict=True):
            step(*arrays)
        return weights

    yield Peer("NumPy", run, goal=2)


def _torch(rule: Rule, weights: Any, grads: Any) -> Iterator[Peer]:
    torch = torch_or_none()
    if not torch or rule.torch is None:
        return
    name, keywords = rule.torch

    def stepped(kind: str) -> Any:
        tensors = torch_weights([w.copy() for w in weights], grads)
        optimizer = getattr(torch.optim, name)(tensors, lr=LR, **keywords, **{kind: True})

        def run() -> Any:
            optimizer.step()
            return tensors

        return run

    if name != "NAdam":  # which PyTorch has not fused
        yield Peer(f"PyTorch {name} fused", stepped("fused"), goal=1)
    yield Peer(f"PyTorch {name} foreach", stepped("foreach"), goal=1)


def _mindspore(rule: Rule, weights: Any, grads: Any, goal: float, tiny: bool) -> Iterator[Peer]:
    ms = mindspore_or_none()
    if ms is None or rule.mindspore is None:
        return
    name, keywords = rule.mindspore

    yield from optimizer_peers(
        f"nn.{name}",
        lambda parameters: getattr(ms.nn, name)(parameters, learning_rate=LR, **keywords),
        weights,
        grads,
        pynative_goal=goal,
        graph_goal=None if tiny else goal,
    )


def masters(quick: bool) -> Iterator[Case]:
    """Half weights and gradients beside their float32 masters: 2 + 2 and 4 + 4 bytes for the gradient's 2."""
    n = 300_000 if quick else 25_000_000
    rule = next(r for r in RULES if r.name == "adam")
    start, gradient = data(n)
    narrow, narrow_gradient = bfloat16(start), bfloat16(gradient)
    if narrow is None:
        return
    flat, master, state = narrow.copy(), narrow.astype(np.float32), [np.zeros(n, np.float32) for _ in range(2)]
    weights, wide, grads, *states = (split(a, 60) for a in (flat, master, narrow_gradient, *state))

    def ours() -> Any:
        ops.adam_step(weights, grads, *states, lr=LR, **rule.keywords, masters=wide)
        return wide

    def reset() -> None:
        flat[...] = narrow
        master[...] = narrow
        for s in state:
            s.fill(0)

    yield Case(
        f"adam_step bf16 with masters, 60 tensors, {n:.1e}",
        ours=ours,
        reference=lambda: split(adam(narrow.astype(np.float64), narrow_gradient.astype(np.float64)), 60),
        traffic=30 * n,
        access="update",
        bandwidth_goal=0.8,
        reset=reset,
    )


def rows(quick: bool) -> Iterator[Case]:
    """An embedding of which a batch touches some rows, beside the step of the whole table."""
    count, width, listed = (2_000, 64, 200) if quick else (200_000, 64, 8_000)
    rule = next(r for r in RULES if r.name == "adam")
    start = uniform(count * width, seed=1).reshape(count, width)
    table, state = start.copy(), [np.zeros_like(start) for _ in range(2)]
    index = np.random.default_rng(0).permutation(count)[:listed].astype(np.int32)
    values = data(listed * width)[1].reshape(listed, width)
    dense = np.zeros_like(start)
    dense[index] = values

    def ours() -> Any:
        ops.adam_step(table, values, *state, lr=LR, **rule.keywords, indices=index)
        return table

    def reset() -> None:
        table[...] = start
        for s in state:
            s.fill(0)

    def reference() -> Any:
        return adam(start.astype(np.float64), dense.astype(np.float64))

    whole = Peer("the whole table", lambda: rule([table], [dense], [[s] for s in state])[0], goal=2)
    yield Case(f"adam_step, {listed} rows of {count} x {width}", ours, reference, (whole,), reset=reset)


PROCESSES = (*(partial(cases, rule) for rule in RULES), masters, rows)
