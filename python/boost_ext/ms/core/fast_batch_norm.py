"""The batch norm of MindSpore's layers in training, for :mod:`boost_ext.ms.core.fast_functions`."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.nn.layer.normalization import _BatchNorm
from mindspore.ops import functional as F

from boost_ext.ms.core.substitutes import plain
from boost_ext.ms.native.batch_norm import BatchNorm

__all__ = ["CONSTRUCT", "batch_norm"]

CONSTRUCT = _BatchNorm.construct
"""Of BatchNorm1d and BatchNorm2d, one of which is in BatchNorm3d; and of SyncBatchNorm, which is left alone."""

_plain, _batch_norm = plain(CONSTRUCT), BatchNorm()


@ops.constexpr  # type: ignore[untyped-decorator]
def _float64(x: float) -> Tensor:
    return Tensor(np.array([x], np.float64))


@ops.constexpr  # type: ignore[untyped-decorator]
def as_planes(shape: tuple[int, ...], channels: int) -> tuple[int, ...]:
    """Samples, channels and the elements of a plane; () for no element, or an error that MindSpore finds."""
    if len(shape) < 2 or shape[1] != channels or 0 in shape:
        return ()
    return shape[0], channels, math.prod(shape[2:])


@ops.constexpr  # type: ignore[untyped-decorator]
def is_of_one_rank(norm: ops.Primitive) -> bool:
    """Whether it takes the statistics of its own batch, of channels that are the second axis."""
    return isinstance(norm, ops.BatchNorm) and norm.attrs["data_format"] == "NCHW"


def batch_norm(self: _BatchNorm, x: Tensor) -> Any:
    is_training = self.training if self.use_batch_statistics is None else self.use_batch_statistics
    if (
        is_training
        and is_of_one_rank(self.bn_train)
        and x.dtype == ms.float32
        and self.gamma.dtype == ms.float32
        and self.moving_mean.dtype == ms.float32
        and not F.is_sequence_value_unknown(F.shape(x))
    ):
        self._check_input_dim(F.shape(x), self.cls_name)
        planes = as_planes(F.shape(x), F.shape(self.gamma)[0])
        if planes:
            y, _, _ = _batch_norm(
                ops.reshape(x, planes),
                self.gamma,
                self.beta,
                _float64(self.eps),
                _float64(1.0 - self.momentum),
                self.moving_mean,
                self.moving_variance,
            )
            return ops.reshape(y, F.shape(x))
    return _plain(self, x)
