"""The clock inside a compiled step."""

from __future__ import annotations

from mindspore import Tensor

from .cell import NativeCell, Tensors, calls_by_pointer


class Timestamp(NativeCell):
    """``cell(stamps, slot, dependencies)``: write the monotonic clock, in seconds, into ``stamps[slot]``.

    For timing the parts of a compiled step. ``stamps`` is a float64 Parameter (k,), ``slot`` one int32. The clock is
    read when the ``dependencies``, tensors of any dtype, are there; what shall come after it takes its inputs through
    ``ops.depend(inputs, result)``.
    """

    symbol = "timestamp"

    def __call__(self, stamps: Tensor, slot: Tensor, dependencies: Tensors) -> Tensor:
        if not calls_by_pointer(self.symbol):
            return super().__call__(stamps, slot, dependencies)
        for tensor in dependencies:
            tensor.data_ptr()  # waits for whatever op still writes it
        return super().__call__(stamps, slot)
