"""One native call that steps parameters, on state that others may hold, too.

The call gets the gradients as they come: it unscales, decays and centralizes them in the pass that updates the weights
(:mod:`boost_ext.ops.optimizer_steps`). Learning rates and weight decays go in once for each group of parameters that
share them. The call itself writes the step counter, and all other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from boost_ext.ms import native
from boost_ext.ms.core import typed
from boost_ext.ms.core.optimizer_copy import has_own_construct
from boost_ext.ms.core.sparse_gradients import Indices, SomeSparse, Values
from boost_ext.ms.optim.masters import HALVES

__all__ = ["NativeStep", "Shared", "members_of", "require_gradients"]


class OptimizerStep(native.PackedCell):
    """``cell(layout, hyper, skip, ...)``: see csrc/doors/step_layout.h."""

    symbol = "optimizer_step"


class _Constant(nn.Cell):
    """``cell(step)``: always the same number."""

    def __init__(self, number: float) -> None:
        super().__init__(auto_prefix=False)
        self.number = Tensor(number, ms.float32)

    def construct(self, step: Tensor) -> Tensor:
        return self.number


class Schedules(nn.Cell):
    """``cell(step)``: a float32 number for each group, of floats and cells of the step counter."""

    def __init__(self, numbers: Sequence[Any]) -> None:
        super().__init__(auto_prefix=False)
        self.times = len(numbers) if all(n is numbers[0] for n in numbers) else 1
        own = numbers[:1] if self.times > 1 else numbers
        cells = [_Constant(n) if isinstance(n, float) else n for n in own]
        self.schedules = nn.CellList(cells, auto_prefix=False)

    def construct(self, step: Tensor) -> tuple[Tensor, ...]:
        numbers: tuple[Tensor, ...] = ()
        for k in range(len(self.schedules)):
            numbers = (*numbers, _float32(self.schedules[k](step).reshape(())))
        # The graph compiler takes 20 ms for a product of a tuple.
        return numbers * self.times if self.times > 1 else numbers


@dataclass(frozen=True)
class Member:
    """A parameter of a step, and what is its own.

    `master` is the parameter itself where that is float32. `parts` has its part of each list of Parameters in a call:
    the states of the rule, the scales of codes, and `first`. `rate` and `decay`, which is times the loss scale, are
    floats, Parameters, or cells of the step counter. `special` is its last number in the layout, see
    csrc/doors/step_layout.h.
    """

    parameter: Parameter
    master: Parameter
    parts: tuple[tuple[Parameter, ...], ...]
    special: int
    rate: Any
    decay: Any
    centralized: bool


@dataclass(frozen=True)
class Shared:
    """What the parameters of a step share. `hyper` is in the order of the rule, with the loss scale behind. A call
    reads or writes `powers` beside the lists, see csrc/doors/step_layout.h."""

    owner: str
    takes_rows: bool
    rule: str
    hyper: tuple[float, ...]
    global_step: Parameter
    powers: tuple[Parameter, ...]
    number_of_states: int
    has_first: bool
    seed: int = 0


def members_of(
    optimizer: Any,
    lists: Sequence[Sequence[Any]],
    *,
    masters: Sequence[Parameter] | None = None,
    special: Sequence[int] | None = None,
    rates: Sequence[Any] | None = None,
    decayed: Sequence[bool] | None = None,
) -> list[Member]:
    """The members of an ``nn.Optimizer``, from what it has for all parameters.

    Args:
        lists: the lists of Parameters in a call. Each has for each parameter a Parameter, or a tuple of any number.
        masters: Default: the parameters, which then are float32.
        special: Default: 0.
        rates: Default: the learning rates of the optimizer.
        decayed: whether a parameter has weight decay, without groups. Default: as the optimizer chooses.
    """
    parameters, decay = optimizer.parameters, optimizer.weight_decay
    if rates is None:
        rates = optimizer.learning_rate if optimizer.is_group_lr else [optimizer.learning_rate] * len(parameters)
    if optimizer.is_group:
        decays, centralized = optimizer.group_weight_decay, optimizer.grad_centralization_flags
    else:
        decayed = decayed or [flag and optimizer.exec_weight_decay for flag in optimizer.decay_flags]
        decay = decay if isinstance(decay, nn.Cell) else float(decay.asnumpy())
        decays, centralized = [decay if flag else 0.0 for flag in decayed], [False] * len(parameters)
    whole = [[item if isinstance(item, tuple) else (item,) for item in one] for one in lists]
    parts = zip(*whole, strict=True) if whole else [()] * len(parameters)
    own = zip(parameters, masters or parameters, parts, special or [0] * len(parameters), strict=True)
    settings = zip(rates, decays, centralized, strict=True)
    return [Member(*a, *b) for a, b in zip(own, settings, strict=True)]


class NativeStep(typed.Cell):
    """``cell(gradients)``: a step of some parameters. All Parameters are those of the optimizer that they come from.

    It has no state of its own: whichever of several steps of one optimizer runs, the step counts once.
    """

    def __init__(self, shared: Shared, members: Sequence[Member]) -> None:
        super().__init__(auto_prefix=False)
        self.parameters = ParameterTuple(m.parameter for m in members)
        self.global_step = shared.global_step
        self.arrange(shared, members)
        rates = [m.rate for m in members if isinstance(m.rate, Parameter)]
        self.held = ParameterTuple([*self.weights, *self.states, *rates])  # for get_parameters
        # As ranks compare them.
        self.init_args, self.init_params = {"rule": shared.rule}, {"params": list(self.parameters)}

    def arrange(self, shared: Shared, members: Sequence[Member]) -> None:
        """Gather the arguments of a call, in groups that share learning rate and weight decay."""
        groups: dict[Any, tuple[int, Any, Any]] = {}
        layout: list[int] = []
        self.half_members = tuple(k for k, m in enumerate(members) if m.parameter.dtype in HALVES)
        for k, m in enumerate(members):
            key = tuple(x if isinstance(x, float) else id(x) for x in (m.rate, m.decay))
            group, *_ = groups.setdefault(key, (len(groups), m.rate, m.decay))
            layout += [
                group,
                int(m.centralized and m.parameter.ndim >= 2),
                int(k in self.half_members),
                m.special,
            ]
        rule = native.optimizer_rules().index(shared.rule)
        header = [rule, len(groups), shared.number_of_states, bool(shared.powers), shared.has_first, len(members)]
        header.append(shared.seed)
        self.layout = Tensor(np.array([*header, *layout], np.int32))
        self.takes_rows = shared.takes_rows
        if self.takes_rows:
            layout[3::4] = [1] * len(members)
        self.layout_of_rows = Tensor(np.array([*header, *layout], np.int32))
        self.hyper = Tensor(np.array(shared.hyper, np.float64))
        self.no_skip, self.unit = Tensor([False]), Tensor([1.0], ms.float32)
        self.step_of_rule = OptimizerStep()
        self.some_sparse, self.indices_of = SomeSparse(), Indices()
        _, rates, decays = zip(*groups.values(), strict=True)
        self.scheduled_rates = Schedules(rates) if _with_cells(rates) else None
        self.scheduled_decays = Schedules(decays) if _with_cells(decays) else None
        # Constants are gathered here: the graph compiler unrolls loops by recursion, of limited depth.
        # Not by assignment, which would register the Parameters again.
        own = self.__dict__
        own["shared"], own["members"] = shared, tuple(members)
        own["rates"] = None if _with_cells(rates) else _constants(rates)
        own["decays"] = None if _with_cells(decays) else _constants(decays)
        own["half_masters"] = tuple(members[k].master for k in self.half_members)
        own["weights"] = (*shared.powers, *self.parameters, *self.half_masters)
        own["states"] = tuple(
            p for each in zip(*(m.parts for m in members), strict=True) for part in each for p in part
        )
        refusal = None if self.takes_rows else f"{shared.owner}: gradients must be Tensors"
        own["values_of"] = Values([p.name for p in self.parameters], refusal)
        # For PYNATIVE_MODE: the arguments that are the same objects in every call.
        own["_fixed"] = None

    def narrowed(self, parameters: Sequence[Parameter]) -> NativeStep:
        """A step of some of the parameters, in this order."""
        member = {id(m.parameter): m for m in self.members}
        return NativeStep(self.shared, [member[id(p)] for p in parameters])

    def _numbers(self) -> Any:
        """The learning rates of the groups, then their weight decays."""
        rates, decays = self.rates, self.decays
        if self.scheduled_rates is not None:
            rates = self.scheduled_rates(self.global_step)
        if self.scheduled_decays is not None:
            decays = self.scheduled_decays(self.global_step)
        return rates + decays

    def construct(self, gradients: Any) -> Tensor:
        return self._step(gradients, self.no_skip, self.unit, self.unit)

    def step_unless(self, skip: Tensor, scale: Tensor, gradients: Any) -> Tensor:
        """A step on gradients that hold the loss scale `scale`. If `skip`, nothing changes, not even the step counter.

        Args:
            skip (Tensor): bool of shape (1,).
            scale (Tensor): float32 of shape (1,); the optimizer's own ``loss_scale`` comes on top.
            gradients (tuple[Tensor]): as for a call.
        """
        return self._step(gradients, skip, scale, self.unit)

    def ratios_into(
        self, ratios: Parameter, op: nn.Cell, settings: Tensor, apply_to: Tensor, scale: Tensor, gradients: Any
    ) -> Tensor:
        """Let LARS's `op` write its `ratios` for these gradients."""
        head = (self.layout, self.hyper, settings, apply_to, scale)
        return op(*head, *self._numbers(), ratios, *self.parameters, *gradients)

    def step_by(self, ratios: Parameter, skip: Tensor, scale: Tensor, gradients: Any) -> Tensor:
        """:meth:`step_unless` with a factor on each gradient and each weight decay: `ratios`, float32 (2 n,)."""
        return self._step(gradients, skip, scale, ratios)

    def _step(self, gradients: Any, skip: Any, scale: Any, ratio: Any) -> Any:
        head = (self.hyper, skip, scale, self.global_step, ratio, *self._numbers())
        tensors = (*self.weights, *self.values_of(gradients), *self.states)
        if self.takes_rows and self.some_sparse(gradients):
            return self.step_of_rule(self.layout_of_rows, *head, *tensors, *self.indices_of(gradients))
        return self.step_of_rule(self.layout, *head, *tensors)

    def require_halves(self) -> None:
        """Refuse a parameter that has become half-precision since its master was made, or float32.

        Called before the first step. Later the steps check.
        """
        for i, p in enumerate(self.parameters):
            if (p.dtype in HALVES) != (i in self.half_members):
                raise ValueError(
                    f"{self.shared.owner}: {p.name} must keep the dtype that it had when the optimizer was made, "
                    f"got {p.dtype}"
                )

    def _fix(self) -> None:
        self.require_halves()

        def fixed(tensors: Any) -> Any:
            return native.fixed_arrays(tensors, self.shared.owner)

        head = fixed((self.hyper, self.no_skip, self.unit, self.global_step, self.unit))
        numbers = None if self.rates is None or self.decays is None else fixed(self._numbers())
        parts = (fixed((self.layout,)), head, numbers, fixed(self.weights), fixed(self.states), Tensor([True]))
        self.__dict__["_fixed"] = parts

    def require_same(self) -> None:
        """Refuse a parameter or a state with another dtype or shape than at the first step."""
        if self._fixed is None:
            self._fix()
        *_, weights, states, _ = self._fixed
        native.require_same(weights)
        native.require_same(states)

    def __call__(self, gradients: Sequence[Tensor]) -> Tensor:
        try:
            return self._called(gradients)
        except (ValueError, TypeError, RuntimeError):
            if self._fixed is not None:
                self.require_same()
            require_gradients(self.shared.owner, gradients, self.parameters)
            raise

    @cached_property
    def own_construct(self) -> bool:
        """See :func:`has_own_construct`."""
        return has_own_construct(self)

    def _called(self, gradients: Sequence[Tensor]) -> Tensor:
        if self.own_construct:
            return super().__call__(gradients)
        by_pointer = native.calls_by_pointer(self.shared.owner)
        sparse = self.some_sparse.by_python(gradients)
        if not (sparse or by_pointer):
            self.require_same()
            return super().__call__(gradients)
        if self._fixed is None:
            self._fix()
        layout, head, numbers, weights, states, done = self._fixed
        indices: Sequence[Tensor] = ()
        if sparse:  # not by a graph: MindSpore ends the process at a RowTensor from Python
            layout, indices = [self.layout_of_rows], self.indices_of.by_python(gradients)
            gradients = self.values_of.by_python(gradients)
        if numbers is None:
            numbers = self._numbers()
        native.call("optimizer_step", layout, head, numbers, weights, native.contiguous(gradients), states, indices)
        return done


def _with_cells(numbers: Sequence[Any]) -> bool:
    return any(isinstance(n, nn.Cell) for n in numbers)


def _constants(numbers: Sequence[Any]) -> tuple[Tensor, ...]:
    """Tensors for the floats, one for all groups with the same: each one costs a call time."""
    made = {n: Tensor(n, ms.float32) for n in numbers if isinstance(n, float)}
    return tuple(made[n] if isinstance(n, float) else n for n in numbers)


def _float32(number: Tensor) -> Tensor:
    """The number of a schedule as float32."""
    return number if number.dtype == ms.float32 else ops.cast(number, ms.float32)


def require_gradients(owner: str, gradients: Any, parameters: Sequence[Parameter]) -> None:
    """Refuse gradients that do not fit the parameters, by name. Called after a native call has failed."""
    if len(gradients) != len(parameters):
        raise ValueError(f"{owner}: gradients must be {len(parameters)}, one a parameter, got {len(gradients)}")
    for i, (g, p) in enumerate(zip(gradients, parameters, strict=True)):
        if isinstance(g, Tensor) and g.shape != p.shape:
            raise ValueError(f"{owner}: gradients[{i}] must have the shape of {p.name}, {p.shape}, got {g.shape}")
