"""``from boost_ext import amp`` where ``from mindspore import amp`` stood."""

import boost_ext.ms  # noqa: F401, I001  (first, since it says what to install where MindSpore is missing)
from mindspore.amp import (
    LossScaler,
    auto_mixed_precision,
    custom_mixed_precision,
    get_black_list,
    get_white_list,
)

from boost_ext.ms.training.amp import build_train_network
from boost_ext.ms.loss_scale.managers import (
    DynamicLossScaleManager,
    FixedLossScaleManager,
    LossScaleManager,
)
from boost_ext.ms.loss_scale.loss_scaler import DynamicLossScaler, StaticLossScaler, all_finite

__all__ = [
    "DynamicLossScaleManager",
    "DynamicLossScaler",
    "FixedLossScaleManager",
    "LossScaleManager",
    "LossScaler",
    "StaticLossScaler",
    "all_finite",
    "auto_mixed_precision",
    "build_train_network",
    "custom_mixed_precision",
    "get_black_list",
    "get_white_list",
]
