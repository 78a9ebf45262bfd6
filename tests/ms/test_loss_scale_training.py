"""The managers inside training cells: ours, and MindSpore's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.networks import Weight
from tests.ms.tiers import in_graph_mode

from boost_ext.ms.loss_scale.managers import DynamicLossScaleManager, LossScaleManager
from boost_ext.ms.step.cells import BoostTrainOneStepWithLossScaleCell


class MindSporeCell(nn.TrainOneStepWithLossScaleCell):  # type: ignore[misc]
    """MindSpore's, with a check for overflow that runs on the CPU."""

    def get_overflow_status(self, status: Tensor, compute_output: Any) -> Tensor:
        finite = Tensor(True)
        for grad in compute_output:
            finite = ops.logical_and(finite, ops.isfinite(grad).all())
        return ops.logical_not(finite)


def training_cell(kind: type[nn.Cell], manager: LossScaleManager) -> nn.Cell:
    net = Weight()
    return kind(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), manager.get_update_cell()).set_train()


GOOD, BAD = Tensor([1.0, 1.0], ms.float32), Tensor([np.inf, 1.0], ms.float32)


@pytest.mark.parametrize("kind", [BoostTrainOneStepWithLossScaleCell, MindSporeCell])
class TestTraining:
    def test_h19_the_cell_moves_the_state_on_the_cpu(self, mode: int, kind: type[nn.Cell]) -> None:
        manager = DynamicLossScaleManager(1024, 2, 2)
        cell = training_cell(kind, manager)
        overflows = [False, True, False, False, True, True]
        scales = [1024, 512, 512, 1024, 512, 256]
        for overflow, scale in zip(overflows, scales, strict=True):
            before = cell.network.w.asnumpy().copy()
            _, flag, _ = cell(BAD if overflow else GOOD)
            assert bool(flag.asnumpy()) is overflow
            assert (cell.network.w.asnumpy() == before).all() == overflow
            assert manager.get_loss_scale() == cell.scale_sense.asnumpy() == scale

    def test_the_manager_reaches_a_cell_that_runs_already(self, mode: int, kind: type[nn.Cell]) -> None:
        manager = DynamicLossScaleManager(1024, 2, 100)
        cell = training_cell(kind, manager)
        cell(GOOD)
        state = manager.state_dict() | {"loss_scale": 64.0, "reported": 2}
        manager.load_state_dict(state)
        manager.update_loss_scale(True)
        assert manager.get_loss_scale() == 32
        cell(BAD)
        assert manager.get_loss_scale() == cell.scale_sense.asnumpy() == 16
        assert manager.state_dict()["iteration"] == 4

    @in_graph_mode
    def test_checkpoint(self, mode: int, kind: type[nn.Cell], tmp_path: Path) -> None:
        inputs = [GOOD, BAD, GOOD, BAD, GOOD, GOOD, GOOD]
        straight = DynamicLossScaleManager(1024, 2, 3)
        cell = training_cell(kind, straight)
        for x in inputs:
            cell(x)

        first, second = DynamicLossScaleManager(1024, 2, 3), DynamicLossScaleManager(1024, 2, 3)
        cell = training_cell(kind, first)
        for x in inputs[:4]:
            cell(x)
        ms.save_checkpoint(cell, str(tmp_path / "step4.ckpt"))
        resumed = training_cell(kind, second)
        resumed(BAD)  # compiled, and with another state, before it is loaded
        missing, _ = ms.load_param_into_net(resumed, ms.load_checkpoint(str(tmp_path / "step4.ckpt")), strict_load=True)
        assert missing == []
        assert second.state_dict() == first.state_dict()
        for x in inputs[4:]:
            resumed(x)
        assert second.state_dict() == straight.state_dict()
