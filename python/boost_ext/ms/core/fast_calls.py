"""Cells that are compiled with faster functions than MindSpore's, where they compile so."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import mindspore as ms
from mindspore import nn

from boost_ext.ms.core.substitutes import Operator, Substitute, can_substitute, substituted
from boost_ext.ms.native.cell import refusal_of

__all__ = ["call_fast", "substitutes"]

_logger = logging.getLogger("boost_ext")


@cache
def substitutes() -> Mapping[Any, Substitute | Operator]:
    """Those of :mod:`boost_ext.ms.core.fast_functions`, where MindSpore's kernels are slow, on a CPU. None for a
    MindSpore that has no longer what they are made of."""
    if not can_substitute() or ms.get_context("device_target") != "CPU":
        return {}
    try:
        from boost_ext.ms.core.fast_functions import SUBSTITUTES
    except (ImportError, AttributeError):
        return {}
    return SUBSTITUTES


def call_fast(cell: nn.Cell, function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)``, which compiles the cell where it is not compiled yet, with the substitutes.

    A cell that does not compile so is compiled as MindSpore would, now and later: with ``ops.vmap``, say, which has no
    rules for native functions.

    Raises:
        RuntimeError: what a native function refused, where MindSpore's own error has but the number that it returned.
    """
    try:
        return _call(cell, function, *args)
    except RuntimeError as error:
        if refusal := refusal_of(error):
            raise RuntimeError(refusal) from error
        raise


def _call(cell: nn.Cell, function: Callable[..., Any], *args: Any) -> Any:
    table = substitutes()
    if not table or cell.__dict__.get("_slow"):
        return function(*args)
    compiled = len(cell.compile_cache)
    with substituted(table) as met:
        try:
            result = function(*args)
        except Exception as error:
            if not met or len(cell.compile_cache) > compiled:  # it was compiled: an error of its run
                raise
            reason = str(error).partition("\n")[0]
        else:
            if met:
                names = Counter(f.__qualname__.removesuffix(".construct") for f in met)
                shown = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
                _logger.info("%s is compiled with faster layers where inputs allow it: %s", type(cell).__name__, shown)
            return result
    cell.__dict__["_slow"] = True
    _logger.info("%s is compiled without faster layers: %s", type(cell).__name__, reason)
    return function(*args)
