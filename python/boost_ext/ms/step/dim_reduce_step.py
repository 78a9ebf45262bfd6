"""Dimension-reduced training in a training cell."""

from __future__ import annotations

from typing import Any

from mindspore import Parameter, ParameterTuple, Tensor, nn

from boost_ext.ms.core.state import filled
from boost_ext.ms.step.pipeline import ApplySlot
from boost_ext.ms.subspace.dim_reduce import DimReduce
from boost_ext.ms.subspace.projection import projection_matrix

__all__ = ["ApplyDimReduce"]


class ApplyDimReduce(ApplySlot):
    """The apply slot of a training cell: a dimension-reduced step on scaled gradients."""

    unscales = True
    refuses_rows = "with dim_reduce"

    def __init__(self, cell: Any, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        config, ranks = cell.options.dim_reduce, cell.ranks
        if not ranks.mean:
            raise ValueError("dim_reduce: gradients_mean must be True: its line search compares mean losses, got False")
        self.weights = ParameterTuple(optimizer.parameters)
        self.weights_clone = ParameterTuple(
            Parameter(filled(w.shape, 0, w.dtype), name=f"dim_reduce.weights_clone.{w.name}", requires_grad=False)
            for w in self.weights
        )
        self.dim_reduce = DimReduce(
            cell.network,
            optimizer,
            self.weights,
            projection_matrix(self.weights, config, ranks),
            config.n_components,
            config.rho,
            config.gamma,
            config.alpha,
            config.sigma,
            ranks.rank,
            ranks.size,
            max_search=config.max_search,
            compile=cell.compile_option != "off",
        )

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, *inputs: Tensor) -> Tensor:
        return self.dim_reduce(loss, grads, scale, self.weights, self.weights_clone, *inputs)
