"""Gradient centralization: the mean of each output channel is subtracted from its gradient before the update.

:func:`is_centralized` chooses the weights. :func:`centralizing` makes an optimizer class that centralizes the groups
with ``grad_centralization`` True, in one native call. docs/gradient_centralization.md says when it helps.

Source: Yong et al., "Gradient centralization: a new optimization technique for deep neural networks", ECCV 2020.
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
_LIBRARY = ("mindspore.nn.layer.", "mindspore.mint.")
_CONTAINERS = "mindspore.nn.layer.container"
# The only layers of MindSpore that are centralized. Its other layers with weights of two axes (embeddings, recurrent
# and attention layers) are neither convolution nor Dense.
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose)
_MINT_CONVOLUTIONS = (mint.nn.Conv1d, mint.nn.Conv2d, mint.nn.Conv3d, mint.nn.ConvTranspose2d)
_DENSE = (nn.Dense, nn.Linear)
_CENTRALIZED = _CONVOLUTIONS + _MINT_CONVOLUTIONS + _DENSE + (nn.Conv2dThor, nn.DenseThor)


def is_centralized(parameter: Parameter, cell: nn.Cell | None) -> bool:
    """Whether gradient centralization applies to a weight: that of a convolution, a Dense, or a cell of your own.

    Args:
        parameter (Parameter): not centralized with fewer than two axes, or beta, gamma or bias in its name.
        cell (Cell): the cell that has the parameter. Not centralized are the weights of grouped and depthwise
            convolutions, of :class:`CommonHeadLastFN`, and of MindSpore's other layers (embeddings, recurrent ones).
            None: not known, and not centralized.
    """
    if cell is None or parameter.ndim < 2 or any(part in parameter.name for part in _NAMES):
        return False
    if isinstance(cell, _CENTRALIZED):
        return bool(getattr(cell, "group", getattr(cell, "groups", 1)) == 1)
    return not isinstance(cell, CommonHeadLastFN) and not any(_is_layer(cls) for cls in type(cell).__mro__)


def _is_layer(cls: type) -> bool:
    return cls.__module__.startswith(_LIBRARY) and cls.__module__ != _CONTAINERS


class CentralizingOptimizer(typed.Optimizer):
    """An optimizer with a ``gradients_centralization`` that runs on the CPU, for any number of channels. Most
    optimizers of ``mindspore.nn`` call it, after weight decay."""

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
    """For a class whose ``construct`` does not centralize: ``construct`` becomes ``update``, on centralized gradients.

    ``super()`` would not work: the graph compiler takes it as the base of the optimizer's own class, which is this one.
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
    """A subclass of the optimizer's class that centralizes the gradients of groups with ``grad_centralization``.

    Most classes of ``mindspore.nn`` call ``gradients_centralization``, after weight decay and before the division by
    the loss scale. The order makes no difference, since centralization is linear. For the others (AdamWeightDecay,
    AdaFactor, AdamOffload, Adam with ``use_offload``) the gradients are centralized first. Gradients are never written.
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
