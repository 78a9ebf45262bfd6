"""GaLore."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from boost_ext.ms.optim.arguments import recorded
from boost_ext.ms.optim.projected import ProjectedOptimizer

__all__ = ["GaLore"]


class GaLore(ProjectedOptimizer):
    r"""GaLore: Adam in the space of the gradient's leading singular vectors, with an eighth of AdamW's state.

    .. math::
        R = P^T g, \quad w_t = (1 - l \lambda) w_{t-1} - l \, \text{scale} \, P A

    A is the step that Adam makes of R: :math:`\hat m / (\sqrt{\hat v} + \epsilon)` with averages of R and
    :math:`R^2`. The columns of P are the `rank` leading left singular vectors of the gradient of every
    `update_proj_gap`-th step, from the first one on. A parameter of more than two axes is the matrix of its first axis
    by all others. Where a matrix has more rows than columns, P has right singular vectors. They are found by randomized
    subspace iteration within the native call, in both modes.

    Parameters of fewer than two axes, matrices whose shorter side is too small for the rank, and those that `adamw`
    names, make the steps of :class:`AdamW`.

    The names of the arguments are those of the authors' ``galore-torch``. A checkpoint has ``exp_avg``, ``exp_avg_sq``
    and ``projection``.

    Source: Zhao et al. 2024, *GaLore: memory-efficient LLM training by gradient low-rank projection*, algorithm 2.

    Args:
        params, learning_rate, loss_scale: see :class:`FusedOptimizer`. Default: 1e-3, 1.0.
        weight_decay (Union[float, int, Cell]): lambda, decoupled. Default: 0.0.
        rank (int, optional): columns of P, >= 1; matrices whose shorter side is not larger are not projected. Default:
            None, the largest one with which P and the averages are an eighth of AdamW's state.
        scale (float): of the step, >= 0. Default: 0.25.
        update_proj_gap (int): steps with the same P, >= 1. Default: 200.
        seed (int): of the start of the iteration, in [0, 2**31). Default: 0.
        adamw (Sequence[str]): parameters with one of these in their names are not projected. Default: none.
        beta1, beta2 (float): of Adam, for all parameters, in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.

    Raises:
        ValueError: also if `adamw` holds a text that is in no parameter's name.

    Examples:
        >>> from mindspore import nn, ops
        >>> from boost_ext import optim
        >>> net = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
        >>> optimizer = optim.GaLore(net.trainable_params(), 1e-3, rank=4, adamw=("2.weight",))
        >>> _ = optimizer(tuple(ops.ones_like(p) for p in optimizer.parameters))
        >>> [p.shape for p in optimizer.moments], [(p.name, p.shape) for p in optimizer.projections]
        ([(4, 64), (32,), (10, 32), (10,)], [('projection.0.weight', (32, 4))])
    """

    rule = "galore"
    _keeps_basis = True

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        weight_decay: Any = 0.0,
        rank: int | None = None,
        scale: float = 0.25,
        update_proj_gap: int = 200,
        seed: int = 0,
        adamw: Sequence[str] = (),
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, rank, update_proj_gap, seed, adamw)
        self.projections = self._own("projection", lambda shape, rank: (min(shape[0], math.prod(shape[1:])), rank))
        self._fuse_projected((scale,), scale, self.projections, (beta1, beta2, eps))
