"""What stands for MindSpore's functions in compiled training steps (:mod:`boost_ext.ms.core.substitutes`).

Each takes float32 tensors of known shapes, and leaves all else to the function that it stands for. How much slower that
is on a CPU: docs/benchmarks.md#layers.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import functional as F
from mindspore.ops.auto_generate import gen_ops_def
from mindspore.ops.composite.multitype_ops import _compile_utils, getitem_impl
from mindspore.ops.function import array_func, math_func, nn_func

from boost_ext.ms.core.fast_batch_norm import CONSTRUCT, batch_norm
from boost_ext.ms.core.fast_convolutions import conv2d_of, conv2d_transpose
from boost_ext.ms.core.fast_operators import as_last_axis, as_rows, gelu_of, l2_normalize_of, layer_norm_of, softmax_of
from boost_ext.ms.core.fast_pooling import max_pool, max_pool2d
from boost_ext.ms.core.fast_slices import item_at, sliced
from boost_ext.ms.core.substitutes import Operator, Substitute, plain
from boost_ext.ms.native import layers
from boost_ext.ms.native.layers import BiasAdded, permuted
from boost_ext.ms.native.products import product, wins
from boost_ext.ms.native.shapes import Ints, Shape, is_known, of_shapes

__all__ = ["SUBSTITUTES"]

_plain_transpose, _plain_swapaxes = plain(gen_ops_def.transpose), plain(array_func.swapaxes)
_plain_matmul, _plain_dense = plain(math_func.matmul), plain(nn.Dense.construct)
_plain_layer_norm, _plain_gelu = plain(nn.LayerNorm.construct), plain(nn_func.gelu)
_plain_cross_entropy = plain(nn_func.cross_entropy)
_plain_softmax = plain(nn_func.softmax)
_mat_mul, _batch_mat_mul = ops.MatMul(), ops.BatchMatMul()
_bias_added = BiasAdded()


def gelu(input: Tensor, approximate: str = "none") -> Any:
    if is_known(input) and approximate in ("none", "tanh"):
        return layers.gelu(input, approximate == "tanh")
    return _plain_gelu(input, approximate)


def layer_norm(self: nn.LayerNorm, input_x: Tensor) -> Any:
    rows = as_rows(input_x, self.gamma, self.beta, self.begin_norm_axis, self.begin_params_axis)
    if rows:
        return layers.layer_norm(input_x, rows, self.gamma, self.beta, self.epsilon)
    return _plain_layer_norm(self, input_x)


def dense(self: nn.Dense, x: Tensor) -> Any:
    if are_factors(x, self.weight):
        rows = ops.reshape(x, (-1, F.shape(x)[-1]))
        native = wins(rows, self.weight)
        out = product(rows, self.weight, False, True) if native else self.matmul(rows, self.weight)
        return _finished(self, out, F.shape(x))
    return _plain_dense(self, x)


def watched_dense(self: nn.Dense, x: Tensor) -> Any:
    """The same of a layer that thor watches."""
    if are_factors(x, self.weight):
        rows = ops.reshape(x, (-1, F.shape(x)[-1]))
        if wins(rows, self.weight):
            out = self.matmul.watch(product(rows, self.weight, False, True), rows)
        else:
            out = self.matmul(rows, self.weight)
        return _finished(self, out, F.shape(x))
    return _plain_dense(self, x)


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
        and reduction in ("mean", "sum")
        and is_known(input)
        and F.rank(input) == 2
        and target.dtype == ms.int32
        and F.rank(target) == 1
    ):
        return layers.cross_entropy(input, target, ignore_index, reduction == "mean")
    return _plain_cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)


def softmax(input: Tensor, axis: int = -1, *, dtype: Any = None) -> Any:
    size = as_last_axis(input, axis)
    if size > 0 and dtype is None:
        return layers.softmax(input, size)
    return _plain_softmax(input, axis, dtype=dtype)


def transpose(input: Tensor, dims: Any) -> Any:
    axes = permutation(input, dims)
    return permuted(input, axes) if axes else _plain_transpose(input, dims)


def swapaxes(input: Tensor, axis0: int, axis1: int) -> Any:
    axes = swap(input, axis0, axis1)
    return permuted(input, axes) if axes else _plain_swapaxes(input, axis0, axis1)


def matmul(input: Any, other: Any) -> Any:
    """Native, or without the copies that the gradient of MindSpore's function makes of transposed factors."""
    if are_rows(input, other):
        shape = F.shape(input)
        rows = ops.reshape(input, (-1, shape[-1]))
        native = wins(rows, other)
        out = product(rows, other, False, False) if native else _mat_mul(rows, other)
        return ops.reshape(out, (*shape[:-1], F.shape(other)[1]))
    if are_batches(input, other):
        return product(input, other, False, False) if wins(input, other) else _batch_mat_mul(input, other)
    return _plain_matmul(input, other)


@of_shapes
def are_factors(x: Shape | None, weight: Shape | None) -> bool:
    """Of a layer. Where they do not fit, MindSpore finds the error."""
    return x is not None and weight is not None and x[-1:] == weight[1:]


@of_shapes
def are_rows(a: Any, b: Any) -> bool:
    """Whether they are tensors, and b is a matrix that multiplies each row of a."""
    return type(a) is type(b) is Shape and len(b) == 2 and len(a) > 1 and a[-1] == b[0]


@of_shapes
def are_batches(a: Any, b: Any) -> bool:
    """Whether they are as many matrices, that fit."""
    return type(a) is type(b) is Shape and len(a) == len(b) > 2 and (*a[:-2], a[-1]) == b[:-1]


@of_shapes
def swap(x: Shape | None, first: Any, second: Any) -> Ints:
    """All axes, with two in each other's places; () for an error that MindSpore finds."""
    if x is None or not all(type(axis) is int and -len(x) <= axis < len(x) for axis in (first, second)):
        return ()
    axes = list(range(len(x)))
    axes[first], axes[second] = axes[second], axes[first]
    return tuple(axes)


@of_shapes
def permutation(x: Shape | None, axes: Any) -> Ints:
    """All axes, >= 0; () if there is none, or an error that MindSpore finds."""
    if x is None or type(axes) not in (tuple, list) or len(axes) != len(x):
        return ()
    if not all(type(axis) is int and -len(x) <= axis < len(x) for axis in axes):
        return ()
    found = tuple(axis % len(x) for axis in axes)
    return found if len(set(found)) == len(x) else ()


SUBSTITUTES: dict[Any, Substitute | Operator] = {
    CONSTRUCT: Substitute(batch_norm, ("bn_train", ops.BatchNorm)),
    _compile_utils.strided_slice: Substitute(sliced),
    getitem_impl._tensor_getitem_by_tuple: Substitute(item_at),
    array_func.swapaxes: Substitute(swapaxes),
    gen_ops_def.transpose: Substitute(transpose),
    math_func.matmul: Substitute(matmul),
    nn.Conv2dTranspose.construct: Substitute(conv2d_transpose, ("conv2d_transpose", ops.Conv2DTranspose)),
    nn.Dense.construct: Substitute(dense, ("matmul", ops.MatMul), watched_dense),
    nn.LayerNorm.construct: Substitute(layer_norm, ("layer_norm", ops.LayerNorm)),
    nn.MaxPool2d.construct: Substitute(max_pool, ("max_pool", ops.Primitive)),
    nn_func.cross_entropy: Substitute(cross_entropy),
    nn_func.gelu: Substitute(gelu),
    nn_func.max_pool2d: Substitute(max_pool2d),
    nn_func.softmax: Substitute(softmax),
    ops.Conv2D: Operator(conv2d_of),
    ops.GeLU: Operator(gelu_of),
    ops.L2Normalize: Operator(l2_normalize_of),
    ops.LayerNorm: Operator(layer_norm_of),
    ops.Softmax: Operator(softmax_of),
}
