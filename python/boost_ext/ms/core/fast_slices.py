"""What stands for MindSpore's slices in compiled training steps (:mod:`boost_ext.ms.core.substitutes`): MindSpore's
``Slice``, of which its ``StridedSlice`` takes ten times the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, ops
from mindspore.ops.composite.multitype_ops import _compile_utils, getitem_impl

from boost_ext.ms.core.substitutes import plain
from boost_ext.ms.native.layers import Sliced
from boost_ext.ms.native.shapes import Ints, Shape, of_shapes

__all__ = ["item_at", "sliced"]

_plain_slice, _plain_item_at = plain(_compile_utils.strided_slice), plain(getitem_impl._tensor_getitem_by_tuple)
_slice = Sliced()


def sliced(
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
    if ellipsis_mask == 0 and new_axis_mask == 0:
        first, size, shape = as_slice(data, begin, end, step, begin_mask, end_mask, shrink_axis_mask)
        if size:
            return ops.reshape(_slice(data, first, size), shape)
    return _plain_slice(data, begin, end, step, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)


def item_at(data: Tensor, tuple_index: Any) -> Any:
    """``data[:, 2, 1:]``, whose slices MindSpore's compiler makes without the function above."""
    first, size, shape = as_item(data, tuple_index)
    if size:
        return ops.reshape(_slice(data, first, size), shape)
    return _plain_item_at(data, tuple_index)


Window = tuple[Ints, Ints, Ints]
"""Where a slice begins, its size, its shape without the axes of single indices; () for each if it is none of those that
are faster, or an error that MindSpore finds."""


@of_shapes
def as_slice(
    of: Shape | None, begin: Any, end: Any, step: Any, begin_mask: int, end_mask: int, shrink_axis_mask: int
) -> Window:
    if not all(type(p) is tuple and all(type(n) is int for n in p) for p in (begin, end, step)):
        return (), (), ()
    places = [
        begin[axis]
        if shrink_axis_mask >> axis & 1
        else slice(
            None if begin_mask >> axis & 1 else begin[axis], None if end_mask >> axis & 1 else end[axis], step[axis]
        )
        for axis in range(len(begin))
    ]
    return _window(of, places)


@of_shapes
def as_item(of: Shape | None, index: Any) -> Window:
    return _window(of, index) if type(index) is tuple else ((), (), ())


def _window(of: Shape | None, places: Sequence[Any]) -> Window:
    """Of single indices and slices."""
    if of is None or len(places) > len(of):
        return (), (), ()
    first, size, shape = [], [], []
    for axis, n in enumerate(of):
        place = places[axis] if axis < len(places) else slice(None)
        if type(place) is slice and all(p is None or type(p) is int for p in (place.start, place.stop, place.step)):
            low, high, step = place.indices(n) if place.step != 0 else (0, 0, 0)
        elif type(place) is int:
            low = place + (n if place < 0 else 0)
            high, step = low + 1, 1
        else:
            return (), (), ()
        if step != 1 or not 0 <= low < high <= n:
            return (), (), ()
        first.append(low)
        size.append(high - low)
        if type(place) is slice:
            shape.append(high - low)
    return tuple(first), tuple(size), tuple(shape)
