"""Replaces ``mindspore.boost.less_batch_normalization``."""

from boost_ext.ms.core.common_head import CommonHeadLastFN
from boost_ext.ms.surgery.less_bn import LessBN

__all__ = ["CommonHeadLastFN", "LessBN"]
