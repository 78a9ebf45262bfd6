"""Layers of networks: native functions of graphs, each with its gradient.

A gradient is a primitive with a gradient of its own, in MindSpore's operators, for whoever differentiates twice. In the
place of a gradient that is never used, that of a constant, stands the constant: ``ops.zeros_like`` in several orders of
gradients is more than the graph compiler takes. A cell with a ``bprop`` would do the same, but takes the compiler
twice as long.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.operations._grad_ops import SliceGrad

from .cell import as_first, custom, flag, float64
from .shapes import Ints, Shape, of_shapes

__all__ = ["BiasAdded", "Sliced", "cross_entropy", "gelu", "layer_norm", "permuted", "softmax"]

_vjp = ops.GradOperation(get_all=True, sens_param=True)
_gradients = ops.GradOperation(get_all=True)


def gelu(x: Tensor, tanh: bool) -> Tensor:
    """The Gaussian error linear unit of a float32 tensor, exact or approximate, in a graph (csrc/ops/gelu.h)."""
    return _tanh_gelu(x, flag(True)) if tanh else _exact_gelu(x, flag(False))


def _gelu_primitive(tanh: bool) -> ops.Custom:
    def plain(dy: Tensor, x: Tensor) -> Tensor:
        if tanh:
            u = 0.7978845608 * (x + 0.044715 * x * x * x)
            share = 0.5 * (1.0 + ops.tanh(u))
            return dy * (share + x * share * (1.0 - share) * (1.5957691216 + 0.2140706334 * x * x))
        return dy * (0.5 * (1.0 + ops.erf(0.7071067812 * x)) + 0.3989422804 * x * ops.exp(-0.5 * x * x))

    def of_gradient(dy: Tensor, x: Tensor, approximate: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, ...]:
        found = _vjp(plain)(dy, x, dout)
        return found[0], found[1], approximate

    def of_gelu(x: Tensor, approximate: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return gradient(dout, x, approximate), approximate

    gradient = custom("gelu_gradient", as_first, as_first, bprop=of_gradient)
    primitive = custom("gelu", as_first, as_first, bprop=of_gelu)
    for each in (gradient, primitive):
        each.add_prim_attr("tanh", tanh)  # MindSpore takes primitives of the same attributes for one
    return primitive


_exact_gelu, _tanh_gelu = _gelu_primitive(False), _gelu_primitive(True)


def layer_norm(x: Tensor, rows: Ints, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
    """float32 x, whose rows as a matrix of the shape ``rows`` are normalized, scaled and shifted, in a graph
    (csrc/ops/layer_norm.h). gamma and beta are float32, of the elements of a row."""
    scale, shift = ops.reshape(gamma, (-1,)), ops.reshape(beta, (-1,))
    return ops.reshape(_layer_norm(ops.reshape(x, rows), scale, shift, float64(epsilon)), x.shape)


def _norm_gradients(dy: Any, x: Any, gamma: Any, *others: Any) -> Any:
    return dy, gamma, gamma


def _of_layer_norm(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: Tensor, out: Tensor, dout: Tensor
) -> tuple[Tensor, ...]:
    dx, dgamma, dbeta = _layer_norm_gradient(dout, x, gamma, epsilon)
    return dx, dgamma, dbeta, epsilon


def _of_norm_gradient(dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor, out: Any, dout: Any) -> tuple[Tensor, ...]:
    found = _gradients(_weighted_norm_gradient)(dy, x, gamma, epsilon, dout[0], dout[1], dout[2])
    return found[0], found[1], found[2], epsilon


def _weighted_norm_gradient(
    dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor, ux: Tensor, ug: Tensor, ub: Tensor
) -> Tensor:
    """The sum of what it answers, weighted: MindSpore does not differentiate the gradient of a tuple."""
    centered = x - ops.mean(x, 1, True)
    factor = ops.rsqrt(ops.mean(centered * centered, 1, True) + ops.cast(epsilon, ms.float32))
    normed, h = centered * factor, dy * gamma
    dx = factor * (h - ops.mean(h, 1, True) - normed * ops.mean(h * normed, 1, True))
    return ops.sum(ux * dx) + ops.sum(ug * dy * normed) + ops.sum(ub * dy)


_layer_norm_gradient = custom("layer_norm_gradient", _norm_gradients, _norm_gradients, bprop=_of_norm_gradient)
_layer_norm = custom("layer_norm", as_first, as_first, bprop=_of_layer_norm)


def cross_entropy(x: Tensor, labels: Tensor, ignored: int, mean: bool) -> Tensor:
    """The loss () of float32 logits (rows, classes) and int32 labels (rows,), in a graph (csrc/ops/cross_entropy.h)."""
    primitive = _mean_cross_entropy if mean else _sum_cross_entropy
    return ops.reshape(primitive(x, labels, _int32(ignored), flag(mean))[0], ())


@ops.constexpr  # type: ignore[untyped-decorator]
def _int32(x: int) -> Tensor:
    return Tensor(np.array([x], np.int32))


def _loss_shapes(x: Any, labels: Any, *others: Any) -> Any:
    return (1,), labels


def _loss_dtypes(*inputs: Any) -> Any:
    return ms.float32, ms.float32


def _cross_entropy_primitive(mean: bool) -> ops.Custom:
    def of_gradient(
        x: Tensor,
        labels: Tensor,
        lse: Tensor,
        dloss: Tensor,
        ignored: Tensor,
        averaged: Tensor,
        out: Tensor,
        dout: Tensor,
    ) -> tuple[Tensor, ...]:
        counts = ops.cast(labels != ignored, ms.float32).reshape((-1, 1))
        weighted = counts * dout / ops.sum(counts) if mean else counts * dout
        share = ops.softmax(x, 1)
        shared = ops.sum(share * weighted, 1, True)
        one_hot = ops.cast(labels.reshape((-1, 1)) == ops.arange(x.shape[1]).reshape((1, -1)), ms.float32)
        ddloss = (ops.sum(shared) - ops.sum(one_hot * weighted)).reshape((1,))
        return dloss * share * (weighted - shared), labels, ops.zeros(lse.shape, ms.float32), ddloss, ignored, averaged

    def of_loss(
        x: Tensor, labels: Tensor, ignored: Tensor, averaged: Tensor, out: Any, dout: Any
    ) -> tuple[Tensor, ...]:
        return gradient(x, labels, out[1], dout[0], ignored, averaged), labels, ignored, averaged

    gradient = custom("cross_entropy_gradient", as_first, as_first, bprop=of_gradient)
    primitive = custom("cross_entropy", _loss_shapes, _loss_dtypes, bprop=of_loss)
    for each in (gradient, primitive):
        each.add_prim_attr("mean", mean)
    return primitive


_mean_cross_entropy, _sum_cross_entropy = _cross_entropy_primitive(True), _cross_entropy_primitive(False)


def softmax(x: Tensor, size: int) -> Tensor:
    """The shares along the last axis of float32 x, which is so long, in a graph (csrc/ops/softmax.h)."""
    return ops.reshape(_softmax(ops.reshape(x, (-1, size))), x.shape)


def _of_softmax(x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    return (_softmax_gradient(dout, out),)


def _of_softmax_gradient(dy: Tensor, y: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
    slope, share = ops.sum(dy * y, 1, True), ops.sum(dout * y, 1, True)
    return y * (dout - share), dout * (dy - slope) - share * dy


_softmax_gradient = custom("softmax_gradient", as_first, as_first, bprop=_of_softmax_gradient)
_softmax = custom("softmax", as_first, as_first, bprop=_of_softmax)


def _row(x: Any) -> Any:
    return x[1:]


def _of_row_sum(x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    return (ops.broadcast_to(dout, x.shape),)


_row_sum = custom("row_sum", _row, as_first, bprop=_of_row_sum)


class _Layer(nn.Cell):
    """Of MindSpore's operators, with another gradient."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)


class BiasAdded(_Layer):
    """``cell(x, bias)``: a bias (n,) added to each row of float32 x (rows, n), by MindSpore's operator. The gradient of
    the bias is native (csrc/ops/row_sum.h)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias_add = ops.BiasAdd()

    def construct(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.bias_add(x, bias)

    def bprop(self, x: Tensor, bias: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return dout, _row_sum(dout)


class _SliceGradient(_Layer):
    """``SliceGrad`` of MindSpore has no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.slice, self.slice_grad = ops.Slice(), SliceGrad()

    def construct(self, dy: Tensor, x: Tensor, begin: Ints, size: Ints) -> Tensor:
        return self.slice_grad(dy, x, begin, size)

    def bprop(
        self, dy: Tensor, x: Tensor, begin: Ints, size: Ints, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, Tensor, Any, Any]:
        return self.slice(dout, begin, size), ops.zeros(x.shape, x.dtype), begin, size


class Sliced(_Layer):
    """``cell(x, begin, size)``: MindSpore's ``Slice``, with gradients of any order."""

    def __init__(self) -> None:
        super().__init__()
        self.slice, self.gradient = ops.Slice(), _SliceGradient()

    def construct(self, x: Tensor, begin: Ints, size: Ints) -> Tensor:
        return self.slice(x, begin, size)

    def bprop(self, x: Tensor, begin: Ints, size: Ints, out: Tensor, dout: Tensor) -> tuple[Tensor, Any, Any]:
        return self.gradient(dout, x, begin, size), begin, size


def permuted(x: Tensor, axes: Ints) -> Tensor:
    """x with its axes in this order, constant and >= 0, in a graph (csrc/ops/strided_copy.h)."""
    return _permutation(axes)(x, _extents(x, axes), _strides(x, axes))


@of_shapes
def _extents(x: Shape, axes: Ints) -> Tensor:
    return Tensor(np.array([x[axis] for axis in axes], np.float64))


@of_shapes
def _strides(x: Shape, axes: Ints) -> Tensor:
    return Tensor(np.array([math.prod(x[axis + 1 :]) for axis in axes], np.float64))


# Alone: the graph compiler does not always take a primitive out of a tuple.
@ops.constexpr  # type: ignore[untyped-decorator]
def _permutation(axes: Ints) -> ops.Custom:
    return _permutation_primitive(axes)


@functools.cache
def _permutation_primitive(axes: Ints) -> ops.Custom:
    back = tuple(axes.index(axis) for axis in range(len(axes)))

    def shape(x: Any, *others: Any) -> Any:
        return tuple(x[axis] for axis in axes)

    def bprop(x: Tensor, shape: Tensor, strides: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return permuted(dout, back), shape, strides

    primitive = custom("strided_copy", shape, as_first, bprop=bprop)
    primitive.add_prim_attr("axes", axes)  # MindSpore takes primitives of the same attributes for one
    return primitive
