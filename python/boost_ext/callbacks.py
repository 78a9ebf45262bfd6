"""Callbacks for ``mindspore.Model`` and :class:`boost_ext.Model`."""

from boost_ext.ms.monitor import BoostMonitor

__all__ = ["BoostMonitor"]
