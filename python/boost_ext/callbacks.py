"""Callbacks for ``mindspore.Model`` and :class:`boost_ext.Model`."""

from boost_ext.ms.monitor import BoostMonitor
from boost_ext.ms.training_state import TrainingState

__all__ = ["BoostMonitor", "TrainingState"]
