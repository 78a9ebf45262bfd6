"""What Apollo and GaLore share: matrices with a projected state, all others as AdamW."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple

from boost_ext.ms.core.state import filled
from boost_ext.ms.optim.arguments import named, non_negative, require_hyper
from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.storage import StateStorage, state_like
from boost_ext.ops.optimizer_state import projected_shape, projection_rank

__all__ = ["ProjectedOptimizer"]


class ProjectedOptimizer(FusedOptimizer):
    """``moments`` and ``squares`` of all parameters, those of matrices projected, and what matrices alone have."""

    _keeps_basis = False

    def __init__(
        self,
        params: Any,
        learning_rate: Any,
        weight_decay: Any,
        loss_scale: float,
        rank: int | None,
        update_proj_gap: int,
        seed: int,
        adamw: Sequence[str],
    ) -> None:
        super().__init__(learning_rate, params, weight_decay, loss_scale)
        if rank is not None:
            self._require_whole("rank", rank, 1)
        self._require_whole("update_proj_gap", update_proj_gap, 1)
        self._require_whole("seed", seed, 0)
        self._gap, self._seed = update_proj_gap, seed
        by_adamw = named(type(self).__name__, "adamw", adamw, self.parameters)
        self.ranks = tuple(
            0 if flag else projection_rank(p.shape, rank, self._keeps_basis)
            for p, flag in zip(self.parameters, by_adamw, strict=True)
        )
        # What makes the basis of a parameter its own. A name may change later, when a cell takes the parameter in.
        self.numbers = tuple(1 + zlib.crc32(p.name.encode()) % (2**31 - 1) for p in self.parameters)
        self.moments, self.squares = self._moments("exp_avg"), self._moments("exp_avg_sq")

    def _moments(self, prefix: str) -> ParameterTuple:
        return ParameterTuple(
            Parameter(filled(projected_shape(p.shape, rank), 0.0, ms.float32), name=f"{prefix}.{p.name}")
            if rank
            else state_like([p], prefix)[0]
            for p, rank in zip(self.parameters, self.ranks, strict=True)
        )

    def _own(self, prefix: str, shape: Callable[[Sequence[int], int], tuple[int, ...]]) -> ParameterTuple:
        """Of each matrix, whose shape and rank `shape` is given."""
        return ParameterTuple(
            Parameter(filled(shape(p.shape, rank), 0.0, ms.float32), name=f"{prefix}.{p.name}")
            for p, rank in zip(self.parameters, self.ranks, strict=True)
            if rank
        )

    def _fuse_projected(
        self, hyper: tuple[float, ...], scale: float, own: ParameterTuple, adam: tuple[float, float, float]
    ) -> None:
        owner = type(self).__name__
        non_negative(owner, scale=scale)
        require_hyper(owner, "adamw", beta1=adam[0], beta2=adam[1], eps=adam[2])
        storage = StateStorage(owner, seed=self._seed)
        states, owned = (self.moments, self.squares), iter(own)
        lists = (*states, [next(owned) if rank else () for rank in self.ranks])
        special = [number if rank else 0 for number, rank in zip(self.numbers, self.ranks, strict=True)]
        self.fuse((*hyper, self._gap, *adam), states, storage=storage, lists=lists, special=special)

    def _require_whole(self, name: str, value: Any, least: int) -> None:
        owner = type(self).__name__
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{owner}: {name} must be an int, got {type(value).__name__}")
        if not least <= value < 2**31:
            raise ValueError(f"{owner}: {name} must be in [{least}, 2**31), got {value}")
