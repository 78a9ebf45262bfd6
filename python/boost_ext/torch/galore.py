"""GaLore."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from boost_ext import ops
from boost_ext.torch.optimizer import Storage
from boost_ext.torch.projected import ProjectedOptimizer

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["GaLore"]


class GaLore(ProjectedOptimizer):
    """GaLore: Adam in the space of the gradient's leading singular vectors, with an eighth of AdamW's state.

    See :func:`boost_ext.ops.galore_step` for the rule, which runs on the CPU alone. A tensor of more than two axes,
    such as a convolution, is the matrix of its first axis by all others. Tensors of fewer than two axes make the steps
    of :class:`~boost_ext.torch.AdamW`, and so do matrices whose shorter side is not larger than `rank`, and all of a
    group with ``use_galore=False``: take one for embeddings and the last layer.

    `rank` None is the largest one with which the projection and the averages are an eighth of AdamW's state. The
    singular vectors are found anew in every `update_proj_gap`-th step, within the native call.

    `rank`, `update_proj_gap` and `scale` are those of the authors' ``galore-torch``. What the search begins with is
    drawn from `seed` and from the place of the parameter in the optimizer. The state is float32. Weights in another
    than C order are copied in a step. A DTensor is refused.

    Source: Zhao et al. 2024, *GaLore: memory-efficient LLM training by gradient low-rank projection*, algorithm 2.

    Examples:
        >>> import torch
        >>> from boost_ext.torch import GaLore
        >>> net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
        >>> head = {"params": net[2].parameters(), "use_galore": False}
        >>> optimizer = GaLore([{"params": net[0].parameters()}, head], lr=1e-3, rank=4)
        >>> net(torch.ones(1, 64)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.state[net[0].weight]["exp_avg"].shape, optimizer.state[net[0].weight]["projection"].shape
        (torch.Size([4, 64]), torch.Size([32, 4]))
    """

    flag = "use_galore"
    shaping = (*ProjectedOptimizer.shaping, "use_galore", "rank")
    projected = "projection"
    keeps_basis = True

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        rank: int | None = None,
        scale: float = 0.25,
        update_proj_gap: int = 200,
        *,
        use_galore: bool = True,
        **storage: Unpack[Storage],
    ) -> None:
        defaults: dict[str, Any] = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "rank": rank}
        defaults |= {"scale": scale, "update_proj_gap": update_proj_gap, "use_galore": use_galore}
        super().__init__(params, defaults, **storage)

    def shape_of_matrices(self, p: Any, rank: int) -> tuple[int, ...]:
        return (min(p.shape[0], math.prod(p.shape[1:])), rank)

    def update(self, tensors: Sequence[Any], group: dict[str, Any], *, step: Any, first: Any, **options: Any) -> None:
        params, grads, averages, squares, projections = tensors
        arguments = self.arguments(group, step=step, **options)
        ops.galore_step(params, grads, projections, averages, squares, **arguments)
