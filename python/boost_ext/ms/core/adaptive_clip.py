"""Adaptive gradient clipping within a training step: its settings, and the cell that clips."""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn

from boost_ext.arguments import nearest
from boost_ext.ms import native

__all__ = ["AdaptiveClip", "AdaptiveClipping", "UnitsClipped", "checked_adaptive_clip"]

_NAME = "AdaptiveClip"


def _real(owner: str, name: str, value: Any, least: str) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: {name} must be a number, got {type(value).__name__}")
    if not math.isfinite(value) or value < 0 or (least == "> 0" and value == 0):
        raise ValueError(f"{owner}: {name} must be finite and {least}, got {value}")
    return float(value)


@dataclass(frozen=True)
class AdaptiveClip:
    """Settings of adaptive gradient clipping (AGC), for `adaptive_clip` of a training cell.

    The gradient of each unit is at most `clipping` times as long as the weights of the unit, see
    :func:`boost_ext.ops.adaptive_clip`. A unit is an output channel or neuron: what shares the index of the first axis.

    Source: Brock et al. 2021, *High-performance large-scale image recognition without normalization*, eq. 3.

    Args:
        clipping (float): the greatest ratio of the norms, > 0. Default: 0.01, the paper's for batches of 4096 images.
        eps (float): the least norm of weights that counts, >= 0, so that weights of zeros can leave it. Default: 1e-3.
        exclude (Sequence[str]): names of parameters that are not clipped. The paper leaves out the last layer.
            Default: ().

    Raises:
        TypeError: for an argument of another type.
        ValueError: if `clipping` or `eps` is out of range.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext import boost
        >>> net = nn.SequentialCell(nn.Dense(4, 8), nn.ReLU(), nn.Dense(8, 3))
        >>> clip = boost.AdaptiveClip(0.02, exclude=[p.name for p in net[-1].trainable_params()])
        >>> print(clip)
        AdaptiveClip(clipping=0.02, eps=0.001, exclude=('2.weight', '2.bias'))
        >>> optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        >>> step = boost.BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, adaptive_clip=clip)
    """

    clipping: float = 0.01
    eps: float = 1e-3
    exclude: Sequence[str] = ()

    def __post_init__(self) -> None:
        _real(_NAME, "clipping", self.clipping, "> 0")
        _real(_NAME, "eps", self.eps, ">= 0")
        if isinstance(self.exclude, str) or not isinstance(self.exclude, Sequence):
            got = type(self.exclude).__name__
            raise TypeError(f"{_NAME}: exclude must be a list of names of parameters, got {got}")
        for name in self.exclude:
            if not isinstance(name, str):
                got = type(name).__name__
                raise TypeError(f"{_NAME}: exclude must be a list of names of parameters, got {got} in it")
        object.__setattr__(self, "exclude", tuple(self.exclude))


def checked_adaptive_clip(owner: str, value: Any) -> AdaptiveClip | None:
    """``value``, which must be None, settings or a number, the `clipping` of settings."""
    if value is None or isinstance(value, AdaptiveClip):
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        got = type(value).__name__
        raise TypeError(f"{owner}: adaptive_clip must be a number, an AdaptiveClip or None, got {got}")
    return AdaptiveClip(_real(owner, "adaptive_clip", value, "> 0"))


class UnitsClipped(nn.Cell):
    """``cell(grads, scale)``: the gradients of these weights, clipped; new tensors but for those that are left out.

    ``scale``: the loss scale in the gradients. Default: the one that the optimizer takes out on its own.
    """

    in_place = False

    def __init__(self, settings: AdaptiveClip, weights: Sequence[Parameter], own_scale: float) -> None:
        super().__init__(auto_prefix=False)
        self.limit, self.eps = Tensor([settings.clipping], ms.float64), Tensor([settings.eps], ms.float64)
        self.own_scale = Tensor([own_scale], ms.float64)
        self.weights = ParameterTuple(w for w in weights if w.name not in settings.exclude)
        # Slices, not single gradients: the graph compiler unrolls a loop by recursion.
        left_out = [-1, *(i for i, w in enumerate(weights) if w.name in settings.exclude), len(weights)]
        self.slices = tuple((a + 1, b) for a, b in itertools.pairwise(left_out) if a + 1 < b)
        self.clip = native.AdaptiveClipped()

    def construct(self, grads: Any, scale: Tensor | None = None) -> Any:
        if not self.slices:  # a group of gradient freezing may be the last layer alone
            return grads
        chosen: Any = ()
        for start, end in self.slices:
            chosen = chosen + tuple(grads[start:end])
        clipped = self.clip(chosen, self.weights, self.limit, self.eps, self.own_scale if scale is None else scale)
        found: Any = ()
        taken = 0
        for start, end in self.slices:
            found = found + tuple(grads[len(found) : start]) + tuple(clipped[taken : taken + end - start])
            taken = taken + end - start
        return found + tuple(grads[len(found) :])


class AdaptiveClipping:
    """What the pipelines of a training cell share.

    Raises:
        ValueError: if `exclude` names a parameter that the optimizer does not have.
    """

    def __init__(self, cell: Any) -> None:
        self.settings = cell.options.adaptive_clip
        names = [w.name for w in cell.weights]
        for name in self.settings.exclude:
            if name not in names:
                raise ValueError(
                    f"{type(cell).__name__}: AdaptiveClip.exclude must name parameters of the optimizer, got {name!r}, "
                    f"did you mean {nearest(name, names)!r}?"
                )
        self.own_scale = float(getattr(cell.optimizer, "loss_scale", 1.0))

    def cell(self, weights: Sequence[Parameter]) -> UnitsClipped:
        """It clips the gradients of these weights."""
        return UnitsClipped(self.settings, weights, self.own_scale)
