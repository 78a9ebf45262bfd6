"""Gradients of some rows only: the RowTensors that the graph compiler makes of a sparse embedding lookup.

No native op takes a RowTensor: its values go in the gradient's place, and its indices behind all the rest. A network
without sparse gradients gets not one input more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.common.sparse_tensor import RowTensorInner
from mindspore.ops.primitive import constexpr

from boost_ext.ms import native

__all__ = ["Indices", "SomeSparse", "Values", "contiguous"]

_LAST = 2**31 - 1

# While MindSpore does not know a gradient's type yet, it puts off what is called by type, but nothing else.
_is_sparse = ops.MultitypeFuncGraph("is_sparse")
_values = ops.MultitypeFuncGraph("values_of_rows")
_indices = ops.MultitypeFuncGraph("indices_of_rows")
_refuse = ops.MultitypeFuncGraph("refuse_rows")


@_is_sparse.register("Tensor")  # type: ignore[untyped-decorator]
def _whole(gradient: Any) -> bool:
    return False


@_is_sparse.register("RowTensor")  # type: ignore[untyped-decorator]
def _rows(gradient: Any) -> bool:
    return True


@_values.register("Tensor")  # type: ignore[untyped-decorator]
def _values_of_whole(gradient: Any) -> Any:
    return gradient


@_values.register("RowTensor")  # type: ignore[untyped-decorator]
def _values_of_rows(gradient: Any) -> Any:
    return gradient.values


@_indices.register("Tensor", "Tensor")  # type: ignore[untyped-decorator]
def _indices_of_whole(whole: Any, gradient: Any) -> Any:
    return whole


@_indices.register("Tensor", "RowTensor")  # type: ignore[untyped-decorator]
def _indices_of_rows(whole: Any, gradient: Any) -> Any:
    return _as_int32(gradient.indices)


@_refuse.register("String", "Tensor", "String")  # type: ignore[untyped-decorator]
def _take_whole(refusal: str, gradient: Any, name: str) -> Any:
    return gradient


@_refuse.register("String", "RowTensor", "String")  # type: ignore[untyped-decorator]
def _refuse_rows(refusal: str, gradient: Any, name: str) -> Any:
    raise TypeError(refusal + ", got a RowTensor for " + name)


def _as_int32(indices: Any) -> Any:
    """Rows that are too far for int32 as rows that no table has, not as others."""
    if indices.dtype == ms.int64:
        return ops.cast(ops.maximum(ops.minimum(indices, _LAST), -1), ms.int32)
    return indices


@constexpr  # type: ignore[untyped-decorator]
def _some(*flags: bool) -> bool:
    return any(flags)


def is_sparse(gradient: Any) -> bool:
    """Whether this is a RowTensor, or what one becomes that leaves a graph: indices, values and shape."""
    return isinstance(gradient, (RowTensorInner, tuple))


def _parts(gradient: Any) -> tuple[Tensor, Tensor]:
    if isinstance(gradient, RowTensorInner):
        return gradient.indices, gradient.values
    return gradient[0], gradient[1]


def contiguous(gradients: Sequence[Any]) -> tuple[Any, ...]:
    """See :func:`boost_ext.ms.native.contiguous`."""
    if not any(map(is_sparse, gradients)):
        return native.contiguous(gradients)
    return tuple(native.contiguous(_parts(g)) if is_sparse(g) else native.contiguous((g,))[0] for g in gradients)


class _Part(nn.Cell):
    """In a graph ``construct``; `by_python` for gradients that Python has, in PYNATIVE_MODE."""

    by_python: Callable[[Sequence[Any]], Any]

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.each = ops.HyperMap()

    def __call__(self, gradients: Any) -> Any:
        return self.by_python(gradients) if native.in_pynative_mode() else super().__call__(gradients)


class Values(_Part):
    """``cell(gradients)``: as tensors alone, those in the place of a RowTensor being its values.

    Args:
        names (Sequence[str]): of the parameters, for messages.
        refusal (str, optional): how the message begins with which RowTensors are refused. Default: None, they are not.

    Raises:
        TypeError: if RowTensors are refused, and there is one.
    """

    def __init__(self, names: Sequence[str], refusal: str | None = None) -> None:
        super().__init__()
        self.names, self.refusal = tuple(names), refusal

    def construct(self, gradients: Any) -> Any:
        if self.refusal is not None and len(gradients) == len(self.names):  # "!=" takes the graph compiler 10 ms
            return self.each(ops.partial(_refuse, self.refusal), tuple(gradients), self.names)
        return self.each(_values, gradients)

    def by_python(self, gradients: Sequence[Any]) -> Sequence[Tensor]:
        for i, gradient in enumerate(gradients):
            if self.refusal is not None and is_sparse(gradient):
                raise TypeError(f"{self.refusal}, got a RowTensor for {self.names[i]}")
        return tuple(_parts(g)[1] if is_sparse(g) else g for g in gradients)


class SomeSparse(_Part):
    """``cell(gradients)``: whether there is a RowTensor; known when the graph is compiled."""

    def construct(self, gradients: Any) -> Any:
        return _some(*self.each(_is_sparse, gradients))

    def by_python(self, gradients: Sequence[Any]) -> bool:
        return {*map(type, gradients)} != {Tensor} and any(map(is_sparse, gradients))


class Indices(_Part):
    """``cell(gradients)``: an int32 Tensor for each: (rows,) of a RowTensor, () for a whole gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.whole = Tensor(-1, ms.int32)

    def construct(self, gradients: Any) -> Any:
        return self.each(ops.partial(_indices, self.whole), gradients)

    def by_python(self, gradients: Sequence[Any]) -> Sequence[Tensor]:
        return tuple(_as_int32(_parts(g)[0]) if is_sparse(g) else self.whole for g in gradients)
