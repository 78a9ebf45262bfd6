"""Replaces ``mindspore.boost.less_batch_normalization``."""

from boost_ext.ms.common_head import CommonHeadLastFN
from boost_ext.ms.less_bn import LessBN

__all__ = ["CommonHeadLastFN", "LessBN"]
