"""The native ops of loss scaling: check, unscale, and the next scale."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from boost_ext import _core

from .cell import GraphOp, NativeCell, Tensors, contiguous, require_cpu

_UNREPORTED = np.ones(1, np.float32), np.zeros(1, bool)
"""The scale, and no report: see the constants of :class:`NativeCell`."""


def _checkable(tensor: Tensor) -> Tensor:
    """The tensor, or an element that is finite if it is: the op has three dtypes."""
    if tensor.dtype in (ms.float32, ms.float16, ms.bfloat16):
        return tensor
    return 1.0 / ops.cast(ops.isfinite(tensor).all(), ms.float32)


class AllFinite(nn.Cell):
    """``cell(tensors)``: whether no element is inf or nan, a bool Tensor of shape (). Any dtype; only read.

    A pure function: the graph compiler may drop, merge and reorder it. Called by Python it reads in one native pass in
    both modes.
    """

    symbol = "unscale_and_check"  # which writes nothing with scale 1
    primitive = GraphOp((1,), ms.bool_)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.unit, self.no_report = map(Tensor, _UNREPORTED)
        self.each = ops.HyperMap()

    # By HyperMap: the graph compiler unrolls a loop by recursion.
    def construct(self, tensors: Tensors) -> Tensor:
        found = self.primitive(*self.each(_checkable, tensors), self.unit, self.no_report)
        return ops.logical_not(ops.reshape(found, ()))

    def __call__(self, tensors: Tensors) -> Tensor:
        require_cpu(self.symbol)
        found = _core.call(self.symbol, contiguous([_checkable(t) for t in tensors]), *_UNREPORTED)
        return Tensor(not found)


class UnscaleAndCheckReport(NativeCell):
    """``cell(grads, scale, report)``: divide the gradients by the loss scale in place; True if one has an inf or nan.

    See :func:`boost_ext.ops.unscale_and_check`. ``scale`` is one float32. With ``write=False`` the gradients stay as
    they are, and only the report is divided.

    ``report`` is a float64 Parameter of shape (len(grads), 4), written on every call: for each gradient the number of
    inf, the number of nan, the first index of either (-1 if there is none) and the largest finite magnitude, all
    after the division.
    """

    def __init__(self, write: bool = True) -> None:
        self.symbol = "unscale_and_check_report" if write else "check_report"
        super().__init__()
        if not write:
            self.read_only = (0,)

    def construct(self, grads: Tensors, scale: Tensor, report: Tensor) -> Tensor:
        return self.primitive(*grads, scale, report)


class CheckAndClip(NativeCell):
    """``cell(scale, clip_norm, own_scale, report, norm, divisor, grads)``: :class:`UnscaleAndCheckReport` with
    ``write=False``, and the norm in the same read.

    ``own_scale`` is what the optimizer takes out on its own. Written: ``norm``, that of the gradients over both scales,
    and ``divisor``, what clips them and takes ``scale`` out. All but report and gradients are one float32 each.
    """

    symbol, read_only = "check_and_clip", (6,)

    def construct(
        self,
        scale: Tensor,
        clip_norm: Tensor,
        own_scale: Tensor,
        report: Tensor,
        norm: Tensor,
        divisor: Tensor,
        grads: Tensors,
    ) -> Tensor:
        return self.primitive(scale, clip_norm, own_scale, report, norm, divisor, *grads)


class LossScaleUpdate(NativeCell):
    """``cell(scale, counters, overflow)``: the next scale, in place. See :func:`boost_ext.ops.loss_scale_update`."""

    symbol = "loss_scale_update"

    def __init__(self, factor: float, window: int, max_scale: float) -> None:
        super().__init__()
        scales = np.array([[factor], [max_scale]], np.float32)
        self.constants = scales[0], np.array([window], np.int32), scales[1]
        self.factor, self.window, self.max_scale = map(Tensor, self.constants)

    def construct(self, scale: Tensor, counters: Tensor, overflow: Tensor) -> Tensor:
        return self.primitive(scale, counters, overflow, self.factor, self.window, self.max_scale)


class GroupUnscaleAndCheck(NativeCell):
    """``cell(groups, found, report, scales, grads)``: :class:`UnscaleAndCheckReport` with a scale for each group.

    ``groups``, int32 (len(grads),), says which of the ``scales``, one float32 each, belongs to which gradient;
    ``found``, int32 (len(scales),), is written: 1 if the group overflowed, 0 if not, -1 if it has no gradient.
    """

    symbol = "group_unscale_and_check"


class GroupLossScaleUpdate(NativeCell):
    """``cell(max_scale, overflows, found, scales)``: the scales of the next step, in place, by what was found.

    A group that overflowed shrinks by 1 / sqrt(2), not below 1; one that did not grows by 2 ** (1 / 1000), not above
    ``max_scale``. ``overflows``, one int32, counts the steps in a row with an overflow; the 1001st raises.
    """

    symbol = "group_loss_scale_update"
