"""Apollo."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple

from boost_ext.ms.core.state import filled
from boost_ext.ms.optim.arguments import named, non_negative, open_unit, positive, recorded
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.storage import StateStorage, state_like
from boost_ext.ops.optimizer_state import projected_shape, projection_rank

__all__ = ["Apollo"]

_SCALE_TYPES = ("channel", "tensor")


class Apollo(FusedOptimizer):
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
        beta1, beta2 (float): of Adam, for all parameters, in (0, 1). Default: 0.9, 0.999.
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
    decouples_decay = True

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
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        if rank is not None:
            _whole("rank", rank, 1)
        _whole("update_proj_gap", update_proj_gap, 1)
        _whole("seed", seed, 0)
        non_negative("Apollo", scale=scale)
        if norm_growth is not None:
            positive("Apollo", norm_growth=norm_growth)
            if norm_growth < 1:
                raise ValueError(f"Apollo: norm_growth must be >= 1, or None, got {norm_growth}")
        positive("Apollo", eps=eps)
        open_unit("Apollo", beta1=beta1, beta2=beta2)
        if scale_type not in _SCALE_TYPES:
            raise ValueError(f"Apollo: scale_type must be one of {', '.join(_SCALE_TYPES)}, got {scale_type!r}")
        by_adamw = named("Apollo", "adamw", adamw, self.parameters)
        self.ranks = tuple(
            0 if flag else projection_rank(p.shape, rank) for p, flag in zip(self.parameters, by_adamw, strict=True)
        )
        # What makes the basis of a parameter its own. A name may change later, when a cell takes the parameter in.
        self.numbers = tuple(1 + zlib.crc32(p.name.encode()) % (2**31 - 1) for p in self.parameters)
        self._make_state()
        hyper = (float(scale_type == "tensor"), scale, norm_growth or 0.0, update_proj_gap, beta1, beta2, eps)
        self._fuse(hyper, (self.moments, self.squares), storage=StateStorage("Apollo", seed=seed))

    def _make_state(self) -> None:
        """``moments`` and ``squares`` of all parameters, those of matrices projected, and ``norms`` of matrices."""

        def state(prefix: str) -> ParameterTuple:
            made = []
            for p, rank in zip(self.parameters, self.ranks, strict=True):
                shape = projected_shape(p.shape, rank)
                name = f"{prefix}.{p.name}"
                made.append(
                    Parameter(filled(shape, 0.0, ms.float32), name=name) if rank else state_like([p], prefix)[0]
                )
            return ParameterTuple(made)

        self.moments, self.squares = state("exp_avg"), state("exp_avg_sq")
        self.norms = ParameterTuple(
            Parameter(filled((1,), 0.0, ms.float32), name=f"update_norm.{p.name}")
            for p, rank in zip(self.parameters, self.ranks, strict=True)
            if rank
        )

    def _special(self, i: int) -> int:
        return self.numbers[i] if self.ranks[i] else 0

    def _states(self) -> list[Parameter]:
        norms = [self.norms[sum(map(bool, self.ranks[:i]))] for i in self.members if self.ranks[i]]
        return [states[i] for states in (self.moments, self.squares) for i in self.members] + norms


def _whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"Apollo: {name} must be an int, got {type(value).__name__}")
    if not least <= value < 2**31:
        raise ValueError(f"Apollo: {name} must be in [{least}, 2**31), got {value}")
