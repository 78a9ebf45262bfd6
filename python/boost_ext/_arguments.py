"""Arguments that are no arrays: numbers, and outputs that were left out."""

from __future__ import annotations

import math
import operator
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["empty_like", "factors", "integer", "number"]


def empty_like(op: str, tensors: Any) -> list[npt.NDArray[Any]] | npt.NDArray[Any]:
    """New arrays for an ``out`` that was left out, where it is clear of which kind."""
    if isinstance(tensors, np.ndarray):
        return np.empty_like(tensors, order="C")
    if isinstance(tensors, (list, tuple)) and all(isinstance(t, np.ndarray) for t in tensors):
        return [np.empty_like(t, order="C") for t in tensors]
    raise ValueError(f"{op}: out must be given unless a holds NumPy arrays, got {type(tensors).__name__}")


def number(op: str, arg: str, value: Any) -> float:
    """A Python float, or a TypeError that names op and argument."""
    if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
        raise TypeError(f"{op}: {arg} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf


def integer(op: str, arg: str, value: Any) -> int:
    """A Python integer, or a TypeError that names op and argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {arg} must be an integer, got {type(value).__name__}") from None


def factors(op: str, arg: str, value: Any) -> Any:
    """A number as the float32 array that the native op takes."""
    if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
        return value
    with np.errstate(over="ignore"):
        result = np.array([number(op, arg, value)], np.float32)
    if not np.isfinite(result[0]):
        raise ValueError(f"{op}: {arg} must be finite, got {result[0]}")
    return result
