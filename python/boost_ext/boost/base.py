"""Stands where ``mindspore.boost.base`` stood."""

from boost_ext.ms.process import OptimizerProcess, ParameterProcess

__all__ = ["OptimizerProcess", "ParameterProcess"]
