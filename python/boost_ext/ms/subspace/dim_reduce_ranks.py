"""The projections of dimension-reduced training, on one rank or with the rows of P split over many."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.ms import native
from boost_ext.ms.core.state import state

__all__ = ["Sharded", "Whole", "rows_of"]


def rows_of(n_components: int, rank: int, rank_size: int) -> tuple[int, int]:
    """The rows of P that a rank holds, as (first, last + 1): ceil(k / rank_size) each, the last ranks fewer or none."""
    share = -(-n_components // rank_size)
    return min(rank * share, n_components), min((rank + 1) * share, n_components)


class Whole(nn.Cell):
    """One rank, which holds P."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.projection = native.PcaProject()
        self.back_projection = native.PcaBackProject()

    def padded(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The matrix, or the scale of its codes, as the Parameter holds it."""
        return matrix

    def project(self, P: Parameter, scale: Any, gk: Parameter, grads: Any, loss: Tensor) -> Tensor:
        """Write P g into gk; returns the mean loss of all ranks. `scale`: of a P of codes, or absent."""
        self.projection(P, grads, gk, scale)
        return loss

    def back_project(
        self, P: Parameter, scale: Any, dk: Parameter, gk: Parameter, dn: Any, grad_proj: Any, images: Any
    ) -> None:
        """Write P^T d_k and P^T g_k into dn and grad_proj; ``images`` is the two lists as one."""
        self.back_projection(P, dk, gk, dn, grad_proj, scale)

    def mean(self, loss: Tensor) -> Tensor:
        """The mean of a loss over all ranks."""
        return loss


class Sharded(nn.Cell):
    """Many ranks, each with its rows of P. All get the same bits, so all take the same decisions.

    Rows of zeros stand for what is missing to the same number on each rank, so that all ranks run the same graph, and a
    rank without rows too.
    """

    def __init__(self, n_components: int, rank: int, rank_size: int) -> None:
        super().__init__(auto_prefix=False)
        self.components, self.ranks = n_components, rank_size
        self.rows = -(-n_components // rank_size)
        self.first = rank * self.rows
        self.own = state("dim_reduce.gk_own", np.zeros(self.rows, np.float32))
        self.zeros = Tensor(np.zeros(self.rows * rank_size, np.float32))
        self.of_dk, self.of_gk = Tensor([1.0, 0.0], ms.float32), Tensor([0.0, 1.0], ms.float32)
        self.projection = native.PcaProject()
        self.back_projection = native.PcaBackProject()
        self.flatten, self.no_codes = native.Flatten(), native.absent
        self.gather = ops.AllGather()
        self.all_reduce = ops.AllReduce()

    def padded(self, matrix: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """See :class:`Whole`, of which this has the methods."""
        missing = self.rows - len(matrix)
        return np.concatenate([matrix, np.zeros((missing, matrix.shape[1]), matrix.dtype)]) if missing else matrix

    def project(self, P: Parameter, scale: Any, gk: Parameter, grads: Any, loss: Tensor) -> Tensor:
        self.projection(P, grads, self.own, scale)
        mine = ops.concat((self.own.value(), ops.reshape(ops.cast(loss, ms.float32), (1,))))
        table = ops.reshape(self.gather(mine), (self.ranks, self.rows + 1))
        whole = ops.reshape(table[:, : self.rows], (self.ranks * self.rows,))
        ops.assign(gk, whole[: self.components])
        return ops.sum(table[:, self.rows]) / self.ranks

    def back_project(
        self, P: Parameter, scale: Any, dk: Parameter, gk: Parameter, dn: Any, grad_proj: Any, images: Any
    ) -> None:
        self.back_projection(P, self._own(dk), self._own(gk), dn, grad_proj, scale)
        both = ops.reshape(self.all_reduce(self.flatten(images)), (2, -1))
        # A matrix of two rows, to the tensors.
        self.back_projection(both, self.of_dk, self.of_gk, dn, grad_proj, self.no_codes)

    def mean(self, loss: Tensor) -> Tensor:
        return ops.sum(self.gather(ops.reshape(ops.cast(loss, ms.float32), (1,)))) / self.ranks

    def _own(self, vector: Parameter) -> Tensor:
        whole = ops.concat((vector.value(), self.zeros))
        return whole[self.first : self.first + self.rows]
