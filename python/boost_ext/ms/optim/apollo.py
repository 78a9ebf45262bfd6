"""Apollo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from boost_ext.ms.optim.arguments import positive, recorded
from boost_ext.ms.optim.projected import ProjectedOptimizer

__all__ = ["Apollo"]

_SCALE_TYPES = ("channel", "tensor")


class Apollo(ProjectedOptimizer):
    r"""APOLLO: AdamW's scales from a random projection of the gradient, with an eighth of its state or less.

    .. math::
        R = P g, \quad s_j = \frac{\lVert A_j \rVert}{\lVert R_j \rVert}, \quad
        w_t = (1 - l \lambda) w_{t-1} - l \sqrt{\text{scale}} \, g \operatorname{diag}(s)

    A is the step that Adam makes of R: :math:`\hat m / (\sqrt{\hat v} + \epsilon)` with averages of R and
    :math:`R^2`. P has `rank` rows, with a random sign in each column. It is never stored: each step draws it from
    `seed`, from the name of the parameter, and from the number of the step divided by `update_proj_gap`. A parameter of
    more than two axes is the matrix of its first axis by all others. Where a matrix has more rows than columns, they
    change places. A step is at most `norm_growth` times as long as the last one, without learning rate and decay.

    Parameters of fewer than two axes, matrices whose shorter side is too small for the rank, and those that `adamw`
    names, make the steps of :class:`AdamW`.

    ``rank=1, scale_type="tensor", scale=128.0`` is APOLLO-Mini. A step is as long as AdamW's with a `scale` of the
    shorter side over the rank: 8 with the default rank. AdamW's learning rate and decay suit it then.

    The names of the arguments are those of the authors' ``apollo-torch``. A checkpoint has ``exp_avg``, ``exp_avg_sq``
    and ``update_norm``.

    Source: Zhu et al. 2024, *APOLLO: SGD-like memory, AdamW-level performance*, algorithm 1.

    Args:
        params, learning_rate, loss_scale: see :class:`FusedOptimizer`. Default: 1e-3, 1.0.
        weight_decay (Union[float, int, Cell]): lambda, decoupled. Default: 0.0.
        rank (int, optional): rows of P, >= 1; matrices whose shorter side is not larger are not projected. Default:
            None, an eighth of the shorter side, which must be at least 8.
        scale_type (str): "channel", a scale for each column, or "tensor", one for the whole matrix. Default: "channel".
        scale (float): its root multiplies the step, >= 0. Default: 1.0.
        norm_growth (float, optional): >= 1; None for no limit. Default: 1.01.
        update_proj_gap (int): steps with the same P, >= 1. Default: 200.
        seed (int): of P, in [0, 2**31). Default: 0.
        adamw (Sequence[str]): parameters with one of these in their names are not projected. Default: none.
        beta1, beta2 (float): of Adam, for all parameters, in [0, 1). Default: 0.9, 0.999.
        eps (float): > 0. Default: 1e-8.

    Raises:
        ValueError: also if `adamw` holds a text that is in no parameter's name.

    Examples:
        >>> from mindspore import nn, ops
        >>> from boost_ext import optim
        >>> net = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
        >>> optimizer = optim.Apollo(net.trainable_params(), 1e-3, rank=4, scale=8.0, adamw=("2.weight",))
        >>> _ = optimizer(tuple(ops.ones_like(p) for p in optimizer.parameters))
        >>> [p.shape for p in optimizer.moments], [p.name for p in optimizer.norms]
        ([(4, 64), (32,), (10, 32), (10,)], ['update_norm.0.weight'])
    """

    rule = "apollo"

    @recorded
    def __init__(
        self,
        params: Any,
        learning_rate: Any = 1e-3,
        weight_decay: Any = 0.0,
        rank: int | None = None,
        scale_type: str = "channel",
        scale: float = 1.0,
        norm_growth: float | None = 1.01,
        update_proj_gap: int = 200,
        seed: int = 0,
        adamw: Sequence[str] = (),
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        loss_scale: float = 1.0,
    ) -> None:
        super().__init__(params, learning_rate, weight_decay, loss_scale, rank, update_proj_gap, seed, adamw)
        if norm_growth is not None:
            positive("Apollo", norm_growth=norm_growth)
            if norm_growth < 1:
                raise ValueError(f"Apollo: norm_growth must be >= 1, or None, got {norm_growth}")
        if scale_type not in _SCALE_TYPES:
            raise ValueError(f"Apollo: scale_type must be one of {', '.join(_SCALE_TYPES)}, got {scale_type!r}")
        self.norms = self._own("update_norm", lambda shape, rank: (1,))
        hyper = (float(scale_type == "tensor"), scale, norm_growth or 0.0)
        self._fuse_projected(hyper, scale, self.norms, (beta1, beta2, eps))
