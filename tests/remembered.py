"""Results of an oracle that are asked for again: a module of tests runs once for each instruction set."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def remembered(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, calculated once for arguments of the same bits. Nobody writes to what it returns."""
    known: dict[int, R] = {}

    @functools.wraps(function)
    def lookup(*args: P.args, **kwargs: P.kwargs) -> R:
        key = hash(pickle.dumps((args, kwargs)))
        if key not in known:
            known[key] = function(*args, **kwargs)
        return known[key]

    return lookup
