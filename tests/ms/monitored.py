"""Cells, data and logs for the tests of BoostMonitor. Each test has a directory of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, dataset, nn
from tests.ms.networks import Mlp, Weight, mlp_batch

from boost_ext import boost
from boost_ext.callbacks import BoostMonitor
from boost_ext.model import Model
from boost_ext.report.log import Step, iterate

LOG = Path("run.jsonl")  # each test has a directory of its own


class Fake(nn.Cell):
    """Tells what it was told to tell."""

    def __init__(self, **seen: Any) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.zeros((2, 3), np.float32)), name="weight")
        self.plan = None
        self.instrumented: list[bool] = []
        self.seen = {
            "step": 40,
            "loss_scale": 8.0,
            "overflow": False,
            "overflowed": [],
            "largest_gradient": 2.5,
            "frozen_share": 0.25,
            "freeze_index": 2,
            "micro_batch": 3,
            "line_search": {"accepted": True, "rho": 0.55},
            "seconds": {"source": 0.5, "apply": 0.25},
        } | seen

    def observe(self) -> dict[str, Any]:
        return dict(self.seen)

    def instrument(self, on: bool = True) -> None:
        self.instrumented.append(on)


def cell_of(net: nn.Cell | None = None, **kwargs: Any) -> nn.Cell:
    net = net or Weight()
    optimizer = nn.SGD(net.trainable_params(), 0.01)
    return boost.BoostTrainOneStepWithLossScaleCell(net, optimizer, Tensor(4.0), **kwargs)


def records(path: Path = LOG) -> list[Any]:
    return list(iterate(path))


def steps(path: Path = LOG) -> list[Step]:
    return [record for record in records(path) if isinstance(record, Step)]


def batches(count: int, bad: tuple[int, ...] = ()) -> Any:
    """Batches for an Mlp; those whose number, from 0, is in ``bad`` hold inf."""
    pairs = [[t.asnumpy() for t in mlp_batch(i, 4)] for i in range(count)]
    for i in bad:
        pairs[i][0][0, 0] = np.inf
    return dataset.GeneratorDataset(pairs, ["x", "y"], shuffle=False)


def model_of(cls: type = Model, **kwargs: Any) -> Any:
    net = Mlp()
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return cls(net, loss, nn.Momentum(net.trainable_params(), 0.01, 0.9), metrics={"accuracy"}, **kwargs)


def quiet(path: Path = LOG, **kwargs: Any) -> BoostMonitor:
    return BoostMonitor(path, per_print_steps=0, **kwargs)
