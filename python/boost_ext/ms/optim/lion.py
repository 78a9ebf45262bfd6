"""Lion."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.arguments import recorded, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.storage import StateStorage

__all__ = ["Lion"]


class Lion(FusedOptimizer):
    r"""Sign momentum with decoupled weight decay: one state, half of Adam's.

    .. math::
        w_t = w_{t-1} - l \left( \mathrm{sign}(\beta_1 m_{t-1} + (1-\beta_1) g) + \lambda w_{t-1} \right), \qquad
        m_t = \beta_2 m_{t-1} + (1-\beta_2) g

    Each weight moves by l, so l is a third to a tenth of AdamW's, and the weight decay three to ten times its.

    Source: Chen et al. 2023, *Symbolic discovery of optimization algorithms*, algorithm 2.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.99.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.0.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.Lion([w], 0.25)
        >>> _ = optimizer((Tensor([3.0, -0.1]),))
        >>> print(w.asnumpy())
        [0.75 1.25]
    """

    rule = "lion"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-4,
        beta1: float = 0.9,
        beta2: float = 0.99,
        weight_decay: Any = 0.0,
        *,
        cautious: bool = False,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        hyper = require_hyper("Lion", self.rule, beta1=beta1, beta2=beta2, cautious=cautious)
        storage = StateStorage("Lion", state_dtype, state_seed)
        self.moments = storage.state_like(self.parameters, "exp_avg")
        self.fuse(hyper, (self.moments,), storage=storage)
