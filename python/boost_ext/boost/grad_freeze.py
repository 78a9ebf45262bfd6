"""Replaces ``mindspore.boost.grad_freeze``."""

from boost_ext.ms.freeze.freeze_optimizer import FreezeOpt
from boost_ext.ms.freeze.grad_freeze import GradientFreeze, freeze_cell

__all__ = ["FreezeOpt", "GradientFreeze", "freeze_cell"]
