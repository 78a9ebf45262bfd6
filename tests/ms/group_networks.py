"""Networks in groups of layers, each with a loss scale of its own."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager


class Net(nn.Cell):
    """The network of the documented example."""

    def __init__(self, enhanced_amp, num_class=10, num_channel=1):
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.fc2 = nn.Dense(120, 84)
        self.fc3 = nn.Dense(84, num_class)
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()
        self.enhanced_amp = enhanced_amp

    def construct(self, x):
        x = self.enhanced_amp(x, 0, 1)
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.enhanced_amp(x, 1, 2)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        x = self.fc3(x)
        return self.enhanced_amp(x, 2, 3)


def example(scale: float = 4096, seed: int = 0) -> tuple[GroupLossScaleManager, nn.Cell]:
    """The documented example, to the word; then the same weights every time."""
    loss_scale_manager = GroupLossScaleManager(scale, [])
    net = Net(loss_scale_manager)
    param_group1 = []
    param_group2 = []
    for param in net.trainable_params():
        if "conv" in param.name:
            param_group1.append(param)
        else:
            param_group2.append(param)
    loss_scale_manager.loss_scale_groups = [param_group1, param_group2]
    rng = np.random.default_rng(seed)
    for p in net.trainable_params():
        p.set_data(Tensor(0.1 * rng.standard_normal(p.shape).astype(np.float32)))
    return loss_scale_manager, net


def batch(seed: int = 1, size: int = 8) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((size, 1, 32, 32)).astype(np.float32)
    return Tensor(images), Tensor(np.eye(10, dtype=np.float32)[rng.integers(0, 10, size)])


def with_loss(net: nn.Cell) -> nn.Cell:
    return nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(reduction="mean"))


def scales_of(manager: GroupLossScaleManager) -> list[float]:
    return [float(s.asnumpy()) for s in manager.loss_scales]


class Half(nn.Cell):
    """Two groups whose gradients differ by 2**30, more than float16 spans around one scale."""

    def __init__(self, manager: GroupLossScaleManager) -> None:
        super().__init__()
        self.first = nn.Dense(4, 4, Tensor(np.full((4, 4), 2.0**-4, np.float32)), has_bias=False)
        self.second = nn.Dense(4, 4, Tensor(np.full((4, 4), 2.0**-17, np.float32)), has_bias=False)
        self.manager = manager

    def construct(self, x):
        x = self.manager(x, 0, 1)
        x = self.first(x)
        x = self.manager(x, 1, 2)
        x = self.second(x)
        return self.manager(x, 2, 3)


class HalfLoss(nn.Cell):
    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        return ops.cast(self.network(x), ms.float32).sum() * 2.0**-12
