"""The documented methods of the training cells that run, or tell of, one algorithm."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops

from boost_ext.ms.step.pipeline import ApplyDimReduce

__all__ = ["AlgorithmMethods"]


class AlgorithmMethods:
    """For :class:`boost_ext.ms.step.cells.BoostTrainOneStepCell`, which has what they use."""

    choice: Any
    optimizer: Any
    accumulation: Any
    adasum_update: Any
    apply_slot: Any

    def gradient_freeze_process(self, *inputs: Tensor) -> Tensor:
        """Train one step of gradient freezing on the network's inputs; returns the loss."""
        return self.choice(self.optimizer.chosen(), *inputs)[0]

    def gradient_accumulation_process(
        self, loss: Tensor, grads: tuple[Tensor, ...], sens: Tensor, *inputs: Tensor
    ) -> Tensor:
        """Hold gradients, and update the weights when there are enough.

        Args:
            loss (Tensor): passed through.
            grads (tuple[Tensor]): of all parameters, with the scale that the optimizer expects.
            sens (Tensor): not used.
            inputs (tuple[Tensor]): the network's inputs; not used.

        Returns:
            Tensor, the loss.
        """
        return self.accumulation(loss, grads)

    def adasum_process(self, loss: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        """Step the optimizer, and add up what it did to the weights over the nodes, by AdaSum.

        Args:
            loss (Tensor): passed through.
            grads (tuple[Tensor]): of all parameters, the mean over the devices of this node.

        Returns:
            Tensor, the loss.
        """
        return ops.depend(loss, self.adasum_update(grads))

    def check_adasum_enable(self) -> bool:
        """Whether this cell trains with AdaSum.

        It does if AutoBoost switched it on, the parallel mode is data_parallel or hybrid_parallel, and there are
        several nodes of ``common.device_number`` ranks. :attr:`plan` says what is missing.
        """
        return self.adasum_update is not None

    def check_dim_reduce_enable(self) -> bool:
        """Whether this cell trains with dimension reduction."""
        return isinstance(self.apply_slot, ApplyDimReduce)
