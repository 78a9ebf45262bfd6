"""AdaSum in a training cell: the optimizer steps on the gradients of a node; the steps are summed over the nodes."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.communication import get_rank

from boost_ext.ms import native
from boost_ext.ms.core.state import filled
from boost_ext.ms.ranks.grad_reducer import GradReducer
from boost_ext.ms.ranks.ranks import rank_count
from boost_ext.ms.step.adasum import AdaSum, group_of
from boost_ext.plan import adasum_obstacle

__all__ = ["AdaSumUpdate", "obstacle_of", "over_nodes"]

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

    def node_reducer(self, mean: bool) -> GradReducer | None:
        """The reducer over the devices of this rank's node; None for a node of one device."""
        schedule = self.adasum.schedule
        devices = schedule.device_number
        if devices == 1:
            return None
        first = schedule.rank // devices * devices
        return GradReducer(mean, devices, group_of(tuple(range(first, first + devices))))


def obstacle_of(cell: Any) -> str:
    """The reason why a training cell cannot sum over nodes; "" without one."""
    if not cell.reducer_flag:
        return f"parallel_mode is {cell.parallel_mode}, and it needs data_parallel or hybrid_parallel"
    obstacle = adasum_obstacle(rank_count(), cell.options.adasum_devices)
    return obstacle[1] if obstacle else ""


def over_nodes(cell: Any) -> AdaSumUpdate | None:
    """The update of a training cell; None with a warning if it cannot sum over nodes."""
    if reason := obstacle_of(cell):
        _logger.warning("adasum is skipped: %s", reason)
        return None
    devices = cell.options.adasum_devices
    return AdaSumUpdate(cell.optimizer, get_rank(), devices, rank_count() // devices)
