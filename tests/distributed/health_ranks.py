"""Two ranks, of which one overflows: both say which one, and which gradient. Each prints whether it is right."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import get_rank
from tests.ms.test_health_of_cells import Parts

from boost_ext import boost, run_log
from boost_ext.callbacks import BoostMonitor
from boost_ext.health import HealthMonitor

FAULT = "step 3, rank 1: the gradient of second.b holds 2 inf, 0 nan, first at 1"


def train(path: Path, rank: int) -> HealthMonitor:
    net = Parts()
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, nn.SGD(net.trainable_params(), 0.01), Tensor(2.0**120))
    health = HealthMonitor(every=2)
    with BoostMonitor(path, health=health, per_print_steps=0) as monitor:
        for step in range(1, 5):
            inputs = np.full((2, 6), 1 + rank, np.float32)
            if step == 3 and rank == 1:
                inputs[1, 1:3] = 2.0**10  # 2^130 with the loss scale
            monitor.record(cell, cell(*map(Tensor, inputs)))
            if step == 3:
                assert str(health.last.fault) == FAULT, health.last.fault
                assert all(t.finite for t in health.last.tensors if t.of == "gradient") is (rank == 0)
            elif step in (2, 4):
                gradients = [t for t in health.last.tensors if t.of == "gradient"]  # of this rank, without the scale
                assert [t.largest for t in gradients] == [1 + rank] * 2, gradients
                assert health.last.fault is None
    return health


def main(arguments: list[str]) -> None:
    rank = get_rank()
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=mode)
        path = Path(arguments[0]) / f"health-{mode}-{{rank}}.jsonl"
        train(path, rank)
        looks = [r for r in run_log.iterate(str(path).format(rank=rank)) if isinstance(r, run_log.Health)]
        assert [r.step for r in looks] == [2, 3, 4]
        assert [r.rank for r in looks[1].elsewhere] == ([1] if rank == 0 else [])
    print(f"health: rank {rank} is right", flush=True)
