"""Gradients as tensors in, tensors out: nothing is read by the host."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from boost_ext import ops
from boost_ext.torch.storage import is_distributed

__all__ = ["clip_grad_norm_", "unscale_"]


def _gradients(owner: str, parameters: Any) -> list[Any]:
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    grads = [p.grad for p in parameters if p.grad is not None]
    for g in grads:
        if is_distributed(g):
            raise TypeError(f"{owner}: gradients must be tensors of this process alone, got DTensor")
    return grads


@torch.no_grad()
def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    *,
    scale: float | torch.Tensor = 1.0,
) -> torch.Tensor:
    """Shorten the gradients of `parameters`, taken as one vector, to the length `max_norm`, in place.

    As ``torch.nn.utils.clip_grad_norm_`` for the Euclidean norm. The norm is summed in float64, in one pass over all
    gradients. Gradients with inf or nan are not written.

    Args:
        parameters: those without a gradient are left out.
        max_norm: > 0.
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
    grads = _gradients("clip_grad_norm_", parameters)
    norm = torch.zeros(1, dtype=torch.float64, device=grads[0].device if grads else None)
    if isinstance(scale, torch.Tensor):
        scale = scale.item() if scale.device.type == "cpu" else scale.float().reshape(1)
    if grads:
        ops.clip_by_global_norm(grads, max_norm, scale=scale, out=norm)
    return norm.reshape(())


@torch.no_grad()
def unscale_(parameters: torch.Tensor | Iterable[torch.Tensor], scale: float | torch.Tensor) -> torch.Tensor:
    """Divide the gradients of `parameters` by a loss scale, in place, and see whether one is inf or nan, in one pass.

    What it returns fits an optimizer's ``found_inf``: then a step with inf or nan writes nothing. Without `scale` of 1
    the gradients are written; an optimizer's ``grad_scale`` spares that.

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
    grads = _gradients("unscale_", parameters)
    found = torch.zeros(1, device=grads[0].device if grads else None)
    if isinstance(scale, torch.Tensor):
        inverse: Any = 1 / scale.item() if scale.device.type == "cpu" else scale.float().reciprocal().reshape(1)
    else:
        inverse = 1 / scale
    if grads:
        ops.unscale_and_check(grads, inverse, out=found)
    return found.reshape(())
