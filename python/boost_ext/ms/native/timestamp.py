"""The clock inside a compiled step."""

from __future__ import annotations

from mindspore import Tensor

from boost_ext import _core

from .cell import NativeCell, Tensors


def _timestamp(stamps: Tensor, slot: Tensor, dependencies: Tensors) -> None:
    for tensor in dependencies:
        tensor.data_ptr()  # waits for whatever op still writes it
    _core.timestamp(stamps, int(slot.item()))


class Timestamp(NativeCell):
    """``cell(stamps, slot, dependencies)``: write the monotonic clock, in seconds, into ``stamps[slot]``.

    For timing the parts of a compiled step. ``stamps`` is a float64 Parameter (k,), ``slot`` one int32. The clock is
    read when the ``dependencies``, tensors of any dtype, are there; what shall come after it takes its inputs through
    ``ops.depend(inputs, result)``.
    """

    symbol, by_pointer = "timestamp", staticmethod(_timestamp)
