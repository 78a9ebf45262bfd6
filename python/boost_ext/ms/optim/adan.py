"""Adan."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.arguments import recorded, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer, state_like

__all__ = ["Adan"]


class Adan(FusedOptimizer):
    r"""Adaptive Nesterov momentum: averages of the gradient, of its change, and of the square of both.

    .. math::
        d_t = \beta_2 d_{t-1} + (1-\beta_2) (g_t - g_{t-1}), \quad
        n_t = \beta_3 n_{t-1} + (1-\beta_3) (g_t + \beta_2 (g_t - g_{t-1}))^2

        r_t = \frac{m_t / (1-\beta_1^t) + \beta_2 d_t / (1-\beta_2^t)}{\sqrt{n_t / (1-\beta_3^t)} + \epsilon}, \quad
        w_t = \frac{w_{t-1} - l r_t}{1 + l \lambda}

    with Adam's first moment m, and without a change in the first step. Betas are the share that is kept, as in the
    authors' code; the paper has 1 minus them. Four states, of float32: twice Adam's.

    Source: Xie et al. 2022, *Adan: adaptive Nesterov momentum algorithm for faster optimizing deep models*.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2, beta3 (float): in [0, 1). Default: 0.98, 0.92, 0.99.
        eps (float): > 0. Default: 1e-8.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.0.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.Adan([w], 0.1)
        >>> for gradient in ([1.0, -1.0], [0.5, -0.5]):
        ...     _ = optimizer((Tensor(gradient),))
        >>> print(w.asnumpy().round(3))
        [0.828 1.172]
    """

    rule = "adan"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.98,
        beta2: float = 0.92,
        beta3: float = 0.99,
        eps: float = 1e-8,
        weight_decay: Any = 0.0,
        *,
        cautious: bool = False,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        hyper = require_hyper("Adan", self.rule, beta1=beta1, beta2=beta2, beta3=beta3, eps=eps, cautious=cautious)
        prefixes = ("exp_avg", "exp_avg_sq", "exp_avg_diff", "last_grad")
        states = tuple(state_like(self.parameters, prefix) for prefix in prefixes)
        self.moments, self.squares, self.differences, self.last_grads = states
        self.fuse(hyper, states)
