"""Adafactor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, ops

from boost_ext.ms.optim.arguments import open_unit, positive, recorded, require_bool
from boost_ext.ms.optim.fused import FusedOptimizer

__all__ = ["AdaFactor"]


class AdaFactor(FusedOptimizer):
    r"""Adaptive learning rates with sublinear memory cost.

    .. math::
        V_t = \beta_{2t} V_{t-1} + (1-\beta_{2t}) (g^2 + \epsilon_1), \quad \beta_{2t} = 1 - t^{-d}, \quad
        U_t = \frac{g}{\sqrt{V_t}}, \quad \hat U_t = \frac{U_t}{\max(1, \operatorname{RMS}(U_t) / c)}, \quad
        w_t = w_{t-1} - \alpha_t \hat U_t

    State of r x c weights is r + c numbers, instead of Adam's 2 r c; `beta1` adds r c. For parameters of two axes and
    more, only the means of V over the last axis, R, and over the last but one, C, are kept:
    :math:`V_t = R_t C_t^T / \operatorname{mean}(R_t)`. (The documentation of MindSpore prints :math:`w - \alpha_t U_t`
    for matrices; the paper and its operator clip them, too.)

    :math:`\alpha_t` is the learning rate, with `relative_step` :math:`\min(10^{-2}, 1/\sqrt t)`; with
    `scale_parameter` times :math:`\max(\epsilon_2, \operatorname{RMS}(w_{t-1}))`. A schedule of learning rates is
    scaled as well.

    Source: Shazeer and Stern 2018, *Adafactor: adaptive learning rates with sublinear memory cost*, algorithms 4 to 6.

    Args:
        params, weight_decay, loss_scale: see :class:`FusedOptimizer`. The decay is decoupled:
            :math:`w - \alpha_t \lambda w`. Groups have no ``lr`` with `relative_step`.
        learning_rate (Union[float, int, Tensor, Iterable, LearningRateSchedule]): see :class:`FusedOptimizer`; None
            with `relative_step`, and only then. Default: None.
        eps (tuple[float]): two, > 0. Default: (1e-30, 1e-3).
        clip_threshold (Union[float, Tensor]): c, > 0. Default: 1.0.
        decay_rate (Union[float, Tensor]): d, in (0, 1). Default: 0.8.
        beta1 (float): decay of a first moment of the steps, in (0, 1). Default: None, without one.
        scale_parameter (bool): whether the learning rate is relative to the size of the parameter. Default: True.
        relative_step (bool): whether the learning rate depends on the step alone. Default: True.
        warmup_init (bool): with `relative_step` :math:`\min(10^{-6} t, 1/\sqrt t)`. Default: False.
        compression (bool): store first moments, and V of parameters of one axis, in float16. They are rounded after
            use; values below 6e-8 are lost. Default: False.

    Raises:
        ValueError: also for a learning rate with `relative_step`, none without, and `warmup_init` without it.

    Examples:
        >>> from mindspore import Parameter, ops
        >>> from boost_ext import optim
        >>> w = Parameter(ops.ones((64, 32)), name="w")
        >>> optimizer = optim.AdaFactor([w], relative_step=True)
        >>> _ = optimizer((ops.ones((64, 32)),))
        >>> sum(state.size for state in (*optimizer.exp_avg_sq_row, *optimizer.exp_avg_sq_col))  # for 2048 weights
        96
    """

    rule = "adafactor"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = None,
        eps: Sequence[float] = (1e-30, 1e-3),
        clip_threshold: Any = 1.0,
        decay_rate: Any = 0.8,
        beta1: float | None = None,
        weight_decay: Any = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = True,
        warmup_init: bool = False,
        compression: bool = False,
        loss_scale: float = 1.0,
    ) -> None:
        for name, value in (
            ("scale_parameter", scale_parameter),
            ("relative_step", relative_step),
            ("warmup_init", warmup_init),
            ("compression", compression),
        ):
            require_bool("AdaFactor", name, value)
        if learning_rate is not None and relative_step:
            raise ValueError(
                f"AdaFactor: learning_rate must be None with relative_step, which sets it, got {learning_rate}"
            )
        if learning_rate is None and not relative_step:
            raise ValueError("AdaFactor: learning_rate must be given without relative_step, got None")
        if warmup_init and not relative_step:
            raise ValueError("AdaFactor: warmup_init must come with relative_step, got it alone")
        super().__init__(0.0 if learning_rate is None else learning_rate, params, weight_decay, loss_scale)
        if relative_step and self.is_group_lr:
            raise ValueError("AdaFactor: groups must have no lr with relative_step, which sets it, got one that has")
        if not isinstance(eps, (tuple, list)):
            raise TypeError(f"AdaFactor: eps must be a tuple of two floats, got {type(eps).__name__}")
        if len(eps) != 2:
            raise ValueError(f"AdaFactor: eps must be a tuple of two floats, got {eps}")
        positive("AdaFactor", **{f"eps[{i}]": x for i, x in enumerate(eps)})
        clip, decay = _number(clip_threshold), _number(decay_rate)
        positive("AdaFactor", clip_threshold=clip)
        open_unit("AdaFactor", decay_rate=decay)
        if beta1 is not None:
            open_unit("AdaFactor", beta1=beta1)
        self.scale_parameter, self.relative_step, self.warmup_init = scale_parameter, relative_step, warmup_init
        self.compression = compression
        self.step = Parameter(Tensor([0.0], ms.float32), name="afactor_step", requires_grad=False)
        self.init_ada_factor_state(beta1)
        hyper = (*eps, clip, decay, beta1 or 0.0, scale_parameter, relative_step, warmup_init)
        states = (self.exp_avg,) if self.use_first_moment else ()
        self.fuse(hyper, states, powers=(self.step,), **member_arguments(self))

    def init_ada_factor_state(self, beta1: float | None) -> None:
        """Make the state, of zeros: ``exp_avg_sq_row``, ``exp_avg_sq_col`` and ``exp_avg_sq``, of one element where a
        parameter has none, and ``exp_avg`` if `beta1` is a number. A second call sets the state to zero.

        Raises:
            ValueError: in a second call, if `beta1` is a number and was None, or the other way round.
        """
        if not hasattr(self, "exp_avg_sq"):
            self.use_first_moment = beta1 is not None
            self._make_state()
            return
        if self.use_first_moment != (beta1 is not None):
            raise ValueError(f"AdaFactor: beta1 must be what it was at first, a number or None, got {beta1}")
        averages = self.exp_avg if self.use_first_moment else ()
        for state in (*averages, *self.exp_avg_sq_row, *self.exp_avg_sq_col, *self.exp_avg_sq):
            state.set_data(Tensor(np.zeros(state.shape, ms.dtype_to_nptype(state.dtype))))

    def _make_state(self) -> None:
        """Under the names that mindspore.nn.AdaFactor gives it."""
        kept = np.float16 if self.compression else np.float32

        def zeros(prefix: str, shape: tuple[int, ...], dtype: Any, p: Parameter) -> Parameter:
            return Parameter(Tensor(np.zeros(shape, dtype)), name=f"{prefix}{p.name}", requires_grad=False)

        if self.use_first_moment:
            self.exp_avg = ParameterTuple(zeros("exp_avg.", p.shape, kept, p) for p in self.parameters)
        factored = [p.ndim > 1 for p in self.parameters]
        pairs = list(zip(self.parameters, factored, strict=True))
        self.exp_avg_sq_row = ParameterTuple(
            zeros("exp_avg_sq_row_", p.shape[:-1] if flag else (1,), np.float32, p) for p, flag in pairs
        )
        self.exp_avg_sq_col = ParameterTuple(
            zeros("exp_avg_sq_col_", p.shape[:-2] + p.shape[-1:] if flag else (1,), np.float32, p) for p, flag in pairs
        )
        self.exp_avg_sq = ParameterTuple(
            zeros("exp_avg_sq_", (1,), np.float32, p) if flag else zeros("exp_avg_sq_", p.shape, kept, p)
            for p, flag in pairs
        )

    def get_lr(self) -> Any:
        """The learning rate of the step to come, before `scale_parameter`."""
        if not self.relative_step:
            return super().get_lr()
        return self.relative_rate(self.global_step)

    def relative_rate(self, updates: Tensor) -> Tensor:
        """The learning rate of `relative_step` after so many `updates`, (1,)."""
        step = ops.cast(updates, ms.float32).reshape(()) + 1.0
        return ops.minimum(1e-6 * step if self.warmup_init else 1e-2 + 0.0 * step, 1.0 / ops.sqrt(step))


def member_arguments(optimizer: Any) -> dict[str, Any]:
    """What :func:`boost_ext.ms.optim.native_step.members_of` takes of an AdaFactor, also of ``mindspore.nn``'s."""
    factors = zip(optimizer.exp_avg_sq_row, optimizer.exp_avg_sq_col, strict=True)
    each = zip(optimizer.parameters, factors, optimizer.exp_avg_sq, strict=True)
    squares = [factored if p.ndim > 1 else whole for p, factored, whole in each]
    lists = (squares, optimizer.exp_avg) if optimizer.use_first_moment else (squares,)
    # The native call finds the learning rate of relative_step.
    return {"lists": lists, "rates": [0.0] * len(squares) if optimizer.relative_step else None}


def _number(value: Any) -> Any:
    """The number in a Tensor of one element; other values as they are."""
    return float(value.asnumpy().item()) if isinstance(value, Tensor) else value
