"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor

from boost_ext.ms.optim.arguments import recorded, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer, state_like

__all__ = ["SGD"]


class SGD(FusedOptimizer):
    r"""Stochastic gradient descent, with momentum if `momentum` is not 0.

    .. math:: v_{t+1} = u \, v_t + (1 - d) \, g, \qquad w_{t+1} = w_t - l \, v_{t+1}

    with :math:`v_1 = g` in the first step of a parameter, and with Nesterov momentum
    :math:`w_{t+1} = w_t - l \, (g + u \, v_{t+1})`. Without momentum :math:`w_{t+1} = w_t - l \, g`, and no state.

    Source: Sutskever et al. 2013, *On the importance of initialization and momentum in deep learning*;
    ``mindspore.nn.SGD``.

    Args:
        params, learning_rate, weight_decay, loss_scale: see :class:`FusedOptimizer`. The default of the learning rate
            is 0.1. The weight decay must not be a Cell.
        momentum (float): u, >= 0. Default: 0.0.
        dampening (float): d, >= 0. Default: 0.0.
        nesterov (bool): needs momentum > 0 and dampening 0. Default: False.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.SGD([w], 0.5, momentum=0.5, nesterov=True)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy())
        [0.25 1.75]
    """

    rule = "sgd"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.1,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: Any = 0.0,
        nesterov: bool = False,
        loss_scale: float = 1.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        momentum, dampening = (float(x) if type(x) is int else x for x in (momentum, dampening))
        hyper = require_hyper("SGD", self.rule, momentum=momentum, dampening=dampening, nesterov=nesterov)
        if nesterov and (momentum == 0 or dampening != 0):
            raise ValueError(
                f"SGD: nesterov needs momentum > 0 and dampening 0, got momentum {momentum}, dampening {dampening}"
            )
        if self.dynamic_weight_decay:
            raise TypeError("SGD: weight_decay must be a float or an int, got a Cell")
        self.momentum = Parameter(Tensor(momentum, ms.float32), name="momentum", requires_grad=False)
        self.dampening = dampening
        self.nesterov = nesterov
        states: list[Any] = []
        first: list[Parameter] = []
        if momentum > 0:
            self.accum = state_like(self.parameters, "accum")
            states = [self.accum]
            # In mindspore.nn.SGD, stat is 1 until the first step of an element. Without dampening v = 0 at the start
            # gives the same first step, and stat is 0. It is kept for checkpoints that mindspore.nn.SGD reads.
            self.stat = state_like(self.parameters, "stat", float(dampening > 0))
            first = list(self.stat) if dampening > 0 else []
        self.fuse(hyper, states, powers=(self.momentum,), first=first)
