"""Apollo."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from boost_ext import ops
from boost_ext.torch.optimizer import Storage
from boost_ext.torch.projected import ProjectedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Apollo"]


class Apollo(ProjectedOptimizer):
    """APOLLO: AdamW's scales from a random projection of the gradient, with an eighth of its state or less.

    See :func:`boost_ext.ops.apollo_step` for the rule. A tensor of more than two axes, such as a convolution, is the
    matrix of its first axis by all others. Tensors of fewer than two axes make the steps of
    :class:`~boost_ext.torch.AdamW`, and so do matrices whose shorter side is not larger than `rank`, and all of a group
    with ``use_apollo=False``: take one for embeddings and the last layer.

    `rank` None is an eighth of the shorter side, of at least 8. ``rank=1, scale_type="tensor", scale=128.0`` is
    APOLLO-Mini. A step is as long as AdamW's with a `scale` of the shorter side over the rank: 8 with the default rank.

    Names are those of the authors' ``apollo-torch``, whose formula differs a little (docs/apollo.md). The random basis
    is drawn from `seed`, from the place of the parameter in the optimizer, and from the number of the step. The state
    is float32. Weights in another than C order are copied in a step. A DTensor is refused.

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

    flag = "use_apollo"
    shaping = (*ProjectedOptimizer.shaping, "use_apollo", "rank")
    projected = "update_norm"

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

    def shape_of_matrices(self, p: Any, rank: int) -> tuple[int, ...]:
        return (1,)

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        params, grads, averages, squares, norms = tensors
        arguments = self.arguments(group, step=step, **options)
        scale_type, norm_growth = group["scale_type"], group["norm_growth"]
        ops.apollo_step(
            params, grads, averages, squares, norms, scale_type=scale_type, norm_growth=norm_growth, **arguments
        )
