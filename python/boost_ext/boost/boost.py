"""Replaces ``mindspore.boost.boost``."""

from boost_ext.ms.auto import AutoBoost

__all__ = ["AutoBoost"]
