"""The native ops on lists of gradients: accumulate, average, clip, centralize, join and part."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import Tensor

from .cell import GraphOp, NativeCell, NativeFunction, Tensors, new_like, new_tensor, one_or_all


class Accumulate(NativeCell):
    """``cell(scale, steps, count, accumulators, grads)``: add ``grads / (scale * steps)`` to the accumulators.

    See :func:`boost_ext.ops.accumulate`. ``scale`` and ``steps`` are one float32 each; ``count``, one int32, is how
    many micro-batches the accumulators hold: with 0 they are overwritten.
    """

    symbol, read_only = "accumulate", (4,)

    def construct(self, scale: Tensor, steps: Tensor, count: Tensor, accumulators: Tensors, grads: Tensors) -> Tensor:
        return self.primitive(scale, steps, count, *accumulators, *grads)


class EmaUpdate(NativeCell):
    """``cell(averages, weights, decay)``: see :func:`boost_ext.ops.ema_update`. ``decay`` is one float64."""

    symbol, read_only = "ema_update", (1,)

    def construct(self, averages: Tensors, weights: Tensors, decay: Tensor) -> Tensor:
        return self.primitive(*averages, *weights, decay)


class TensorStatistics(NativeCell):
    """``cell(tensors, scale, out)``: see :func:`boost_ext.ops.tensor_statistics`. ``scale`` is one float32."""

    symbol, read_only = "tensor_statistics", (0,)

    def construct(self, tensors: Tensors, scale: Tensor, out: Tensor) -> Tensor:
        return self.primitive(*tensors, scale, out)


class ClipByGlobalNorm(NativeCell):
    """``cell(grads, clip_norm, scale, norm)``: clip the gradients in place; their norm from before into ``norm``.

    See :func:`boost_ext.ops.clip_by_global_norm`. The others are one float32 each.
    """

    symbol = "clip_by_global_norm"

    def construct(self, grads: Tensors, clip_norm: Tensor, scale: Tensor, norm: Tensor) -> Tensor:
        return self.primitive(*grads, clip_norm, scale, norm)


def _as_inputs(*inputs: Any) -> Any:
    return one_or_all(inputs)


class Centralized(NativeFunction):
    """``cell(grads)``: the centralized gradients as new tensors; the given ones are only read.

    See :func:`boost_ext.ops.centralize`.
    """

    symbol = "centralized"
    primitive = GraphOp(_as_inputs, _as_inputs)

    def new_outputs(self, grads: Tensors) -> tuple[Tensor, ...]:
        return new_like(grads)

    def construct(self, grads: Tensors) -> tuple[Tensor, ...]:
        out = self.primitive(*grads)
        return out if len(grads) > 1 else (out,)


def _as_first_of_two(*inputs: Any) -> Any:
    return one_or_all(inputs[: (len(inputs) - 3) // 2])


class AdaptiveClipped(NativeFunction):
    """``cell(grads, weights, clipping, eps, scale)``: the gradients with each unit clipped, as new tensors.

    See :func:`boost_ext.ops.adaptive_clip`. The last three are one float64 or float32 each. Not in place: the graph
    compiler may give several weights one gradient, of which each needs another share.
    """

    symbol = "adaptive_clipped"
    primitive = GraphOp(_as_first_of_two, _as_first_of_two)

    def new_outputs(self, grads: Tensors, *others: Any) -> tuple[Tensor, ...]:
        return new_like(grads)

    def construct(
        self, grads: Tensors, weights: Tensors, clipping: Tensor, eps: Tensor, scale: Tensor
    ) -> tuple[Tensor, ...]:
        out = self.primitive(*grads, *weights, clipping, eps, scale)
        return out if len(grads) > 1 else (out,)


def _flat_shape(*shapes: Any) -> Any:
    return [sum(math.prod(shape) for shape in shapes)]


def _float32(*dtypes: Any) -> Any:
    return ms.float32


class Flatten(NativeFunction):
    """``cell(tensors)``: all elements, in list order, as one new float32 vector."""

    symbol = "joined"
    primitive = GraphOp(_flat_shape, _float32)

    def new_outputs(self, tensors: Tensors) -> Tensor:
        return new_tensor(_flat_shape(*(t.shape for t in tensors)), ms.float32)

    def construct(self, tensors: Tensors) -> Tensor:
        return self.primitive(*tensors)


def _as_third(*inputs: Any) -> Any:
    return one_or_all(inputs[2:])


class Unflatten(NativeFunction):
    """``cell(factor, vector, like)``: ``factor`` (1,) times a float32 vector, as new tensors like those of ``like``.

    The inverse of :class:`Flatten` at factor 1.
    """

    symbol = "parted"
    primitive = GraphOp(_as_third, _as_third)

    def new_outputs(self, factor: Tensor, vector: Tensor, like: Tensors) -> tuple[Tensor, ...]:
        return new_like(like)

    def construct(self, factor: Tensor, vector: Tensor, like: Tensors) -> tuple[Tensor, ...]:
        out = self.primitive(factor, vector, *like)
        return out if len(like) > 1 else (out,)
