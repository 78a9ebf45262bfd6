"""Schedule-Free SGD and AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor

from boost_ext.ms.core.resume import write
from boost_ext.ms.optim.arguments import non_negative, recorded, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer, state_like
from boost_ext.ms.optim.masters import next_master, set_master

__all__ = ["ScheduleFreeAdamW", "ScheduleFreeSGD"]


class _ScheduleFree(FusedOptimizer):
    """The average, and the two states of the weights."""

    never_exchanged = "a Schedule-Free optimizer, whose z would stay each rank's own"

    def _make(
        self,
        hyper: Sequence[float],
        states: Sequence[ParameterTuple],
        warmup_steps: int,
        r: float,
        weight_lr_power: float,
    ) -> None:
        """`hyper`: the hyperparameters of the rule that the user gives, beta first. `states`: those beside z."""
        owner = type(self).__name__
        if not isinstance(warmup_steps, int) or isinstance(warmup_steps, bool):
            raise TypeError(f"{owner}: warmup_steps must be an int, got {type(warmup_steps).__name__}")
        if warmup_steps < 0:
            raise ValueError(f"{owner}: warmup_steps must be >= 0, got {warmup_steps}")
        non_negative(owner, r=r, weight_lr_power=weight_lr_power)
        self.beta = hyper[0]
        self.z = state_like(self.parameters, "z")
        # So that z begins where the weights are in the first step, and not where they were here.
        first = [Parameter(Tensor([1.0], ms.float32), name=f"z_is_new.{p.name}") for p in self.parameters]
        self.lr_max = Parameter(Tensor([0.0], ms.float64), name="lr_max", requires_grad=False)
        self.weight_sum = Parameter(Tensor([0.0], ms.float64), name="weight_sum", requires_grad=False)
        self.train_mode = Parameter(Tensor([True]), name="train_mode", requires_grad=False)
        powers = (self.lr_max, self.weight_sum, self.train_mode)
        # The first three make the rule's averaging_weight.
        self.fuse((warmup_steps, r, weight_lr_power, *hyper), (self.z, *states), powers=powers, first=first)

    def eval(self) -> None:
        """Give the parameters their average x, to evaluate or to export them. Steps are refused until :meth:`train`.

        Nothing changes if they have it.
        """
        self._switch(False, 1 - 1 / self.beta)

    def train(self) -> None:
        """Give the parameters y, with which they are trained. Nothing changes if they have it.

        From x, which is rounded, y may come back with another last digit.
        """
        self._switch(True, 1 - self.beta)

    def _switch(self, train: bool, share: float) -> None:
        if bool(self.train_mode.asnumpy()[0]) == train:
            return
        for p, master, z, new in zip(self.parameters, self.masters, self.z, self.first, strict=True):
            if new.asnumpy()[0] != 0:  # x, y and z are the same
                continue
            wide = next_master(p, master).astype(np.float64)
            set_master(p, master, (wide + share * (z.asnumpy() - wide)).astype(np.float32))
        write(self.train_mode, Tensor([train]))

    def require_own_weights(self) -> None:
        """Refuse to train x. The native step refuses it too, for other graphs; but one that has failed stays broken."""
        if not self.train_mode.asnumpy()[0]:
            raise ValueError(f"{type(self).__name__}: train_mode must be True for a step, got False; call train()")

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        self.require_own_weights()
        return super().__call__(gradients)

    def require_options(self, owner: str, options: Any) -> None:
        """A ValueError for another algorithm that moves the weights: z would stay behind."""
        if options.moves:
            raise ValueError(
                f"{owner}: {type(self).__name__} must be alone in moving the weights, got dim_reduce or adasum too"
            )


class ScheduleFreeSGD(_ScheduleFree):
    r"""SGD without a schedule of the learning rate: an average of all steps takes the place of its decay.

    .. math::
        z_t = z_{t-1} - l_t g(y_{t-1}), \quad x_t = (1 - c_t) x_{t-1} + c_t z_t, \quad
        y_t = (1 - \beta) z_t + \beta x_t, \qquad
        c_t = \frac{t^r \hat l_t^p}{\sum_{i=1}^t i^r \hat l_i^p}

    with the momentum :math:`\beta` and the largest learning rate so far, :math:`\hat l_t`. g has the weight decay of
    :math:`y`. While they are trained the parameters hold y. **Call** :meth:`eval` **before you evaluate or export
    them**, which gives them x, and :meth:`train` before the next step. A step with x is refused. A checkpoint of the
    optimizer knows which of them the parameters hold.

    The running averages of batch normalization belong to y. Where a network has any, run some batches of training data
    through it after :meth:`eval`, with ``net.set_train(True)`` and without steps.

    All groups have one average, that of the largest learning rate. It is the same where the rates of the groups keep
    their proportion. There are no schedules to give, but those of ``mindspore.nn`` work.

    Source: Defazio et al. 2024, *The road less scheduled*; arguments and defaults of the authors' code.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`. Default: 1.0; 10 to 50 times that of SGD with a schedule.
        momentum (float): beta, in (0, 1). Default: 0.9.
        weight_decay (Union[float, int, Cell]): L2 penalty. Default: 0.0.
        warmup_steps (int): the learning rate grows over so many steps, linearly. Default: 0.
        r (float): >= 0. Default: 0.0.
        weight_lr_power (float): p, >= 0. Default: 2.0.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.ScheduleFreeSGD([w], 0.5)
        >>> for _ in range(2):
        ...     _ = optimizer((Tensor([1.0, -1.0]),))
        >>> optimizer.eval()
        >>> print(w.asnumpy())
        [0.25 1.75]
    """

    rule = "schedule_free_sgd"
    lars_refusal = "ScheduleFreeSGD averages its steps by their learning rates, which LARS changes"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1.0,
        momentum: float = 0.9,
        weight_decay: Any = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        hyper = require_hyper("ScheduleFreeSGD", self.rule, momentum=momentum)
        self._make(hyper, (), warmup_steps, r, weight_lr_power)


class ScheduleFreeAdamW(_ScheduleFree):
    r""":class:`AdamW` without a schedule of the learning rate: an average of all steps takes the place of its decay.

    :class:`ScheduleFreeSGD` with :math:`\beta_1` for its momentum, and for g

    .. math::
        \frac{g}{\sqrt{v_t / (1-\beta_2^t)} + \epsilon} + \lambda y_{t-1}, \qquad
        v_t = \beta_2 v_{t-1} + (1-\beta_2) g^2

    **Call** :meth:`eval` **before you evaluate or export the parameters**, and :meth:`train` before the next step. The
    state is that of AdamW, 8 bytes a weight: z takes the place of the first moment.

    Source: Defazio et al. 2024, *The road less scheduled*; arguments and defaults of the authors' code.

    Args:
        params, learning_rate: see :class:`FusedOptimizer`. Default: 0.0025; 1 to 10 times that of AdamW.
        beta1, beta2 (float): in (0, 1) and [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.
        weight_decay (Union[float, int, Cell]): lambda. Default: 0.0.
        warmup_steps, r, weight_lr_power: see :class:`ScheduleFreeSGD`.
        master (str): see :class:`FusedOptimizer`. Default: "float32".

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> optimizer = optim.ScheduleFreeAdamW([w], 0.1)
        >>> for _ in range(2):
        ...     _ = optimizer((Tensor([1.0, -1.0]),))
        >>> optimizer.eval()
        >>> print(w.asnumpy().round(3))
        [0.85 1.15]
    """

    rule = "schedule_free_adamw"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 0.0025,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        weight_decay: Any = 0.0,
        warmup_steps: int = 0,
        r: float = 0.0,
        weight_lr_power: float = 2.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, master=master)
        hyper = require_hyper("ScheduleFreeAdamW", self.rule, beta1=beta1, beta2=beta2, eps=eps)
        self.moments2 = state_like(self.parameters, "exp_avg_sq")
        self._make(hyper, (self.moments2,), warmup_steps, r, weight_lr_power)
