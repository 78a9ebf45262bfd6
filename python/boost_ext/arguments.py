"""Names of arguments: an unknown one is refused with the right one, and all that there are."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

__all__ = ["checked_keywords", "names_of", "nearest", "unknown_argument"]

_ELSEWHERE = {"lr": "learning_rate", "nesterov": "use_nesterov", "amsgrad": "use_amsgrad", "parameters": "params"}
"""What arguments are called in other libraries."""

Function = TypeVar("Function", bound=Callable[..., Any])


def nearest(name: object, known: Iterable[str]) -> str:
    """The known name that a wrong one was probably meant to be."""
    return difflib.get_close_matches(str(name), list(known), n=1, cutoff=0.0)[0]


def unknown_argument(owner: str, key: str, known: Iterable[str]) -> str:
    """The message on an argument that `owner` does not have."""
    known = tuple(known)
    near = _ELSEWHERE.get(key)
    if near not in known:
        near = nearest(key, known)
    return f"{owner}: unknown argument {key!r}, did you mean {near!r}? Known: {list(known)}"


def names_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """Of the arguments that a function or constructor may be given by name."""
    parameters = inspect.signature(function).parameters.values()
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(p.name for p in parameters if p.kind in by_name and p.name != "self")


def checked_keywords(init: Function) -> Function:
    """A constructor that refuses an unknown argument with :func:`unknown_argument`.

    Raises:
        TypeError: for such an argument, as Python would.
    """
    known = names_of(init)

    @functools.wraps(init)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in known:
                raise TypeError(unknown_argument(type(self).__name__, key, known))
        init(self, *args, **kwargs)

    return wrapper  # type: ignore[return-value]
