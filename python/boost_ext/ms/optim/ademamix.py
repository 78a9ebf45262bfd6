"""AdEMAMix."""

from __future__ import annotations

from typing import Any

from boost_ext.ms.optim.adam import DecoupledAdam
from boost_ext.ms.optim.arguments import recorded
from boost_ext.ms.optim.fused import state_like

__all__ = ["AdEMAMix"]


class AdEMAMix(DecoupledAdam):
    r""":class:`AdamW` with a second first moment, which looks back ten thousand steps.

    .. math::
        s_t = \beta_3 s_{t-1} + (1-\beta_3) g, \qquad
        w_t = w_{t-1} - l \left( \frac{m_t / (1-\beta_1^t) + \alpha s_t}{\sqrt{v_t / (1-\beta_2^t)} + \epsilon}
        + \lambda w_{t-1} \right)

    with Adam's moments. Over the first `alpha_steps`, :math:`\alpha` grows from 0, linearly; over the first
    `beta3_steps`, :math:`\beta_3` grows from :math:`\beta_1`, so that its half-life grows linearly. Both are usually
    the number of all steps. The state is float32.

    Source: Pagliardini et al. 2024, *The AdEMAMix optimizer: better, faster, older*.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`.
        beta1, beta2 (float): in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.0.
        beta3 (float): in (0, 1). Default: 0.9999.
        alpha (float): >= 0. Default: 5.0.
        alpha_steps, beta3_steps (float): >= 0; 0 is no schedule. Default: 0.0.
        cautious (bool): see :class:`FusedOptimizer`. Default: False.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.AdEMAMix([w], 0.1, beta3=0.9)
        >>> _ = optimizer((Tensor([1.0, -1.0]),))
        >>> print(w.asnumpy().round(3))
        [0.85 1.15]
    """

    rule = "ademamix"
    state_prefixes = ("exp_avg", "exp_avg_sq")

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: Any = 0.0,
        beta3: float = 0.9999,
        alpha: float = 5.0,
        alpha_steps: float = 0.0,
        beta3_steps: float = 0.0,
        *,
        cautious: bool = False,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        self.slow_moments1 = state_like(self.parameters, "exp_avg_slow")
        hyper = {"beta1": beta1, "beta2": beta2, "eps": eps, "beta3": beta3, "alpha": alpha, "cautious": cautious}
        hyper |= {"alpha_steps": alpha_steps, "beta3_steps": beta3_steps}
        self._make("float32", 0, (self.slow_moments1,), **hyper)
