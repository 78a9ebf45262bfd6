"""Dimension-reduced training: quasi-Newton steps in the subspace of the largest movements of the weights.

Formulas: the ``dim_reduce`` section of mindspore.boost's documentation; Li et al., "Low dimensional trajectory
hypothesis is true: DNNs can be trained in tiny subspaces", 2021, for the idea and the subspace from checkpoints.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
import numpy.typing as npt
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core import typed
from boost_ext.ms.core.compiled import Forward
from boost_ext.ms.core.state import state
from boost_ext.ms.subspace.dim_reduce_ranks import Sharded, Whole, rows_of
from boost_ext.ops.projection_codes import QuantizedMatrix

__all__ = ["DimReduce"]

# Curvature below which the quasi-Newton matrix is not updated.
_EPSILON = 1e-20
_SEVERAL = 5  # failed searches in a row


def _state(name: str, value: npt.NDArray[Any] | Tensor) -> Parameter:
    return state(f"dim_reduce.{name}", value)


def _float32_like(prefix: str, weights: Sequence[Parameter]) -> ParameterTuple:
    return ParameterTuple(_state(f"{prefix}.{w.name}", np.zeros(w.shape, np.float32)) for w in weights)


def _check(rank: int, rank_size: int, matrix: Any, n_components: int, weights: Any) -> None:
    if rank_size < 1 or not 0 <= rank < rank_size:
        raise ValueError(f"DimReduce: rank must be from 0 to rank_size - 1, got rank {rank} of {rank_size}")
    elements = int(sum(w.size for w in weights))
    start, stop = rows_of(n_components, rank, rank_size)
    shape = tuple(np.shape(matrix))
    if shape != (stop - start, elements):
        raise ValueError(
            f"DimReduce: pca_mat_local must have shape ({stop - start}, {elements}): the components "
            f"{start} to {stop - 1} of rank {rank} by the elements of all weights, got {shape}"
            if rank_size > 1
            else f"DimReduce: pca_mat_local must have shape ({n_components}, {elements}): n_components by the elements "
            f"of all weights, got {shape}"
        )


class DimReduce(typed.Cell):
    r"""One step of dimension-reduced training.

    .. math::
        g_k = P g, \quad d_k = -B g_k, \quad s_k = \rho^m d_k

    with the first m = 0 … ``max_search`` - 1 with a loss below :math:`loss + lr \sigma g_k^T s_k`, or
    :math:`s_k = 0` if there is none; then

    .. math::
        r \leftarrow \gamma r + g - P^T g_k, \quad \delta = \alpha r - P^T s_k

    and the optimizer applies :math:`\delta` as its gradient. B starts as the identity and is updated by BFGS
    (:func:`boost_ext.ops.bfgs_update`) between accepted steps.

    The trial points are ``weight + lr * rho^m * P^T d_k``, the points of a plain gradient step, and the required
    decrease is that of this step: the documented :math:`\sigma g_k^T s_k` at learning rate 1, where
    mindspore.boost omits lr and accepts nothing if it is below sigma. (With a learning rate for each group, the
    smallest counts.) The optimizer itself is called once a step, so that its momentum and its step count see one step.

    The trial passes restore all that they write (moving statistics of batch norms). In a compiled
    forward pass (GRAPH_MODE, or ``compile``) they have random streams of their own, so that dropout masks of the
    training pass do not depend on them; an eager nn.Dropout shares its stream with them.

    Nothing is committed before a step is accepted; after a failed search B, g_k and s_k are those of the last accepted
    step. The result does not depend on the loss scale.

    Args:
        network (Cell): with a single output, the loss.
        optimizer (Cell): its ``loss_scale`` must be 1: the gradients it gets are unscaled already.
        weight (tuple[Parameter]): the optimizer's parameters.
        pca_mat_local (numpy.ndarray): (k, n), float32 (float16 and bfloat16 are kept as such: half the memory and
            traffic); or a :class:`boost_ext.pca.QuantizedMatrix` of int8 codes: a quarter. With several ranks the rows
            :func:`boost_ext.ms.subspace.dim_reduce_ranks.rows_of` of this rank; there may be none.
        n_components (int): k.
        rho, gamma, alpha, sigma (float): see :class:`boost_ext.config.DimReduceConfig`.
        rank (int), rank_size (int): this process, and how many train together. Each rank holds its rows of P, one
            all-gather makes g_k and the mean loss, one all-reduce adds up the shares of P^T, and every trial point is
            judged by the mean loss of all ranks. So all ranks take the same step, that of one process with all their
            batches. `old_grad` must be averaged over the ranks already.
        max_search (int): trial points of the line search, at least 1. Default: 8.
        compile (bool): compile the trial passes in PYNATIVE_MODE. Default: True.

    Inputs:
        - **loss** (Tensor) - unscaled loss.
        - **old_grad** (tuple[Tensor]) - gradients of ``loss_scale * loss``.
        - **loss_scale** (Tensor) - one float32.
        - **weight** (tuple[Parameter]) - the weights.
        - **weight_clone** (tuple[Parameter]) - room for a copy of them; written.
        - **\*inputs** (tuple[Tensor]) - the network's inputs.

    Outputs:
        Tensor, the loss.

    Raises:
        ValueError: if the matrix does not fit, there is no such rank, or the optimizer does not tell its learning rate.

    Examples:
        >>> import mindspore as ms
        >>> import numpy as np
        >>> from mindspore import nn
        >>> from boost_ext.boost import DimReduce
        >>> net = nn.WithLossCell(nn.Dense(4, 1), nn.MSELoss())
        >>> optimizer = nn.SGD(net.trainable_params(), 1.0)
        >>> weights, copies = optimizer.parameters, optimizer.parameters.clone("copy")
        >>> inputs = ms.ops.ones((2, 4)), ms.ops.ones((2, 1))
        >>> P = np.eye(2, 5, dtype=np.float32)  # two directions of five weights
        >>> step = DimReduce(net, optimizer, weights, P, 2, 0.55, 0.9, 0.001, 0.4, 0, 1)
        >>> loss, grads = ms.value_and_grad(net, None, weights)(*inputs)
        >>> _ = step(loss, grads, ms.Tensor([1.0]), weights, copies, *inputs)
    """

    @checked_keywords
    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        weight: Sequence[Parameter],
        pca_mat_local: npt.NDArray[Any] | QuantizedMatrix,
        n_components: int,
        rho: float,
        gamma: float,
        alpha: float,
        sigma: float,
        rank: int,
        rank_size: int,
        *,
        max_search: int = 8,
        compile: bool = True,
    ) -> None:
        super().__init__(auto_prefix=False)  # the network's parameters keep their names
        _check(rank, rank_size, pca_mat_local, n_components, weight)
        if float(getattr(optimizer, "loss_scale", 1.0)) != 1.0:
            raise ValueError(
                f"DimReduce: optimizer.loss_scale must be 1, got {optimizer.loss_scale}; the gradients are unscaled "
                "before the optimizer sees them"
            )
        if getattr(optimizer, "relative_step", False) and not hasattr(optimizer, "relative_rate"):
            raise ValueError(
                "DimReduce: optimizer must tell its learning rate, which the line search needs, got "
                f"nn.{type(optimizer).__name__} with relative_step, which tells 0; boost_ext.optim's tells it"
            )
        self.forward = Forward(network, compile)
        self.optimizer = optimizer
        self.max_search = max_search
        self.sigma = sigma

        k = n_components
        self.subspace = Whole() if rank_size == 1 else Sharded(k, rank, rank_size)
        if isinstance(pca_mat_local, QuantizedMatrix):
            self.pca_mat = self._rows("pca_mat", pca_mat_local.codes, np.int8)
            self.pca_mat_scale = self._rows("pca_mat_scale", pca_mat_local.scale, np.float32)
        else:
            narrow = pca_mat_local.dtype.name in ("float16", "bfloat16")
            self.pca_mat = self._rows("pca_mat", pca_mat_local, pca_mat_local.dtype if narrow else np.float32)
            self.pca_mat_scale = native.absent
        self.gk = _state("gk", np.zeros(k, np.float32))
        self.dk = _state("dk", np.zeros(k, np.float32))
        self.slope = _state("slope", np.zeros(1, np.float32))
        # The quasi-Newton state of the last accepted step, and the proposal for B.
        self.bk = _state("bk", np.eye(k, dtype=np.float32))
        self.bk_next = _state("bk_next", np.eye(k, dtype=np.float32))
        self.sk = _state("sk", np.zeros(k, np.float32))
        self.gk_last = _state("gk_last", np.zeros(k, np.float32))
        self.started = _state("started", np.zeros(1, np.bool_))
        self.grad_res_momentum = _float32_like("grad_res_momentum", weight)
        self.dn = _float32_like("dn", weight)
        self.grad_proj = _float32_like("grad_proj", weight)
        self.images = ParameterTuple((*self.dn, *self.grad_proj))
        self.accepted_rho = _state("accepted_rho", np.zeros(1, np.float32))
        self.failed_searches = _state("failed_searches", np.zeros(1, np.int32))
        self._warned = False

        # What a forward pass may write besides the weights.
        names = {w.name for w in weight}
        others = [p for p in network.get_parameters() if p.name not in names and not p.requires_grad]
        # On a CPU nothing of MindSpore writes bfloat16, Assign included.
        on_cpu = ms.get_context("device_target") == "CPU"
        written = [p for p in others if not (on_cpu and p.dtype == ms.bfloat16)]
        self.statistics = ParameterTuple(written)
        self.statistics_clone = ParameterTuple(
            _state(f"statistics_clone.{p.name}", Tensor(p.asnumpy())) for p in written
        )

        self.rhos = Tensor([rho**m for m in range(max_search)], ms.float32)
        self.first, self.one = Tensor([0], ms.int32), Tensor([1], ms.int32)
        self.no_step = Tensor([0.0], ms.float32)
        self.gamma, self.alpha = Tensor([gamma], ms.float32), Tensor([alpha], ms.float32)
        self.epsilon = Tensor([_EPSILON], ms.float32)
        self.yes, self.no = Tensor([True]), Tensor([False])

        self.direction = native.DimReduceDirection()
        self.trial = native.DimReduceTrial()
        self.residual = native.DimReduceApply()

    def _rows(self, name: str, array: npt.NDArray[Any], dtype: Any) -> Parameter:
        return _state(name, self.subspace.padded(np.ascontiguousarray(array, dtype)))

    def failed_in_a_row(self) -> int:
        """How many line searches up to the last step have accepted nothing. Warns, once, when they are several."""
        failed = int(self.failed_searches.asnumpy()[0])
        if failed >= _SEVERAL and not self._warned:
            self._warned = True
            warnings.warn(
                f"DimReduce: {failed} line searches in a row have accepted no step; the weights follow the residual "
                f"alone. Raise dim_reduce.max_search ({self.max_search}), or take a smaller learning rate or larger "
                "batches",
                stacklevel=2,
            )
        return failed

    def construct(
        self,
        loss: Tensor,
        old_grad: tuple[Tensor, ...],
        loss_scale: Tensor,
        weight: tuple[Parameter, ...],
        weight_clone: tuple[Parameter, ...],
        *inputs: Tensor,
    ) -> Tensor:
        mean_loss = self.subspace.project(self.pca_mat, self.pca_mat_scale, self.gk, old_grad, loss)
        self.direction(
            self.bk,
            self.sk,
            self.gk_last,
            self.started,
            self.gk,
            loss_scale,
            self.bk_next,
            self.dk,
            self.epsilon,
            self.slope,
        )
        codes = (self.pca_mat, self.pca_mat_scale)
        self.subspace.back_project(*codes, self.dk, self.gk, self.dn, self.grad_proj, self.images)

        rho = self._line_search(mean_loss, weight, weight_clone, inputs)
        ops.assign(self.accepted_rho, rho)
        ops.assign(self.failed_searches, ops.cast(rho == 0, ms.int32) * (self.failed_searches + self.one))
        self.trial(weight, weight_clone, self.dn, self.no_step, self.no)
        self.residual(
            self.gamma,
            self.alpha,
            rho,
            loss_scale,
            self.grad_res_momentum,
            old_grad,
            self.grad_proj,
            self.dn,
        )
        if rho > 0:
            ops.assign(self.bk, self.bk_next)
            ops.assign(self.gk_last, self.gk)
            ops.assign(self.sk, rho * self.dk)
            ops.assign(self.started, self.yes)
        return ops.depend(loss, self.optimizer(self._delta(weight)))

    def _line_search(
        self,
        loss: Tensor,
        weight: tuple[Parameter, ...],
        weight_clone: tuple[Parameter, ...],
        inputs: tuple[Tensor, ...],
    ) -> Tensor:
        """The accepted rho^m, or 0, as a Tensor of shape (1,). The weights stay at the last trial point."""
        rate = self._learning_rate()
        for m in range(len(self.statistics)):
            ops.assign(self.statistics_clone[m], self.statistics[m])
        found, tried, save = self.no_step, self.first, self.yes
        # A loop of the graph: it holds the forward pass once, whatever max_search is.
        while ops.logical_and(found == 0, tried < self.max_search):
            rho = ops.gather(self.rhos, tried, 0)
            step = rate * rho
            self.trial(weight, weight_clone, self.dn, step, save)
            new_loss = self.subspace.mean(self.forward(*inputs))
            bound = ops.reshape(loss, (1,)) + self.sigma * ops.min(step)[0] * self.slope
            found = ops.select(ops.reshape(new_loss, (1,)) < bound, rho, self.no_step)
            tried, save = tried + self.one, self.no
        for m in range(len(self.statistics)):
            ops.assign(self.statistics[m], self.statistics_clone[m])
        return found

    def _learning_rate(self) -> Tensor:
        rate = self.optimizer.get_lr()
        if isinstance(rate, tuple):
            rates: tuple[Tensor, ...] = ()
            for r in rate:
                rates = (*rates, ops.reshape(r, (1,)))
            return ops.concat(rates)
        return ops.reshape(rate, (1,))

    def _delta(self, weight: tuple[Parameter, ...]) -> tuple[Tensor, ...]:
        delta: tuple[Tensor, ...] = ()
        for m in range(len(weight)):
            delta = (*delta, ops.cast(self.grad_proj[m], weight[m].dtype))
        return delta
