"""Replaces ``mindspore.boost.boost``."""

from boost_ext.ms.training.auto import AutoBoost

__all__ = ["AutoBoost"]
