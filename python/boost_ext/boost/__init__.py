"""``from boost_ext import boost`` where ``from mindspore import boost`` stood.

The modules in here are the paths that ``mindspore.boost`` has; the code is in :mod:`boost_ext.ms`.
"""

from boost_ext.ms.adasum import AdaSum
from boost_ext.ms.auto import AutoBoost
from boost_ext.ms.batch_norm_statistics import update_batch_norm
from boost_ext.ms.dim_reduce import DimReduce
from boost_ext.ms.dropout import Dropout, replace_dropout
from boost_ext.ms.freeze_optimizer import FreezeOpt
from boost_ext.ms.grad_accumulation import GradientAccumulation
from boost_ext.ms.grad_freeze import GradientFreeze, freeze_cell
from boost_ext.ms.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.less_bn import LessBN
from boost_ext.ms.moving_average import ExponentialMovingAverage
from boost_ext.ms.process import OptimizerProcess, ParameterProcess
from boost_ext.ms.step import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.weight_averaging import TrainableWeightAveraging

__all__ = [
    "AdaSum",
    "AutoBoost",
    "BoostTrainOneStepCell",
    "BoostTrainOneStepWithLossScaleCell",
    "DimReduce",
    "Dropout",
    "ExponentialMovingAverage",
    "FreezeOpt",
    "GradientAccumulation",
    "GradientFreeze",
    "GroupLossScaleManager",
    "LessBN",
    "OptimizerProcess",
    "ParameterProcess",
    "TrainableWeightAveraging",
    "freeze_cell",
    "replace_dropout",
    "update_batch_norm",
]
