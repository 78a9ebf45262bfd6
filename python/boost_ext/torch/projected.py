"""What Apollo and GaLore share: matrices with a projected state, all others as AdamW."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from boost_ext.ops.optimizer_state import projected_shape, projection_rank
from boost_ext.torch.optimizer import FusedOptimizer

__all__ = ["ProjectedOptimizer"]


class ProjectedOptimizer(FusedOptimizer):
    """A group has `rank`, and under the name `flag` whether its matrices are projected."""

    narrow_state = False
    split_masters = False
    of_matrices = True
    of_whole_tensors = True
    keeps_basis = False
    flag: str
    projected: str
    """The state that projected matrices alone have."""

    def require(self, group: dict[str, Any]) -> None:
        rank = group["rank"]
        if rank is None:
            return
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"{type(self).__name__}: rank must be an int or None, got {type(rank).__name__}")
        if rank < 1:
            raise ValueError(f"{type(self).__name__}: rank must be >= 1, got {rank}")

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", self.projected)

    def shape_of_matrices(self, p: Any, rank: int) -> tuple[int, ...]:
        """That of the state `projected`."""
        raise NotImplementedError

    def state_shape(self, p: Any, name: str, group: dict[str, Any]) -> tuple[int, ...] | None:
        rank = self._rank_of(p, group)
        if name == self.projected:
            return self.shape_of_matrices(p, rank) if rank else None
        return tuple(projected_shape(p.shape, rank)) if rank else tuple(p.shape)

    def converted_state(self, p: Any, name: str, saved: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        if not self._rank_of(p, group):
            return super().converted_state(p, name, saved, group)
        return {name: saved[name].to(p.device, torch.float32, copy=True).contiguous()}

    def arguments(self, group: dict[str, Any], *, members: Sequence[Any], **options: Any) -> dict[str, Any]:
        """Of both ops. The place in the optimizer, of all groups, makes the basis of a parameter its own."""
        every = (p for g in self.param_groups for p in g["params"])
        places = {id(p): i for i, p in enumerate(every)}
        return {
            "lr": float(options["lr"]),
            "step": int(options["step"]),
            "scale": group["scale"],
            "update_proj_gap": group["update_proj_gap"],
            "seed": group["seed"],
            "tensor_numbers": [places.get(id(p), 0) for p in members],
            "beta1": group["betas"][0],
            "beta2": group["betas"][1],
            "eps": group["eps"],
            "weight_decay": options["weight_decay"],
            "inv_scale": float(options["inv_scale"]),
            "masters": options.get("masters"),
            "skip": options["skip"],
        }

    def _rank_of(self, p: Any, group: dict[str, Any]) -> int:
        """0 where AdamW steps the tensor."""
        return projection_rank(p.shape, group["rank"], self.keeps_basis) if group[self.flag] else 0
