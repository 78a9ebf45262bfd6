"""The training cells of ``mindspore.nn``, arguments and outputs as there, on the steps of this package."""

from boost_ext.ms.training.training_cells import TrainOneStepCell, TrainOneStepWithLossScaleCell

__all__ = ["TrainOneStepCell", "TrainOneStepWithLossScaleCell"]
