"""The factors of LARS, re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, Numbers, flags, like_theirs, number, numbers, scalar, switch

__all__ = ["lars_ratios"]


def lars_ratios(
    params: Arrays,
    grads: Arrays,
    *,
    lr: Numbers = 1.0,
    weight_decay: Numbers = 0.0,
    inv_scale: float | Array = 1.0,
    coefficient: float = 1e-3,
    epsilon: float = 1e-5,
    use_clip: bool = False,
    apply: bool | Sequence[bool] = True,
) -> tuple[Array, Array]:
    """LARS's factors on each gradient and on each weight decay.

    ``r = coefficient * ‖w‖ / (‖inv_scale * g‖ + weight_decay * ‖w‖ + epsilon)``, with `use_clip` ``min(r / lr, 1)``,
    and 1 where a norm is 0. Norms are float64. For ``momentum_step(…, ratio=ratio, weight_decay=decay_ratio * decay)``.

    Source: You et al. 2017, *Large batch training of convolutional networks*, algorithm 1.

    Args:
        params, grads: tensors of the same sizes; read.
        lr, weight_decay: one number, or one for each tensor.
        inv_scale: 1 / loss scale; or an array of one float32, which is not checked where it lies on a device.
        apply: whether LARS is for a tensor; the others get ratio 1 and decay ratio 0.

    Returns:
        ratio and decay_ratio, float32 (tensors,) each, where the tensors are: PyTorch tensors if `params` are, NumPy
        arrays, or arrays of a device, which nobody waits for. The steps take them as they are.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, grad, moment = np.float32([3, 4]), np.float32([0, 1]), np.zeros(2, np.float32)
        >>> ratio, decay_ratio = ops.lars_ratios([w], [grad], weight_decay=0.1)
        >>> print(ratio.round(5))
        [0.00333]
        >>> ops.momentum_step([w], [grad], [moment], lr=1.0, ratio=ratio, weight_decay=decay_ratio * np.float32(0.1))
    """
    op = "lars"
    count = len(params) if isinstance(params, (list, tuple)) else 1

    def spread(values: list[Any]) -> list[Any]:
        return values * count if len(values) == 1 else values

    rule = (number(op, "coefficient", coefficient), number(op, "epsilon", epsilon))
    clip = bool(switch(op, "use_clip", use_clip))
    per_tensor = (
        spread(numbers(op, "lr", lr)),
        spread(numbers(op, "weight_decay", weight_decay)),
        spread(flags(op, "apply", apply)),
    )
    scale, new = scalar(op, "inv_scale", inv_scale), (None, None)
    ratio, decay_ratio = _core.lars(params, grads, *rule, clip, scale, *per_tensor, *new)
    return like_theirs(ratio, params), like_theirs(decay_ratio, params)
