"""The batch norm of training as a layer of graphs (csrc/ops/batch_norm.h)."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from .cell import GraphOp

__all__ = ["BatchNorm"]

_gradients = ops.GradOperation(get_all=True)


def _outputs(x: Any, gamma: Any, *others: Any) -> Any:
    return x, gamma, gamma


def _gradient_outputs(dy: Any, x: Any, gamma: Any, *others: Any) -> Any:
    return x, gamma, gamma


class _BatchNormGradient(nn.Cell):
    symbol, primitive = "batch_norm_gradient", GraphOp(_gradient_outputs, _gradient_outputs)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)

    def construct(self, dy: Tensor, x: Tensor, gamma: Tensor, mean: Tensor, rstd: Tensor, epsilon: Tensor) -> Any:
        return self.primitive(dy, x, gamma, mean, rstd)

    def plain(
        self, dy: Tensor, x: Tensor, gamma: Tensor, epsilon: Tensor, ux: Tensor, ug: Tensor, ub: Tensor
    ) -> Tensor:
        """The sum of what it answers, weighted. Mean and rstd are functions of x here."""
        axes, row = (0, 2), (1, -1, 1)
        centered = x - ops.mean(x, axes, True)
        factor = ops.rsqrt(ops.mean(centered * centered, axes, True) + ops.cast(epsilon, ms.float32))
        normed, h = centered * factor, dy * gamma.reshape(row)
        dx = factor * (h - ops.mean(h, axes, True) - normed * ops.mean(h * normed, axes, True))
        return ops.sum(ux * dx) + ops.sum(ug.reshape(row) * dy * normed) + ops.sum(ub.reshape(row) * dy)

    def bprop(
        self,
        dy: Tensor,
        x: Tensor,
        gamma: Tensor,
        mean: Tensor,
        rstd: Tensor,
        epsilon: Tensor,
        out: Any,
        dout: Any,
    ) -> tuple[Tensor, ...]:
        found = _gradients(self.plain)(dy, x, gamma, epsilon, dout[0], dout[1], dout[2])
        return found[0], found[1], found[2], mean, rstd, epsilon


class BatchNorm(nn.Cell):
    """``cell(x, gamma, beta, epsilon, momentum, moving_mean, moving_variance)``: float32 x (n, c, m), normalized; and
    the means and 1 / deviations of its channels, which have no gradients.

    ``epsilon`` and ``momentum`` are one float64. The moving statistics are written, once for each forward pass.
    """

    symbol, primitive = "batch_norm", GraphOp(_outputs, _outputs, writes=True)

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.gradient = _BatchNormGradient()

    def construct(
        self,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        epsilon: Tensor,
        momentum: Tensor,
        moving_mean: Tensor,
        moving_variance: Tensor,
    ) -> Any:
        return self.primitive(x, gamma, beta, epsilon, momentum, moving_mean, moving_variance)

    def bprop(
        self,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        epsilon: Tensor,
        momentum: Tensor,
        moving_mean: Tensor,
        moving_variance: Tensor,
        out: Any,
        dout: Any,
    ) -> tuple[Tensor, ...]:
        dx, dgamma, dbeta = self.gradient(dout[0], x, gamma, out[1], out[2], epsilon)
        return dx, dgamma, dbeta, epsilon, momentum, moving_mean, moving_variance
