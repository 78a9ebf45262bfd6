"""The base of the optimizers: everything but state and formula. One native call steps all parameters.

The call gets the gradients as they come: it unscales, decays and centralizes them in the pass that updates the weights
(:mod:`boost_ext.ops.optimizer_steps`). Learning rates and weight decays go in once for each group of parameters that
share them. The call itself writes the step counter, and all other state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from boost_ext.ms import native
from boost_ext.ms.core.optimizer_copy import forget, twin
from boost_ext.ms.core.sparse_gradients import Indices, SomeSparse, Values
from boost_ext.ms.optim.arguments import one_line
from boost_ext.ms.optim.grad_centralization import CentralizingOptimizer
from boost_ext.ms.optim.masters import HALVES, new_masters, require_master
from boost_ext.ms.optim.storage import StateStorage, state_like

__all__ = ["FusedOptimizer", "FusedStep", "require_gradients", "state_like"]

_DECOUPLED = ("adafactor", "muon", "apollo", "galore")
"""The rules without a row in the table of rules. They decouple their weight decay."""


class FusedStep(native.PackedCell):
    """``cell(layout, hyper, skip, ...)``: see csrc/doors/step_layout.h."""

    symbol = "optimizer_step"


class FusedOptimizer(CentralizingOptimizer):
    """The base of the optimizers. A subclass sets `rule`, and passes its state to :meth:`fuse`.

    Args:
        learning_rate (Union[float, int, Tensor, Iterable, LearningRateSchedule]): one value, one for each step, or a
            schedule; >= 0.
        parameters (Union[list[Parameter], list[dict]]): parameters, or groups of them: dicts with ``params`` and
            optionally ``lr``, ``weight_decay``, ``grad_centralization`` (of weights of two axes and more; gradients of
            others stay as they are), and one dict with ``order_params`` alone.
        weight_decay (Union[float, int, Cell]): L2 penalty, >= 0. Without groups it does not reach parameters with
            "beta" or "gamma" in their names. Default: 0.0.
        loss_scale (float): gradients are divided by it, > 0. Default: 1.0.
        master (str): how the master weight of a half-precision parameter is stored. "float32": 4 bytes an element.
            "split16", "split8": beside a bfloat16 parameter only the residual, which the parameter lacks of its master.
            "split16" takes 2 bytes and has the bits of "float32". "split8" takes 1 byte, and each step rounds the
            master to within 2^-16 of its value. Not of ``AdaFactor``, ``Muon``, ``Apollo``, ``GaLore`` and ``thor``.
            Default: "float32".

    Inputs:
        gradients (tuple[Tensor]), of the parameters' shapes.

    Outputs:
        Tensor[bool] of shape (1,), True.

    Raises:
        TypeError: if an argument has a type other than the ones given, or a parameter is float16 and `master` is not
            "float32".
        ValueError: if a value is out of range, also one of a list of learning rates, or a learning rate has more than
            one axis; in a call, if a gradient has another shape than its parameter, or there are more or fewer.

    float16 and bfloat16 parameters have float32 master weights in ``masters``, on which the arithmetic runs. A
    parameter that is set from outside, by a checkpoint for example, updates its master at the next step. Of a split
    master, ``masters`` has the residual: int16, or uint8 with the bits of int8. It stays when its parameter is set, and
    is within half the parameter's spacing; set it to 0 too for an exact value (FlashOptim, arXiv 2602.23349; the
    equations are in csrc/ops/optimizer_step.h). State is float32, or what `state_dtype` says where a class has it.

    Where a class has `cautious`, it leaves out the update of an element, but not its weight decay, where the sign is
    not that of the gradient (Liang et al. 2024, *Cautious optimizers*). The others are not scaled up, as they are in
    the paper.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext import optim
        >>> net = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 2))
        >>> first, second = net[0].trainable_params(), net[1].trainable_params()
        >>> optimizer = optim.SGD([{"params": first, "lr": 0.01}, {"params": second, "weight_decay": 0.1}], 0.1)
        >>> isinstance(optimizer, optim.FusedOptimizer), optimizer
        (True, SGD(4 parameters))
    """

    rule: str
    takes_rows = False  # whether a gradient may be a RowTensor
    lars_refusal: ClassVar[str] = ""  # why LARS cannot go around it
    master = "float32"  # also where an optimizer of mindspore.nn is adopted, without this constructor

    def __init__(
        self,
        learning_rate: Any,
        parameters: Any,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        *,
        master: str = "float32",
    ) -> None:
        super().__init__(learning_rate, parameters, weight_decay, loss_scale)
        require_master(type(self).__name__, master, self.parameters)
        self.master = master

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        rule = cls.__dict__.get("rule")  # decouples: it decays the weights, and not the gradient that LARS scales
        if rule in _DECOUPLED or (rule is not None and native.rule_facts(rule)["decoupled"]):
            cls.lars_refusal = f"{cls.__name__} decouples its weight decay; LARS needs it in the gradient"

    def __repr__(self) -> str:
        return one_line(self)

    def _preprocess_single_lr(self, learning_rate: Any) -> Any:
        """A checked learning rate, of a group or of all. The base class checks single numbers only."""
        rate = super()._preprocess_single_lr(learning_rate)
        if isinstance(rate, Tensor):
            values = rate.asnumpy().reshape(-1)
            for i in np.flatnonzero(~(values >= 0))[:1]:
                place = f"learning_rate[{i}]" if rate.ndim else "learning_rate"
                raise ValueError(f"{type(self).__name__}: {place} must be >= 0, got {values[i]:g}")
        return rate

    def fuse(
        self,
        hyper: Sequence[float],
        states: Sequence[ParameterTuple],
        *,
        powers: Sequence[Parameter] = (),
        first: Sequence[Parameter] = (),
        storage: StateStorage | None = None,
    ) -> None:
        """Prepare the native call; a constructor ends with it.

        `hyper` and `states` are in the order of the rule, see csrc/ops/optimizer_step.h. A call reads or writes
        `powers` and `first` beside them, see csrc/doors/step_layout.h.
        """
        self.masters = ParameterTuple(new_masters(self.parameters, self.master))
        self.number_of_states = len(states)
        for i, state in enumerate(states):
            setattr(self, f"states{i}", ParameterTuple(state))
        self.state_seed = 0 if storage is None else storage.seed
        scales = [] if storage is None else storage.scales
        self.number_of_scales = len(scales)
        for i, of_state in enumerate(scales):
            setattr(self, f"scales{i}", of_state)
        self.powers = tuple(powers)
        self.has_first = bool(first)
        if first:
            self.first = ParameterTuple(first)
        self.hyper = Tensor(np.array([*hyper, self.loss_scale], np.float64))
        self.no_skip, self.unit = Tensor([False]), Tensor([1.0], ms.float32)
        self.no_decay = Tensor(0.0, ms.float32)
        self.native_step = FusedStep()
        self.some_sparse, self.indices_of = SomeSparse(), Indices()
        self.members = tuple(range(len(self.parameters)))
        self.arrange()

    def narrowed(self, parameters: Sequence[Parameter]) -> FusedOptimizer:
        """An optimizer of some of the parameters, in this order. It shares state, step counter and learning rates."""
        member = {id(p): i for i, p in zip(self.members, self.parameters, strict=True)}
        made = twin(self, type(self))
        # Not by assignment, which would register the Parameters again.
        made.__dict__["parameters"] = ParameterTuple(parameters)
        made.__dict__["members"] = tuple(member[id(p)] for p in parameters)
        made.__dict__["init_params"] = {"params": list(parameters)}  # as ranks compare them
        made.arrange()
        before, after = ((*o.parameters, *o.weights, *o.states) for o in (self, made))
        forget(made, before, after)
        return made

    def arrange(self) -> None:
        """Gather the arguments of a call for ``parameters``, in groups that share learning rate and weight decay.

        ``members`` are the places of ``parameters`` among all; they index state, learning rates and weight decays.
        """
        pairs = list(zip(self.members, self.parameters, strict=True))
        keys: list[Any] = []
        layout: list[int] = []
        members: list[int] = []
        self.half_members = tuple(k for k, p in enumerate(self.parameters) if p.dtype in HALVES)
        for k, (i, parameter) in enumerate(pairs):
            rate = self.learning_rate[i] if self.is_group_lr else self.learning_rate
            decay = self._decay_of(i)
            key = (id(rate), id(decay) if isinstance(decay, nn.Cell) else decay)
            if key not in keys:
                keys.append(key)
                members.append(i)
            centralized = self.is_group and bool(self.grad_centralization_flags[i]) and parameter.ndim >= 2
            layout += [keys.index(key), int(centralized), int(k in self.half_members), self._special(i)]
        self.group_members = tuple(members)
        self.decayed_members = tuple(self._decay_of(i) != 0 for i in members)
        rule = native.optimizer_rules().index(self.rule)
        header = [rule, len(keys), self.number_of_states, bool(self.powers), self.has_first, len(self.parameters)]
        header.append(self.state_seed)
        self.layout = Tensor(np.array([*header, *layout], np.int32))
        if self.takes_rows:
            layout[3::4] = [1] * len(self.parameters)
        self.layout_of_rows = Tensor(np.array([*header, *layout], np.int32))
        # Constants are gathered here: the graph compiler unrolls loops by recursion, of limited depth.
        # Not by assignment, which would register the Parameters of a narrowed optimizer again.
        own = self.__dict__
        own["half_masters"] = tuple(self.masters[i] for i, p in pairs if p.dtype in HALVES)
        own["weights"] = (*self.powers, *self.parameters, *self.half_masters)
        own["states"] = tuple(self._states())
        if self.is_group_lr and not self.dynamic_lr:
            own["group_rates"] = tuple(self.learning_rate[i] for i in members)
        if not self.dynamic_weight_decay:
            flags = self.decayed_members
            own["group_decays"] = tuple(
                self._decay_now(i) if flag else self.no_decay for i, flag in zip(members, flags, strict=True)
            )
        refusal = None if self.takes_rows else f"{type(self).__name__}: gradients must be Tensors"
        own["values_of"] = Values([p.name for p in self.parameters], refusal)
        # For PYNATIVE_MODE: the arguments that are the same objects in every call.
        own["_fixed"] = None

    def _special(self, i: int) -> int:
        """The last number of parameter i in the layout of a step, see csrc/doors/step_layout.h."""
        return 0

    def _states(self) -> list[Parameter]:
        """The state of the members in the order of a call: states of the rule, scales of codes, `first`."""
        states = [getattr(self, f"states{k}")[i] for k in range(self.number_of_states) for i in self.members]
        for k in range(self.number_of_scales):
            scales, values = getattr(self, f"scales{k}"), getattr(self, f"states{k}")
            states += [scales[i] for i in self.members if scales[i] is not values[i]]
        return states + [self.first[i] for i in self.members] if self.has_first else states

    def _decay_of(self, i: int) -> Any:
        """The weight decay of parameter i times the loss scale, as in mindspore.nn; or a cell."""
        if self.is_group:
            return self.group_weight_decay[i]
        if not (self.exec_weight_decay and self.decay_flags[i]):
            return 0.0
        return self.weight_decay if isinstance(self.weight_decay, nn.Cell) else float(self.weight_decay.asnumpy())

    def _rates(self) -> Any:
        """The learning rate of each group."""
        if not self.is_group_lr:
            rate = self.get_lr()
            if self.dynamic_lr:
                rate = _float32(rate)
            # The graph compiler takes 20 ms for a product of a tuple.
            return (rate,) if len(self.group_members) == 1 else (rate,) * len(self.group_members)
        if not self.dynamic_lr:
            return self.group_rates
        rates: tuple[Any, ...] = ()
        for i in self.group_members:
            rates = (*rates, _float32(self.learning_rate[i](self.global_step).reshape(())))
        return rates

    def _decays(self) -> Any:
        """The weight decay of each group, times the loss scale."""
        if not self.dynamic_weight_decay:
            return self.group_decays
        decays: tuple[Any, ...] = ()
        for k in range(len(self.group_members)):
            decay = self.no_decay
            if self.decayed_members[k]:
                decay = self._decay_now(self.group_members[k])
            decays = (*decays, decay)
        return decays

    def _decay_now(self, i: int) -> Any:
        decay = self.weight_decay[i] if self.is_group else self.weight_decay
        dynamic = self.dynamic_decay_flags[i] if self.is_group else self.dynamic_decay_flags
        return _float32(decay(self.global_step).reshape(())) if dynamic else decay

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
        numbers = self._rates() + self._decays()
        head = (self.layout, self.hyper, settings, apply_to, scale)
        return op(*head, *numbers, ratios, *self.parameters, *gradients)

    def step_by(self, ratios: Parameter, skip: Tensor, scale: Tensor, gradients: Any) -> Tensor:
        """:meth:`step_unless` with a factor on each gradient and each weight decay: `ratios`, float32 (2 n,)."""
        return self._step(gradients, skip, scale, ratios)

    def _step(self, gradients: Any, skip: Any, scale: Any, ratio: Any) -> Any:
        head = (self.hyper, skip, scale, self.global_step, ratio, *self._rates(), *self._decays())
        tensors = (*self.weights, *self.values_of(gradients), *self.states)
        if self.takes_rows and self.some_sparse(gradients):
            return self.native_step(self.layout_of_rows, *head, *tensors, *self.indices_of(gradients))
        return self.native_step(self.layout, *head, *tensors)

    def require_options(self, owner: str, options: Any) -> None:
        """A ValueError for AdaSum over split masters: it adds up the steps of masters, as float32."""
        if options.adasum_devices is not None and self.master != "float32":
            raise ValueError(
                f"{owner}: {type(self).__name__} must have master='float32' with adasum, which adds up the steps of "
                f"the masters, got {self.master!r}"
            )

    def require_halves(self) -> None:
        """Refuse a parameter that has become half-precision since the constructor made the masters, or float32.

        Called before the first step. Later the steps check.
        """
        for i, p in enumerate(self.parameters):
            if (p.dtype in HALVES) != (i in self.half_members):
                raise ValueError(
                    f"{type(self).__name__}: {p.name} must keep the dtype that it had when the optimizer was made, "
                    f"got {p.dtype}"
                )

    def _fix(self) -> None:
        self.require_halves()

        def fixed(tensors: Any) -> Any:
            return native.fixed_arrays(tensors, type(self).__name__)

        head = fixed((self.hyper, self.no_skip, self.unit, self.global_step, self.unit))
        numbers = None if self._is_dynamic_lr_or_weight_decay() else fixed(self._rates() + self._decays())
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
            require_gradients(type(self).__name__, gradients, self.parameters)
            raise

    def _called(self, gradients: Sequence[Tensor]) -> Tensor:
        by_pointer = native.calls_by_pointer(type(self).__name__)
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
            numbers = self._rates() + self._decays()
        native.call("optimizer_step", layout, head, numbers, weights, native.contiguous(gradients), states, indices)
        return done

    @nn.Optimizer.target.setter  # type: ignore[untyped-decorator]
    def target(self, value: str) -> None:
        """Where the parameters are updated, see :class:`mindspore.nn.Optimizer`."""
        self._set_base_target(value)


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
