"""Arguments of the constructors: recorded, to construct an optimizer again, and checked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from mindspore import Parameter, Tensor, nn

from boost_ext.arguments import names_of, unknown_argument
from boost_ext.ms import native

__all__ = ["named", "non_negative", "one_line", "open_unit", "positive", "recorded", "require_bool", "require_hyper"]

Init = TypeVar("Init", bound=Callable[..., None])


def recorded(init: Init) -> Init:
    """A constructor that records its arguments as the optimizers of mindspore.nn do: ``init_params``,
    ``init_learning_rate`` and ``init_args``. It keeps its signature, too."""
    signature, known = inspect.signature(init), names_of(init)

    @functools.wraps(init)
    def wrapper(self: nn.Optimizer, *args: Any, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in known:
                raise TypeError(unknown_argument(type(self).__name__, key, known))
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        arguments.pop("self")
        init(self, *args, **kwargs)
        self.init_params = {"params": arguments.pop("params")}
        if "learning_rate" in arguments:
            rate = arguments.pop("learning_rate")
            rate = rate.asnumpy().tolist() if isinstance(rate, Tensor) else rate
            self.init_learning_rate = None if isinstance(rate, nn.Cell) else rate
        self.init_args = arguments

    return wrapper  # type: ignore[return-value]


def one_line(optimizer: nn.Optimizer) -> str:
    """``Momentum(12 parameters, learning_rate=0.1, momentum=0.9)``: without arguments that have their default."""
    rate = getattr(optimizer, "init_learning_rate", None)
    if isinstance(rate, (list, tuple)):
        rate = f"{len(rate)} values"
    shown = {"learning_rate": optimizer.learning_rate if rate is None else rate, **getattr(optimizer, "init_args", {})}
    parts = [f"{len(optimizer.parameters)} parameters", *_differing(type(optimizer), shown)]
    return f"{type(optimizer).__name__}({', '.join(parts)})"


def _differing(cls: type, shown: dict[str, Any]) -> Iterator[str]:
    defaults = inspect.signature(cls.__init__).parameters  # type: ignore[misc]
    for name, value in shown.items():
        plain = isinstance(value, (bool, int, float, str, tuple))
        if value is not None and not (plain and name in defaults and value == defaults[name].default):
            yield f"{name}={value if plain else type(value).__name__}"


def _require_float(owner: str, name: str, value: Any) -> float:
    """The value, or a TypeError; also for an int, as in mindspore.nn."""
    if not isinstance(value, float):
        raise TypeError(f"{owner}: {name} must be a float, got {type(value).__name__}")
    return value


def require_bool(owner: str, name: str, value: Any) -> bool:
    """The value, or a TypeError."""
    if not isinstance(value, bool):
        raise TypeError(f"{owner}: {name} must be a bool, got {type(value).__name__}")
    return value


def named(owner: str, argument: str, parts: Any, parameters: Sequence[Parameter]) -> tuple[bool, ...]:
    """Of each parameter whether it has one of these parts of names, each of which must be in a name."""
    if isinstance(parts, str) or not all(isinstance(part, str) for part in parts):
        raise TypeError(f"{owner}: {argument} must be a sequence of strings, got {parts!r}")
    for part in parts:
        if not any(part in p.name for p in parameters):
            raise ValueError(f"{owner}: {argument} must hold parts of the parameters' names, got {part!r}")
    return tuple(any(part in p.name for part in parts) for p in parameters)


def _each(owner: str, values: dict[str, Any], fits: Callable[[float], bool], bounds: str) -> None:
    for name, value in values.items():
        if not fits(_require_float(owner, name, value)):
            raise ValueError(f"{owner}: {name} must be {bounds}, got {value}")


def non_negative(owner: str, **values: Any) -> None:
    """Floats >= 0, and finite."""
    _each(owner, values, lambda x: 0 <= x < float("inf"), "finite and >= 0")


def positive(owner: str, **values: Any) -> None:
    """Floats > 0, and finite."""
    _each(owner, values, lambda x: 0 < x < float("inf"), "finite and > 0")


def open_unit(owner: str, **values: Any) -> None:
    """Floats in (0, 1)."""
    _each(owner, values, lambda x: 0 < x < 1, "in (0, 1)")


def _unit(owner: str, **values: Any) -> None:
    _each(owner, values, lambda x: 0 <= x < 1, "in [0, 1)")


def _non_positive(owner: str, **values: Any) -> None:
    _each(owner, values, lambda x: x <= 0, "<= 0")


_CHECKS = {
    "unit": _unit,
    "open_unit": open_unit,
    "positive": positive,
    "non_negative": non_negative,
    "non_positive": _non_positive,
}
"""Of the bounds in the table of rules, but for flags."""


def require_hyper(owner: str, rule: str, **values: Any) -> tuple[Any, ...]:
    """The hyperparameters in the order of the rule's row in csrc/ops/optimizer_rules.cpp, within the bounds there."""
    bounds = native.rule_facts(rule)["bounds"]
    for name, value in values.items():
        if bounds[name] == "flag":
            require_bool(owner, name, value)
        else:
            _CHECKS[bounds[name]](owner, **{name: value})
    return tuple(values[name] for name in bounds if name in values)
