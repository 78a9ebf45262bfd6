"""Replaces ``mindspore.boost.grad_freeze``."""

from boost_ext.ms.freeze_optimizer import FreezeOpt
from boost_ext.ms.grad_freeze import GradientFreeze, freeze_cell

__all__ = ["FreezeOpt", "GradientFreeze", "freeze_cell"]
