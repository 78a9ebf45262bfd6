"""Replaces ``mindspore.boost.group_loss_scale_manager``."""

from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager

__all__ = ["GroupLossScaleManager"]
