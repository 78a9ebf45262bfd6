"""LARS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core import typed
from boost_ext.ms.core.optimizer_copy import has_own_construct
from boost_ext.ms.core.sparse_gradients import Values
from boost_ext.ms.optim.adafactor import AdaFactor
from boost_ext.ms.optim.adagrad import Adagrad, ProximalAdagrad
from boost_ext.ms.optim.adam import Adam, AdamOffload, AdamWeightDecay, LazyAdam
from boost_ext.ms.optim.arguments import non_negative, require_bool
from boost_ext.ms.optim.ftrl import FTRL
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.lamb import Lamb
from boost_ext.ms.optim.momentum import Momentum
from boost_ext.ms.optim.native_step import NativeStep, require_gradients
from boost_ext.ms.optim.rebuild import of_class, parameter_groups
from boost_ext.ms.optim.rmsprop import RMSProp
from boost_ext.ms.optim.sgd import SGD

__all__ = ["LARS", "LarsStep"]

_CLASSES = (AdaFactor, Adagrad, Adam, AdamOffload, AdamWeightDecay, FTRL, Lamb, LazyAdam, Momentum)
_NAMESAKES = {cls.__name__: cls for cls in (*_CLASSES, ProximalAdagrad, RMSProp, SGD)}
"""The optimizers that ``mindspore.nn`` has, too. Those that decouple their weight decay are refused."""


def _neither_bias_nor_layer_norm(parameter: Parameter) -> bool:
    return "LayerNorm" not in parameter.name and "bias" not in parameter.name


def _of_boost_ext(optimizer: Any) -> FusedOptimizer:
    """The optimizer itself, or the namesake of one of mindspore.nn."""
    if isinstance(optimizer, FusedOptimizer):
        return optimizer
    cls = type(optimizer)
    name = cls.__name__
    ours = _NAMESAKES.get(name)
    if getattr(nn, name, None) is not cls or ours is None:
        raise TypeError(f"LARS: optimizer must be one of boost_ext.optim, or a namesake of mindspore.nn, got {name}")
    # Of nn.Adam, for the kinds whose steps on gradients that are no rows are Adam's.
    made = of_class(ours, optimizer, parameter_groups(optimizer), without=("use_lazy", "use_offload"))
    assert isinstance(made, FusedOptimizer)
    return made


class LarsRatios(native.PackedCell):
    """``cell(layout, hyper, lars, apply, scale, ...)``: see csrc/doors/step_layout.h."""

    symbol = "lars"


class LarsStep(typed.Cell):
    """``cell(gradients)``: LARS around a native step, see :class:`LARS`. The arguments are those of :meth:`arrange`."""

    def __init__(self, *arguments: Any, **others: Any) -> None:
        super().__init__(auto_prefix=False)
        self.arrange(*arguments, **others)

    def arrange(
        self,
        step: NativeStep,
        flags: Sequence[bool],
        coefficient: float,
        epsilon: float,
        use_clip: bool,
        ratios: Parameter | None = None,
    ) -> None:
        """Gather the arguments of a call. `flags`: whether a parameter is for LARS. `ratios`: what the call writes."""
        self.opt, self.parameters, self.global_step = step, step.parameters, step.global_step
        self.settings = (coefficient, epsilon, use_clip)
        self.lars = Tensor(np.array(self.settings, np.float64))
        self.lars_flag, self.apply_to = tuple(flags), Tensor(np.array(flags, np.int32))
        self.ratios_of = LarsRatios()
        # Rows that are listed twice are summed first, so their norm cannot be found from the list.
        names = [p.name for p in self.parameters]
        self.__dict__["whole"] = Values(names, "LARS: gradients must be Tensors")
        # Written before they are read in every step: no state, and in no checkpoint.
        if ratios is None:
            ratios = Parameter(Tensor(np.ones(2 * len(flags), np.float32)), name="lars.ratios", requires_grad=False)
        self.__dict__["ratios"] = ratios

    def narrowed(self, parameters: Sequence[Parameter]) -> LarsStep:
        """See :meth:`NativeStep.narrowed`. The ratios are shared."""
        flags = {id(p): flag for p, flag in zip(self.parameters, self.lars_flag, strict=True)}
        chosen = [flags[id(p)] for p in parameters]
        return LarsStep(self.opt.narrowed(parameters), chosen, *self.settings, ratios=self.ratios)

    def __call__(self, gradients: Any) -> Any:
        try:
            self.opt.require_same()
            return super().__call__(self.whole.by_python(gradients))
        except (ValueError, TypeError, RuntimeError):
            require_gradients("LARS", gradients, self.parameters)
            raise

    def construct(self, gradients: Any) -> Tensor:
        return self.step_unless(self.opt.no_skip, self.opt.unit, gradients)

    def step_unless(self, skip: Tensor, scale: Tensor, gradients: Any) -> Tensor:
        """See :meth:`NativeStep.step_unless`."""
        gradients = self.whole(gradients)
        done = self.opt.ratios_into(self.ratios, self.ratios_of, self.lars, self.apply_to, scale, gradients)
        return self.opt.step_by(self.ratios, ops.depend(skip, done), scale, gradients)


class LARS(LarsStep, typed.Optimizer):
    r"""Layer-wise adaptive rate scaling, around an optimizer of :mod:`boost_ext.optim`.

    .. math:: r = \frac{\theta \|w\|}{\|g\| + \delta \|w\| + \epsilon}, \qquad g \leftarrow r (g + \delta w)

    and with `use_clip` :math:`\min(r / l, 1)` for r; :math:`\delta` and l are the optimizer's weight decay and
    learning rate. Where a norm is 0, r is 1. Parameters that the filter excludes keep their gradient, without weight
    decay, as in ``mindspore.nn.LARS``. A step is two native calls: the norms, and the step of the optimizer, which
    multiplies by r.

    Source: You et al. 2017, *Large batch training of convolutional networks*, algorithm 1.

    Args:
        optimizer (Optimizer): of boost_ext. One of ``mindspore.nn`` is replaced by its namesake, with its arguments and
            a copy of its state; from then on use ``opt``.
        epsilon (float): >= 0. Default: 1e-5.
        coefficient (float): theta, >= 0. Default: 1e-3.
        use_clip (bool): Default: False.
        lars_filter (Callable): Parameter to bool: whether it is for LARS. Default: all without "LayerNorm" and "bias"
            in their names.

    Inputs and Outputs: as of the optimizer.

    Raises:
        TypeError: if an argument has a type other than the ones given.
        ValueError: if `epsilon` or `coefficient` is negative.

    Examples:
        >>> from mindspore import Parameter, Tensor
        >>> from boost_ext import optim
        >>> w = Parameter(Tensor([3.0, 4.0]), name="w")
        >>> optimizer = optim.LARS(optim.Momentum([w], 1.0, 0.9), coefficient=0.01)
        >>> _ = optimizer((Tensor([0.0, 100.0]),))  # the size of the gradient does not matter
        >>> print(w.asnumpy().round(3))
        [3.   3.95]
    """

    @checked_keywords
    def __init__(
        self,
        optimizer: nn.Optimizer,
        epsilon: float = 1e-05,
        coefficient: float = 0.001,
        use_clip: bool = False,
        lars_filter: Callable[[Parameter], bool] = _neither_bias_nor_layer_norm,
    ) -> None:
        optimizer = _of_boost_ext(optimizer)
        if optimizer.lars_refusal:
            raise TypeError(f"LARS: {optimizer.lars_refusal}")
        if has_own_construct(optimizer):
            raise TypeError(f"LARS: optimizer must not have a construct of its own, got {type(optimizer).__name__}")
        non_negative("LARS", epsilon=epsilon, coefficient=coefficient)
        require_bool("LARS", "use_clip", use_clip)
        if not callable(lars_filter):
            raise TypeError(f"LARS: lars_filter must be a function, got {type(lars_filter).__name__}")
        nn.Optimizer.__init__(self, 0.0, [Parameter(Tensor(0.0, ms.float32), name="fake_param")])
        self.learning_rate.name = "fake_lr"  # unused, as in mindspore.nn.LARS: the optimizer inside has the real one
        self.loss_scale = optimizer.loss_scale
        self.init_params = optimizer.init_params
        self.init_args = {
            "epsilon": epsilon,
            "coefficient": coefficient,
            "use_clip": use_clip,
            "lars_filter": lars_filter,
        }
        flags = [bool(lars_filter(p)) for p in optimizer.parameters]
        self.arrange(optimizer, flags, coefficient, epsilon, use_clip)

    def require_options(self, owner: str, options: Any) -> None:
        """See :meth:`FusedOptimizer.require_options`."""
        self.opt.require_options(owner, options)

    def get_lr(self) -> Any:
        """The learning rate of the optimizer inside."""
        return self.opt.get_lr()

    def get_lr_parameter(self, param: Any) -> Any:
        """See :meth:`mindspore.nn.Optimizer.get_lr_parameter`; of the optimizer inside."""
        return self.opt.get_lr_parameter(param)

    def get_weight_decay(self) -> Any:
        """The weight decay of the optimizer inside, times its loss scale."""
        return self.opt.get_weight_decay()

    def __repr__(self) -> str:
        return f"LARS({self.opt!r})"
