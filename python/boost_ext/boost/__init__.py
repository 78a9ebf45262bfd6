"""``from boost_ext import boost`` where ``from mindspore import boost`` stood.

The modules in here are the paths that ``mindspore.boost`` has; the code is in :mod:`boost_ext.ms`.
"""

from boost_ext.ms.core.adaptive_clip import AdaptiveClip
from boost_ext.ms.freeze.freeze_optimizer import FreezeOpt
from boost_ext.ms.freeze.grad_freeze import GradientFreeze, freeze_cell
from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.step.adasum import AdaSum
from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.step.grad_accumulation import GradientAccumulation
from boost_ext.ms.subspace.dim_reduce import DimReduce
from boost_ext.ms.subspace.moving_average import ExponentialMovingAverage
from boost_ext.ms.subspace.weight_averaging import TrainableWeightAveraging
from boost_ext.ms.surgery.batch_norm_statistics import update_batch_norm
from boost_ext.ms.surgery.dropout import Dropout, replace_dropout
from boost_ext.ms.surgery.less_bn import LessBN
from boost_ext.ms.surgery.process import OptimizerProcess, ParameterProcess
from boost_ext.ms.training.auto import AutoBoost

__all__ = [
    "AdaSum",
    "AdaptiveClip",
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
