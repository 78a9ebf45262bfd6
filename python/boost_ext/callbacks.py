"""Callbacks for ``mindspore.Model`` and :class:`boost_ext.Model`."""

from boost_ext.ms.training.monitor import BoostMonitor
from boost_ext.ms.training.training_state import TrainingState

__all__ = ["BoostMonitor", "TrainingState"]
