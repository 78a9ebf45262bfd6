"""Replaces ``mindspore.boost.base``."""

from boost_ext.ms.surgery.process import OptimizerProcess, ParameterProcess

__all__ = ["OptimizerProcess", "ParameterProcess"]
