"""Slices of tensors in compiled graphs, by the kernel of MindSpore that is fast on a CPU.

``x[0]`` and ``x[:, 2:5]`` become ``StridedSlice``, whose CPU kernel copies element by element unless it finds one axis
to share out: 8 ms for 0.8 MB of ``x[0]``. ``Slice`` copies the same elements in 0.3 ms (docs/benchmarks.md#slices).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.ops import functional as F

try:
    from mindspore.ops.composite.multitype_ops import _compile_utils as indexing
except ImportError:  # of another MindSpore
    indexing = None

__all__ = ["fast_slices"]

_strided: Any = getattr(indexing, "strided_slice", None)
_slice = ops.Slice()

Ints = tuple[int, ...]


@cache
def _is_slow() -> bool:
    """Whether there are such a kernel, and such a function to replace."""
    return _strided is not None and ms.get_context("device_target") == "CPU"


@contextmanager
def fast_slices(compiles: bool) -> Iterator[None]:
    """What is compiled inside takes them."""
    if not compiles or not _is_slow():
        yield
        return
    indexing.strided_slice = _sliced
    try:
        yield
    finally:
        indexing.strided_slice = _strided  # also if another thread compiles, which then takes MindSpore's


def _sliced(
    data: Tensor,
    begin: Any,
    end: Any,
    step: Any,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Any:
    """MindSpore's function of the same arguments, which its compiler finds by its name."""
    if (
        data.dtype == ms.float32
        and ellipsis_mask == 0
        and new_axis_mask == 0
        and not F.is_sequence_value_unknown(F.shape(data))
        and F.isconstant(begin)
        and F.isconstant(end)
        and F.isconstant(step)
    ):
        first, size, shape = as_slice(F.shape(data), begin, end, step, begin_mask, end_mask, shrink_axis_mask)
        if size:
            return ops.reshape(_slice(data, first, size), shape)
    return _strided(data, begin, end, step, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)


@ops.constexpr  # type: ignore[untyped-decorator]
def as_slice(
    of: Ints, begin: Ints, end: Ints, step: Ints, begin_mask: int, end_mask: int, shrink_axis_mask: int
) -> tuple[Ints, Ints, Ints]:
    """Where it begins, its size, its shape without the axes of single indices; () for each if it is no such slice."""
    first, size, shape = [], [], []
    if len(begin) > len(of) or any(s != 1 for s in step):
        return (), (), ()
    for axis, n in enumerate(of):
        low, high = 0, n
        if axis < len(begin):
            low, high, _ = slice(
                None if begin_mask >> axis & 1 else begin[axis], None if end_mask >> axis & 1 else end[axis]
            ).indices(n)
            if shrink_axis_mask >> axis & 1:
                low = begin[axis] + (n if begin[axis] < 0 else 0)
                high = low + 1
        if not 0 <= low < high <= n:  # empty, or an error that MindSpore finds
            return (), (), ()
        first.append(low)
        size.append(high - low)
        if not (axis < len(begin) and shrink_axis_mask >> axis & 1):
            shape.append(high - low)
    return tuple(first), tuple(size), tuple(shape)
