"""Momentum."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor

from boost_ext.ms.optim.arguments import recorded, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.storage import StateStorage

__all__ = ["Momentum"]


class Momentum(FusedOptimizer):
    r"""Gradient descent with momentum.

    .. math:: v_{t+1} = u \, v_t + g, \qquad w_{t+1} = w_t - l \, v_{t+1}

    and with Nesterov momentum :math:`w_{t+1} = w_t - l \, (g + u \, v_{t+1})`, which mindspore.nn.Momentum ignores on
    a CPU.

    Source: Sutskever et al. 2013, *On the importance of initialization and momentum in deep learning*.

    Args:
        params, learning_rate, weight_decay, loss_scale: see :class:`FusedOptimizer`.
        momentum (float): u, >= 0.
        use_nesterov (bool): Default: False.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.Momentum([w], 0.25, 0.5, use_nesterov=True)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy())
        [0.625 1.375]
    """

    rule = "momentum"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any,
        momentum: float,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        use_nesterov: bool = False,
        *,
        cautious: bool = False,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale, master=master)
        hyper = require_hyper("Momentum", self.rule, momentum=momentum, use_nesterov=use_nesterov, cautious=cautious)
        self.momentum = Parameter(Tensor(momentum, ms.float32), name="momentum", requires_grad=False)
        self.use_nesterov = use_nesterov
        storage = StateStorage("Momentum", state_dtype, state_seed)
        self.moments = storage.state_like(self.parameters, "moments")
        self.fuse(hyper, (self.moments,), powers=(self.momentum,), storage=storage)
