"""Lamb."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.adam import DecoupledAdam
from boost_ext.ms.optim.arguments import recorded

__all__ = ["Lamb"]


class Lamb(DecoupledAdam):
    r"""Layer-wise adaptive moments for large batches.

    .. math::
        r = \frac{m_t / (1-\beta_1^t)}{\sqrt{v_t / (1-\beta_2^t)} + \epsilon} + \lambda w_{t-1}, \qquad
        w_t = w_{t-1} - l \frac{\|w_{t-1}\|}{\|r\|} r

    with Adam's moments and with norms over each parameter. The ratio of the norms is 1 where one of them is 0. (The
    documentation of MindSpore divides by :math:`\beta^t`; the paper and its operator by :math:`1-\beta^t`.)

    Source: You et al. 2020, *Large batch optimization for deep learning: training BERT in 76 minutes*, algorithm 2.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-6.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.0.
        state_dtype (str), state_seed (int): see :class:`~boost_ext.ms.optim.storage.StateStorage`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([3.0, 4.0]), name="w")
        >>> optimizer = optim.Lamb([w], learning_rate=0.01)
        >>> _ = optimizer((Tensor([1.0, 1.0]),))  # a step of 1 % of the norm of w
        >>> print(w.asnumpy().round(3))
        [2.965 3.965]
    """

    rule = "lamb"
    state_prefixes = ("lamb_m", "lamb_v")

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-6,
        weight_decay: Any = 0.0,
        *,
        state_dtype: str = "float32",
        state_seed: int = 0,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        self._make(state_dtype, state_seed, beta1=beta1, beta2=beta2, eps=eps)
