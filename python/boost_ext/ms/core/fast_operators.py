"""What stands for operators that a network makes and calls, in compiled training steps
(:mod:`boost_ext.ms.core.substitutes`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mindspore import Tensor, ops

from boost_ext.ms.native import layers
from boost_ext.ms.native.shapes import Ints, Shape, is_known, of_shapes

__all__ = ["as_last_axis", "as_rows", "gelu_of", "l2_normalize_of", "layer_norm_of", "softmax_of"]


def gelu_of(operator: ops.GeLU) -> Callable[..., Any]:
    def gelu(x: Tensor) -> Any:
        return layers.gelu(x, True) if is_known(x) else operator(x)

    return gelu


def l2_normalize_of(operator: ops.L2Normalize) -> Callable[..., Any]:
    """By operators. The gradient of MindSpore's kernel takes 1 ms for 1000 elements."""
    axis, epsilon = operator.axis[0], operator.epsilon

    def l2_normalize(x: Tensor) -> Any:
        if is_known(x):
            return x * ops.rsqrt(ops.maximum(ops.sum(x * x, axis, True), epsilon))
        return operator(x)

    return l2_normalize


def layer_norm_of(operator: ops.LayerNorm) -> Callable[..., Any]:
    norm_axis, params_axis = operator.begin_norm_axis, operator.begin_params_axis
    epsilon = operator.epsilon

    def layer_norm(x: Tensor, gamma: Tensor, beta: Tensor) -> Any:
        rows = as_rows(x, gamma, beta, norm_axis, params_axis)
        if rows:
            # Nobody asks for mean and variance: then the compiler drops them. They have no gradients in MindSpore.
            others = operator(ops.stop_gradient(x), gamma, beta)
            return layers.layer_norm(x, rows, gamma, beta, epsilon), others[1], others[2]
        return operator(x, gamma, beta)

    return layer_norm


def softmax_of(operator: ops.Softmax) -> Callable[..., Any]:
    axis = operator.axis

    def softmax(x: Tensor) -> Any:
        size = as_last_axis(x, axis)
        return layers.softmax(x, size) if size > 0 else operator(x)

    return softmax


@of_shapes
def as_rows(x: Shape | None, gamma: Shape | None, beta: Shape | None, norm_axis: int, params_axis: int) -> Ints:
    """The shape of a matrix with a row for what is normalized at once; () where that is not what the parameters are
    for, or an error that MindSpore finds."""
    if x is None or gamma is None or beta is None:
        return ()
    first, size = len(x) - len(gamma), math.prod(gamma)
    if first < 0 or size == 0 or x[first:] != gamma or {a % len(x) for a in (norm_axis, params_axis)} != {first}:
        return ()
    return math.prod(x[:first]), size


@of_shapes
def as_last_axis(x: Shape | None, axis: Any) -> int:
    """Its size, if the axis, or the one of a tuple, is the last; 0 for others, no element, or an error that MindSpore
    finds."""
    axis = axis[0] if type(axis) is tuple and len(axis) == 1 else axis
    return x[-1] if x and 0 not in x and type(axis) is int and axis in (-1, len(x) - 1) else 0
