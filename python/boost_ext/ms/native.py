"""The native ops inside MindSpore: each is one Cell with two ways in.

* ``construct`` holds an ``ops.Custom`` primitive: what the graph compiler sees, in GRAPH_MODE and under ``ms.jit``. It
  calls the C ABI of the same library that the Python functions live in. A primitive that writes its inputs says so
  (``side_effect_mem``), or the graph compiler would drop, merge or reorder it.
* ``__call__`` hands the tensors' pointers to the same op when Python runs the cell in PYNATIVE_MODE. A pointer is
  fetched right before the call, which also waits for whatever op was still writing that tensor, and never kept.

Tensors that are written are written in place in both modes. Every cell returns a bool Tensor of shape (1,). Reading a
Parameter afterwards sees the write. A gradient is a plain value to the graph compiler, which may compute an expression
of it before the write: read it through ``ops.depend(grads, result)``.
This is the only module that knows where the library lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import mindspore._c_expression as _ms_core
from mindspore import Tensor, nn, ops
from mindspore.common import initializer

from boost_ext import _core
from boost_ext.ops import loss_scale_update as update_loss_scale

__all__ = [
    "Accumulate",
    "AdasumPair",
    "BfgsUpdate",
    "Centralized",
    "DimReduceApply",
    "DimReduceDirection",
    "DimReduceTrial",
    "GlobalNorm",
    "GroupLossScaleUpdate",
    "GroupUnscaleAndCheck",
    "LossScaleUpdate",
    "PcaBackProject",
    "PcaProject",
    "Timestamp",
    "UnscaleAndCheck",
    "UnscaleAndCheckReport",
    "contiguous",
    "fixed_arrays",
    "in_pynative_mode",
    "optimizer_rules",
    "packed_lars",
    "packed_step",
    "update_loss_scale",
]

Tensors = Sequence[Tensor]
packed_lars, packed_step = _core.packed_lars, _core.packed_step
fixed_arrays = _core.fixed_arrays
optimizer_rules = _core.optimizer_rules

_MODE = _ms_core.ms_ctx_param.mode


def in_pynative_mode() -> bool:
    """Whether MindSpore runs in PYNATIVE_MODE. ``mindspore.get_context("mode")`` says the same, 40 times slower."""
    return bool(_ms_core.MSContext.get_instance().get_param(_MODE) == ms.PYNATIVE_MODE)


def _primitive(name: str) -> ops.Custom:
    primitive = ops.Custom(f"{_core.__file__}:boost_ext_{name}", (1,), ms.bool_, "aot")
    primitive.add_prim_attr("side_effect_mem", True)
    return primitive


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
        self.primitive = _primitive(self.symbol)

    def construct(self, *args: Any) -> Tensor:
        flat = ()
        for arg in args:
            flat = flat + tuple(arg) if isinstance(arg, (tuple, list)) else (*flat, arg)
        return self.primitive(*flat)

    def __call__(self, *args: Any) -> Tensor:
        if in_pynative_mode():
            return Tensor([bool(self.by_pointer(*args))])
        return super().__call__(*args)


def _number(tensor: Tensor) -> float:
    return float(tensor.item())


def _flag(tensor: Tensor) -> bool:
    return bool(tensor.item())


def _unscale_and_check(scale: Tensor, grads: Tensors) -> bool:
    return bool(_core.unscale_and_check(grads, 1.0 / _number(scale), False))


class UnscaleAndCheck(NativeCell):
    """``cell(scale, grads)``: divide the gradients by the loss scale in place; True if some element is inf or nan.

    See :func:`boost_ext.ops.unscale_and_check`. ``scale`` is one float32; with scale 1 nothing is written.
    """

    symbol, by_pointer = "unscale_and_check", staticmethod(_unscale_and_check)


class UnscaleAndCheckReport(NativeCell):
    """``cell(scale, report, grads)``: :class:`UnscaleAndCheck` that also says what it saw, at no extra pass.

    With ``write=False`` the gradients stay as they are, and only the report is divided.

    ``report`` is a float64 Parameter of shape (len(grads), 4), written on every call: for each gradient the number of
    inf, the number of nan, the first index of either (-1 if there is none) and the largest finite magnitude, all
    after the division.
    """

    def __init__(self, write: bool = True) -> None:
        self.symbol = "unscale_and_check_report" if write else "check_report"
        super().__init__()
        self._run = _core.unscale_and_check_report if write else _core.check_report

    def by_pointer(self, scale: Tensor, report: Tensor, grads: Tensors) -> bool:
        return self._run(grads, 1.0 / _number(scale), report)


def _accumulate(scale: Tensor, steps: Tensor, count: Tensor, accumulators: Tensors, grads: Tensors) -> None:
    divisor = _number(scale) * _number(steps)  # exact in float64, as in the graph
    factor = 1.0 / divisor if divisor else math.inf  # which the op refuses
    _core.accumulate(accumulators, contiguous(grads), factor, int(count.item()) == 0)


class Accumulate(NativeCell):
    """``cell(scale, steps, count, accumulators, grads)``: add ``grads / (scale * steps)`` to the accumulators.

    See :func:`boost_ext.ops.accumulate`. ``scale`` and ``steps`` are one float32 each; ``count``, one int32, is how
    many micro-batches the accumulators hold: with 0 they are overwritten.
    """

    symbol, by_pointer = "accumulate", staticmethod(_accumulate)


def _global_norm(norm: Tensor, tensors: Tensors) -> None:
    norm.assign_value(Tensor([_core.global_norm(contiguous(tensors))], ms.float32))


class GlobalNorm(NativeCell):
    """``cell(norm, tensors)``: their 2-norm into ``norm`` (1,) float32. See :func:`boost_ext.ops.global_norm`."""

    symbol, by_pointer = "global_norm", staticmethod(_global_norm)


class Centralized(nn.Cell):
    """``cell(grads)``: the centralized gradients as new tensors; the given ones are only read.

    See :func:`boost_ext.ops.centralize`. A pure function: the graph compiler may drop, merge and reorder it.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        path = f"{_core.__file__}:boost_ext_centralized"
        self.primitive = ops.Custom(path, _one_or_all, _one_or_all, "aot")

    def construct(self, grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
        out = self.primitive(*grads)
        return out if len(grads) > 1 else (out,)

    def __call__(self, grads: Sequence[Tensor]) -> Any:
        if in_pynative_mode():
            out = tuple(Tensor(shape=g.shape, dtype=g.dtype, init=initializer.Zero()).init_data() for g in grads)
            _core.centralize(contiguous(grads), out)
            return out
        return super().__call__(grads)


def _one_or_all(*inputs: Any) -> Any:
    """Shapes or dtypes of the outputs: those of the inputs. MindSpore has no tuple of one output."""
    return inputs if len(inputs) > 1 else inputs[0]


def _adasum_pair(a: Tensors, b: Tensors, out: Tensors) -> None:
    _core.adasum_pair(contiguous(a), contiguous(b), out)


class AdasumPair(NativeCell):
    """``cell(a, b, out)``: the adaptive sum of two lists of tensors. See :func:`boost_ext.ops.adasum_pair`."""

    symbol, by_pointer = "adasum_pair", staticmethod(_adasum_pair)


def _pca_project(P: Tensor, out: Tensor, grads: Tensors) -> None:
    _core.pca_project(P, contiguous(grads), out)


class PcaProject(NativeCell):
    """``cell(P, out, grads)``: ``out = P @ grads``, out (k,) float32. See :func:`boost_ext.ops.pca_project`."""

    symbol, by_pointer = "pca_project", staticmethod(_pca_project)


def _pca_back_project(P: Tensor, v: Tensor, w: Tensor, out_v: Tensors, out_w: Tensors) -> None:
    _core.pca_back_project(P, (v, w), (out_v, out_w))


class PcaBackProject(NativeCell):
    """``cell(P, v, w, out_v, out_w)``: ``P.T @ v`` and ``P.T @ w`` in one pass over P.

    See :func:`boost_ext.ops.pca_back_project`.
    """

    symbol, by_pointer = "pca_back_project", staticmethod(_pca_back_project)


def _bfgs_update(B: Tensor, s: Tensor, y: Tensor, eps: Tensor) -> bool:
    return _core.bfgs_update(B, s, y, _number(eps))


class BfgsUpdate(NativeCell):
    """``cell(B, s, y, eps)``: inverse-BFGS update of B in place; True if it updated.

    See :func:`boost_ext.ops.bfgs_update`. ``eps`` is one float32.
    """

    symbol, by_pointer = "bfgs_update", staticmethod(_bfgs_update)


def _dim_reduce_direction(*args: Tensor) -> None:
    B, s, gk_last, started, gk, scale, B_next, dk, slope, eps = args
    value = _core.dim_reduce_direction(
        B, s, gk_last, _flag(started), gk, 1.0 / _number(scale), B_next, dk, _number(eps)
    )
    slope.assign_value(Tensor([value], ms.float32))


class DimReduceDirection(NativeCell):
    """``cell(B, s, gk_last, started, gk, scale, B_next, dk, slope, eps)``; writes gk, B_next, dk and slope (1,).

    See :func:`boost_ext.ops.dim_reduce_direction`.
    """

    symbol, by_pointer = "dim_reduce_direction", staticmethod(_dim_reduce_direction)


def _dim_reduce_trial(step: Tensor, save: Tensor, weights: Tensors, saved: Tensors, dn: Tensors) -> None:
    _core.dim_reduce_trial(weights, saved, dn, step, _flag(save))


class DimReduceTrial(NativeCell):
    """``cell(step, save, weights, saved, dn)``: ``weights = saved + step * dn``, after saving them if ``save``.

    See :func:`boost_ext.ops.dim_reduce_trial`.
    """

    symbol, by_pointer = "dim_reduce_trial", staticmethod(_dim_reduce_trial)


def _dim_reduce_apply(
    gamma: Tensor, alpha: Tensor, rho: Tensor, scale: Tensor, m: Tensors, grads: Tensors, proj: Tensors, dn: Tensors
) -> None:
    rates = (_number(gamma), _number(alpha), _number(rho), 1.0 / _number(scale))
    _core.dim_reduce_apply(m, contiguous(grads), proj, dn, proj, *rates, None, None)


class DimReduceApply(NativeCell):
    """``cell(gamma, alpha, rho, scale, momentum, grads, grad_proj, dn)``: momentum in place, delta over ``grad_proj``.

    See :func:`boost_ext.ops.dim_reduce_apply`.
    """

    symbol, by_pointer = "dim_reduce_apply", staticmethod(_dim_reduce_apply)


class LossScaleUpdate(NativeCell):
    """``cell(scale, counters, overflow)``: the next scale, in place. See :func:`boost_ext.ops.loss_scale_update`."""

    symbol = "loss_scale_update"

    def __init__(self, factor: float, window: int, max_scale: float) -> None:
        super().__init__()
        self._rule = (factor, window, max_scale)
        self.rule = Tensor(self._rule, ms.float32)

    def by_pointer(self, scale: Tensor, counters: Tensor, overflow: Tensor) -> None:
        _core.loss_scale_update(scale, counters, _flag(overflow), *self._rule)

    def construct(self, scale: Tensor, counters: Tensor, overflow: Tensor) -> Tensor:
        return self.primitive(scale, counters, overflow, self.rule)


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


def _group_unscale_and_check(groups: Tensor, found: Tensor, report: Tensor, scales: Tensors, grads: Tensors) -> bool:
    return _core.group_unscale_and_check(grads, groups, scales, found, report)


class GroupUnscaleAndCheck(NativeCell):
    """``cell(groups, found, report, scales, grads)``: :class:`UnscaleAndCheckReport` with a scale for each group.

    ``groups``, int32 (len(grads),), says which of the ``scales``, one float32 each, belongs to which gradient;
    ``found``, int32 (len(scales),), is written: 1 if the group overflowed, 0 if not, -1 if it has no gradient.
    """

    symbol, by_pointer = "group_unscale_and_check", staticmethod(_group_unscale_and_check)


def _group_loss_scale_update(max_scale: Tensor, overflows: Tensor, found: Tensor, scales: Tensors) -> None:
    _core.group_loss_scale_update(scales, found, overflows, _number(max_scale))


class GroupLossScaleUpdate(NativeCell):
    """``cell(max_scale, overflows, found, scales)``: the scales of the next step, in place, by what was found.

    A group that overflowed shrinks by 1 / sqrt(2), not below 1; one that did not grows by 2 ** (1 / 1000), not above
    ``max_scale``. ``overflows``, one int32, counts the steps in a row with an overflow; the 1001st raises.
    """

    symbol, by_pointer = "group_loss_scale_update", staticmethod(_group_loss_scale_update)
