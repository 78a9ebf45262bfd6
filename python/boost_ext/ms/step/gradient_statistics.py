"""Statistics of the gradients of each step, before they are exchanged with other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.health import Statistics
from boost_ext.ms import native
from boost_ext.ms.core.sparse_gradients import Values
from boost_ext.ms.core.state import state
from boost_ext.ms.ranks.ranks import Ranks
from boost_ext.report.log import Fault

__all__ = ["GradientStatistics"]

_NOT_RUN = -1.0
"""A count of inf."""


class GradientStatistics(nn.Cell):
    """``cell(scale, grads)``: what :func:`boost_ext.ops.tensor_statistics` counts, into a Parameter.

    With several ranks, each tells the others which of its gradients is at fault, in one all-reduce of four numbers a
    rank. Of several it tells the last, which the backward pass reached first.
    """

    def __init__(self, weights: Sequence[Parameter], name: str, ranks: Ranks) -> None:
        super().__init__(auto_prefix=False)
        self.names = tuple(w.name for w in weights)
        self.sizes = tuple(w.size for w in weights)
        self.values_of = Values(self.names)
        self.look = native.TensorStatistics()
        self.rows = state(f"{name}.statistics", np.full((len(self.names), 6), _NOT_RUN), ms.float64)
        self.several = ranks.size > 1
        if self.several:
            self.faults = state(f"{name}.faults", np.zeros((ranks.size, 4)), ms.float32)
            self.numbers = Tensor(np.arange(1, len(self.names) + 1), ms.float32)
            self.place = Tensor(np.arange(ranks.size) == ranks.rank, ms.float32)
            self.all_reduce = ops.AllReduce()

    def construct(self, scale: Tensor, grads: Any) -> Tensor:
        done = self.look(self.values_of(grads), ops.reshape(scale, (1,)), self.rows)
        if not self.several:
            return done
        rows = ops.cast(ops.depend(self.rows.value(), done)[:, :3], ms.float32)
        bad = ops.cast(rows[:, 0] + rows[:, 1] > 0, ms.float32) * self.numbers
        fault = ops.reshape(bad.max(), (1,))
        row = ops.cast(self.numbers == fault, ms.float32).expand_dims(0).matmul(rows)
        told = self.place.expand_dims(1) * ops.concat((fault, row.reshape(3)))
        return ops.assign(self.faults, self.all_reduce(told))

    def read(self) -> Statistics | None:
        """Of the last step; None before the first."""
        rows = self.rows.asnumpy()
        if not len(rows) or rows[0, 0] == _NOT_RUN:
            return None
        return Statistics(self.names, self.sizes, rows.copy())

    def faults_of_ranks(self, step: int) -> tuple[Fault, ...]:
        """A fault for each rank that had one in its last step, which is called ``step``."""
        if not self.several:
            return ()
        found = []
        for rank, (number, inf, nan, first) in enumerate(self.faults.asnumpy()):
            if number > 0:
                name = self.names[int(number) - 1]
                facts: dict[str, Any] = {"inf": int(inf), "nan": int(nan), "first_index": int(first)}
                found.append(Fault(step=step, of="gradient", name=name, rank=rank, **facts))
        return tuple(found)
