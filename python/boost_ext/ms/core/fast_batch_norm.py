"""The batch norm of MindSpore's layers in training, for :mod:`boost_ext.ms.core.fast_functions`."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
from mindspore import Tensor, ops
from mindspore.nn.layer.normalization import _BatchNorm
from mindspore.ops import functional as F

from boost_ext.ms.core.substitutes import is_known, plain
from boost_ext.ms.native.batch_norm import BatchNorm
from boost_ext.ms.native.cell import float64

__all__ = ["CONSTRUCT", "batch_norm"]

CONSTRUCT = _BatchNorm.construct
"""Of BatchNorm1d and BatchNorm2d, one of which is in BatchNorm3d; and of SyncBatchNorm, which has another operator."""

_plain, _batch_norm = plain(CONSTRUCT), BatchNorm()


@ops.constexpr  # type: ignore[untyped-decorator]
def as_planes(shape: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Samples, channels and the elements of a plane; () for no element, or an error that MindSpore finds."""
    if len(shape) < 2 or shape[1] != channels or 0 in shape:
        return ()
    return shape[0], channels, math.prod(shape[2:])


def batch_norm(self: _BatchNorm, x: Tensor) -> Any:
    is_training = self.training if self.use_batch_statistics is None else self.use_batch_statistics
    if (
        is_training
        and self.format == "NCHW"
        and is_known(x)
        and self.gamma.dtype == ms.float32
        and self.moving_mean.dtype == ms.float32
    ):
        self._check_input_dim(F.shape(x), self.cls_name)
        planes = as_planes(F.shape(x), F.shape(self.gamma)[0])
        if planes:
            # By an index: the compiler warns of what is unpacked and not used.
            y = _batch_norm(
                ops.reshape(x, planes),
                self.gamma,
                self.beta,
                float64(self.eps),
                float64(1.0 - self.momentum),
                self.moving_mean,
                self.moving_variance,
            )[0]
            return ops.reshape(y, F.shape(x))
    return _plain(self, x)
