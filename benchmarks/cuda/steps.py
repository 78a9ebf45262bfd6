"""Steps of optimizers beside PyTorch's fused and foreach ones, and the whole guarded step beside GradScaler,
clip_grad_norm_ and fused Adam.

The settings are such that the first step is the same in both; PyTorch's epsilon stands beside the corrected root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from boost_ext import ops
from boost_ext.bench.harness import Peer
from boost_ext.bench.peers import grad_scaler_step

from .devices import Device
from .layouts import CudaCase, Layout, Layouts

LR, BETA1, BETA2, DECAY = 0.1, 0.9, 0.999, 0.01
EPS = 0.01
ROOT = math.sqrt(1 - BETA2)
UNCORRECTED = LR * ROOT / (1 - BETA1)  # the learning rate of a first step without a correction of the bias


def adam(w: Any, g: Any, eps: float = EPS) -> Any:
    return w - LR * g / (abs(g) + eps)


@dataclass(frozen=True)
class Rule:
    name: str
    states: int
    keywords: dict[str, Any]
    answer: Callable[[Any, Any], Any]
    torch: tuple[str, dict[str, Any]]


_MOMENTS = {"beta1": BETA1, "beta2": BETA2, "eps": EPS * ROOT}
_TORCH = {"betas": (BETA1, BETA2), "eps": EPS}
RULES = (
    Rule("sgd", 0, {"lr": LR}, lambda w, g: w - LR * g, ("SGD", {})),
    Rule("momentum", 1, {"lr": LR, "momentum": 0.9}, lambda w, g: w - LR * g, ("SGD", {"momentum": 0.9})),
    Rule("adam", 2, {"lr": LR, "step": 1, **_MOMENTS}, adam, ("Adam", _TORCH)),
    Rule(
        "adam_weight_decay",
        2,
        {"lr": UNCORRECTED, "weight_decay": LR * DECAY / UNCORRECTED, **_MOMENTS},
        lambda w, g: adam(w, g) - LR * DECAY * w,
        ("AdamW", {**_TORCH, "weight_decay": DECAY}),
    ),
)


class Weights:
    """Weights, gradients and states of a layout, each flat and as tensors."""

    def __init__(self, device: Device, layout: Layout, states: int) -> None:
        self.device, self.layout = device, layout
        self.start, self.gradient = (device.uniform(layout.room, seed) for seed in (1, 2))
        self.flat = device.clone(self.start)
        self._states = [device.full((layout.room,), 0) for _ in range(states)]
        self._zero = device.full((layout.room,), 0) if states else None
        self.weights, self.grads, *self.states = (
            device.split(t, layout.places) for t in (self.flat, self.gradient, *self._states)
        )

    def reset(self) -> None:
        self.device.copy(self.flat, self.start)
        for state in self._states:
            self.device.copy(state, self._zero)

    def reference(self, answer: Callable[[Any, Any], Any]) -> list[Any]:
        wide = self.device.wide
        starts = self.device.split(self.start, self.layout.places)
        return [answer(wide(w), wide(g)) for w, g in zip(starts, self.grads, strict=True)]

    def of_torch(self) -> list[Any]:
        """The weights as ``torch.optim`` takes them, with gradients of their own: some peers change them."""
        tensors = [self.device.tensor(w) for w in self.weights]
        for tensor, grad in zip(tensors, self.grads, strict=True):
            tensor.grad = self.device.tensor(grad).clone()
        return tensors


def optimizer_step(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for rule in RULES:
        yield _step(device, rule, sizes.large)
        yield _step(device, rule, sizes.many)
        yield _step(device, rule, sizes.tiny)
        if rule.name == "adam":
            yield _step(device, rule, sizes.cut)
            yield _step(device, rule, sizes.many, whole_call=True)
            yield _step(device, rule, sizes.tiny, whole_call=True)


def _step(device: Device, rule: Rule, layout: Layout, whole_call: bool = False) -> CudaCase:
    tensors, peers = Weights(device, layout, rule.states), []
    if device.torch:
        name, settings = rule.torch
        for way in ("fused", "foreach"):
            theirs = tensors.of_torch()
            optimizer = getattr(device.torch.optim, name)(theirs, lr=LR, **settings, **{way: True})
            peers.append(_peer(f"PyTorch {name} {way}", optimizer, theirs, None if whole_call else 1))

    def ours() -> Any:
        getattr(ops, f"{rule.name}_step")(tensors.weights, tensors.grads, *tensors.states, **rule.keywords)
        return tensors.weights

    return CudaCase(
        f"{rule.name}, {layout}" + ", with the host's part" * whole_call,
        ours,
        lambda: tensors.reference(rule.answer),
        tuple(peers),
        None if whole_call else 4 * (3 + 2 * rule.states) * layout.n,
        bandwidth_goal=layout.bandwidth_goal,
        reset=tensors.reset,
        whole_call=whole_call,
    )


def _peer(name: str, optimizer: Any, tensors: list[Any], goal: float | None) -> Peer:
    def run() -> Any:
        optimizer.step()
        return tensors

    return Peer(name, run, goal)


def guarded_step(device: Device, sizes: Layouts) -> Iterator[CudaCase]:
    for layout in (sizes.middle, sizes.many, sizes.large):
        yield _guarded(device, layout)
    yield _guarded(device, sizes.many, whole_call=True)


def _guarded(device: Device, layout: Layout, whole_call: bool = False) -> CudaCase:
    """Ours reads the gradients once for check and norm and does the rest in the pass that updates. Nothing comes to
    the host. The loss scale is 1, since PyTorch divides the gradients in place, call after call."""
    eps = 0.5  # large, or the first step would not show the clipping
    tensors = Weights(device, layout, 2)
    clip_norm = 0.5 * float(sum((device.wide(g) ** 2).sum() for g in tensors.grads)) ** 0.5
    norm, factor, found = device.full((1,), 0, "float64"), device.full((1,), 0), device.full((1,), 0)
    settle = device.clipping(norm, clip_norm, factor, found)
    keywords = {"lr": LR, "step": 1, "beta1": BETA1, "beta2": BETA2, "eps": eps * ROOT}

    def ours() -> Any:
        ops.global_norm(tensors.grads, out=norm)
        settle()
        ops.adam_step(tensors.weights, tensors.grads, *tensors.states, **keywords, inv_scale=factor, skip=found)
        return tensors.weights

    peers = []
    if device.torch:
        goal = None if whole_call else 1.3
        peers.append(grad_scaler_step(tensors.of_torch(), clip_norm, goal, lr=LR, betas=(BETA1, BETA2), eps=eps))
    return CudaCase(
        f"guarded Adam step, {layout}" + ", with the host's part" * whole_call,
        ours,
        lambda: tensors.reference(lambda w, g: adam(w, 0.5 * g, eps)),
        tuple(peers),
        None if whole_call else 32 * layout.n,
        bandwidth_goal=0.8 if layout.large and not whole_call else None,
        reset=tensors.reset,
        whole_call=whole_call,
    )
