"""``from boost_ext import boost`` where ``from mindspore import boost`` stood."""

from boost_ext.ms.dim_reduce import DimReduce
from boost_ext.ms.step import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell

__all__ = ["BoostTrainOneStepCell", "BoostTrainOneStepWithLossScaleCell", "DimReduce"]
