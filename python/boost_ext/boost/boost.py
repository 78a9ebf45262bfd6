"""Stands where ``mindspore.boost.boost`` stood."""

from boost_ext.ms.auto import AutoBoost

__all__ = ["AutoBoost"]
