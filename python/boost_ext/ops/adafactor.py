"""Adafactor on arrays; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Numbers, flags, integer, number, numbers, switch

__all__ = ["adafactor_step"]

_OP = "adafactor_step"


def _optional(arg: str, arrays: Any) -> Any:
    """As the native op takes them: empty in the place of None."""
    if not isinstance(_filled(arg, arrays), (list, tuple)):
        return np.empty(0, np.float32) if arrays is None else arrays
    return [np.empty(0, np.float32) if a is None else a for a in arrays]


def _filled(arg: str, arrays: Any) -> Any:
    """No empty list, which would be no list to the native op."""
    if isinstance(arrays, (list, tuple)) and not arrays:
        raise ValueError(f"{_OP}: {arg} must hold one array for each tensor, got 0")
    return arrays


def adafactor_step(
    params: Arrays,
    grads: Arrays,
    rows: Array | Sequence[Array | None] | None,
    columns: Array | Sequence[Array | None] | None,
    squares: Array | Sequence[Array | None] | None,
    moments: Arrays | None = None,
    *,
    step: int,
    lr: Numbers | None = None,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip_threshold: float = 1.0,
    decay_rate: float = 0.8,
    beta1: float | None = None,
    scale_parameter: bool = True,
    warmup_init: bool = False,
    weight_decay: Numbers = 0.0,
    inv_scale: float = 1.0,
    centralize: bool | Sequence[bool] = False,
    masters: Array | Sequence[Array | None] | None = None,
    skip: Array | None = None,
) -> None:
    """One step of Adafactor over a list of tensors, in place and in a single native call.

    With ``u = inv_scale * grad`` (minus its mean over all axes but the first if `centralize`), ``b = 1 -
    step**-decay_rate`` and RMS over a tensor:

    * of two axes and more, each pair of the last two being a matrix: ``R = b R + (1-b) mean(u² + eps[0], axis=-1)``,
      ``C = b C + (1-b) mean(u² + eps[0], axis=-2)``, ``V = R Cᵀ / mean(R)``; else ``V = b V + (1-b) (u² + eps[0])``
    * ``U = u / √V``; ``U /= max(1, RMS(U) / clip_threshold)``, for matrices as well
    * ``a = rate * max(eps[1], RMS(param))``, or ``rate`` without `scale_parameter`
    * ``m = beta1 m + (1-beta1) a U``, or ``a U`` without `beta1`; ``param -= a * weight_decay * param + m``

    The rate is `lr`, or where that is None ``min(1e-2, 1/√step)``, with `warmup_init` ``min(1e-6 * step, 1/√step)``.
    Arithmetic is float32, sums are float64. One inf or nan in a gradient makes its whole tensor nan.

    Source: Shazeer and Stern 2018, *Adafactor: adaptive learning rates with sublinear memory cost*, algorithms 4 and 5.

    Args:
        params: tensors, written; float32, float16 or bfloat16.
        grads: tensors of the same sizes.
        rows: R of each parameter of two axes and more, of its shape without the last axis, float32, written; None for
            the others. This and `columns` are what makes the state small: ``r + c`` numbers for ``r * c`` weights.
        columns: C, of the shape without the last axis but one.
        squares: V of each parameter of fewer axes, of its shape, float32 or float16, written; None for the others.
            float16 saturates at 65504, and is rounded after it was used.
        moments: m of each parameter, float32 or float16, written; exactly if there is a `beta1`.
        step: the number of this step, from 1.
        lr: >= 0, for all tensors or for each; None for a rate that depends on `step`.
        eps: > 0.
        clip_threshold: > 0.
        decay_rate: in (0, 1).
        beta1: in (0, 1), or None: no first moment.
        scale_parameter: whether the rate is relative to the RMS of the parameter.
        warmup_init: only without `lr`.
        weight_decay: decoupled, >= 0, for all tensors or for each.
        inv_scale: 1 / loss scale.
        centralize: gradient centralization; tensors of one axis have none.
        masters: as for the other steps, see :class:`StepOptions`.
        skip: one float32, where the tensors are: nothing is written if it is not 0. Default: none.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, grad = np.ones((4, 6), np.float32), np.full((4, 6), 0.5, np.float32)
        >>> rows, columns = np.zeros(4, np.float32), np.zeros(6, np.float32)  # the state of 24 weights
        >>> ops.adafactor_step([w], [grad], [rows], [columns], [None], step=1)
        >>> print(w[0, 0].round(4))
        0.99
    """
    if len(eps) != 2:
        raise ValueError(f"{_OP}: eps must hold two numbers, got {len(eps)}")
    if beta1 is not None and not 0 < number(_OP, "beta1", beta1) < 1:
        raise ValueError(f"{_OP}: beta1 must be None or in (0, 1), got {beta1}")
    if lr is not None and warmup_init:
        raise ValueError(f"{_OP}: warmup_init must come without lr, got lr {lr}")
    t = integer(_OP, "step", step)
    if not 1 <= t < 2**63:
        raise ValueError(f"{_OP}: step must be >= 1 and < 2**63, got {t}")
    hyper = [
        *(number(_OP, f"eps[{i}]", x) for i, x in enumerate(eps)),
        number(_OP, "clip_threshold", clip_threshold),
        number(_OP, "decay_rate", decay_rate),
        0.0 if beta1 is None else float(beta1),
        switch(_OP, "scale_parameter", scale_parameter),
        float(lr is None),
        switch(_OP, "warmup_init", warmup_init),
    ]
    _core.adafactor_step(
        params,
        masters if masters is None else _optional("masters", masters),
        grads,
        _optional("rows", rows),
        _optional("columns", columns),
        _optional("squares", squares),
        _filled("moments", moments),
        hyper,
        number(_OP, "inv_scale", inv_scale),
        t,
        [] if lr is None else numbers(_OP, "lr", lr),
        numbers(_OP, "weight_decay", weight_decay),
        flags(_OP, "centralize", centralize),
        skip,
    )
