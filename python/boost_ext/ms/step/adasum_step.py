"""AdaSum in a training cell: the optimizer steps on the gradients of a node; the steps are summed over the nodes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import get_rank

from boost_ext.adasum import Schedule
from boost_ext.ms import native
from boost_ext.ms.core.state import filled
from boost_ext.ms.ranks.grad_reducer import GradReducer
from boost_ext.ms.ranks.ranks import rank_count
from boost_ext.ms.step.adasum import AdaSum, group_of
from boost_ext.ms.step.options import StepOptions
from boost_ext.plan import adasum_obstacle

if TYPE_CHECKING:
    from boost_ext.plan import Plan

__all__ = ["AdaSumUpdate", "node_reducer", "over_nodes"]

_logger = logging.getLogger("boost_ext")


class AdaSumUpdate(nn.Cell):
    """``cell(grads)``: a step of an optimizer, summed over the nodes by AdaSum.

    Where half-precision parameters have float32 masters, the deltas are those of the masters. Deltas of the parameters
    would be 0 or one spacing, for other elements on each node. They would be nearly orthogonal, and AdaSum would add
    them where it must average.

    Args:
        optimizer (Cell): steps on the gradients of this node.
        rank, device_number, group_number: of :class:`AdaSum`.
    """

    def __init__(self, optimizer: nn.Cell, rank: int, device_number: int, group_number: int) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.parameters = optimizer.parameters
        inner = getattr(optimizer, "opt", optimizer)  # of LARS
        self.stepped = getattr(inner, "masters", self.parameters)  # the parameters themselves where they are float32
        half_members = [i for i, p in enumerate(self.parameters) if p is not self.stepped[i]]
        self.halves = tuple(self.parameters[i] for i in half_members)
        self.old = ParameterTuple(
            Parameter(filled(p.shape, 0, p.dtype), name=f"adasum.old.{p.name}", requires_grad=False)
            for p in self.stepped
        )
        self.adasum = AdaSum(rank, device_number, group_number, self.stepped, half_members=half_members)
        self.keep = native.AdasumPartKeep()
        self.keep_plan = Tensor(np.array([0, *half_members], np.float64))

    def construct(self, grads: Any) -> Tensor:
        kept = self.keep(self.keep_plan, self.stepped, self.old, self.halves)
        done = self.optimizer(ops.depend(grads, kept))
        return self.adasum.update(ops.depend(self.stepped, done), self.old, self.halves)


def over_nodes(cell: Any, options: StepOptions, plan: Plan | None) -> tuple[AdaSumUpdate | None, Plan | None]:
    """The AdaSum update of a training cell, or None without AdaSum; and the plan with the reason."""
    devices = options.adasum_devices
    if devices is None:
        return None, plan
    ranks = rank_count()
    obstacle = adasum_obstacle(ranks, devices)
    reason = obstacle[1] if obstacle else ""
    if not cell.reducer_flag:
        reason = f"parallel_mode is {cell.parallel_mode}, and it needs data_parallel or hybrid_parallel"
    if not reason:
        return AdaSumUpdate(cell.optimizer, get_rank(), devices, ranks // devices), plan
    _logger.warning("adasum is skipped: %s", reason)
    return None, plan.with_result("adasum", "skipped", reason) if plan is not None else None


def node_reducer(mean: bool, schedule: Schedule) -> GradReducer | None:
    """The reducer over the devices of this rank's node; None for a node of one device."""
    devices = schedule.device_number
    if devices == 1:
        return None
    first = schedule.rank // devices * devices
    return GradReducer(mean, devices, group_of(tuple(range(first, first + devices))))
