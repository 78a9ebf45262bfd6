"""Layers of networks: native functions of graphs, each with its gradient.

Each gradient is a cell with a gradient of its own, in MindSpore's operators, for whoever differentiates twice. In the
place of a gradient that is never used, that of a constant, stands the constant: ``ops.zeros_like`` in several orders of
gradients is more than the graph compiler takes.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.operations._grad_ops import SliceGrad

from .cell import GraphOp, as_first, custom

__all__ = ["BiasAdded", "CrossEntropy", "Gelu", "LayerNorm", "Sliced", "permuted"]

Ints = tuple[int, ...]

_vjp = ops.GradOperation(get_all=True, sens_param=True)
_gradients = ops.GradOperation(get_all=True)


class _Layer(nn.Cell):
    symbol: str

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)


class _GeluGradient(_Layer):
    symbol, primitive = "gelu_gradient", GraphOp(as_first, as_first)

    def __init__(self, tanh: bool) -> None:
        super().__init__()
        self.tanh, self.flag = tanh, Tensor([tanh])

    def construct(self, dy: Tensor, x: Tensor) -> Tensor:
        return self.primitive(dy, x, self.flag)

    def plain(self, dy: Tensor, x: Tensor) -> Tensor:
        if self.tanh:
            u = 0.7978845608 * (x + 0.044715 * x * x * x)
            share = 0.5 * (1.0 + ops.tanh(u))
            return dy * (share + x * share * (1.0 - share) * (1.5957691216 + 0.2140706334 * x * x))
        return dy * (0.5 * (1.0 + ops.erf(0.7071067812 * x)) + 0.3989422804 * x * ops.exp(-0.5 * x * x))

    def bprop(self, dy: Tensor, x: Tensor, out: Tensor, dout: Tensor) -> Any:
        return _vjp(self.plain)(dy, x, dout)


class Gelu(_Layer):
    """``cell(x)``: the Gaussian error linear unit of a float32 tensor, exact or approximate (csrc/ops/gelu.h)."""

    symbol, primitive = "gelu", GraphOp(as_first, as_first)

    def __init__(self, tanh: bool) -> None:
        super().__init__()
        self.flag, self.gradient = Tensor([tanh]), _GeluGradient(tanh)

    def construct(self, x: Tensor) -> Tensor:
        return self.primitive(x, self.flag)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (self.gradient(dout, x),)


def _norm_gradients(dy: Any, x: Any, gamma: Any, *others: Any) -> Any:
    return dy, gamma, gamma


class _LayerNormGradient(_Layer):
    symbol, primitive = "layer_norm_gradient", GraphOp(_norm_gradients, _norm_gradients)

    def construct(self, dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor) -> Any:
        return self.primitive(dy, x, gamma, epsilon)

    def plain(
        self, dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor, ux: Tensor, ug: Tensor, ub: Tensor
    ) -> Tensor:
        """The sum of what it answers, weighted: MindSpore does not differentiate the gradient of a tuple."""
        centered = x - ops.mean(x, 1, True)
        factor = ops.rsqrt(ops.mean(centered * centered, 1, True) + ops.cast(epsilon, ms.float32))
        normed, h = centered * factor, dy * gamma
        dx = factor * (h - ops.mean(h, 1, True) - normed * ops.mean(h * normed, 1, True))
        return ops.sum(ux * dx) + ops.sum(ug * dy * normed) + ops.sum(ub * dy)

    def bprop(self, dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor, out: Any, dout: Any) -> tuple[Tensor, ...]:
        found = _gradients(self.plain)(dy, x, gamma, epsilon, dout[0], dout[1], dout[2])
        return found[0], found[1], found[2], epsilon


class LayerNorm(_Layer):
    """``cell(x, gamma, beta, epsilon)``: the rows of float32 x (rows, n), normalized, scaled and shifted.

    ``gamma`` and ``beta`` are float32 (n,), ``epsilon`` is one float64 (csrc/ops/layer_norm.h).
    """

    symbol, primitive = "layer_norm", GraphOp(as_first, as_first)

    def __init__(self) -> None:
        super().__init__()
        self.gradient = _LayerNormGradient()

    def construct(self, x: Tensor, gamma: Tensor, beta: Tensor, epsilon: Tensor) -> Tensor:
        return self.primitive(x, gamma, beta, epsilon)

    def bprop(
        self, x: Tensor, gamma: Tensor, beta: Tensor, epsilon: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, ...]:
        dx, dgamma, dbeta = self.gradient(dout, x, gamma, epsilon)
        return dx, dgamma, dbeta, epsilon


def _loss_shapes(x: Any, labels: Any, *others: Any) -> Any:
    return (1,), labels


def _loss_dtypes(*inputs: Any) -> Any:
    return ms.float32, ms.float32


class _CrossEntropyGradient(_Layer):
    symbol, primitive = "cross_entropy_gradient", GraphOp(as_first, as_first)

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.mean, self.flag = mean, Tensor([mean])

    def construct(self, x: Tensor, labels: Tensor, lse: Tensor, dloss: Tensor, ignored: Tensor) -> Tensor:
        return self.primitive(x, labels, lse, dloss, ignored, self.flag)

    def bprop(
        self, x: Tensor, labels: Tensor, lse: Tensor, dloss: Tensor, ignored: Tensor, out: Tensor, dout: Tensor
    ) -> tuple[Tensor, ...]:
        counts = ops.cast(labels != ignored, ms.float32).reshape((-1, 1))
        weighted = counts * dout / ops.sum(counts) if self.mean else counts * dout
        share = ops.softmax(x, 1)
        shared = ops.sum(share * weighted, 1, True)
        one_hot = ops.cast(labels.reshape((-1, 1)) == ops.arange(x.shape[1]).reshape((1, -1)), ms.float32)
        ddloss = (ops.sum(shared) - ops.sum(one_hot * weighted)).reshape((1,))
        return dloss * share * (weighted - shared), labels, ops.zeros(lse.shape, ms.float32), ddloss, ignored


class CrossEntropy(_Layer):
    """``cell(x, labels, ignored)``: the loss (1,) of float32 logits (rows, classes), and logarithms of sums (rows,).

    ``labels`` are int32 (rows,), ``ignored`` is one int32 (csrc/ops/cross_entropy.h).
    """

    symbol, primitive = "cross_entropy", GraphOp(_loss_shapes, _loss_dtypes)

    def __init__(self, mean: bool) -> None:
        super().__init__()
        self.flag, self.gradient = Tensor([mean]), _CrossEntropyGradient(mean)

    def construct(self, x: Tensor, labels: Tensor, ignored: Tensor) -> Any:
        return self.primitive(x, labels, ignored, self.flag)

    def bprop(self, x: Tensor, labels: Tensor, ignored: Tensor, out: Any, dout: Any) -> tuple[Tensor, ...]:
        dx = self.gradient(x, labels, out[1], dout[0], ignored)
        return dx, labels, ignored


def _row(x: Any) -> Any:
    return x[1:]


class _RowSum(_Layer):
    symbol, primitive = "row_sum", GraphOp(_row, as_first)

    def construct(self, x: Tensor) -> Tensor:
        return self.primitive(x)

    def bprop(self, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        return (ops.broadcast_to(dout, x.shape),)


class BiasAdded(_Layer):
    """``cell(x, bias)``: a bias (n,) added to each row of float32 x (rows, n), by MindSpore's operator. The gradient of
    the bias is native (csrc/ops/row_sum.h)."""

    def __init__(self) -> None:
        super().__init__()
        self.bias_add, self.row_sum = ops.BiasAdd(), _RowSum()

    def construct(self, x: Tensor, bias: Tensor) -> Tensor:
        return self.bias_add(x, bias)

    def bprop(self, x: Tensor, bias: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        return dout, self.row_sum(dout)


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
    return _permutation(axes)(x, _taken(x.shape, axes), _taken(_strides(x.shape), axes))


@ops.constexpr  # type: ignore[untyped-decorator]
def _strides(shape: Ints) -> Ints:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@ops.constexpr  # type: ignore[untyped-decorator]
def _taken(of_axes: Ints, axes: Ints) -> Tensor:
    return Tensor(np.array([of_axes[axis] for axis in axes], np.float64))


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
