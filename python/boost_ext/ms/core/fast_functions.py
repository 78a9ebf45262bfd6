"""What stands for MindSpore's functions in compiled training steps (:mod:`boost_ext.ms.core.substitutes`).

Each takes float32 tensors of known shapes, and leaves all else to the function that it stands for. How much slower that
is on a CPU: docs/benchmarks.md#layers.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F
from mindspore.ops.auto_generate import gen_ops_def
from mindspore.ops.composite.multitype_ops import _compile_utils
from mindspore.ops.function import array_func, math_func, nn_func

from boost_ext.ms.core.fast_batch_norm import CONSTRUCT, batch_norm
from boost_ext.ms.core.fast_convolutions import conv1d, conv2d, conv2d_transpose, watched_conv2d
from boost_ext.ms.core.fast_pooling import max_pool, max_pool2d
from boost_ext.ms.core.substitutes import Substitute, is_known, plain
from boost_ext.ms.native.cell import float64
from boost_ext.ms.native.layers import BiasAdded, CrossEntropy, Gelu, LayerNorm, Sliced, permuted
from boost_ext.ms.native.products import product, wins

__all__ = ["SUBSTITUTES"]

Ints = tuple[int, ...]

_plain_slice = plain(_compile_utils.strided_slice)
_plain_transpose, _plain_swapaxes = plain(gen_ops_def.transpose), plain(array_func.swapaxes)
_plain_matmul, _plain_dense = plain(math_func.matmul), plain(nn.Dense.construct)
_plain_layer_norm, _plain_gelu = plain(nn.LayerNorm.construct), plain(nn_func.gelu)
_plain_cross_entropy = plain(nn_func.cross_entropy)
_mat_mul, _batch_mat_mul = ops.MatMul(), ops.BatchMatMul()
_slice = Sliced()
_gelu, _gelu_tanh, _layer_norm, _bias_added = Gelu(False), Gelu(True), LayerNorm(), BiasAdded()
_mean_cross_entropy, _sum_cross_entropy = CrossEntropy(True), CrossEntropy(False)


@ops.constexpr  # type: ignore[untyped-decorator]
def _int32(x: int) -> Tensor:
    return Tensor(np.array([x], np.int32))


def gelu(input: Tensor, approximate: str = "none") -> Any:
    if is_known(input):
        if approximate == "none":
            return _gelu(input)
        if approximate == "tanh":
            return _gelu_tanh(input)
    return _plain_gelu(input, approximate)


def layer_norm(self: nn.LayerNorm, input_x: Tensor) -> Any:
    if is_known(input_x) and self.gamma.dtype == ms.float32 and self.beta.dtype == ms.float32:
        rows = as_rows(F.shape(input_x), F.shape(self.gamma), self.begin_norm_axis, self.begin_params_axis)
        if rows:
            gamma, beta = ops.reshape(self.gamma, (-1,)), ops.reshape(self.beta, (-1,))
            y = _layer_norm(ops.reshape(input_x, rows), gamma, beta, float64(self.epsilon))
            return ops.reshape(y, F.shape(input_x))
    return _plain_layer_norm(self, input_x)


def dense(self: nn.Dense, x: Tensor) -> Any:
    if _has_rows_for(x, self.weight):
        rows = ops.reshape(x, (-1, F.shape(x)[-1]))
        native = wins(F.shape(rows), F.shape(self.weight))
        out = product(rows, self.weight, False, True) if native else self.matmul(rows, self.weight)
        return _finished(self, out, F.shape(x))
    return _plain_dense(self, x)


def watched_dense(self: nn.Dense, x: Tensor) -> Any:
    """The same of a layer that thor watches."""
    if _has_rows_for(x, self.weight):
        rows = ops.reshape(x, (-1, F.shape(x)[-1]))
        if wins(F.shape(rows), F.shape(self.weight)):
            out = self.matmul.watch(product(rows, self.weight, False, True), rows)
        else:
            out = self.matmul(rows, self.weight)
        return _finished(self, out, F.shape(x))
    return _plain_dense(self, x)


def _has_rows_for(x: Tensor, weight: Tensor) -> bool:
    """Where they do not fit, MindSpore finds the error."""
    return is_known(x) and weight.dtype == ms.float32 and F.shape(x)[-1] == F.shape(weight)[1]


def _finished(self: nn.Dense, out: Tensor, shape: Ints) -> Tensor:
    if self.has_bias:
        out = _bias_added(out, self.bias) if self.bias.dtype == ms.float32 else self.bias_add(out, self.bias)
    if self.activation_flag:
        out = self.activation(out)
    return ops.reshape(out, (*shape[:-1], F.shape(out)[-1]))


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if (
        weight is None
        and label_smoothing == 0.0
        and reduction != "none"
        and is_known(input)
        and F.rank(input) == 2
        and target.dtype == ms.int32
        and F.rank(target) == 1
    ):
        if reduction == "mean":
            return ops.reshape(_mean_cross_entropy(input, target, _int32(ignore_index))[0], ())
        if reduction == "sum":
            return ops.reshape(_sum_cross_entropy(input, target, _int32(ignore_index))[0], ())
    return _plain_cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def transpose(input: Tensor, dims: Any) -> Any:
    if is_known(input) and F.isconstant(dims):
        axes = permutation(F.rank(input), dims)
        if axes:
            return permuted(input, axes)
    return _plain_transpose(input, dims)


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Any:
    if is_known(input) and F.isconstant(axis0) and F.isconstant(axis1):
        axes = swap(F.rank(input), axis0, axis1)
        if axes:
            return permuted(input, axes)
    return _plain_swapaxes(input, axis0, axis1)


def matmul(input: Any, other: Any) -> Any:
    """Native, or without the copies that the gradient of MindSpore's function makes of transposed factors."""
    if isinstance(input, Tensor) and isinstance(other, Tensor) and is_known(input) and is_known(other):
        rank, shape = F.rank(other), F.shape(input)
        if rank == 2 and F.rank(input) > 1 and shape[-1] == F.shape(other)[0]:
            rows = ops.reshape(input, (-1, shape[-1]))
            native = wins(F.shape(rows), F.shape(other))
            out = product(rows, other, False, False) if native else _mat_mul(rows, other)
            return ops.reshape(out, (*shape[:-1], F.shape(other)[1]))
        if rank > 2 and (*shape[:-2], shape[-1]) == F.shape(other)[:-1]:
            native = wins(shape, F.shape(other))
            return product(input, other, False, False) if native else _batch_mat_mul(input, other)
    return _plain_matmul(input, other)


@ops.constexpr  # type: ignore[untyped-decorator]
def as_rows(shape: Ints, row: Ints, norm_axis: int, params_axis: int) -> Ints:
    """The shape of a matrix with a row for what is normalized at once; () where that is not what the parameters are
    for, or an error that MindSpore finds."""
    first, size = len(shape) - len(row), math.prod(row)
    if first < 0 or size == 0 or shape[first:] != row or {a % len(shape) for a in (norm_axis, params_axis)} != {first}:
        return ()
    return math.prod(shape[:first]), size


@ops.constexpr  # type: ignore[untyped-decorator]
def swap(rank: int, first: Any, second: Any) -> Ints:
    """All axes, with two in each other's places; () for an error that MindSpore finds."""
    if not all(type(axis) is int and -rank <= axis < rank for axis in (first, second)):
        return ()
    axes = list(range(rank))
    axes[first], axes[second] = axes[second], axes[first]
    return tuple(axes)


@ops.constexpr  # type: ignore[untyped-decorator]
def permutation(rank: int, axes: Ints) -> Ints:
    """All axes, >= 0; () if there is none, or an error that MindSpore finds."""
    if len(axes) != rank or any(not -rank <= axis < rank for axis in axes):
        return ()
    found = tuple(axis % rank for axis in axes)
    return found if len(set(found)) == rank else ()


def sliced(
    data: Tensor,
    begin: Any,
    end: Any,
    step: Any,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Any:
    """MindSpore's function of the same arguments, which its compiler finds by its name."""
    if (
        is_known(data)
        and ellipsis_mask == 0
        and new_axis_mask == 0
        and F.isconstant(begin)
        and F.isconstant(end)
        and F.isconstant(step)
    ):
        first, size, shape = as_slice(F.shape(data), begin, end, step, begin_mask, end_mask, shrink_axis_mask)
        if size:
            return ops.reshape(_slice(data, first, size), shape)
    return _plain_slice(data, begin, end, step, begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask)


@ops.constexpr  # type: ignore[untyped-decorator]
def as_slice(
    of: Ints, begin: Ints, end: Ints, step: Ints, begin_mask: int, end_mask: int, shrink_axis_mask: int
) -> tuple[Ints, Ints, Ints]:
    """Where it begins, its size, its shape without the axes of single indices; () for each if it is no such slice."""
    first, size, shape = [], [], []
    if len(begin) > len(of) or any(s != 1 for s in step):
        return (), (), ()
    for axis, n in enumerate(of):
        low, high = 0, n
        if axis < len(begin):
            low, high, _ = slice(
                None if begin_mask >> axis & 1 else begin[axis], None if end_mask >> axis & 1 else end[axis]
            ).indices(n)
            if shrink_axis_mask >> axis & 1:
                low = begin[axis] + (n if begin[axis] < 0 else 0)
                high = low + 1
        if not 0 <= low < high <= n:  # empty, or an error that MindSpore finds
            return (), (), ()
        first.append(low)
        size.append(high - low)
        if not (axis < len(begin) and shrink_axis_mask >> axis & 1):
            shape.append(high - low)
    return tuple(first), tuple(size), tuple(shape)


SUBSTITUTES: dict[Any, Substitute] = {
    CONSTRUCT: Substitute(batch_norm, ("bn_train", ops.BatchNorm)),
    _compile_utils.strided_slice: Substitute(sliced),
    array_func.swapaxes: Substitute(swapaxes),
    gen_ops_def.transpose: Substitute(transpose),
    math_func.matmul: Substitute(matmul),
    nn.Conv1d.construct: Substitute(conv1d, ("conv2d", ops.Conv2D)),
    nn.Conv2dTranspose.construct: Substitute(conv2d_transpose, ("conv2d_transpose", ops.Conv2DTranspose)),
    nn.Conv2d.construct: Substitute(conv2d, ("conv2d", ops.Conv2D), watched_conv2d),
    nn.Dense.construct: Substitute(dense, ("matmul", ops.MatMul), watched_dense),
    nn.LayerNorm.construct: Substitute(layer_norm, ("layer_norm", ops.LayerNorm)),
    nn.MaxPool2d.construct: Substitute(max_pool, ("max_pool", ops.Primitive)),
    nn_func.cross_entropy: Substitute(cross_entropy),
    nn_func.gelu: Substitute(gelu),
    nn_func.max_pool2d: Substitute(max_pool2d),
}
