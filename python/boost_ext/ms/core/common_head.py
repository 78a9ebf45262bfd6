"""The full-normalization layer that LessBN puts in place of the last Dense."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer

__all__ = ["CommonHeadLastFN"]

_EPSILON = 1e-4


class CommonHeadLastFN(nn.Cell):
    r"""A Dense on the unit sphere: logits are scaled cosines.

    .. math::
        y = m \left(\frac{x}{\lVert x\rVert} \left(\frac{W}{\lVert W\rVert}\right)^T + b\right),
        \qquad \lVert v\rVert = \sqrt{\max(\textstyle\sum v_i^2, 10^{-4})}

    with norms over the input features, computed in float32, and a trainable multiplier m. Replaces
    ``mindspore.boost.less_batch_normalization.CommonHeadLastFN``; the idea is that of the cosine-normalized output
    layer (Wang et al., *NormFace*, 2017, eq. 6, https://arxiv.org/abs/1704.06369).

    Args:
        in_channels (int): input features.
        out_channels (int): output features.
        weight_init (Union[Tensor, str, Initializer, numbers.Number]): of the weight (out_channels, in_channels).
            Default: 'normal'.
        bias_init (Union[Tensor, str, Initializer, numbers.Number]): of the bias (out_channels,). Default: 'zeros'.
        has_bias (bool): whether there is a bias. Default: True.

    Inputs:
        - **x** (Tensor) - of shape :math:`(*, in\_channels)`, float32 or float16.

    Outputs:
        Tensor of shape :math:`(*, out\_channels)`, of the dtype of `x`.

    Raises:
        ValueError: if `in_channels` or `out_channels` is not a positive int.

    Examples:
        >>> import mindspore as ms
        >>> from boost_ext.boost.less_batch_normalization import CommonHeadLastFN
        >>> head = CommonHeadLastFN(8, 3)
        >>> head(ms.ops.ones((2, 8))).shape
        (2, 3)
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        weight_init: Any = "normal",
        bias_init: Any = "zeros",
        has_bias: bool = True,
    ) -> None:
        super().__init__()
        for name, value in (("in_channels", in_channels), ("out_channels", out_channels)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"CommonHeadLastFN: {name} must be a positive int, got {value!r}")
        self.in_channels, self.out_channels, self.has_bias = in_channels, out_channels, has_bias
        self.weight = Parameter(initializer(weight_init, [out_channels, in_channels]), name="weight")
        self.bias = Parameter(initializer(bias_init, [out_channels]), name="bias") if has_bias else None
        self.multiplier = Parameter(Tensor(np.ones(1, np.float32)), name="multiplier")
        self.activation: Any = None
        self.l2_normalize = ops.L2Normalize(axis=1, epsilon=_EPSILON)
        self.matmul = ops.MatMul(transpose_b=True)

    @classmethod
    def from_dense(cls, dense: nn.Dense, multiplier: float = 1.0) -> Any:
        """The layer that takes the place of ``dense``: with its Parameters themselves, and its activation."""
        # Not annotated with the class: mixed precision O1 copies its source and evaluates what stands there.
        head = cls(dense.in_channels, dense.out_channels, has_bias=dense.has_bias)
        head.weight = dense.weight
        if dense.has_bias:
            head.bias = dense.bias
        head.activation = dense.activation
        prefix, dot, _ = dense.weight.name.rpartition(".")
        initial = Tensor(np.full(1, multiplier, np.float32))
        head.multiplier = Parameter(initial, name=f"{prefix}{dot}multiplier")
        head.set_train(dense.training)
        return head

    def construct(self, x: Tensor) -> Tensor:
        features = self._unit(ops.reshape(x, (-1, self.in_channels)), x)
        weight = self._unit(self.weight, x)
        y = self.matmul(features, weight)
        if self.has_bias:
            y = y + ops.cast(self.bias, x.dtype)
        y = ops.cast(self.multiplier, x.dtype) * y
        if self.activation is not None:
            y = self.activation(y)
        return ops.reshape(y, (*x.shape[:-1], self.out_channels))

    def _unit(self, rows: Tensor, x: Tensor) -> Tensor:
        """The rows divided by their norms, in the dtype of ``x``."""
        rows = ops.cast(rows, ms.float32)
        # In PYNATIVE_MODE to_float(float16) overrules this cast, and large squares would overflow.
        largest = ops.clamp(ops.amax(ops.abs(rows), 1, True), 1.0)
        return ops.cast(self.l2_normalize(rows / ops.stop_gradient(largest)), x.dtype)

    def extend_repr(self) -> str:
        return f"input_channels={self.in_channels}, output_channels={self.out_channels}, has_bias={self.has_bias}"
