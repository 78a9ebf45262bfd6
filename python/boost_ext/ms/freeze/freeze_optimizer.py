"""An optimizer of which each step trains one group of parameters: what gradient freezing updates the weights with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.arguments import checked_keywords
from boost_ext.ms.core import typed
from boost_ext.ms.core.for_cells import released
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.core.state import state
from boost_ext.ms.optim.adoption import native_step

__all__ = ["FreezeOpt"]


class _OwnStep(nn.Cell):
    """An update of some parameters that moves the schedule on: the position is the number of updates made."""

    def __init__(self, optimizer: nn.Cell, position: Parameter) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.parameters = optimizer.parameters
        self.position = position

    def construct(self, grads: tuple[Tensor, ...]) -> Tensor:
        return self._advance(self.optimizer(grads), 1)

    def _advance(self, updated: Tensor, steps: Any) -> Tensor:
        position = ops.depend(self.position, updated) + steps
        return ops.depend(updated, ops.assign(self.position, position))


class _Step(_OwnStep):
    """The step of an optimizer that heeds a flag: the position, too, stays where it is."""

    def step_unless(self, skip: Tensor, scale: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        updated = self.optimizer.step_unless(skip, scale, grads)
        return self._advance(updated, ops.cast(ops.logical_not(skip), ms.int32))


class FreezeOpt(typed.Cell):
    """An optimizer of which each step trains one of several groups of parameters.

    There is one optimizer with one state: a group that a step leaves out keeps its momentum, and the learning rate
    schedule and Adam's bias correction advance by one with each step, whatever it trains. (mindspore.boost makes an
    optimizer with a state and a step count of its own for each group.)

    Args:
        opt (Optimizer): an optimizer, such as Momentum.
        train_parameter_groups (Union[tuple, list], optional): the groups; each a list of Parameters, or of group
            dictionaries with ``params``. Default: None, one group of all parameters.
        train_strategy (Union[tuple(int), list(int), Tensor], optional): the group of each step; starts again after its
            end. Default: None, the groups in turns.

    Raises:
        TypeError: if `opt` is no Optimizer, or groups or strategy are of another type.
        ValueError: for a strategy without groups, for a group number that does not exist, or a parameter that the
            optimizer does not have.

    Attributes:
        opts (tuple[Cell]): for each group a cell ``opts[i](grads)`` that updates the group and moves the position; in
            one native call if the optimizer has one.
        parameters (ParameterTuple): those of `opt`.
        train_strategy (Union[Tensor, None]): int32.
        position (Parameter): int32 (1,), ``freeze.position``: updates made so far.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext import boost
        >>> net = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 1))
        >>> groups = [net.trainable_params(), net[1].trainable_params()]  # all; the head
        >>> optimizer = boost.FreezeOpt(nn.SGD(net.trainable_params(), 0.1), groups, train_strategy=[0, 1])
        >>> step = boost.BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
        >>> loss, overflow, loss_scale = step(ms.ops.ones((2, 4)), ms.ops.ones((2, 1)))
    """

    @checked_keywords
    def __init__(
        self,
        opt: nn.Optimizer,
        train_parameter_groups: Sequence[Any] | None = None,
        train_strategy: Sequence[int] | Tensor | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        if not isinstance(opt, nn.Optimizer):
            raise TypeError(f"FreezeOpt: opt must be an Optimizer, got {type(opt).__name__}")
        if train_strategy is not None and train_parameter_groups is None:
            raise ValueError("FreezeOpt: train_strategy must come with train_parameter_groups, got none")
        if hasattr(opt, "boost_options"):  # what AutoBoost has switched on stays on
            self.boost_options = opt.boost_options
        opt = released(opt)
        self.optimizer = opt
        self.parameters = opt.parameters
        self.groups = _groups(opt, train_parameter_groups)
        self.groups_num = len(self.groups)
        self.position = state("freeze.position", [0], ms.int32)
        self.opts = self.group_steps()
        for i, step in enumerate(self.opts):
            self.insert_child_to_cell(f"opt_{i}", step)
        elements = sum(p.size for p in self.parameters)
        self.frozen_shares = tuple(1 - sum(p.size for p in g) / max(elements, 1) for g in self.groups)
        """For each group the share of the elements that it leaves out."""
        self.reschedule(train_strategy)

    def __repr__(self) -> str:
        return f"FreezeOpt({self.optimizer!r}, {self.groups_num} groups)"

    def reschedule(self, train_strategy: Sequence[int] | Tensor | None) -> None:
        """Another strategy, before the first step: graphs that are compiled keep the one that they have."""
        given = self.train_strategy = _strategy(train_strategy, self.groups_num)
        self.strategy = Tensor(np.arange(self.groups_num, dtype=np.int32)) if given is None else given
        self.schedule: tuple[int, ...] = tuple(self.strategy.asnumpy().tolist())
        self.length = len(self.schedule)
        self._last = {group: at for at, group in enumerate(self.schedule)}
        self.freezes = any(self.frozen_shares[i] > 0 for i in set(self.schedule))
        """Whether there is a step that leaves something out."""

    def group_steps(self, fused: bool = True) -> tuple[nn.Cell, ...]:
        """For each group a cell like one of ``opts``.

        Args:
            fused (bool): whether an optimizer of ``mindspore.nn`` may step as one native call. Default: True.
        """
        native = native_step(self.optimizer, fused)
        step, whole = (_OwnStep, self.optimizer) if native is None else (_Step, native)
        return tuple(step(restrict(whole, group), self.position) for group in self.groups)

    def require_options(self, owner: str, options: Any) -> None:
        """A ValueError for another algorithm that moves the weights."""
        if options.dim_reduce is not None:
            raise ValueError(f"{owner}: dim_reduce must be the only algorithm, got freezing or accumulation with it")
        if options.adasum_devices is not None:
            raise ValueError(f"{owner}: adasum must not be combined with freezing, got a FreezeOpt")

    @property
    def loss_scale(self) -> float:
        """That of the optimizer."""
        return float(self.optimizer.loss_scale)

    def current(self) -> int:
        """The group that the next step trains."""
        return self.schedule[self._place()]

    def chosen(self) -> Tensor:
        """:meth:`current` inside a graph."""
        return self.strategy[self.position[0] % self.length]

    def is_over(self, group: int) -> bool:
        """Whether no step trains this group any more, before the strategy starts again."""
        return self._last.get(group, -1) < self._place()

    def _place(self) -> int:
        return int(self.position.asnumpy()[0]) % self.length

    def construct(self, grads: Any) -> Any:
        raise TypeError("FreezeOpt: it is used by BoostTrainOneStepCell or freeze_cell, not called with gradients")


def _groups(opt: nn.Optimizer, given: Any) -> list[list[Parameter]]:
    if given is None:
        return [list(opt.parameters)]
    if not isinstance(given, (tuple, list)):
        raise TypeError(f"FreezeOpt: train_parameter_groups must be a tuple or list, got {type(given).__name__}")
    if not given:
        raise ValueError("FreezeOpt: train_parameter_groups must not be empty")
    known = {id(p) for p in opt.parameters}
    groups = []
    for i, group in enumerate(given):
        if not isinstance(group, (tuple, list)):
            raise TypeError(
                f"FreezeOpt: train_parameter_groups[{i}] must be a tuple or list, got {type(group).__name__}"
            )
        chosen: dict[int, Parameter] = {}
        for item in group:
            if isinstance(item, dict):
                if ignored := sorted(item.keys() - {"params", "order_params"}):
                    raise ValueError(
                        f"FreezeOpt: train_parameter_groups[{i}] must choose parameters alone, got {ignored}; their "
                        "settings are those of opt"
                    )
                chosen |= {id(p): p for p in item.get("params", ())}
            elif isinstance(item, Parameter):
                chosen[id(item)] = item
            else:
                got = type(item).__name__
                raise TypeError(f"FreezeOpt: train_parameter_groups[{i}] must hold Parameters or dicts, got {got}")
        strange = [p.name for p in chosen.values() if id(p) not in known]
        if strange or not chosen:
            raise ValueError(
                f"FreezeOpt: train_parameter_groups[{i}] must hold parameters of the optimizer, got {strange or 'none'}"
            )
        groups.append([p for p in opt.parameters if id(p) in chosen])
    return groups


def _strategy(given: Any, groups: int) -> Tensor | None:
    if given is None:
        return None
    if isinstance(given, Tensor):
        if given.ndim != 1 or given.dtype != ms.int32:
            raise ValueError(
                f"FreezeOpt: train_strategy must be int32 of one dimension, got {given.dtype} {given.shape}"
            )
    elif isinstance(given, (tuple, list)):
        if not all(isinstance(i, (int, np.integer)) and not isinstance(i, bool) for i in given):
            raise ValueError("FreezeOpt: train_strategy must hold int numbers only")
        given = Tensor(np.asarray(given, np.int32))
    else:
        raise TypeError(
            f"FreezeOpt: train_strategy must be None, a tuple, a list or a Tensor, got {type(given).__name__}"
        )
    values = given.asnumpy()
    if not values.size or values.min() < 0 or values.max() >= groups:
        raise ValueError(f"FreezeOpt: train_strategy must hold numbers from 0 to {groups - 1}, got {values[:10]}…")
    return given
