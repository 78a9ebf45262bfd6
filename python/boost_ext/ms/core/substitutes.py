"""Other functions than those that a graph calls, while it is compiled.

The graph compiler asks ``mindspore.graph._parse.parse_cb`` for the source of each function and each ``construct`` that
it meets, by whatever name the network calls it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from mindspore import nn

try:
    import mindspore.graph._parse as parse
except ImportError:  # of another MindSpore
    parse = None

__all__ = ["Substitute", "can_substitute", "plain", "substituted"]

_parse_cb: Any = getattr(parse, "parse_cb", None)


def can_substitute() -> bool:
    """Whether this MindSpore asks so."""
    return _parse_cb is not None


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
        """None for cells that keep their own ``construct``: one that casts the parameters that it names (``to_float``,
        amp), as another function that it called would not; and one that has got another operator."""
        if not isinstance(owner, nn.Cell):
            return self.function
        if any(owner.get_flags().get(flag) for flag in ("fp16", "bf16", "fp32")):
            return None
        if self.leaves_out is None:
            return self.function
        name, kind = self.leaves_out
        operator = getattr(owner, name)
        if isinstance(operator, kind):
            return self.function
        return self.watched if isinstance(getattr(operator, "observed", None), kind) else None


@contextmanager
def substituted(table: Mapping[Any, Substitute]) -> Iterator[list[Any]]:
    """What is compiled inside takes ``table[f]`` for each f. The list gets those that it met."""
    met: list[Any] = []

    def parsed(function: Any, parse_method: Any = None) -> Any:
        original = getattr(function, "__func__", function)
        substitute = table[original].of(getattr(function, "__self__", None)) if original in table else None
        if substitute is not None:
            met.append(original)
        return _parse_cb(substitute or function, parse_method)

    parse.parse_cb = parsed
    try:
        yield met
    finally:
        parse.parse_cb = _parse_cb  # also if another thread compiles, which then takes MindSpore's
