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

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import mindspore._c_expression as _ms_core
from mindspore import Tensor, nn, ops

from boost_ext import _core
from boost_ext.ops import loss_scale_update as update_loss_scale

__all__ = [
    "AdasumPair",
    "BfgsUpdate",
    "Centralize",
    "DimReduceApply",
    "DimReduceDirection",
    "DimReduceTrial",
    "GlobalNorm",
    "LossScaleUpdate",
    "PcaBackProject",
    "PcaProject",
    "UnscaleAndCheck",
    "contiguous",
    "in_pynative_mode",
    "update_loss_scale",
]

_MODE = _ms_core.ms_ctx_param.mode


def in_pynative_mode() -> bool:
    """Whether MindSpore runs in PYNATIVE_MODE. ``mindspore.get_context("mode")`` says the same, 40 times slower."""
    return bool(_ms_core.MSContext.get_instance().get_param(_MODE) == ms.PYNATIVE_MODE)


def _primitive(name: str) -> ops.Custom:
    primitive = ops.Custom(f"{_core.__file__}:boost_ext_{name}", (1,), ms.bool_, "aot")
    primitive.add_prim_attr("side_effect_mem", True)
    return primitive


def contiguous(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The tensors, with a copy for those that are views: an eager gradient may be one."""
    return tuple(t if t.is_contiguous() else t.contiguous() for t in tensors)


class NativeCell(nn.Cell):
    """Base of the ops: which native function, and how Python calls it."""

    def __init__(self, name: str, by_pointer: Callable[..., Any]) -> None:
        super().__init__(auto_prefix=False)
        self.primitive = _primitive(name)
        self._by_pointer = by_pointer

    def __call__(self, *args: Any) -> Tensor:
        if in_pynative_mode():
            return Tensor([bool(self._by_pointer(*args))])
        return super().__call__(*args)


def _number(tensor: Tensor) -> float:
    return float(tensor.item())


def _flag(tensor: Tensor) -> bool:
    return bool(tensor.item())


def _unscale_and_check(scale: Tensor, grads: Sequence[Tensor]) -> bool:
    return bool(_core.unscale_and_check(grads, 1.0 / _number(scale), False))


class UnscaleAndCheck(NativeCell):
    """``cell(scale, grads)``: divide the gradients by the loss scale in place; True if some element is inf or nan.

    See :func:`boost_ext.ops.unscale_and_check`. ``scale`` is one float32; with scale 1 nothing is written.
    """

    def __init__(self) -> None:
        super().__init__("unscale_and_check", _unscale_and_check)

    def construct(self, scale: Tensor, grads: Sequence[Tensor]) -> Tensor:
        return self.primitive(scale, *grads)


def _global_norm(norm: Tensor, tensors: Sequence[Tensor]) -> None:
    ops_norm = _core.global_norm(contiguous(tensors))
    norm.assign_value(Tensor([ops_norm], ms.float32))


class GlobalNorm(NativeCell):
    """``cell(norm, tensors)``: write the Euclidean norm of all tensors into ``norm`` (1,) float32.

    See :func:`boost_ext.ops.global_norm`.
    """

    def __init__(self) -> None:
        super().__init__("global_norm", _global_norm)

    def construct(self, norm: Tensor, tensors: Sequence[Tensor]) -> Tensor:
        return self.primitive(norm, *tensors)


class Centralize(NativeCell):
    """``cell(grads)``: gradient centralization in place. See :func:`boost_ext.ops.centralize`."""

    def __init__(self) -> None:
        super().__init__("centralize", _core.centralize)

    def construct(self, grads: Sequence[Tensor]) -> Tensor:
        return self.primitive(*grads)


def _adasum_pair(a: Sequence[Tensor], b: Sequence[Tensor], out: Sequence[Tensor]) -> None:
    _core.adasum_pair(contiguous(a), contiguous(b), out)


class AdasumPair(NativeCell):
    """``cell(a, b, out)``: the adaptive sum of two lists of tensors. See :func:`boost_ext.ops.adasum_pair`."""

    def __init__(self) -> None:
        super().__init__("adasum_pair", _adasum_pair)

    def construct(self, a: Sequence[Tensor], b: Sequence[Tensor], out: Sequence[Tensor]) -> Tensor:
        return self.primitive(*a, *b, *out)


def _pca_project(P: Tensor, out: Tensor, grads: Sequence[Tensor]) -> None:
    _core.pca_project(P, contiguous(grads), out)


class PcaProject(NativeCell):
    """``cell(P, out, grads)``: ``out = P @ grads``, out (k,) float32. See :func:`boost_ext.ops.pca_project`."""

    def __init__(self) -> None:
        super().__init__("pca_project", _pca_project)

    def construct(self, P: Tensor, out: Tensor, grads: Sequence[Tensor]) -> Tensor:
        return self.primitive(P, out, *grads)


def _pca_back_project(P: Tensor, v: Tensor, w: Tensor, out_v: Sequence[Tensor], out_w: Sequence[Tensor]) -> None:
    _core.pca_back_project(P, (v, w), (out_v, out_w))


class PcaBackProject(NativeCell):
    """``cell(P, v, w, out_v, out_w)``: ``P.T @ v`` and ``P.T @ w`` in one pass over P.

    See :func:`boost_ext.ops.pca_back_project`.
    """

    def __init__(self) -> None:
        super().__init__("pca_back_project", _pca_back_project)

    def construct(self, P: Tensor, v: Tensor, w: Tensor, out_v: Sequence[Tensor], out_w: Sequence[Tensor]) -> Tensor:
        return self.primitive(P, v, w, *out_v, *out_w)


def _bfgs_update(B: Tensor, s: Tensor, y: Tensor, eps: Tensor) -> bool:
    return _core.bfgs_update(B, s, y, _number(eps))


class BfgsUpdate(NativeCell):
    """``cell(B, s, y, eps)``: inverse-BFGS update of B in place; True if it updated.

    See :func:`boost_ext.ops.bfgs_update`. ``eps`` is one float32.
    """

    def __init__(self) -> None:
        super().__init__("bfgs_update", _bfgs_update)

    def construct(self, B: Tensor, s: Tensor, y: Tensor, eps: Tensor) -> Tensor:
        return self.primitive(B, s, y, eps)


def _dim_reduce_direction(
    B: Tensor,
    s: Tensor,
    gk_last: Tensor,
    started: Tensor,
    gk: Tensor,
    scale: Tensor,
    B_next: Tensor,
    dk: Tensor,
    slope: Tensor,
    eps: Tensor,
) -> None:
    value = _core.dim_reduce_direction(
        B, s, gk_last, _flag(started), gk, 1.0 / _number(scale), B_next, dk, _number(eps)
    )
    slope.assign_value(Tensor([value], ms.float32))


class DimReduceDirection(NativeCell):
    """``cell(B, s, gk_last, started, gk, scale, B_next, dk, slope, eps)``; writes gk, B_next, dk and slope (1,).

    See :func:`boost_ext.ops.dim_reduce_direction`.
    """

    def __init__(self) -> None:
        super().__init__("dim_reduce_direction", _dim_reduce_direction)

    def construct(
        self,
        B: Tensor,
        s: Tensor,
        gk_last: Tensor,
        started: Tensor,
        gk: Tensor,
        scale: Tensor,
        B_next: Tensor,
        dk: Tensor,
        slope: Tensor,
        eps: Tensor,
    ) -> Tensor:
        return self.primitive(B, s, gk_last, started, gk, scale, B_next, dk, slope, eps)


def _dim_reduce_trial(
    step: Tensor,
    save: Tensor,
    weights: Sequence[Tensor],
    saved: Sequence[Tensor],
    dn: Sequence[Tensor],
) -> None:
    _core.dim_reduce_trial(weights, saved, dn, step, _flag(save))


class DimReduceTrial(NativeCell):
    """``cell(step, save, weights, saved, dn)``: ``weights = saved + step * dn``, after saving them if ``save``.

    See :func:`boost_ext.ops.dim_reduce_trial`.
    """

    def __init__(self) -> None:
        super().__init__("dim_reduce_trial", _dim_reduce_trial)

    def construct(
        self,
        step: Tensor,
        save: Tensor,
        weights: Sequence[Tensor],
        saved: Sequence[Tensor],
        dn: Sequence[Tensor],
    ) -> Tensor:
        return self.primitive(step, save, *weights, *saved, *dn)


def _dim_reduce_apply(
    gamma: Tensor,
    alpha: Tensor,
    rho: Tensor,
    scale: Tensor,
    momentum: Sequence[Tensor],
    grads: Sequence[Tensor],
    grad_proj: Sequence[Tensor],
    dn: Sequence[Tensor],
) -> None:
    _core.dim_reduce_apply(
        momentum,
        contiguous(grads),
        grad_proj,
        dn,
        grad_proj,
        _number(gamma),
        _number(alpha),
        _number(rho),
        1.0 / _number(scale),
        None,
        None,
    )


class DimReduceApply(NativeCell):
    """``cell(gamma, alpha, rho, scale, momentum, grads, grad_proj, dn)``: momentum in place, delta over ``grad_proj``.

    See :func:`boost_ext.ops.dim_reduce_apply`.
    """

    def __init__(self) -> None:
        super().__init__("dim_reduce_apply", _dim_reduce_apply)

    def construct(
        self,
        gamma: Tensor,
        alpha: Tensor,
        rho: Tensor,
        scale: Tensor,
        momentum: Sequence[Tensor],
        grads: Sequence[Tensor],
        grad_proj: Sequence[Tensor],
        dn: Sequence[Tensor],
    ) -> Tensor:
        return self.primitive(gamma, alpha, rho, scale, *momentum, *grads, *grad_proj, *dn)


class LossScaleUpdate(NativeCell):
    """``cell(scale, counters, overflow)``: the next loss scale, in place.

    See :func:`boost_ext.ops.loss_scale_update`.
    """

    def __init__(self, factor: float, window: int, max_scale: float) -> None:
        def by_pointer(scale: Tensor, counters: Tensor, overflow: Tensor) -> None:
            _core.loss_scale_update(scale, counters, _flag(overflow), factor, window, max_scale)

        super().__init__("loss_scale_update", by_pointer)
        self.rule = Tensor([factor, window, max_scale], ms.float32)

    def construct(self, scale: Tensor, counters: Tensor, overflow: Tensor) -> Tensor:
        return self.primitive(scale, counters, overflow, self.rule)
