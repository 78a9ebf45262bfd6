"""Decisions that a graph makes while it is compiled, from the shapes of its tensors.

Written in Python's own words inside a graph (``x.dtype == ms.float32 and F.rank(x) == 4``), each costs the compiler
milliseconds, in each layer that asks. A function of shapes is one node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import ops
from mindspore.common.dtype import TensorType

__all__ = ["Ints", "Shape", "is_known", "of_shapes"]

Ints = tuple[int, ...]


class Shape(tuple[int, ...]):
    """Of a tensor. Its own type: a tuple of numbers is another argument."""

    __slots__ = ()


def of_shapes(function: Callable[..., Any]) -> Any:
    """For graphs: a function of constants, and of the shapes of float32 tensors.

    It gets a :class:`Shape` for each tensor, and None for one of another dtype or of a shape that the compiler does not
    know, as for any other argument that is no constant. The result is a constant.
    """

    class OfShapes(ops.PrimitiveWithInfer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(function.__name__)
            self.set_const_prim(True)
            self.add_prim_attr("constexpr_prim", True)

        def __infer__(self, *args: Any) -> dict[str, Any]:
            return {"dtype": None, "shape": None, "value": function(*map(_seen, args))}

        def __call__(self, *args: Any) -> Any:
            return function(*args)

    return OfShapes()


def _seen(arg: Any) -> Any:
    if not isinstance(arg["dtype"], TensorType):
        return arg["value"]
    known = arg["dtype"].element_type() == ms.float32 and all(n >= 0 for n in arg["shape"])
    return Shape(arg["shape"]) if known else None


@of_shapes
def is_known(x: Shape | None) -> bool:
    """Whether a tensor is float32, of a known shape."""
    return x is not None
