"""The steps of newer rules, as those of :mod:`boost_ext.ops.optimizer_steps`; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from boost_ext.ops.optimizer_steps import StepOptions, one_step

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from boost_ext.ops.arguments import Array, Arrays, Numbers

__all__ = [
    "adan_step",
    "ademamix_step",
    "lion_step",
    "nadamw_step",
    "schedule_free_adamw_step",
    "schedule_free_sgd_step",
]


def lion_step(
    params: Arrays,
    grads: Arrays,
    moments: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array | None = None,
    beta1: float = 0.9,
    beta2: float = 0.99,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """``w -= lr * (sign(b1 m + (1-b1) u) + weight_decay * w)``; ``m = b2 m + (1-b2) u``.

    One state, and steps of one size: `lr` is a third to a tenth of AdamW's, `weight_decay` three to ten times its. The
    sign of 0 is 0; that of inf is nan here, so that it shows.

    Source: Chen et al. 2023, *Symbolic discovery of optimization algorithms*, algorithm 2.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m = np.ones(3, np.float32), np.zeros(3, np.float32)
        >>> ops.lion_step([w], [np.float32([3, -0.1, 0])], [m], lr=0.25)
        >>> print(w, m.round(3))
        [0.75 1.25 1.  ] [ 0.03  -0.001  0.   ]
    """
    one_step(
        "lion", params, grads, [moments], {"beta1": beta1, "beta2": beta2, "cautious": cautious}, lr, options, step=step
    )


def nadamw_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    momentum_decay: float = 0.004,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """:func:`adamw_step` with Nesterov momentum, as ``torch.optim.NAdam`` with `decoupled_weight_decay`.

    ``n = c(t+1) m / (1 - c(1)…c(t+1)) + (1 - c(t)) u / (1 - c(1)…c(t))`` takes the place of ``m/(1-b1^t)``. The
    momentum grows: ``c(i) = b1 (1 - 0.96^(i momentum_decay) / 2)``. The products come from `step` alone, in float64.

    Source: Dozat 2016, *Incorporating Nesterov momentum into Adam*; decoupled decay: Loshchilov and Hutter 2019.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, v = np.ones(2, np.float32), np.zeros(2, np.float32), np.zeros(2, np.float32)
        >>> ops.nadamw_step([w], [np.float32([1, -1])], [m], [v], lr=0.1, step=1, weight_decay=0.1)
        >>> print(w.round(3))
        [0.884 1.096]
    """
    hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "momentum_decay": momentum_decay, "cautious": cautious}
    one_step("nadamw", params, grads, [moments1, moments2], hyper, lr, options, step=step)


def ademamix_step(
    params: Arrays,
    grads: Arrays,
    moments1: Arrays,
    moments2: Arrays,
    slow_moments1: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    beta3: float = 0.9999,
    alpha: float = 5.0,
    alpha_steps: float = 0.0,
    beta3_steps: float = 0.0,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """:func:`adamw_step` with a second, slow moment ``s = b3 s + (1-b3) u``: ``m/(1-b1^t) + alpha s`` in the place of
    ``m/(1-b1^t)``.

    Over the first `alpha_steps`, alpha grows from 0, linearly. Over the first `beta3_steps`, b3 grows from `beta1`, so
    that its half-life grows linearly: ``1/ln b3 = (1-x)/ln beta1 + x/ln beta3`` with ``x = step / beta3_steps``. Both
    are usually the number of all steps. 0 is no schedule. The state is float32: rounding one of fewer bits for 10,000
    steps, which is how far it looks back, would leave little of it.

    Source: Pagliardini et al. 2024, *The AdEMAMix optimizer: better, faster, older*.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, v, slow = np.ones(2, np.float32), *np.zeros((3, 2), np.float32)
        >>> ops.ademamix_step([w], [np.float32([1, -1])], [m], [v], [slow], lr=0.1, step=1, beta3=0.9)
        >>> print(w.round(3))
        [0.85 1.15]
    """
    hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "beta3": beta3, "alpha": alpha}
    hyper |= {"alpha_steps": alpha_steps, "beta3_steps": beta3_steps, "cautious": cautious}
    one_step("ademamix", params, grads, [moments1, moments2, slow_moments1], hyper, lr, options, step=step)


def adan_step(
    params: Arrays,
    grads: Arrays,
    moments: Arrays,
    squares: Arrays,
    differences: Arrays,
    last_grads: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array,
    beta1: float = 0.98,
    beta2: float = 0.92,
    beta3: float = 0.99,
    eps: float = 1e-8,
    cautious: bool = False,
    **options: Unpack[StepOptions],
) -> None:
    """``d' = u - last_grad``, in step 1 0; ``m = b1 m + (1-b1) u``; ``d = b2 d + (1-b2) d'``;
    ``n = b3 n + (1-b3) (u + b2 d')²``; ``w = (w - lr r) / (1 + lr * weight_decay)`` with
    ``r = (m/(1-b1^t) + b2 d/(1-b2^t)) / (√(n/(1-b3^t)) + eps)``.

    `last_grads` keeps u for the next step. Betas are the share that is kept, as in the authors' code; the paper has 1
    minus them. With `indices`, the last gradient is that of the last step that listed the row. The state is float32: a
    difference of rounded gradients is mostly rounding.

    Source: Xie et al. 2022, *Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models*.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> w, m, n, d, last = np.ones(2, np.float32), *np.zeros((4, 2), np.float32)
        >>> for step in (1, 2):
        ...     ops.adan_step([w], [np.float32([1, -1]) / step], [m], [n], [d], [last], lr=0.1, step=step)
        >>> print(w.round(3), last)
        [0.828 1.172] [ 0.5 -0.5]
    """
    hyper = {"beta1": beta1, "beta2": beta2, "beta3": beta3, "eps": eps, "cautious": cautious}
    one_step("adan", params, grads, [moments, squares, differences, last_grads], hyper, lr, options, step=step)


def schedule_free_sgd_step(
    params: Arrays,
    grads: Arrays,
    z: Arrays,
    *,
    lr: Numbers | Array,
    averaging_weight: float,
    momentum: float = 0.9,
    first: bool | Sequence[bool] = False,
    **options: Unpack[StepOptions],
) -> None:
    """SGD on `z`, whose average x is the model: ``z -= lr * u``; ``x += c (z - x)`` with c = `averaging_weight`.

    `params` is ``y = (1 - momentum) z + momentum x``, where the gradient belongs. Evaluate with
    ``x = (y - (1 - momentum) z) / momentum``. x itself is not stored. `z` starts as a copy of `params`: with `first`, a
    step takes it from there.

    `averaging_weight`, in [0, 1], is the weight of this step over the sum of the weights of all steps: 1 in the first
    one, 1/t where all steps weigh the same. The paper's weight is ``lr_max**2``, with the largest learning rate so far,
    so that the steps of a warm-up count less.

    Source: Defazio et al. 2024, *The road less scheduled*.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> y, z, grad = np.ones(2, np.float32), np.empty(2, np.float32), np.float32([1, -1])
        >>> for t in (1, 2):
        ...     ops.schedule_free_sgd_step([y], [grad], [z], lr=0.5, averaging_weight=1 / t, first=t == 1)
        >>> print(z, ((y - 0.1 * z) / 0.9).round(3))
        [0. 2.] [0.25 1.75]
    """
    hyper = {"averaging_weight": averaging_weight, "momentum": momentum}
    one_step("schedule_free_sgd", params, grads, [z], hyper, lr, options, first=first)


def schedule_free_adamw_step(
    params: Arrays,
    grads: Arrays,
    z: Arrays,
    moments2: Arrays,
    *,
    lr: Numbers | Array,
    step: int | Array,
    averaging_weight: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    first: bool | Sequence[bool] = False,
    **options: Unpack[StepOptions],
) -> None:
    """:func:`schedule_free_sgd_step` with ``u / (√(v/(1-b2^t)) + eps) + weight_decay * y`` for u, where
    ``v = b2 v + (1-b2) u²``. `beta1` is the momentum.

    The decay is one of y, where the gradient is taken.

    Source: Defazio et al. 2024, *The road less scheduled*, with the bias correction of the authors' code.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> y, z, v = np.ones(2, np.float32), np.empty(2, np.float32), np.zeros(2, np.float32)
        >>> grad = np.float32([1, -1])
        >>> ops.schedule_free_adamw_step([y], [grad], [z], [v], lr=0.1, step=1, averaging_weight=1, first=True)
        >>> print(y.round(3), z.round(3))
        [0.9 1.1] [0.9 1.1]
    """
    hyper = {"averaging_weight": averaging_weight, "beta1": beta1, "beta2": beta2, "eps": eps}
    one_step("schedule_free_adamw", params, grads, [z, moments2], hyper, lr, options, step=step, first=first)
