"""Other functions than those that a graph calls, while it is compiled.

The graph compiler asks ``mindspore.graph._parse.parse_cb`` for the source of each function and each ``construct`` that
it meets, by whatever name the network calls it. It asks ``resolve_symbol`` for what a name means, which may be an
operator, and ``create_instance`` for an operator that is made in a ``construct``.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mindspore import nn, ops

try:
    import mindspore.graph._parse as parse
except ImportError:  # of another MindSpore
    parse = None

__all__ = ["Operator", "Substitute", "can_substitute", "plain", "substituted"]

_parse_cb: Any = getattr(parse, "parse_cb", None)
_resolve_symbol: Any = getattr(parse, "resolve_symbol", None)
_create_instance: Any = getattr(parse, "create_instance", None)
_OWN = "boost_ext.ms.core.fast_", "boost_ext.ms.native."
"""Modules whose operators are those that a substitute leaves the rest to."""
_made: dict[int, tuple[Any, Any]] = {}
"""Operators by their ids, and what stands for each. They are kept: the compiler knows both by their ids, and forgets
nothing when a compilation fails."""


def can_substitute() -> bool:
    """Whether this MindSpore asks so."""
    return None not in (_parse_cb, _resolve_symbol, _create_instance)


def plain(f: Any) -> Any:
    """The same function as another object, for a substitute that calls it."""
    copy = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__, f.__closure__)
    copy.__kwdefaults__, copy.__module__, copy.__qualname__ = f.__kwdefaults__, f.__module__, f.__qualname__
    return copy


class Substitute(NamedTuple):
    function: Callable[..., Any]
    leaves_out: tuple[str, type] | None = None
    """The operator of a layer that it does without: an attribute, and its class."""
    watched: Callable[..., Any] | None = None
    """Where that operator is the ``observed`` one of a cell whose ``watch(output, input)`` must see what it does."""

    def of(self, owner: Any) -> Callable[..., Any] | None:
        """None for cells that keep their own ``construct``: one that casts what it names, and one that has got another
        operator."""
        if not isinstance(owner, nn.Cell):
            return self.function
        if _casts(owner):
            return None
        if self.leaves_out is None:
            return self.function
        name, kind = self.leaves_out
        operator = getattr(owner, name)
        if isinstance(operator, kind):
            return self.function
        return self.watched if isinstance(getattr(operator, "observed", None), kind) else None


class Operator(NamedTuple):
    """Of a class of operators: what stands for one, by whatever name a network calls it."""

    of: Callable[[ops.Primitive], Callable[..., Any]]


def _casts(owner: Any) -> bool:
    """Whether it is a cell that casts the parameters that it names (``to_float``, amp), as another function that it
    called would not."""
    return isinstance(owner, nn.Cell) and any(owner.get_flags().get(flag) for flag in ("fp16", "bf16", "fp32"))


@contextmanager
def substituted(table: Mapping[Any, Substitute | Operator]) -> Iterator[list[Any]]:
    """What is compiled inside takes ``table[f]`` for each function f, and each operator of a class f. The list gets
    those that it met."""
    met: list[Any] = []

    def parsed(function: Any, parse_method: Any = None) -> Any:
        original = getattr(function, "__func__", function)
        substitute = table[original].of(getattr(function, "__self__", None)) if original in table else None
        if substitute is not None:
            met.append(original)
        return _parse_cb(substitute or function, parse_method)

    def stand_in(found: Any) -> Any:
        substitute = table.get(type(found)) if isinstance(found, ops.Primitive) else None
        if substitute is None:
            return found
        met.append(type(found))
        if id(found) not in _made:
            _made[id(found)] = found, substitute.of(found)
        return _made[id(found)][1]

    def resolved(namespace: Any, symbol: str) -> Any:
        found = _resolve_symbol(namespace, symbol)
        is_left = namespace.name.startswith(_OWN) or any(map(_casts, namespace.dicts))
        return found if is_left else stand_in(found)

    def created(cls: Any, params: Any = None) -> Any:
        return stand_in(_create_instance(cls, params))

    parse.parse_cb, parse.resolve_symbol, parse.create_instance = parsed, resolved, created
    try:
        yield met
    finally:  # also if another thread compiles, which then takes MindSpore's
        parse.parse_cb, parse.resolve_symbol, parse.create_instance = _parse_cb, _resolve_symbol, _create_instance
