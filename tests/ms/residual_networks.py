"""Residual networks in the forms that people write them in."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


def conv(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride)


class Basic(nn.Cell):
    """The basic block of ResNet; ``inner``: with its first batch norm."""

    expansion = 1

    def __init__(self, inputs: int, channels: int, stride: int = 1, inner: bool = True) -> None:
        super().__init__()
        self.conv1 = conv(inputs, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels) if inner else nn.Identity()
        self.conv2 = conv(channels, channels)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.down_sample_layer = None
        if stride != 1 or inputs != channels:
            self.down_sample_layer = nn.SequentialCell([conv(inputs, channels, 1, stride), nn.BatchNorm2d(channels)])

    def construct(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.bn2(self.conv2(out))
        if self.down_sample_layer is not None:
            identity = self.down_sample_layer(identity)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Cell):
    expansion = 4

    def __init__(self, inputs: int, channels: int, stride: int = 1, inner: bool = True) -> None:
        super().__init__()
        norm = nn.BatchNorm2d if inner else lambda _: nn.Identity()
        self.conv1, self.bn1 = conv(inputs, channels, 1), norm(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3, stride), norm(channels)
        self.conv3, self.bn3 = conv(channels, 4 * channels, 1), nn.BatchNorm2d(4 * channels)
        self.relu, self.add = nn.ReLU(), ops.Add()
        self.down_sample = stride != 1 or inputs != 4 * channels
        if self.down_sample:
            self.shortcut = nn.SequentialCell(conv(inputs, 4 * channels, 1, stride), nn.BatchNorm2d(4 * channels))

    def construct(self, x: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(self.add(out, self.shortcut(x) if self.down_sample else x))


class ResNet(nn.Cell):
    def __init__(self, block: type[nn.Cell], inner: bool = True, width: int = 4) -> None:
        super().__init__()
        self.conv1, self.bn1, self.relu = conv(1, width), nn.BatchNorm2d(width), nn.ReLU()
        wide = width * block.expansion
        self.layer1 = nn.SequentialCell([block(width, width, 1, inner), block(wide, width, 1, inner)])
        self.layer2 = nn.CellList([block(wide, 2 * width, 2, inner), block(2 * wide, 2 * width, 1, inner)])
        self.mean = ops.ReduceMean()
        self.fc = nn.Dense(2 * wide, 10)

    def construct(self, x: Tensor) -> Tensor:
        x = self.layer1(self.relu(self.bn1(self.conv1(x))))
        for block in self.layer2:
            x = block(x)
        return self.fc(self.mean(x, (2, 3)))


INNER = {
    Basic: ["layer1.0.bn1", "layer1.1.bn1", "layer2.0.bn1", "layer2.1.bn1"],
    Bottleneck: [f"layer{i}.{j}.bn{k}" for i in (1, 2) for j in (0, 1) for k in (1, 2)],
}


def fill(network: nn.Cell, seed: int = 0) -> nn.Cell:
    """The same numbers for the same parameter name, whatever else is in the network."""
    for p in network.get_parameters():
        rng = np.random.default_rng([seed, *p.name.encode()])
        if p.name.rpartition(".")[2] in ("gamma", "moving_variance"):
            value = 1 + 0.1 * rng.random(p.shape)
        else:
            value = rng.standard_normal(p.shape) / np.sqrt(max(1, np.prod(p.shape[1:])))
        p.set_data(Tensor(value.astype(np.float32)))
    return network


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(3)
    return Tensor(rng.standard_normal((size, 1, 8, 8)).astype(np.float32)), Tensor(np.arange(size) % 10, ms.int32)


def with_loss(network: nn.Cell) -> nn.Cell:
    return nn.WithLossCell(network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
