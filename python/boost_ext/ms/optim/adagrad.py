"""Adagrad and its proximal form."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.arguments import non_negative, recorded, require_bool, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer, state_like

__all__ = ["Adagrad", "ProximalAdagrad"]


class Adagrad(FusedOptimizer):
    r"""Adaptive subgradients.

    .. math:: h_{t+1} = h_t + g^2, \qquad w_{t+1} = w_t - l \frac{g}{\sqrt{h_{t+1}}}

    No step where h is 0. (The documentation of MindSpore prints :math:`h_t + g`; its operator adds the square.)

    Source: Duchi et al. 2011, *Adaptive subgradient methods for online learning and stochastic optimization*.

    Args:
        params, learning_rate, weight_decay, loss_scale: see :class:`FusedOptimizer`.
        accum (float): what h starts with, >= 0. Default: 0.1.
        update_slots (bool): whether h moves. Default: True.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.Adagrad([w], accum=3.0, learning_rate=0.5)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy())
        [0.75 1.25]
    """

    rule = "adagrad"

    @recorded
    def __init__(
        self,
        params: Any,
        accum: float = 0.1,
        learning_rate: Any = 0.001,
        update_slots: bool = True,
        loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        non_negative("Adagrad", accum=accum)
        self.accum = state_like(self.parameters, "accum", accum)
        self.fuse(require_hyper("Adagrad", self.rule, update_slots=update_slots), (self.accum,))


class ProximalAdagrad(FusedOptimizer):
    r"""Adagrad with L1 and L2 regularization by a proximal step.

    .. math::
        h_{t+1} = h_t + g^2, \quad p = w_t - l \frac{g}{\sqrt{h_{t+1}}}, \quad
        w_{t+1} = \frac{\operatorname{sign}(p)}{1 + l \, l_2} \max(|p| - l \, l_1, 0)

    Of a sparse gradient only the rows that it names are touched.

    Source: Duchi and Singer 2009, *Efficient learning using forward-backward splitting*.

    Args:
        params, learning_rate, weight_decay, loss_scale: see :class:`FusedOptimizer`.
        accum (float): what h starts with, >= 0. Default: 0.1.
        l1, l2 (float): >= 0. Default: 0.0.
        use_locking (bool): ignored, since an update is one call. Default: False.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 0.25]), name="w")
        >>> optimizer = optim.ProximalAdagrad([w], accum=3.0, learning_rate=0.5, l1=0.25)
        >>> _ = optimizer((Tensor([1.0, 1.0]),))  # weights near 0 become 0
        >>> print(w.asnumpy())
        [0.625 0.   ]
    """

    rule = "proximal_adagrad"
    takes_rows = True

    @recorded
    def __init__(
        self,
        params: Any,
        accum: float = 0.1,
        learning_rate: Any = 0.001,
        l1: float = 0.0,
        l2: float = 0.0,
        use_locking: bool = False,
        loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        non_negative("ProximalAdagrad", accum=accum)
        hyper = require_hyper("ProximalAdagrad", self.rule, l1=l1, l2=l2)
        require_bool("ProximalAdagrad", "use_locking", use_locking)
        self.accum = state_like(self.parameters, "accum", accum)
        self.fuse(hyper, (self.accum,))
