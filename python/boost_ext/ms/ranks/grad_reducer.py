"""Data parallel: the gradients of all ranks, added up or averaged, and a flag that is true on all ranks or on none.

One all-reduce for all gradients: on a CPU each costs half a millisecond, whatever it carries
(docs/distributed.md has the numbers).
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_group_size

from boost_ext.ms import native

__all__ = ["Agreement", "GradReducer", "reducer_of"]


class GradReducer(nn.Cell):
    """``cell(grads)``: the sum of the gradients over all ranks, or their mean; the same bits on each.

    Gradients travel as one float32 vector, halves too: their sum over many ranks must not overflow where the mean does
    not, and bfloat16 has no all-reduce on a CPU.

    Args:
        mean (bool): divide by `size`.
        size (int): ranks.
        group (str, optional): their communication group. Default: None, all ranks.

    Inputs:
        - **grads** (tuple[Tensor]) - float32, float16 or bfloat16; the same shapes on every rank.

    Outputs:
        tuple[Tensor], new tensors of the same shapes and dtypes.
    """

    def __init__(self, mean: bool, size: int, group: str | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.factor = Tensor([1 / size if mean else 1.0], ms.float32)
        self.flatten = native.Flatten()
        self.unflatten = native.Unflatten()
        self.all_reduce = ops.AllReduce() if group is None else ops.AllReduce(group=group)

    def construct(self, grads: tuple[Tensor, ...]) -> Any:
        return self.unflatten(self.factor, self.all_reduce(self.flatten(grads)), grads)


class Agreement(nn.Cell):
    """``cell(found)``: whether some rank found something; the same on all ranks.

    Reduced gradients are the same everywhere already. What is checked before it is reduced, or reduced by an algorithm
    that gives ranks different bits, is not; and ranks of which one skips a step never agree again.

    Args:
        groups (Parameter, optional): int32, what was found in each group (1: something), made the same in the same
            operation. Default: None.

    Inputs:
        - **found** (Tensor) - (1,), bool.

    Outputs:
        Tensor (1,), bool.
    """

    def __init__(self, groups: Parameter | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.groups = groups
        self.all_reduce = ops.AllReduce()

    def construct(self, found: Tensor) -> Tensor:
        mine = ops.cast(found, ms.float32)
        if self.groups is None:
            return self.all_reduce(mine) > 0
        groups = ops.depend(self.groups.value(), found)
        anywhere = self.all_reduce(ops.concat((mine, ops.cast(groups == 1, ms.float32)))) > 0
        agreed = ops.assign(self.groups, ops.select(anywhere[1:], ops.ones_like(groups), groups))
        return ops.depend(anywhere[:1], agreed)


def reducer_of(mean: bool | None, degree: int | None) -> GradReducer:
    """For ``freeze_cell``: None is what MindSpore's context says, as in ``nn.DistributedGradReducer``."""
    if mean is None:
        mean = ms.get_auto_parallel_context("gradients_mean")
    return GradReducer(bool(mean), get_group_size() if degree is None else degree)
