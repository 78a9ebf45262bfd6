"""The mean of thor's matrices over the ranks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.communication import get_group_size

__all__ = ["averages_over_ranks", "mean_over_ranks"]


class _RanksMean(nn.Cell):
    """``cell(done)``: replaces matrices by their mean over all ranks, in one all-reduce. In a skipped step they are
    equal already."""

    def __init__(self, matrices: Sequence[Parameter], following: nn.Cell | None) -> None:
        super().__init__(auto_prefix=False)
        self.__dict__["matrices"] = tuple(matrices)
        self.ends = tuple(itertools.accumulate(int(m.size) for m in matrices))
        self.reduce = ops.AllReduce()
        self.share = 1.0 / get_group_size()
        self.following = following

    def construct(self, done: Tensor) -> Tensor:
        flat: tuple[Tensor, ...] = ()
        for matrix in self.matrices:
            flat = (*flat, ops.reshape(ops.depend(matrix, done), (-1,)))
        mean = self.reduce(ops.concat(flat)) * self.share
        begin = 0
        for i in range(len(self.matrices)):
            part = ops.reshape(mean[begin : self.ends[i]], self.matrices[i].shape)
            done = ops.depend(done, ops.assign(self.matrices[i], part))
            begin = self.ends[i]
        return done if self.following is None else self.following(done)


def averages_over_ranks() -> bool:
    """Whether a thor that is made now averages its inverses."""
    return bool(ms.get_auto_parallel_context("parallel_mode") != ms.ParallelMode.STAND_ALONE)


def mean_over_ranks(a: Sequence[Parameter], g: Sequence[Parameter], split: Sequence[int]) -> nn.Cell | None:
    """A chain of cells, one for each group of layers; None for a single rank."""
    if not averages_over_ranks():
        return None
    cell: nn.Cell | None = None
    bounds = [0, *(i + 1 for i in split)]
    for begin, end in reversed(list(itertools.pairwise(bounds))):
        cell = _RanksMean([*a[begin:end], *g[begin:end]], cell)
    return cell
