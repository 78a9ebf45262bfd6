"""Networks, data and a callback for the tests of Model."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.train import callback as callbacks
from tests.ms.residual_networks import Basic, conv, fill


def manual(**switches: bool) -> dict[str, Any]:
    return {"boost": {"mode": "manual", **switches}}


FREEZE = manual(grad_freeze=True) | {"grad_freeze": {"param_groups": 2, "freeze_p": 0.5, "total_steps": 100}}
ACCUMULATE = manual(grad_accumulation=True) | {"grad_accumulation": {"grad_accumulation_step": 2}}
LESS_BN = manual(less_bn=True)


class Grouped(nn.Cell):
    """Two layers, each with a loss scale of its own."""

    def __init__(self, manager: nn.Cell) -> None:
        super().__init__()
        self.first, self.head, self.relu, self.manager = nn.Dense(6, 16), nn.Dense(16, 4), nn.ReLU(), manager

    def construct(self, x: Tensor) -> Tensor:
        x = self.relu(self.first(self.manager(x, 0, 1)))
        return self.manager(self.head(self.manager(x, 1, 2)), 2, 3)


def loss_fn() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def momentum(network: nn.Cell, **kwargs: Any) -> nn.Optimizer:
    return nn.Momentum(network.trainable_params(), 0.05, 0.9, **kwargs)


def images(batches: int = 4, seed: int = 0) -> ms.dataset.Dataset:
    """Eight classes, each a bright pixel of an 8x8 image."""
    rng = np.random.default_rng(seed)
    labels = np.arange(8 * batches, dtype=np.int32) % 8
    x = 0.1 * rng.standard_normal((len(labels), 1, 8, 8)).astype(np.float32)
    x[np.arange(len(labels)), 0, labels, labels] += 3
    return ms.dataset.NumpySlicesDataset({"x": x, "y": labels}, shuffle=False).batch(8)


def points(batches: int = 4) -> ms.dataset.Dataset:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8 * batches, 6)).astype(np.float32)
    y = np.argmax(x[:, :4], axis=1).astype(np.int32)
    return ms.dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(8)


class Residual(nn.Cell):
    """Two residual blocks on 8x8 images; the batch norms bn1 of the blocks are the inner ones."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.block1, self.block2 = conv(1, 4), Basic(4, 4), Basic(4, 4)
        self.flatten = nn.Flatten()
        self.fc = nn.Dense(256, 8)

    def construct(self, x: Tensor) -> Tensor:
        return self.fc(self.flatten(self.block2(self.block1(self.conv(x)))))


def resnet(seed: int = 0) -> nn.Cell:
    return fill(Residual(), seed)


def snapshot(network: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy().copy() for p in network.get_parameters()}


class Losses(callbacks.Callback):
    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_train_step_end(self, run_context: Any) -> None:
        loss, overflow, _ = run_context.original_args().net_outputs
        if not bool(overflow.asnumpy()):
            self.seen.append(float(loss.asnumpy()))
