"""Gradients as tensors in, tensors out: nothing is read by the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from boost_ext import ops
from boost_ext.torch.storage import has_no_data, is_distributed, local

__all__ = ["adaptive_clip_grad_", "clip_grad_norm_", "unscale_"]


def _members(parameters: Any) -> list[Any]:
    """Those that have a gradient."""
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    return [p for p in parameters if p.grad is not None]


def _have_data(members: list[Any]) -> bool:
    """Whether there is something to compute."""
    return bool(members) and not has_no_data(members[0].grad)


def _require_whole(owner: str, members: list[Any]) -> None:
    if any(is_distributed(p.grad) for p in members):
        raise TypeError(f"{owner}: gradients must be tensors of this process alone, got DTensor")


def _is_dense(grad: torch.Tensor) -> bool:
    if grad.layout != torch.strided or grad.is_contiguous():
        return True
    expected = 1
    for stride, size in sorted(zip(grad.stride(), grad.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


@contextmanager
def _gradients(members: list[Any]) -> Iterator[list[Any]]:
    """To be written in place. An expanded one, whose elements share memory, becomes a tensor of its own."""
    grads = [local(p.grad) for p in members]
    dense = [g if _is_dense(g) else g.contiguous() for g in grads]
    yield dense
    for p, g, d in zip(members, grads, dense, strict=True):
        if d is not g:
            if 0 in g.stride():
                p.grad = d
            else:
                g.copy_(d)


def _rows(tensor: torch.Tensor) -> torch.Tensor:
    """What shares the index of the first axis as a row, also of channels_last weights, which store it together. A copy
    of tensors that do not."""
    if tensor.ndim < 2:
        return tensor.contiguous()
    if tensor.is_contiguous() or tensor.stride(0) * tensor.shape[0] != tensor.numel():
        return tensor.contiguous().flatten(1)
    return tensor.as_strided((tensor.shape[0], tensor.stride(0)), (tensor.stride(0), 1))


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float | torch.Tensor,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
    *,
    scale: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Shorten the gradients of `parameters`, taken as one vector, to the length `max_norm`, in place.

    As ``torch.nn.utils.clip_grad_norm_`` for the Euclidean norm. The norm is summed in float64, in one pass over all
    gradients. Gradients with inf or nan are not written.

    Args:
        parameters: those without a gradient are left out.
        max_norm: >= 0; inf only measures. A tensor is read by the host.
        norm_type: 2.
        error_if_nonfinite: raise a RuntimeError if the norm is inf or nan. The host waits for it.
        foreach: ignored.
        scale: what the gradients are too large by, such as ``scaler.get_scale()``; they stay so.

    Returns:
        The norm before, without `scale`: a float64 tensor of no axes, where the gradients are. The host does not wait.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import clip_grad_norm_
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([3.0, 4.0])
        >>> print(clip_grad_norm_([weight], 1.0).item(), [round(g, 2) for g in weight.grad.tolist()])
        5.0 [0.6, 0.8]
    """
    if norm_type != 2:
        raise ValueError(f"clip_grad_norm_: norm_type must be 2, got {norm_type}")
    members = _members(parameters)
    _require_whole("clip_grad_norm_", members)
    norm = torch.zeros(1, dtype=torch.float64, device=members[0].grad.device if members else None)
    if isinstance(scale, torch.Tensor):
        scale = scale.item() if scale.device.type == "cpu" else scale.float().reshape(1)
    limit = float(max_norm)
    if _have_data(members):
        with _gradients(members) as grads:
            if 0 < limit < math.inf or not limit >= 0:
                ops.clip_by_global_norm(grads, limit, scale=scale, out=norm)
            else:
                norm = ops.global_norm(grads, out=norm) / scale
                if limit == 0:
                    torch._foreach_mul_(grads, (~norm.isfinite()).float().reshape(()))
    if error_if_nonfinite and not norm.isfinite():
        raise RuntimeError(f"clip_grad_norm_: the norm must be finite with error_if_nonfinite, got {norm.item()}")
    return norm.reshape(())


@torch.no_grad()
def unscale_(parameters: torch.Tensor | Iterable[torch.Tensor], scale: float | torch.Tensor) -> torch.Tensor:
    """Divide the gradients of `parameters` by a loss scale, in place, and see whether one is inf or nan, in one pass.

    What it returns fits an optimizer's ``found_inf``: then a step with inf or nan writes nothing. Without `scale` of 1
    the gradients are written; an optimizer's ``grad_scale`` spares that.

    Of a DTensor it is the part of this process, whose `found_inf` is then that of this process.

    Args:
        parameters: those without a gradient are left out.
        scale: > 0.

    Returns:
        float32, of no axes, where the gradients are: 1 if something was found, else 0. The host does not wait.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import unscale_
        >>> weight = torch.nn.Parameter(torch.zeros(2))
        >>> weight.grad = torch.tensor([1024.0, 2048.0])
        >>> print(unscale_([weight], 1024.0), weight.grad)
        tensor(0.) tensor([1., 2.])
    """
    members = _members(parameters)
    found = torch.zeros(1, device=members[0].grad.device if members else None)
    if isinstance(scale, torch.Tensor) and scale.device.type != "cpu":
        inverse: Any = scale.float().reciprocal().reshape(1)
    elif not 0 < scale < math.inf:
        raise ValueError(f"unscale_: scale must be finite and > 0, got {float(scale)}")
    else:
        inverse = 1 / float(scale)
    if _have_data(members):
        with _gradients(members) as grads:
            ops.unscale_and_check(grads, inverse, out=found)
    return found.reshape(())


@torch.no_grad()
def adaptive_clip_grad_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    clipping: float = 0.01,
    *,
    eps: float = 1e-3,
    scale: float = 1.0,
) -> None:
    """Shorten the gradient of each unit to a share of the norm of its weights, in place: AGC.

    See :func:`boost_ext.ops.adaptive_clip`. As ``timm.utils.adaptive_clip_grad``, in one call for all of them.

    Args:
        parameters: those without a gradient are left out. Leave out the last layer, as the paper does.
        clipping: the greatest ratio of the norms, > 0.
        eps: the least norm of weights that counts, >= 0.
        scale: what the gradients are too large by, > 0, such as ``scaler.get_scale()``; they stay so.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import adaptive_clip_grad_
        >>> weight = torch.nn.Parameter(torch.tensor([[3.0, 4.0], [30.0, 40.0]]))
        >>> weight.grad = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
        >>> adaptive_clip_grad_([weight], 0.1)
        >>> weight.grad.tolist()
        [[0.0, 0.5], [0.0, 1.0]]
    """
    members = _members(parameters)
    _require_whole("adaptive_clip_grad_", members)
    if _have_data(members):
        with _gradients(members) as grads:
            rows, weights = [_rows(g) for g in grads], [_rows(p) for p in members]
            ops.adaptive_clip(rows, weights, clipping, eps=eps, scale=scale)
            for g, r in zip(grads, rows, strict=True):
                if r.data_ptr() != g.data_ptr():
                    g.copy_(r.view(g.shape))
