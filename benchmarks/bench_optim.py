"""boost_ext.optim beside mindspore.nn: one call of an optimizer on 60 tiny tensors, where what a call costs shows."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from boost_ext.bench.frameworks import mindspore_or_none
from boost_ext.bench.harness import Case, Peer
from boost_ext.bench.peers import in_mode, optimizer_cell, stepped

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
    "ProximalAdagrad": {},
    "LazyAdam": {},
    "AdamOffload": {},
    "AdaFactor": {"scale_parameter": False, "relative_step": False},
    "Lamb": {},
    "LARS": {"momentum": 0.9},
}
# These MindSpore does not run on a CPU: they stand beside ours of which they are more than that.
BESIDE_OURS = {"Lamb": "Adam", "LARS": "Momentum"}


def cases(quick: bool) -> Iterator[Case]:
    ms = mindspore_or_none()
    if ms is None:
        return
    from boost_ext import optim

    modes = {"PyNative": (ms.PYNATIVE_MODE, 15), "graph": (ms.GRAPH_MODE, None)}
    for name in list(OPTIMIZERS)[: 2 if quick else None]:
        simpler = BESIDE_OURS.get(name)
        for label, (mode, goal) in modes.items():
            ours = partial(stepped, made(optim, name))
            theirs = partial(stepped, made(optim, simpler) if simpler else made(ms.nn, name))
            around = partial(in_mode, mode)
            peer = f"optim.{simpler} {label}" if simpler else f"nn.{name} {label}"
            yield Case(
                f"optim.{name} {label}, 60 tensors of 300",
                ours=ours,
                reference=lambda: [start().astype(np.float64)] * 60,
                peers=(Peer(peer, theirs, None if simpler else goal, around),),
                around=around,
            )


def start() -> Any:
    return np.linspace(0.1, 1, 300, dtype=np.float32)


def made(package: Any, name: str) -> Any:
    """A Cell that steps this class of a package."""

    def make(parameters: Any) -> Any:
        if name == "LARS":
            return package.LARS(package.Momentum(parameters, learning_rate=REST, **OPTIMIZERS[name]))
        return getattr(package, name)(parameters, learning_rate=REST, **OPTIMIZERS[name])

    arrays = [start()] * 60
    return optimizer_cell(make, arrays, arrays)
