"""Optimizers of ``mindspore.nn``, stepped by the native ops on their own Parameters.

The optimizer stays what the user made: its state, its checkpoint, its learning rate and step counter are the same
objects. Only the arithmetic of a training step moves into the one native call of a
:class:`~boost_ext.ms.optim.native_step.NativeStep`, which is made of them by a table: :data:`FORMS`.

A step knows no class of an optimizer. It asks what one has beyond ``mindspore.nn.Optimizer``, all of it optional.

How it steps:

- ``step_unless(skip, scale, gradients)``: unscales the gradients, and does nothing where the flag is set
- ``takes_rows``: gradients may be RowTensors
- ``require_halves()``: raises an error where a parameter has become half-precision since it was made, or float32
- ``require_own_weights()``: raises an error where the parameters hold others than those that are trained
- ``masters``: what it steps in the place of half-precision parameters, for AdaSum
- ``opt``: the optimizer inside, as LARS has one
- ``relative_step``, ``relative_rate(updates)``: it finds its learning rate itself, and which

What it goes with:

- ``boost_options``: the StepOptions that AutoBoost has switched on with it
- ``require_options(owner, options)``: raises a ValueError for a StepOptions that it excludes
- ``never_restricted``, ``never_rebuilt``: why it is never narrowed, or constructed again
- ``never_exchanged``: why ranks cannot exchange its weights once in some steps
- ``lars_refusal``: why LARS cannot wrap it
- ``constants``: checksums by name, which must be the same when a training is resumed

How another is made of it:

- ``narrowed(parameters)``: a step of some of its parameters, on its state
- ``per_parameter_attributes``: without ``narrowed``, its attributes with one item for each parameter
- ``released_class``: the class that may be called, of an optimizer that only training cells may step
- ``init_params``, ``init_args``, ``init_learning_rate``: the arguments of its constructor

That it steps one of several groups at a time, as FreezeOpt does; then it has all of these:

- ``group_steps(fused)``: a cell for each group. ``optimizer``: the whole
- ``current()``, ``chosen()``: the group of the next step, in Python and in a graph
- ``is_over(group)``: no step trains this group any more
- ``groups_num``, ``schedule``, ``freezes``, ``frozen_shares``: the number of groups, the group of each step, whether a
  step leaves something out, and how much each group leaves out
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import mindspore as ms
from mindspore import nn

from boost_ext.ms.core.optimizer_copy import has_own_construct
from boost_ext.ms.optim import adagrad, momentum, rmsprop, sgd
from boost_ext.ms.optim.adafactor import AdaFactor, member_arguments
from boost_ext.ms.optim.adam import Adam, AdamOffload, AdamWeightDecay, LazyAdam
from boost_ext.ms.optim.ftrl import FTRL
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.grad_centralization import CentralizingOptimizer
from boost_ext.ms.optim.lamb import Lamb
from boost_ext.ms.optim.lars import LarsStep
from boost_ext.ms.optim.native_step import NativeStep, Shared, members_of
from boost_ext.plan import Decision

__all__ = ["FORMS", "decision", "native_step", "whole_of"]


class _Form(NamedTuple):
    """What :meth:`FusedOptimizer.fuse` gets, with the names of attributes of an optimizer of ``mindspore.nn``."""

    cls: type[FusedOptimizer]
    hyper: tuple[float, ...]
    states: tuple[str, ...] = ()
    powers: tuple[str, ...] = ()
    first: str = ""
    rule: str = ""
    """Default: that of the class."""
    own: dict[str, Any] = {}  # noqa: RUF012 (never written)
    """Other arguments of :func:`members_of`."""


def _number(value: Any) -> float:
    return float(value.asnumpy().item()) if isinstance(value, ms.Tensor) else float(value)


def _numbers(optimizer: Any, *names: str) -> tuple[float, ...]:
    return tuple(_number(getattr(optimizer, name)) for name in names)


def _momentum(o: Any) -> _Form | str:
    if o.use_nesterov:
        return "use_nesterov, which nn.Momentum ignores on a CPU"
    return _Form(momentum.Momentum, (_number(o.momentum), 0.0, 0.0), ("moments",), ("momentum",))


def _sgd(o: Any) -> _Form | str:
    has_state = _number(o.momentum) > 0
    hyper = (*_numbers(o, "momentum", "dampening"), o.nesterov)
    states, first = (("accum",), "stat") if has_state else ((), "")
    return _Form(sgd.SGD, hyper, states, ("momentum",), first)


def _adam_form(o: Any, cls: type[FusedOptimizer], nesterov: bool, amsgrad: bool = False) -> _Form:
    states = ("moment1", "moment2", "vhat") if amsgrad else ("moment1", "moment2")
    return _Form(cls, (*_numbers(o, "beta1", "beta2", "eps"), nesterov, 0.0), states, ("beta1_power", "beta2_power"))


def _adam(o: Any) -> _Form | str:
    if getattr(o, "use_offload", False) and isinstance(o, CentralizingOptimizer):
        return "use_offload, which centralizes gradients before their decay"
    if o.use_nesterov and o.use_amsgrad:
        return "use_nesterov with use_amsgrad, whose operator ignores it"
    return _adam_form(o, Adam, o.use_nesterov, o.use_amsgrad)


def _adam_offload(o: Any) -> _Form | str:
    if isinstance(o, CentralizingOptimizer):
        return "gradients that are centralized before their decay"
    return _adam_form(o, AdamOffload, bool(o.opt.attrs["use_nesterov"]))


def _rmsprop(o: Any) -> _Form | str:
    hyper = _numbers(o, "decay", "momentum", "epsilon")
    if o.centered:
        return _Form(rmsprop.RMSProp, hyper, ("mg", "ms", "moment"), rule="centered_rmsprop")
    return _Form(rmsprop.RMSProp, hyper, ("ms", "moment"))


def _proximal_adagrad(o: Any) -> _Form | str:
    if any(_numbers(o, "l1", "l2")):
        return "l1 or l2, which it divides by the root of the accumulator"
    return _Form(adagrad.ProximalAdagrad, (0.0, 0.0), ("accum",))


def _ftrl(o: Any) -> _Form | str:
    if o.l1:
        return "l1, which its operator does not subtract as the paper does"
    return _Form(FTRL, _numbers(o, "l1", "l2", "lr_power"), ("moments", "linear"))


def _adafactor(o: Any) -> _Form | str:
    if o.is_group:
        return "groups, whose weight decay it ignores"
    if o.compression:
        return "compression, whose rounding would change"
    if o.loss_scale != 1.0:
        return "a loss_scale, which it ignores"
    eps = tuple(map(_number, o.eps))
    if not (min(eps) > 0 and _number(o.clip_threshold) > 0):
        return "eps or clip_threshold of 0"
    clip, decay, beta1 = _numbers(o, "clip_threshold", "decay_rate", "beta1")
    hyper = (*eps, clip, -decay, beta1, o.scale_parameter, o.relative_step, o.warmup_init)
    # It decays every parameter, whatever its name.
    own = member_arguments(o) | {"decayed": (True,) * len(o.parameters)}
    return _Form(AdaFactor, hyper, ("exp_avg",) if o.use_first_moment else (), ("step",), own=own)


def _adagrad(o: Any) -> _Form | str:
    if not o.opt.attrs["update_slots"]:
        return "update_slots=False, which it ignores on a CPU"
    return _Form(adagrad.Adagrad, (True,), ("accum",))


def _betas(cls: type[FusedOptimizer], *more: float) -> Callable[[Any], _Form | str]:
    return lambda o: _Form(cls, (*_numbers(o, "beta1", "beta2", "eps"), *more), ("moments1", "moments2"))


def _lars(o: Any) -> _Form | str:
    form = _form(o.opt)
    if isinstance(form, str):
        return f"an optimizer inside that stays as it is: {form}"
    if form.cls.lars_refusal:
        return f"nn.{form.cls.__name__} inside, which decouples its weight decay"
    # nn.LARS has taken the weight decay out of it.
    return form._replace(own={**form.own, "decayed": o.decay_flags})


FORMS: dict[str, Callable[[Any], _Form | str]] = {
    "Momentum": _momentum,
    "SGD": _sgd,
    "Adam": _adam,
    "LazyAdam": lambda o: _adam_form(o, LazyAdam, o.use_nesterov),
    "AdamOffload": _adam_offload,
    "AdamWeightDecay": _betas(AdamWeightDecay, 0.0),
    "Lamb": _betas(Lamb),
    "Adagrad": _adagrad,
    "ProximalAdagrad": _proximal_adagrad,
    "RMSProp": _rmsprop,
    "FTRL": _ftrl,
    "AdaFactor": _adafactor,
    "LARS": _lars,
}
"""The native form of each optimizer, or the setting that has none. By name: some will leave ``mindspore.nn``."""


def _library_class(optimizer: nn.Cell) -> type:
    """The class of the optimizer; for one that centralizes, the class of ``mindspore.nn`` it is derived from."""
    cls = type(optimizer)
    return cls.__bases__[-1] if issubclass(cls, CentralizingOptimizer) and "update" in vars(cls) else cls


def _form(optimizer: Any) -> _Form | str:
    """The native form, or why the optimizer steps as it is."""
    cls = _library_class(optimizer)
    name = cls.__name__
    form = FORMS.get(name)
    if form is None or getattr(nn, name, None) is not cls:
        return f"{type(optimizer).__name__} has no native step"
    if any(p.dtype != ms.float32 for p in optimizer.parameters):
        return f"nn.{name} has parameters that are not float32, whose arithmetic would change"
    if optimizer.use_parallel:
        return f"nn.{name} is a parallel optimizer"
    found = form(optimizer)
    return f"nn.{name} has {found}" if isinstance(found, str) else found


def _adopted(optimizer: Any, form: _Form) -> nn.Cell:
    step: nn.Cell
    if _library_class(optimizer) is getattr(nn, "LARS", None):
        settings = {name: optimizer.init_args[name] for name in ("coefficient", "epsilon", "use_clip")}
        step = LarsStep(_step(optimizer.opt, form), optimizer.lars_flag, **settings)
    else:
        step = _step(optimizer, form)
    step.source = optimizer  # whatever holds the step has the optimizer's whole state in its checkpoint
    return step


def _step(optimizer: Any, form: _Form) -> NativeStep:
    def named(*names: str) -> tuple[Any, ...]:
        return tuple(getattr(optimizer, name) for name in names)

    shared = Shared(
        owner=form.cls.__name__,
        takes_rows=form.cls.takes_rows,
        rule=form.rule or form.cls.rule,
        hyper=(*form.hyper, optimizer.loss_scale),
        global_step=optimizer.global_step,
        powers=named(*form.powers),
        number_of_states=len(form.states),
        has_first=bool(form.first),
    )
    lists = named(*form.states, *([form.first] if form.first else []))
    return NativeStep(shared, members_of(optimizer, **{"lists": lists, **form.own}))


def decision(optimizer: nn.Cell, adopt: bool = True) -> Decision:
    """The decision on the feature ``fused_optimizer``, see :func:`native_step`."""
    if hasattr(optimizer, "step_unless"):
        if has_own_construct(optimizer):
            return Decision("skipped", f"{type(optimizer).__name__} has a construct of its own")
        return Decision("skipped", f"boost_ext's {type(optimizer).__name__} is one native call anyway")
    if not adopt:
        return Decision("skipped", "fused_optimizer is False")
    form = _form(optimizer)
    if isinstance(form, str):
        return Decision("skipped", form)
    return Decision("applied", f"nn.{_library_class(optimizer).__name__} steps as one native call, on its own state")


def whole_of(optimizer: Any) -> Any:
    """The optimizer itself; for one that steps groups of parameters, the optimizer that it was made from."""
    return optimizer.optimizer if hasattr(optimizer, "group_steps") else optimizer


def native_step(optimizer: nn.Cell, adopt: bool = True) -> nn.Cell | None:
    """A cell with ``step_unless(skip, scale, gradients)`` that steps the optimizer; None if there is none.

    Args:
        optimizer (Cell): stays usable: the two share their Parameters.
        adopt (bool): whether one of ``mindspore.nn`` may step natively. Default: True.
    """
    if hasattr(optimizer, "step_unless"):
        return None if has_own_construct(optimizer) else optimizer
    form = _form(optimizer) if adopt else ""
    return None if isinstance(form, str) else _adopted(optimizer, form)
