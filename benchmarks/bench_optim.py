"""boost_ext.optim beside mindspore.nn: one call of an optimizer on 60 tiny tensors, where what a call costs shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from .harness import Case, Peer
from .peers import in_mode, mindspore_or_none, settled

# The steps train; at this learning rate they arrive nowhere, and every call has the same answer.
REST = 1e-30
# FTRL is not among them: its weights follow from its state alone, at any learning rate.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Momentum": {"momentum": 0.9},
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "AdamWeightDecay": {"weight_decay": 0.01},
    "Adagrad": {},
    "RMSProp": {},
}


def cases(quick: bool) -> Iterator[Case]:
    ms = mindspore_or_none()
    if ms is None:
        return
    from boost_ext import optim

    modes = {"PyNative": (ms.PYNATIVE_MODE, 15), "graph": (ms.GRAPH_MODE, None)}
    for name in list(OPTIMIZERS)[: 2 if quick else None]:
        for label, (mode, goal) in modes.items():
            ours, theirs = (partial(stepped, *made(ms, package, name)) for package in (optim, ms.nn))
            around = partial(in_mode, mode)
            yield Case(
                f"optim.{name} {label}, 60 tensors of 300",
                ours=ours,
                reference=lambda: [start().astype(np.float64)] * 60,
                peers=(Peer(f"nn.{name} {label}", theirs, goal, around),),
                around=around,
            )


def start() -> Any:
    return np.linspace(0.1, 1, 300, dtype=np.float32)


def made(ms: Any, package: Any, name: str) -> Any:
    """The step of an optimizer in a Cell that holds the gradients: as arguments they would cost 15 µs each."""

    class Step(ms.nn.Cell):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            weights = [ms.Parameter(ms.Tensor(start()), name=f"w{i}") for i in range(60)]
            self.optimizer = getattr(package, name)(weights, learning_rate=REST, **OPTIMIZERS[name])
            self.grads = ms.ParameterTuple([ms.Parameter(ms.Tensor(start()), name=f"g{i}") for i in range(60)])

        def construct(self) -> Any:
            return self.optimizer(self.grads)

    cell = Step()
    return cell, list(cell.optimizer.parameters)


def stepped(cell: Any, weights: Any) -> Any:
    cell()
    return settled(weights)
