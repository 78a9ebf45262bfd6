"""A script for the tests of boost-ext doctor, and the network in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from typer.testing import CliRunner, Result

from boost_ext.cli.commands import app

NETWORK = """
import sys
import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)
        self.conv2, self.bn2 = nn.Conv2d(1, 1, 3), nn.BatchNorm2d(1)
        self.flatten, self.fc = nn.Flatten(), nn.Dense(16, 3)

    def construct(self, x):
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        return self.fc(self.flatten(ops.relu(y + x)))

net = Net()
loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
x, y = Tensor(np.ones((2, 1, 4, 4), np.float32)), Tensor([0, 1], ms.int32)
data = ms.dataset.NumpySlicesDataset({"x": x.asnumpy(), "y": y.asnumpy()}).batch(2)
"""


@pytest.fixture
def run() -> Callable[..., Result]:
    runner = CliRunner()
    return lambda *arguments: runner.invoke(app, ["doctor", *map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "train_it.py"
        path.write_text(NETWORK + dedent(text) + "\nopen('after.txt', 'w')\n")
        return path

    return write
