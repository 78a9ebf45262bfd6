"""The batch norm of MindSpore's layers in training, for :mod:`boost_ext.ms.core.fast_functions`."""

from __future__ import annotations

import math
from typing import Any

from mindspore import Tensor, ops
from mindspore.nn.layer.normalization import _BatchNorm
from mindspore.ops import functional as F

from boost_ext.ms.core.substitutes import plain
from boost_ext.ms.native.batch_norm import normalized
from boost_ext.ms.native.shapes import Ints, Shape, of_shapes

__all__ = ["CONSTRUCT", "batch_norm"]

CONSTRUCT = _BatchNorm.construct
"""Of BatchNorm1d and BatchNorm2d, one of which is in BatchNorm3d; and of SyncBatchNorm, which has another operator."""

_plain = plain(CONSTRUCT)


@of_shapes
def as_planes(x: Shape | None, gamma: Shape | None, moving_mean: Shape | None, layout: str) -> Ints:
    """Samples, channels and the elements of a plane; () for no element, what MindSpore normalizes, or an error that it
    finds."""
    if x is None or gamma is None or moving_mean is None or layout != "NCHW":
        return ()
    if len(x) < 2 or x[1] != gamma[0] or 0 in x:
        return ()
    return x[0], x[1], math.prod(x[2:])


def batch_norm(self: _BatchNorm, x: Tensor) -> Any:
    if self.training if self.use_batch_statistics is None else self.use_batch_statistics:
        self._check_input_dim(F.shape(x), self.cls_name)
        planes = as_planes(x, self.gamma, self.moving_mean, self.format)
        if planes:
            y = normalized(
                ops.reshape(x, planes),
                self.gamma,
                self.beta,
                self.eps,
                1.0 - self.momentum,
                self.moving_mean,
                self.moving_variance,
            )
            return ops.reshape(y, F.shape(x))
    return _plain(self, x)
