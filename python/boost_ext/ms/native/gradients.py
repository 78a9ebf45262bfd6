"""The native ops on lists of gradients: accumulate, norm, centralize, adaptive sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from boost_ext import _core

from .cell import GraphOp, NativeCell, Tensors, calls_by_pointer, contiguous, new_like, number, one_or_all


def _accumulate(scale: Tensor, steps: Tensor, count: Tensor, accumulators: Tensors, grads: Tensors) -> None:
    divisor = number(scale) * number(steps)  # exact in float64, as in the graph
    factor = 1.0 / divisor if divisor else math.inf  # which the op refuses
    _core.accumulate(accumulators, contiguous(grads), factor, int(count.item()) == 0)


class Accumulate(NativeCell):
    """``cell(scale, steps, count, accumulators, grads)``: add ``grads / (scale * steps)`` to the accumulators.

    See :func:`boost_ext.ops.accumulate`. ``scale`` and ``steps`` are one float32 each; ``count``, one int32, is how
    many micro-batches the accumulators hold: with 0 they are overwritten.
    """

    symbol, by_pointer = "accumulate", staticmethod(_accumulate)


def _global_norm(norm: Tensor, tensors: Tensors) -> None:
    norm.assign_value(Tensor([_core.global_norm(contiguous(tensors))], ms.float32))


class GlobalNorm(NativeCell):
    """``cell(norm, tensors)``: their 2-norm into ``norm`` (1,) float32. See :func:`boost_ext.ops.global_norm`."""

    symbol, by_pointer = "global_norm", staticmethod(_global_norm)


def _clip_by_global_norm(settings: Tensor, norm: Tensor, grads: Tensors) -> None:
    clip_norm, scale = settings.asnumpy().tolist()
    norm.assign_value(Tensor([_core.clip_by_global_norm(grads, clip_norm, scale)], ms.float32))


class ClipByGlobalNorm(NativeCell):
    """``cell(settings, norm, grads)``: clip the gradients in place; their norm from before into ``norm``.

    See :func:`boost_ext.ops.clip_by_global_norm`. ``settings`` is float32 (2,): clip_norm and scale; ``norm``, one
    float32, is written.
    """

    symbol, by_pointer = "clip_by_global_norm", staticmethod(_clip_by_global_norm)


def _as_inputs(*inputs: Any) -> Any:
    return one_or_all(inputs)


class Centralized(nn.Cell):
    """``cell(grads)``: the centralized gradients as new tensors; the given ones are only read.

    See :func:`boost_ext.ops.centralize`. A pure function: the graph compiler may drop, merge and reorder it.
    """

    symbol = "centralized"
    primitive = GraphOp(_as_inputs, _as_inputs)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, grads: Sequence[Tensor]) -> tuple[Tensor, ...]:
        out = self.primitive(*grads)
        return out if len(grads) > 1 else (out,)

    def __call__(self, grads: Sequence[Tensor]) -> Any:
        if calls_by_pointer(self.symbol):
            out = new_like(grads)
            _core.centralize(contiguous(grads), out)
            return out
        return super().__call__(grads)


def _adasum_pair(a: Tensors, b: Tensors, out: Tensors) -> None:
    _core.adasum_pair(contiguous(a), contiguous(b), out)


class AdasumPair(NativeCell):
    """``cell(a, b, out)``: the adaptive sum of two lists of tensors. See :func:`boost_ext.ops.adasum_pair`."""

    symbol, by_pointer = "adasum_pair", staticmethod(_adasum_pair)


def _joined_shape(*shapes: Any) -> Any:
    return [sum(math.prod(shape) for shape in shapes)]


def _joined_dtype(*dtypes: Any) -> Any:
    return ms.float32


class Joined(nn.Cell):
    """``cell(tensors)``: all elements, in list order, as one new float32 vector. A pure function."""

    symbol = "joined"
    primitive = GraphOp(_joined_shape, _joined_dtype)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, tensors: Sequence[Tensor]) -> Tensor:
        return self.primitive(*tensors)

    def __call__(self, tensors: Sequence[Tensor]) -> Tensor:
        if calls_by_pointer(self.symbol):
            return ops.concat([t.reshape(-1).astype(ms.float32) for t in tensors])
        return super().__call__(tensors)


def _as_third(*inputs: Any) -> Any:
    return one_or_all(inputs[2:])


class Parted(nn.Cell):
    """``cell(factor, vector, like)``: ``factor`` (1,) times a float32 vector, as new tensors like those of ``like``.

    A pure function, the inverse of :class:`Joined` at factor 1.
    """

    symbol = "parted"
    primitive = GraphOp(_as_third, _as_third)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, factor: Tensor, vector: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        out = self.primitive(factor, vector, *like)
        return out if len(like) > 1 else (out,)

    def __call__(self, factor: Tensor, vector: Tensor, like: Sequence[Tensor]) -> Any:
        if calls_by_pointer(self.symbol):
            out = new_like(like)
            _core.pca_back_project(vector.reshape(1, -1), (factor,), (out,))
            return out
        return super().__call__(factor, vector, like)
