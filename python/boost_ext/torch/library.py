"""The ops as operators of PyTorch: ``torch.ops.boost_ext.ema_update`` and the others.

``torch.compile(fullgraph=True)`` takes them, since their schemas say what they write, and autograd sees the writes.
They are made of the native descriptions: a new op or rule is here, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from boost_ext import _core, ops

__all__ = ["OPERATORS"]

TYPES = {
    "array": "Tensor",
    "arrays": "Tensor[]",
    "answer": "Tensor",
    "number": "Tensor",
    "real": "float",
    "reals": "float[]",
    "integer": "int",
    "integers": "int[]",
    "flag": "bool",
}
"""Of the kinds of arguments. PyTorch has no type for ``lists``."""

LEFT_OUT = {
    "dropout": "its native call takes what boost_ext.ops.dropout makes of a seed",
    "pca_back_project": "it writes lists of lists",
    "adafactor_step": "its lists hold None",
    "apollo_step": "its lists hold None",
    "galore_step": "its lists hold None",
    "muon_step": "its lists hold None",
}


@dataclass(frozen=True)
class Argument:
    name: str
    type: str
    written: bool = False
    default: Any = ...

    def declared(self, place: int) -> str:
        kind = self.type.replace("Tensor", f"Tensor(a{place}!)") if self.written else self.type
        if self.default is ...:
            return f"{kind} {self.name}"
        return f"{kind}{'?' if self.default is None else ''} {self.name}={self.default}"


def _of_op(arguments: list[dict[str, Any]]) -> list[Argument]:
    """From one of ``_core.schemas()``."""
    return [Argument(a["name"], TYPES[a["kind"]], a["written"], None if a["optional"] else ...) for a in arguments]


def _of_rule(facts: dict[str, Any]) -> list[Argument]:
    """Of a step, from ``_core.rule_facts(rule)``."""
    needed = len(facts["states"]) - facts["optional_states"]
    arguments = [Argument("params", "Tensor[]", True), Argument("grads", "Tensor[]")]
    arguments += [Argument(s, "Tensor[]", True, ... if i < needed else None) for i, s in enumerate(facts["states"])]
    arguments.append(Argument("lr", "Tensor"))
    if facts["narrow_state"] or facts["corrected"]:
        arguments.append(Argument("step", "Tensor", default=... if facts["corrected"] else None))
    for k, v in facts["hyper"].items():
        arguments.append(Argument(k, "bool" if isinstance(v, bool) else "float", default=... if v is None else v))
    arguments.append(Argument("weight_decay", "float", default=0.0))
    return arguments + [Argument(k, "Tensor", default=None) for k in ("inv_scale", "skip")]


def _operator(name: str, call: Callable[..., None], arguments: list[Argument]) -> Any:
    """What may be left out stands last. PyTorch takes no tensors as keywords alone."""
    ordered = sorted(arguments, key=lambda a: a.default is not ...)
    names = [a.name for a in ordered]

    def by_name(*values: Any) -> None:
        call(**{**{a.name: a.default for a in ordered}, **dict(zip(names, values, strict=False))})

    return torch.library.custom_op(
        f"boost_ext::{name}",
        by_name,
        mutates_args=[a.name for a in arguments if a.written],
        schema=f"({', '.join(a.declared(i) for i, a in enumerate(ordered))}) -> ()",
    )


def _step(name: str) -> Callable[..., None]:
    step = getattr(ops, name)
    return lambda **arguments: step(**{k: v for k, v in arguments.items() if v is not None})


def _operators() -> dict[str, Any]:
    made = {}
    for name, described in _core.schemas().items():
        if name not in LEFT_OUT:
            made[name] = _operator(name, getattr(_core, name), _of_op(described))
    for rule in _core.optimizer_rules():
        name = f"{rule}_step"
        if name in LEFT_OUT:
            continue
        made[name] = _operator(name, _step(name), _of_rule(_core.rule_facts(rule)))
    return made


OPERATORS = _operators()
"""The operators by their names."""
