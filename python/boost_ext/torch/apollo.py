"""Apollo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from boost_ext import ops
from boost_ext.ops.optimizer_state import projected_shape, projection_rank
from boost_ext.torch.optimizer import FusedOptimizer, Storage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Apollo"]


class Apollo(FusedOptimizer):
    """APOLLO: AdamW's scales from a random projection of the gradient, with an eighth of its state or less.

    See :func:`boost_ext.ops.apollo_step` for the rule. A tensor of more than two axes, such as a convolution, is the
    matrix of its first axis by all others. Tensors of fewer than two axes make the steps of
    :class:`~boost_ext.torch.AdamW`, and so do matrices whose shorter side is not larger than `rank`, and all of a group
    with ``use_apollo=False``: take one for embeddings and the last layer.

    `rank` None is an eighth of the shorter side, of at least 8. ``rank=1, scale_type="tensor", scale=128.0`` is
    APOLLO-Mini. A step is as long as AdamW's with a `scale` of the shorter side over the rank: 8 with the default rank.

    Names are those of the authors' ``apollo-torch``, whose formula differs a little (docs/apollo.md). The random basis
    is drawn from `seed`, from the place of the parameter in the optimizer, and from the number of the step. The state
    is float32. Weights lie in C order. A DTensor is refused.

    Source: Zhu et al. 2024, *APOLLO: SGD-like memory, AdamW-level performance*.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import Apollo
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        >>> head = {"params": net[2].parameters(), "use_apollo": False}
        >>> optimizer = Apollo([{"params": net[0].parameters()}, head], lr=1e-3, scale=8.0)
        >>> net(torch.ones(1, 64)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[net[0].weight]["exp_avg"].shape, optimizer.state[net[2].weight]["exp_avg"].shape
        (torch.Size([4, 64]), torch.Size([10, 32]))
    """

    narrow_state = False
    split_masters = False
    of_whole_tensors = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rank: int | None = None,
        scale_type: str = "channel",
        scale: float = 1.0,
        norm_growth: float | None = 1.01,
        update_proj_gap: int = 200,
        *,
        use_apollo: bool = True,
        **storage: Unpack[Storage],
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "rank": rank}
        defaults |= {"scale_type": scale_type, "scale": scale, "norm_growth": norm_growth}
        defaults |= {"update_proj_gap": update_proj_gap, "use_apollo": use_apollo}
        super().__init__(params, defaults, **storage)

    def require(self, group: dict[str, Any]) -> None:
        rank = group["rank"]
        if rank is None:
            return
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"{type(self).__name__}: rank must be an int or None, got {type(rank).__name__}")
        if rank < 1:
            raise ValueError(f"{type(self).__name__}: rank must be >= 1, got {rank}")

    def state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("exp_avg", "exp_avg_sq", "update_norm")

    def new_state(self, p: Any, name: str, group: dict[str, Any]) -> dict[str, Any]:
        rank = _rank_of(p, group)
        if name == "update_norm":
            return {name: torch.zeros(1, dtype=torch.float32, device=p.device) if rank else None}
        if rank == 0:
            return super().new_state(p, name, group)
        return {name: torch.zeros(projected_shape(p.shape, rank), dtype=torch.float32, device=p.device)}

    def converted_state(self, p: Any, name: str, saved: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
        if saved.get("update_norm") is None:
            if _rank_of(p, group):
                raise ValueError(f"load_state_dict: state_dict must hold update_norm with {name} of a projected matrix")
            return super().converted_state(p, name, saved, group)
        return {name: saved[name].to(p.device, torch.float32, copy=True).contiguous()}

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        params, grads, averages, squares, norms = tensors
        every = (p for g in self.param_groups for p in g["params"])
        places = {id(p): i for i, p in enumerate(every)}
        ops.apollo_step(
            params,
            grads,
            averages,
            squares,
            norms,
            lr=float(options["lr"]),
            step=int(step),
            scale_type=group["scale_type"],
            scale=group["scale"],
            norm_growth=group["norm_growth"],
            update_proj_gap=group["update_proj_gap"],
            seed=group["seed"],
            tensor_numbers=[places[id(p)] for p in params],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            weight_decay=options["weight_decay"],
            inv_scale=float(options["inv_scale"]),
            masters=options.get("masters"),
            skip=options["skip"],
        )


def _rank_of(p: Any, group: dict[str, Any]) -> int:
    """0 where AdamW steps the tensor."""
    return projection_rank(p.shape, group["rank"]) if group["use_apollo"] else 0
