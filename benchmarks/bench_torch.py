"""boost_ext.torch beside torch.optim's fused optimizers: the 161 tensors of ResNet-50 with an eighth of its channels,
where calls cost more than memory, and with all; and one tensor of 25e6 elements. And AdamW and
rules that torch.optim lacks beside pytorch_optimizer, where it is installed, on 500 tensors."""

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


RULES: tuple[tuple[str, str, dict[str, Any], Callable[..., Any]], ...] = (
    ("AdamW", "AdamW", {"weight_decay": 0.01}, adamw),
    ("Adam", "Adam", {}, by_sign()),
    ("SGD", "SGD", {"momentum": 0.9}, sgd),
    ("AdamW8bit", "AdamW", {"weight_decay": 0.01}, adamw),
)


NEWER: tuple[tuple[str, dict[str, Any], Callable[..., Any]], ...] = (
    ("AdamW", {"weight_decay": 0.01}, adamw),
    ("Lion", {"weight_decay": 0.0}, by_sign()),
    ("Adan", {"weight_decay": 0.0}, by_sign()),
    ("AdEMAMix", {"weight_decay": 0.0}, by_sign(1 + 5 * 1e-4)),  # alpha = 5 times a slow average, with beta 0.9999
)


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
        for divisor, goal in ((16, 1.5),) if quick else ((8, 1.5), (1, 1.0)):
            yield _case(name, theirs, keywords, answer, resnet50(divisor), goal if name == theirs else None)
        yield _case(name, theirs, keywords, answer, [300_000 if quick else 25_000_000], 1.0 if name == theirs else None)
    if find_spec("pytorch_optimizer"):
        for name, keywords, answer in NEWER:
            yield _case(name, name, keywords, answer, [300] * 500, 5.0, "pytorch_optimizer")


def _case(
    name: str,
    theirs: str,
    keywords: dict[str, Any],
    answer: Callable[..., Any],
    sizes: list[int],
    goal: float | None,
    library: str = "torch.optim",
) -> Case:
    from boost_ext import torch as boost

    n, ends = sum(sizes), np.cumsum(sizes)[:-1]
    start, g = uniform(n, seed=1), uniform(n, seed=2)
    gradient = np.float32(0.5) * g + np.copysign(np.float32(0.5), g)  # nowhere near eps
    flat = start.copy()
    grads = np.split(gradient, ends)
    ours, others = (torch_weights(np.split(a, ends), grads) for a in (flat, start.copy()))
    optimizer = getattr(boost, name)(ours, lr=LR, **keywords)
    fused = {"fused": True} if library == "torch.optim" else {}
    other = getattr(import_module(library), theirs)(others, lr=LR, **fused, **keywords)

    def stepped(chosen: Any, weights: Any) -> Callable[[], Any]:
        def run() -> Any:
            chosen.step()
            return weights

        return run

    def reset() -> None:
        flat[...] = start
        optimizer.state.clear()

    return Case(
        f"torch.{name}, {len(sizes)} tensors, {n:.1e}",
        ours=stepped(optimizer, ours),
        reference=lambda: np.split(answer(start.astype(np.float64), gradient.astype(np.float64)), ends),
        peers=(Peer(f"{library}.{theirs}{' fused' * bool(fused)}", stepped(other, others), goal),),
        reset=reset,
    )
