"""FTRL."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.arguments import non_negative, recorded, require_bool, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer, state_like

__all__ = ["FTRL"]


class FTRL(FusedOptimizer):
    r"""Follow the regularized leader.

    .. math::
        n = m_t + g^2, \quad u_{t+1} = u_t + g - \frac{n^{-p} - m_t^{-p}}{l} w_t, \quad m_{t+1} = n, \quad
        w_{t+1} = \begin{cases} \frac{\operatorname{sign}(u_{t+1}) l_1 - u_{t+1}}{n^{-p} / l + 2 l_2}
        & \text{if } |u_{t+1}| > l_1 \\ 0 & \text{otherwise} \end{cases}

    With learning rate 0 the weights stay. Of a sparse gradient only the rows that it names are touched.

    Source: McMahan et al. 2013, *Ad click prediction: a view from the trenches*, algorithm 1.

    Args:
        params, weight_decay, loss_scale: see :class:`FusedOptimizer`; without groups the weight decay is for all
            parameters, and groups cannot have an ``lr``.
        initial_accum (float): what m starts with, >= 0. Default: 0.1.
        learning_rate (float): l, >= 0; neither a list nor a schedule. Default: 0.001.
        lr_power (float): p, <= 0. Default: -0.5.
        l1, l2 (float): >= 0. Default: 0.0.
        use_locking (bool): ignored, since an update is one call. Default: False.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([0.0, 0.0]), name="w")
        >>> optimizer = optim.FTRL([w], learning_rate=0.5, l1=1.0)
        >>> _ = optimizer((Tensor([3.0, 0.5]),))  # where the sum of gradients is below l1, the weight is 0
        >>> print(w.asnumpy().round(3))
        [-0.331  0.   ]
    """

    rule = "ftrl"
    takes_rows = True

    @recorded
    def __init__(
        self,
        params: Any,
        initial_accum: float = 0.1,
        learning_rate: float = 0.001,
        lr_power: float = -0.5,
        l1: float = 0.0,
        l2: float = 0.0,
        use_locking: bool = False,
        loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        if self.dynamic_lr or self.is_group_lr:
            raise ValueError("FTRL: learning_rate must be one number for all steps and groups, got more")
        non_negative("FTRL", initial_accum=initial_accum, learning_rate=learning_rate)
        hyper = require_hyper("FTRL", self.rule, l1=l1, l2=l2, lr_power=lr_power)
        require_bool("FTRL", "use_locking", use_locking)
        if not self.is_group:
            self.decay_flags = tuple(True for _ in self.parameters)
        self.moments = state_like(self.parameters, "moments", initial_accum)
        self.linear = state_like(self.parameters, "linear")
        self.fuse(hyper, (self.moments, self.linear))
