"""The native parts of adasum over ranks on NumPy arrays, called as MindSpore calls them: numbers go as a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from boost_ext import _core


def _plan(*numbers: float) -> np.ndarray:
    return np.array(numbers, np.float64)


def _beside(halves: Sequence[Any] | None) -> tuple[list[int], list[Any]]:
    """Which tensors have halves, and these."""
    listed = [(i, half) for i, half in enumerate(halves or ()) if half.size]
    return [i for i, _ in listed], [half for _, half in listed]


def dots(a: Any, b: Any, sizes: Sequence[int], index: int, dots: Any) -> None:
    _core.call("adasum_part_dots", _plan(0, index, *sizes), a, b, dots)


def combine(a: Any, b: Any, sizes: Sequence[int], index: int, dots: Any, out: Any) -> None:
    _core.call("adasum_part_combine", _plan(0, index, *sizes), a, b, dots, out)


def pack(tensors: Sequence[Any], vector: Any) -> None:
    _core.call("adasum_part_pack", _plan(0), vector, tensors)


def pack_difference(a: Sequence[Any], b: Sequence[Any], vector: Any) -> None:
    _core.call("adasum_part_pack_difference", _plan(0), vector, a, b)


def keep(weights: Sequence[Any], halves: Sequence[Any] | None, out: Sequence[Any]) -> None:
    which, tensors = _beside(halves)
    _core.call("adasum_part_keep", _plan(0, *which), weights, out, tensors)


def apply(
    vector: Any, parts: Sequence[int], old: Sequence[Any], weights: Sequence[Any], halves: Sequence[Any] | None = None
) -> None:
    which, tensors = _beside(halves)
    _core.call("adasum_part_apply", _plan(0, len(parts), *parts, *which), vector, old, weights, tensors)
