"""Replaces ``mindspore.boost.base``."""

from boost_ext.ms.process import OptimizerProcess, ParameterProcess

__all__ = ["OptimizerProcess", "ParameterProcess"]
