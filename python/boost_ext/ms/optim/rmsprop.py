"""RMSProp."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.arguments import recorded, require_bool, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer, state_like

__all__ = ["RMSProp"]


class RMSProp(FusedOptimizer):
    r"""Gradients divided by a running average of their magnitude.

    .. math::
        s_{t+1} = \rho s_t + (1-\rho) g^2, \quad
        m_{t+1} = \beta m_t + l \frac{g}{\sqrt{s_{t+1} + \epsilon}}, \quad w_{t+1} = w_t - m_{t+1}

    If centered, by the variance: :math:`\bar g_{t+1} = \rho \bar g_t + (1-\rho) g` and
    :math:`\sqrt{\max(s_{t+1} - \bar g_{t+1}^2, 0) + \epsilon}`.

    s starts with 1, as in ``mindspore.nn.RMSProp``.

    Source: Tieleman and Hinton 2012, lecture 6.5; Graves 2013, *Generating sequences with recurrent neural networks*
    (centered).

    Args:
        params, learning_rate, weight_decay, loss_scale: see :class:`FusedOptimizer`.
        decay (float): rho, >= 0. Default: 0.9.
        momentum (float): beta, >= 0. Default: 0.0.
        epsilon (float): > 0. Default: 1e-10.
        use_locking (bool): ignored, since an update is one call. Default: False.
        centered (bool): Default: False.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.RMSProp([w], 0.25, decay=0.5, centered=True)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy().round(3))
        [0.711 1.289]
    """

    rule = "rmsprop"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.1,
        decay: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-10,
        use_locking: bool = False,
        centered: bool = False,
        loss_scale: float = 1.0,
        weight_decay: Any = 0.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        hyper = require_hyper("RMSProp", self.rule, decay=decay, momentum=momentum, epsilon=epsilon)
        require_bool("RMSProp", "use_locking", use_locking)
        self.centered = require_bool("RMSProp", "centered", centered)
        self.ms = state_like(self.parameters, "mean_square", 1.0)
        self.moment = state_like(self.parameters, "moment")
        states = [self.ms, self.moment]
        if centered:
            self.rule = "centered_rmsprop"
            self.mg = state_like(self.parameters, "mean_grad")
            states.insert(0, self.mg)
        self.fuse(hyper, states)
