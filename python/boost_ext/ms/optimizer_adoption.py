"""Optimizers of ``mindspore.nn``, stepped by the native ops on their own Parameters.

The optimizer stays what the user made: its state, its checkpoint, its learning rate and step counter are the same
objects. Only the arithmetic of a training step moves into the one native call that
:class:`boost_ext.ms.optim.fused.FusedOptimizer` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import Parameter, nn

from boost_ext.ms import native
from boost_ext.ms.grad_centralization import CentralizingOptimizer
from boost_ext.ms.optim.adam import Adam, AdamWeightDecay
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.momentum import Momentum
from boost_ext.ms.optim.sgd import SGD
from boost_ext.ms.optimizer_copy import twin

__all__ = ["library_class", "native_step", "reason_to_keep"]


class _Rule(NamedTuple):
    """What :meth:`FusedOptimizer._fuse` takes, read from an optimizer of ``mindspore.nn``."""

    cls: type[FusedOptimizer]
    hyper: Callable[[Any], tuple[float, ...]]
    states: tuple[str, ...]
    powers: tuple[str, ...] = ()
    refused: Callable[[Any], str] = lambda optimizer: ""
    """Why an optimizer of this class would compute other numbers; "" if it would not."""


def _number(value: Any) -> float:
    return float(value.asnumpy().item())


def _momentum_refused(optimizer: Any) -> str:
    return "use_nesterov, which nn.Momentum ignores on a CPU" if optimizer.use_nesterov else ""


def _sgd_refused(optimizer: Any) -> str:
    return "a momentum, whose first step it keeps in stat" if _number(optimizer.momentum) else ""


def _adam_refused(optimizer: Any) -> str:
    for name in ("use_amsgrad", "use_lazy", "use_offload"):
        if getattr(optimizer, name, False):
            return name
    return ""


_RULES = {
    "Momentum": _Rule(Momentum, lambda o: (_number(o.momentum), 0.0), ("moments",), ("momentum",), _momentum_refused),
    "SGD": _Rule(SGD, lambda o: (0.0, 0.0, False), (), ("momentum",), _sgd_refused),
    "Adam": _Rule(
        Adam,
        lambda o: (_number(o.beta1), _number(o.beta2), _number(o.eps), o.use_nesterov),
        ("moment1", "moment2"),
        ("beta1_power", "beta2_power"),
        _adam_refused,
    ),
    "AdamWeightDecay": _Rule(
        AdamWeightDecay, lambda o: tuple(map(_number, (o.beta1, o.beta2, o.eps))), ("moments1", "moments2")
    ),
}


def library_class(optimizer: nn.Cell) -> type:
    """The optimizer's class; of one that centralizes, the class in ``mindspore.nn`` it was made from."""
    cls = type(optimizer)
    return cls.__bases__[-1] if issubclass(cls, CentralizingOptimizer) and "update" in vars(cls) else cls


def reason_to_keep(optimizer: nn.Cell) -> str:
    """Why the optimizer steps as it is; "" if a native step computes what it computes."""
    cls = library_class(optimizer)
    name = cls.__name__
    rule = _RULES.get(name)
    if rule is None or getattr(nn, name, None) is not cls:
        return f"{type(optimizer).__name__} has no native step"
    if refused := rule.refused(optimizer):
        return f"nn.{name} has {refused}"
    if any(p.dtype != ms.float32 for p in optimizer.parameters):
        return f"nn.{name} has parameters that are not float32, whose arithmetic would change"
    if optimizer.use_parallel:
        return f"nn.{name} is a parallel optimizer"
    return ""


def _adopted(optimizer: nn.Cell) -> FusedOptimizer:
    rule = _RULES[library_class(optimizer).__name__]
    made = twin(optimizer, rule.cls)  # type: ignore[type-var]
    made.centralized = native.Centralized()
    states: list[Any] = [getattr(optimizer, name) for name in rule.states]
    powers: list[Parameter] = [getattr(optimizer, name) for name in rule.powers]
    made._fuse(rule.hyper(optimizer), states, powers=powers)
    return made


def native_step(optimizer: nn.Cell, adopt: bool = True) -> nn.Cell | None:
    """A cell with ``step_unless(skip, scale, gradients)`` that steps the optimizer; None if there is none.

    Args:
        optimizer (Cell): stays usable: the two share their Parameters.
        adopt (bool): whether one of ``mindspore.nn`` may step natively. Default: True.
    """
    if hasattr(optimizer, "step_unless"):
        return optimizer
    if hasattr(optimizer, "natively"):  # a step that holds an optimizer
        step: nn.Cell | None = optimizer.natively(adopt)
        return step
    return _adopted(optimizer) if adopt and not reason_to_keep(optimizer) else None
