"""What all native ops share: the Cell with two ways in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import mindspore._c_expression as _ms_core
from mindspore import Tensor, nn, ops
from mindspore.common import initializer

from boost_ext import _core

Tensors = Sequence[Tensor]

_MODE = _ms_core.ms_ctx_param.mode


def in_pynative_mode() -> bool:
    """Whether MindSpore runs in PYNATIVE_MODE. ``mindspore.get_context("mode")`` says the same, 40 times slower."""
    return bool(_ms_core.MSContext.get_instance().get_param(_MODE) == ms.PYNATIVE_MODE)


def pure_primitive(name: str, shape: Any, dtype: Any) -> ops.Custom:
    """An op that only reads its inputs: the graph compiler may drop, merge and reorder it."""
    return ops.Custom(f"{_core.__file__}:boost_ext_{name}", shape, dtype, "aot")


def writing_primitive(name: str) -> ops.Custom:
    """An op that writes its inputs, and says so."""
    primitive = pure_primitive(name, (1,), ms.bool_)
    primitive.add_prim_attr("side_effect_mem", True)
    return primitive


def one_or_all(items: Sequence[Any]) -> Any:
    """Shapes, dtypes or tensors of several outputs: MindSpore has no tuple of one output."""
    return items if len(items) > 1 else items[0]


def new_like(tensors: Tensors, dtype: Any = None) -> tuple[Tensor, ...]:
    """New tensors of these shapes, to be written by pointer; of `dtype`, or each of its own."""
    return tuple(Tensor(shape=t.shape, dtype=dtype or t.dtype, init=initializer.Zero()).init_data() for t in tensors)


def contiguous(tensors: Tensors) -> tuple[Tensor, ...]:
    """The tensors, with a copy for those that are views: an eager gradient may be one."""
    return tuple(t if t.is_contiguous() else t.contiguous() for t in tensors)


class NativeCell(nn.Cell):
    """Base of the ops: which native function, and how Python calls it. Both take the same arguments in the same order;
    the primitive takes the tensors of lists one by one."""

    symbol: str
    by_pointer: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.primitive = writing_primitive(self.symbol)

    def construct(self, *args: Any) -> Tensor:
        flat = ()
        for arg in args:
            flat = flat + tuple(arg) if isinstance(arg, (tuple, list)) else (*flat, arg)
        return self.primitive(*flat)

    def __call__(self, *args: Any) -> Tensor:
        if in_pynative_mode():
            return Tensor([bool(self.by_pointer(*args))])
        return super().__call__(*args)


class PackedCell(NativeCell):
    """An op whose arguments are one flat list of arrays, by pointer too: what `packed` reads."""

    packed: Callable[..., Any]

    # No loop: the graph compiler unrolls it by recursion, 500 tensors deep.
    def construct(self, *arrays: Any) -> Tensor:
        return self.primitive(*arrays)

    def by_pointer(self, *arrays: Any) -> bool:
        done = self.packed(contiguous(arrays))
        return True if done is None else bool(done)


def number(tensor: Tensor) -> float:
    return float(tensor.item())


def flag(tensor: Tensor) -> bool:
    return bool(tensor.item())
