"""Stands where ``mindspore.boost.group_loss_scale_manager`` stood."""

from boost_ext.ms.group_loss_scale import GroupLossScaleManager

__all__ = ["GroupLossScaleManager"]
