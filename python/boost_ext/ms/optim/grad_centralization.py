"""Gradient centralization: the mean of each output channel is taken out of its gradient before the update.

Yong et al., "Gradient centralization: a new optimization technique for deep neural networks", ECCV 2020. Function
first: :func:`is_centralized` says which weights, :func:`centralizing` makes an optimizer class do it, for the groups
whose ``grad_centralization`` is True. One native call for all weights of an optimizer.
docs/gradient_centralization.md says when it helps.
"""

from __future__ import annotations

import inspect
from typing import Any

from mindspore import Parameter, Tensor, jit, mint, nn

from boost_ext.ms import native
from boost_ext.ms.core import typed
from boost_ext.ms.core.common_head import CommonHeadLastFN

__all__ = ["CentralizingOptimizer", "centralizing", "is_centralized"]

_NAMES = ("beta", "gamma", "bias")
# Of the layers of MindSpore these alone: whatever else has a weight of two axes (embeddings, recurrent and attention
# layers) is neither convolution nor Dense.
_LIBRARY = ("mindspore.nn.layer.", "mindspore.mint.")
_CONTAINERS = "mindspore.nn.layer.container"
_CENTRALIZED = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose, nn.Conv2dThor),
    *(mint.nn.Conv1d, mint.nn.Conv2d, mint.nn.Conv3d, mint.nn.ConvTranspose2d),
    *(nn.Dense, nn.Linear, nn.DenseThor),
)


def is_centralized(parameter: Parameter, cell: nn.Cell | None) -> bool:
    """Whether gradient centralization is for this weight: one of a convolution or a Dense, of any number of channels.

    Args:
        parameter (Parameter): not centralized with fewer than two axes, or beta, gamma or bias in its name.
        cell (Cell): whose attribute the parameter is. The weights of grouped and depthwise convolutions, of
            :class:`CommonHeadLastFN` and of MindSpore's other layers (embeddings, recurrent ones) are not centralized;
            those of a cell of your own are. None: the cell is not known, and the parameter not centralized.
    """
    if cell is None or parameter.ndim < 2 or any(part in parameter.name for part in _NAMES):
        return False
    if isinstance(cell, _CENTRALIZED):
        return bool(getattr(cell, "group", getattr(cell, "groups", 1)) == 1)
    return not isinstance(cell, CommonHeadLastFN) and not any(_is_layer(cls) for cls in type(cell).__mro__)


def _is_layer(cls: type) -> bool:
    return cls.__module__.startswith(_LIBRARY) and cls.__module__ != _CONTAINERS


class CentralizingOptimizer(typed.Optimizer):
    """An optimizer whose ``gradients_centralization`` runs on the CPU, for any number of channels; most optimizers of
    ``mindspore.nn`` call it after weight decay."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.centralized = native.Centralized()

    def gradients_centralization(self, gradients: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if not self.is_group:
            return gradients
        flags = self.grad_centralization_flags
        chosen: tuple[Tensor, ...] = ()
        for i in range(len(flags)):
            if flags[i]:
                chosen = (*chosen, gradients[i])
        if len(chosen) == 0:
            return gradients
        chosen = self.centralized(chosen)
        result: tuple[Tensor, ...] = ()
        k = 0
        for i in range(len(flags)):
            if flags[i]:
                result = (*result, chosen[k])
                k += 1
            else:
                result = (*result, gradients[i])
        return result


class _CentralizingFirst(CentralizingOptimizer):
    """For a ``construct`` that does not know of centralization: it gets centralized gradients, under the name update.

    Not by ``super()``: for the graph compiler that is the class above the optimizer's own, which would be this one.
    """

    def construct(self, gradients: tuple[Tensor, ...]) -> Any:
        return self.update(self.gradients_centralization(gradients))


class _CompiledCentralizingFirst(CentralizingOptimizer):
    """The same for a ``construct`` that is compiled in PYNATIVE_MODE too."""

    @jit  # type: ignore[untyped-decorator]
    def construct(self, gradients: tuple[Tensor, ...]) -> Any:
        return self.update(self.gradients_centralization(gradients))


def _subclass(before: type[nn.Optimizer], cls: type[nn.Optimizer]) -> type[nn.Optimizer]:
    attributes = {"__doc__": f"{cls.__name__} with gradient centralization.", "__module__": __name__}
    return type(f"Centralizing{cls.__name__}", (before, cls), {**attributes, "update": cls.construct})


def centralizing(optimizer: nn.Optimizer) -> type[nn.Optimizer]:
    """The class of an optimizer like this one that centralizes the gradients of the groups that ask for it.

    A subclass of the optimizer's class. Where the class calls ``gradients_centralization`` (most of ``mindspore.nn``:
    after weight decay and before the loss scale is taken out, which makes no difference, since centralization is
    linear), that does it; else (AdamWeightDecay, AdaFactor, AdamOffload, Adam with ``use_offload``) the gradients are
    centralized before anything else. The gradients themselves are never written.
    """
    cls = type(optimizer)
    if issubclass(cls, CentralizingOptimizer):
        return cls
    construct = inspect.unwrap(cls.construct)
    calls = "gradients_centralization" in construct.__code__.co_names and not getattr(optimizer, "use_offload", False)
    if calls:
        return _subclass(CentralizingOptimizer, cls)
    compiled = hasattr(cls.construct, "__wrapped__")
    return _subclass(_CompiledCentralizingFirst if compiled else _CentralizingFirst, cls)
