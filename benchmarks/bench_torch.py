"""boost_ext.torch beside torch.optim's fused optimizers: the 161 tensors of ResNet-50 with an eighth of its channels,
where calls cost more than memory, and with all; and one tensor of 25e6 elements. Where they are installed: AdamW with
8-bit state beside those of bitsandbytes and torchao, and AdamW and rules that torch.optim lacks beside
pytorch_optimizer, on 500 tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import torch_weights

LR = 0.1


def adamw(w: Any, g: Any) -> Any:
    """The first step, in which the corrections cancel."""
    return w - LR * (g / (abs(g) + 1e-8) + 0.01 * w)


def by_sign(factor: float = 1.0) -> Callable[..., Any]:
    """The first step of rules without decay: by the sign of the gradient, times a factor."""
    return lambda w, g: w - LR * factor * g / (abs(g) + 1e-8)


def sgd(w: Any, g: Any) -> Any:
    return w - LR * g


FUSED = "torch.optim"
EIGHT_BITS = (("bitsandbytes.optim", "AdamW8bit"), ("torchao.optim", "AdamW8bit"))

RULES: tuple[tuple[str, tuple[tuple[str, str], ...], dict[str, Any], Callable[..., Any]], ...] = (
    ("AdamW", ((FUSED, "AdamW"),), {"weight_decay": 0.01}, adamw),
    ("Adam", ((FUSED, "Adam"),), {}, by_sign()),
    ("SGD", ((FUSED, "SGD"),), {"momentum": 0.9}, sgd),
    ("AdamW8bit", ((FUSED, "AdamW"), *EIGHT_BITS), {"weight_decay": 0.01}, adamw),
)
"""With their peers: a module and a class."""

MU = 0.45  # of NAdam's first steps without momentum_decay: half of beta1
NEWER: tuple[tuple[str, str, dict[str, Any], Callable[..., Any]], ...] = (
    ("AdamW", "AdamW", {"weight_decay": 0.01}, adamw),
    ("Lion", "Lion", {"weight_decay": 0.0}, by_sign()),
    ("NAdamW", "NAdam", {"weight_decay": 0.0, "momentum_decay": 0.0}, by_sign(1 + 0.1 * MU / (1 - MU**2))),
    ("Adan", "Adan", {"weight_decay": 0.0}, by_sign()),
    ("AdEMAMix", "AdEMAMix", {"weight_decay": 0.0}, by_sign(1 + 5 * 1e-4)),  # alpha = 5, and beta3 0.9999
    ("ScheduleFreeSGD", "ScheduleFreeSGD", {}, sgd),
    ("ScheduleFreeAdamW", "ScheduleFreeAdamW", {}, by_sign()),
)
"""With their peers in pytorch_optimizer, whose NAdam is torch's."""


def resnet50(divisor: int) -> list[int]:
    """The sizes of its 161 parameters, with a `divisor`-th of the channels."""

    def convolution(inputs: int, outputs: int, window: int) -> list[int]:
        return [inputs * outputs * window**2, outputs, outputs]  # and its batch norm

    sizes, inputs = convolution(3, 64 // divisor, 7), 64 // divisor
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        c = width // divisor
        for block in range(blocks):
            sizes += convolution(inputs, c, 1) + convolution(c, c, 3) + convolution(c, 4 * c, 1)
            sizes += convolution(inputs, 4 * c, 1) if block == 0 else []
            inputs = 4 * c
    return [*sizes, inputs * 1000, 1000]


def cases(quick: bool) -> Iterator[Case]:
    if torch_or_none() is None:
        return
    for name, theirs, keywords, answer in RULES:
        peers = [(library, other) for library, other in theirs if find_spec(library.partition(".")[0])]
        same = name == theirs[0][1]  # the same state, too
        for divisor, goal in ((16, 1.5),) if quick else ((8, 1.5), (1, 1.0)):
            yield _case(name, peers, keywords, answer, resnet50(divisor), goal if same else None)
        yield _case(name, peers, keywords, answer, [300_000 if quick else 25_000_000], 1.0 if same else None)
    if find_spec("pytorch_optimizer"):
        for name, other, keywords, answer in NEWER:
            yield _case(name, [("pytorch_optimizer", other)], keywords, answer, [300] * 500, 5.0)


def _case(
    name: str,
    theirs: list[tuple[str, str]],
    keywords: dict[str, Any],
    answer: Callable[..., Any],
    sizes: list[int],
    goal: float | None,
) -> Case:
    from boost_ext import torch as boost

    n, ends = sum(sizes), np.cumsum(sizes)[:-1]
    start, g = uniform(n, seed=1), uniform(n, seed=2)
    gradient = np.float32(0.5) * g + np.copysign(np.float32(0.5), g)  # nowhere near eps
    flat = start.copy()
    grads = np.split(gradient, ends)

    def stepping(kind: type, weights: Any, **more: Any) -> tuple[Any, Callable[[], Any]]:
        optimizer = kind(weights, lr=LR, **more, **keywords)

        def run() -> Any:
            optimizer.step()
            return weights

        return optimizer, run

    def peer(library: str, other: str) -> Peer:
        fused = {"fused": True} if library == FUSED else {}
        _, run = stepping(
            getattr(import_module(library), other), torch_weights(np.split(start.copy(), ends), grads), **fused
        )
        return Peer(f"{library}.{other}{' fused' * bool(fused)}", run, goal)

    optimizer, ours = stepping(getattr(boost, name), torch_weights(np.split(flat, ends), grads))

    def reset() -> None:
        flat[...] = start
        optimizer.state.clear()

    return Case(
        f"torch.{name}, {len(sizes)} tensors, {n:.1e}",
        ours=ours,
        reference=lambda: np.split(answer(start.astype(np.float64), gradient.astype(np.float64)), ends),
        peers=tuple(peer(library, other) for library, other in theirs),
        reset=reset,
    )
