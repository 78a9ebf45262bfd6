"""The batch norm of training, as a native function of graphs (csrc/ops/batch_norm.h).

Its gradient has one of its own, in MindSpore's operators, for whoever differentiates twice.
"""

from __future__ import annotations

import functools
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops

from .cell import custom, float64

__all__ = ["normalized"]

_gradients = ops.GradOperation(get_all=True)


def normalized(
    x: Tensor,
    gamma: Tensor,
    beta: Tensor,
    epsilon: float,
    momentum: float,
    moving_mean: Tensor,
    moving_variance: Tensor,
) -> Tensor:
    """float32 x (n, c, m), its channels normalized, scaled and shifted, in a graph. The moving statistics are written,
    once for each forward pass."""
    # By an index: the compiler warns of what is unpacked and not used.
    return _batch_norm(epsilon)(x, gamma, beta, float64(epsilon), float64(momentum), moving_mean, moving_variance)[0]


def _outputs(x: Any, gamma: Any, *others: Any) -> Any:
    return x, gamma, gamma


def _gradient_outputs(dy: Any, x: Any, gamma: Any, *others: Any) -> Any:
    return x, gamma, gamma


# Alone: the graph compiler takes a primitive out of a function of constants, but knows no cached functions.
@ops.constexpr  # type: ignore[untyped-decorator]
def _batch_norm(epsilon: float) -> ops.Custom:
    return _batch_norm_primitive(epsilon)


@ops.constexpr  # type: ignore[untyped-decorator]
def _batch_norm_gradient(epsilon: float) -> ops.Custom:
    return _batch_norm_gradient_primitive(epsilon)


@functools.cache
def _batch_norm_primitive(epsilon: float) -> ops.Custom:
    def bprop(
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        eps: Tensor,
        momentum: Tensor,
        moving_mean: Tensor,
        moving_variance: Tensor,
        out: Any,
        dout: Any,
    ) -> tuple[Tensor, ...]:
        dx, dgamma, dbeta = _batch_norm_gradient(epsilon)(dout[0], x, gamma, out[1], out[2])
        return dx, dgamma, dbeta, eps, momentum, moving_mean, moving_variance

    primitive = custom("batch_norm", _outputs, _outputs, True, bprop)
    primitive.add_prim_attr("epsilon", epsilon)  # MindSpore takes primitives of the same attributes for one
    primitive.add_prim_attr("recompute", False)  # for that would move the statistics twice
    return primitive


@functools.cache
def _batch_norm_gradient_primitive(epsilon: float) -> ops.Custom:
    def bprop(
        dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, out: Any, dout: Any
    ) -> tuple[Tensor, ...]:
        found = _gradients(_weighted)(dy, x, gamma, float64(epsilon), dout[0], dout[1], dout[2])
        return found[0], found[1], found[2], mean, rstd

    primitive = custom("batch_norm_gradient", _gradient_outputs, _gradient_outputs, bprop=bprop)
    primitive.add_prim_attr("epsilon", epsilon)
    return primitive


def _weighted(dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor, ux: Tensor, ug: Tensor, ub: Tensor) -> Tensor:
    """The sum of what the gradient answers, weighted. Mean and rstd are functions of x here."""
    axes, row = (0, 2), (1, -1, 1)
    centered = x - ops.mean(x, axes, True)
    factor = ops.rsqrt(ops.mean(centered * centered, axes, True) + ops.cast(epsilon, ms.float32))
    normed, h = centered * factor, dy * gamma.reshape(row)
    dx = factor * (h - ops.mean(h, axes, True) - normed * ops.mean(h * normed, axes, True))
    return ops.sum(ux * dx) + ops.sum(ug.reshape(row) * dy * normed) + ops.sum(ub.reshape(row) * dy)
