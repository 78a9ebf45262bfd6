"""What all native ops share: the Cell with two ways in."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NoReturn

import mindspore as ms
import mindspore._c_expression as _ms_core
import numpy as np
from mindspore import Tensor, mint, nn, ops

from boost_ext import _core

Tensors = Sequence[Tensor]

absent = Tensor([False])
"""For an argument that may be left out, and is."""

# Tensor's own is a Python function around it, three times slower; there are hundreds of gradients.
_is_contiguous = getattr(_ms_core, "TensorPy", Tensor).is_contiguous

_MODE, _TARGET = _ms_core.ms_ctx_param.mode, _ms_core.ms_ctx_param.device_target


def in_pynative_mode() -> bool:
    """Whether MindSpore runs in PYNATIVE_MODE. ``mindspore.get_context("mode")`` says the same, 40 times slower."""
    return bool(_ms_core.MSContext.get_instance().get_param(_MODE) == ms.PYNATIVE_MODE)


def require_cpu(op: str) -> None:
    """RuntimeError on another device than the CPU."""
    if not _on_cpu():
        _refuse(op)


def calls_by_pointer(op: str) -> bool:
    """Whether Python calls the op by pointer: in PYNATIVE_MODE. RuntimeError on another device than the CPU."""
    require_cpu(op)
    return in_pynative_mode()


def _on_cpu() -> bool:
    return bool(_ms_core.MSContext.get_instance().get_param(_TARGET) == "CPU")


def _refuse(op: str) -> NoReturn:
    target = _ms_core.MSContext.get_instance().get_param(_TARGET)
    raise RuntimeError(
        f"{op}: device_target must be CPU, got {target}; cells and optimizers of boost_ext run on the CPU alone, "
        "boost_ext.ops on NPU tensors too (docs/ascend.md)"
    )


class _Refusal(ops.PrimitiveWithInfer):
    """In a graph for another device. It raises when the graph is compiled: an error in the attribute that the compiler
    looks up would only say that there is none."""

    def __init__(self, op: str) -> None:
        super().__init__("Refusal")
        self.op = op

    def __infer__(self, *inputs: Any) -> NoReturn:
        _refuse(self.op)

    def __call__(self, *inputs: Any) -> NoReturn:
        _refuse(self.op)


def refusal_of(error: RuntimeError) -> str:
    """What the native function refused that failed in a compiled graph: MindSpore's error has but the number that it
    returned. Empty for other errors."""
    return _core.take_graph_error() if "boost_ext_" in str(error) else ""


@functools.cache
def custom(symbol: str, shape: Any, dtype: Any, writes: bool = False, bprop: Any = None) -> ops.Custom:
    """The primitive of a native function, for graphs on the CPU."""
    primitive = ops.Custom(f"{_core.__file__}:boost_ext_{symbol}", shape, dtype, "aot", bprop)
    if writes:
        primitive.add_prim_attr("side_effect_mem", True)
    return primitive


class GraphOp:
    """The attribute of a cell that is the primitive of its op, for the graph compiler.

    The compiler may drop, merge and reorder an op that does not say that it writes its inputs. The primitive is made
    where a graph asks for it: on Ascend MindSpore takes ``ops.Custom(..., "aot")`` for an aclnn operator. It is no
    ``property``, whose function the compiler would compile too.
    """

    def __init__(self, shape: Any, dtype: Any, writes: bool = False) -> None:
        self.form = (shape, dtype, writes)

    def __get__(self, cell: Any, owner: type) -> Any:
        if cell is None:
            return self
        return custom(cell.symbol, *self.form) if _on_cpu() else _Refusal(cell.symbol)


def one_or_all(items: Sequence[Any]) -> Any:
    """Shapes, dtypes or tensors of several outputs: MindSpore has no tuple of one output."""
    return items if len(items) > 1 else items[0]


def as_first(*inputs: Any) -> Any:
    """Of a :class:`GraphOp`: the output has the shape, or the dtype, of the first input."""
    return inputs[0]


@ops.constexpr  # type: ignore[untyped-decorator]
def flag(x: bool) -> Tensor:
    """In a graph: a constant truth value, as a native function takes it."""
    return Tensor([x])


@ops.constexpr  # type: ignore[untyped-decorator]
def float64(x: float) -> Tensor:
    """In a graph: a constant number, as a native function takes it."""
    return Tensor(np.array([x], np.float64))


_OF_NUMPY = {ms.float32: np.float32, ms.float16: np.float16, ms.int32: np.int32}


def new_like(tensors: Tensors, dtype: Any = None) -> tuple[Tensor, ...]:
    """New tensors of these shapes, see :func:`new_tensor`; of `dtype`, or each of its own."""
    return tuple(new_tensor(t.shape, dtype or t.dtype) for t in tensors)


def new_tensor(shape: Sequence[int], dtype: Any) -> Tensor:
    """To be written by pointer: what it holds is anything."""
    if dtype in _OF_NUMPY:  # in a tenth of the time, and nothing is copied
        return Tensor.from_numpy(np.empty(shape, _OF_NUMPY[dtype]))
    return mint.empty(shape, dtype=dtype)


def contiguous(tensors: Tensors) -> tuple[Tensor, ...]:
    """The tensors, with a copy for those that are views: an eager gradient may be one."""
    if all(map(_is_contiguous, tensors)):
        return tuple(tensors)
    return tuple(t if t.is_contiguous() else t.contiguous() for t in tensors)


def _readable(arg: Tensor | Tensors) -> Tensor | Tensors:
    return contiguous(arg) if isinstance(arg, (tuple, list)) else contiguous((arg,))[0]


class NativeCell(nn.Cell):
    """Base of the ops that write their inputs. A graph gets the tensors of lists one by one; by pointer the same native
    function gets them in the same order."""

    symbol: str
    read_only: tuple[int, ...] = ()
    """Which arguments are only read: by pointer a strided one, such as an eager gradient may be, is copied."""
    constants: tuple[Any, ...] = ()
    """What the native function gets after the arguments, as NumPy arrays: MindSpore takes a microsecond to say where a
    Tensor lies. A `construct` adds Tensors of them on its own."""
    primitive = GraphOp((1,), ms.bool_, writes=True)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    # What a usual training step calls has a `construct` of its own: the graph compiler takes 20 ms for this one.
    def construct(self, *args: Any) -> Tensor:
        flat = ()
        for arg in args:
            flat = flat + tuple(arg) if isinstance(arg, (tuple, list)) else (*flat, arg)
        return self.primitive(*flat)

    def parts(self, args: Sequence[Any]) -> Sequence[Any]:
        """What the native function gets by pointer."""
        return [*(_readable(arg) if i in self.read_only else arg for i, arg in enumerate(args)), *self.constants]

    def __call__(self, *args: Any) -> Tensor:
        if not calls_by_pointer(self.symbol):
            return super().__call__(*args)
        return Tensor([_core.call(self.symbol, *self.parts(args))])


class PackedCell(NativeCell):
    """An op whose arguments are one flat list of arrays."""

    # No loop: the graph compiler unrolls it by recursion, 500 tensors deep.
    def construct(self, *arrays: Any) -> Tensor:
        return self.primitive(*arrays)

    def parts(self, arrays: Sequence[Any]) -> Sequence[Any]:
        return [contiguous(arrays)]


class NativeFunction(nn.Cell):
    """Base of what writes new tensors alone, so that the graph compiler may drop, merge and reorder it.

    ``primitive`` says what a graph allocates, :meth:`new_outputs` what Python does."""

    symbol: str
    primitive: GraphOp
    constants: tuple[Any, ...] = ()
    """See :class:`NativeCell`."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def new_outputs(self, *args: Any) -> Any:
        raise NotImplementedError

    def construct(self, *args: Any) -> Any:
        return self.primitive(*args)

    def __call__(self, *args: Any) -> Any:
        if not calls_by_pointer(self.symbol):
            return super().__call__(*args)
        out = self.new_outputs(*args)
        _core.call(self.symbol, *map(_readable, args), *self.constants, out)
        return out
