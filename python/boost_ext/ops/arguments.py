"""Arguments that are no arrays: numbers, and outputs that were left out."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any, TypeVar

import numpy as np

__all__ = [
    "Array",
    "Arrays",
    "Numbers",
    "Tensors",
    "empty_like",
    "factors",
    "flags",
    "integer",
    "is_array",
    "like_theirs",
    "number",
    "number_of_step",
    "numbers",
    "on_device",
    "scalar",
    "switch",
    "values",
    "with_gaps",
]

Array = Any
"""A NumPy array, a MindSpore tensor, or an object with ``__dlpack__`` or ``__cuda_array_interface__``."""

Arrays = Array | Sequence[Array]
"""One array, or a list or tuple of them."""

Tensors = TypeVar("Tensors")
"""The type of arrays that an op writes and returns."""

Numbers = float | Sequence[float]
"""One number, or one for each tensor."""


_PLAIN = frozenset({bool, float, int})  # the types of nearly all arguments that are no arrays: told at once
_CUDA = (2, 13)  # the types of devices of DLPack: kDLCUDA, kDLCUDAManaged


def empty_like(op: str, tensors: Any, arg: str = "a") -> Any:
    """New arrays for an ``out`` that was left out, of NumPy or PyTorch as `tensors` are, and with their order of
    elements. None for others on a device: the native op makes them."""
    torch = _torch_of(tensors)
    items = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    if all(isinstance(t, np.ndarray) or (torch and isinstance(t, torch.Tensor)) for t in items):
        new = [np.empty_like(t) if isinstance(t, np.ndarray) else torch.empty_like(t) for t in items]
        return new if items is tensors else new[0]
    if on_device(tensors):
        return None
    raise ValueError(
        f"{op}: out must be given unless {arg} holds NumPy or PyTorch arrays, got {type(tensors).__name__}"
    )


def like_theirs(result: Any, tensors: Any) -> Any:
    """A new array, as a tensor of PyTorch where `tensors` are some, over the same memory."""
    torch = _torch_of(tensors)
    return result if torch is None else torch.from_dlpack(result)


def _torch_of(tensors: Any) -> Any:
    """PyTorch, where one of these arrays is its tensor; else None."""
    torch = sys.modules.get("torch")
    items = tensors if isinstance(tensors, (list, tuple)) else [tensors]
    return torch if any(isinstance(t, getattr(torch, "Tensor", ())) for t in items) else None


def number(op: str, arg: str, value: Any) -> float:
    """A Python float, or a TypeError that names op and argument."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
        raise TypeError(f"{op}: {arg} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:  # an integer beyond float64
        return math.inf


def scalar(op: str, arg: str, value: Any) -> Any:
    """A Python float; or an array, of whose one float32 the native op takes care, also where it lies on a device."""
    if is_array(value) and not isinstance(value, np.generic):
        return value
    return number(op, arg, value)


def is_array(value: Any) -> bool:
    if type(value) in _PLAIN:
        return False
    return hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__")


def on_device(value: Any) -> bool:
    """Whether an array, or one of a list of them, lies on a CUDA device."""
    if isinstance(value, (list, tuple)):
        return any(map(on_device, value))
    if isinstance(value, (np.ndarray, np.generic)) or not is_array(value):
        return False
    try:
        return int(value.__dlpack_device__()[0]) in _CUDA
    except (AttributeError, TypeError, ValueError, IndexError):  # a wrong one is for the native op to refuse
        return hasattr(value, "__cuda_array_interface__")


def integer(op: str, arg: str, value: Any) -> int:
    """A Python integer, or a TypeError that names op and argument."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {arg} must be an integer, got {type(value).__name__}") from None


def number_of_step(op: str, step: Any) -> Any:
    """From 1, or 0 where there is none; arrays as they are."""
    if is_array(step) and (getattr(step, "shape", None) != () or on_device(step)):
        return step
    t = 0 if step is None else integer(op, "step", step)
    if not (step is None or 1 <= t < 2**63):
        raise ValueError(f"{op}: step must be >= 1 and < 2**63, got {t}")
    return t


def factors(op: str, arg: str, value: Any) -> Any:
    """A number as a float that float32 holds; what is no number is the array with one for each tensor."""
    if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
        return value
    with np.errstate(over="ignore"):
        result = float(np.float32(number(op, arg, value)))
    if not math.isfinite(result):
        raise ValueError(f"{op}: {arg} must be finite, got {result}")
    return result


def _items(op: str, arg: str, value: Any) -> list[Any]:
    """One value, or one for each tensor, as a list."""
    if type(value) in _PLAIN:
        return [value]
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist()
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return [value]
    if len(value) == 0:
        raise ValueError(f"{op}: {arg} must hold one value, or one for each tensor, got none")
    return list(value)


def numbers(op: str, arg: str, value: Any) -> list[float]:
    """A number, or one for each tensor."""
    return [number(op, arg, v) for v in _items(op, arg, value)]


def values(op: str, arg: str, value: Any) -> Any:
    """Those numbers; or an array of float32 that is not NumPy's, of which the native op takes care."""
    return value if is_array(value) and not isinstance(value, (np.ndarray, np.generic)) else numbers(op, arg, value)


def flags(op: str, arg: str, value: Any) -> list[int]:
    """A bool, or one for each tensor, as integers."""
    items = _items(op, arg, value)
    for flag in items:
        if not isinstance(flag, (bool, np.bool_)):
            raise TypeError(f"{op}: {arg} must be a bool, or one for each tensor, got {type(flag).__name__}")
    return [int(f) for f in items]


def switch(op: str, arg: str, value: Any) -> float:
    """A bool among hyperparameters."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{op}: {arg} must be a bool, got {type(value).__name__}")
    return float(value)


def with_gaps(op: str, arg: str, arrays: Any, like: Any) -> Any:
    """As native ops take lists with None in them: empty arrays in its place; None is one for each of `like`."""
    if arrays is None:
        return [np.empty(0, np.float32) for _ in like] if isinstance(like, (list, tuple)) else np.empty(0, np.float32)
    if not isinstance(arrays, (list, tuple)):
        return arrays
    if not arrays:
        raise ValueError(f"{op}: {arg} must hold one array, or None, for each tensor, got 0")
    return [np.empty(0, np.float32) if a is None else a for a in arrays]
