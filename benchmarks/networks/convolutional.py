"""Image classifiers, written from their papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, nn, ops


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(
        inputs,
        outputs,
        size,
        stride,
        pad_mode="pad",
        padding=size // 2,
        group=groups,
        weight_init="HeNormal",
    )


class Normalized(nn.SequentialCell):  # type: ignore[misc]
    """Convolution, batch norm, and an activation if there is one."""

    def __init__(
        self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, activation: Any = nn.ReLU
    ) -> None:
        cells = [_convolution(inputs, outputs, size, stride, groups), nn.BatchNorm2d(outputs)]
        super().__init__(cells if activation is None else [*cells, activation()])


class Basic(nn.Cell):  # type: ignore[misc]
    """He et al. 2016, figure 5 left."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Normalized(inputs, width, 3, stride)
        self.conv2 = Normalized(width, width, 3, activation=None)
        self.down_sample = _shortcut(inputs, width, stride)

    def construct(self, x: Tensor) -> Tensor:
        identity = x if self.down_sample is None else self.down_sample(x)
        return ops.relu(self.conv2(self.conv1(x)) + identity)


class Bottleneck(nn.Cell):  # type: ignore[misc]
    """He et al. 2016, figure 5 right; the stride in the 3 x 3 convolution, as public recipes have it."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Normalized(inputs, width, 1)
        self.conv2 = Normalized(width, width, 3, stride)
        self.conv3 = Normalized(width, 4 * width, 1, activation=None)
        self.down_sample = _shortcut(inputs, 4 * width, stride)

    def construct(self, x: Tensor) -> Tensor:
        identity = x if self.down_sample is None else self.down_sample(x)
        return ops.relu(self.conv3(self.conv2(self.conv1(x))) + identity)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Cell | None:
    if stride == 1 and inputs == outputs:
        return None
    return Normalized(inputs, outputs, 1, stride, activation=None)


class ResNet(nn.Cell):  # type: ignore[misc]
    """He et al. 2016, table 1. Images of 64 pixels and less keep the resolution of the first convolution."""

    def __init__(self, block: Any, depths: Sequence[int], pixels: int, classes: int = 10) -> None:
        super().__init__()
        small = pixels <= 64
        self.conv1 = Normalized(3, 64, 3 if small else 7, 1 if small else 2)
        self.pool = None if small else nn.MaxPool2d(3, 2, "same")
        layers, inputs = [], 64
        for stage, depth in enumerate(depths):
            width = 64 << stage
            for i in range(depth):
                layers.append(block(inputs, width, 2 if stage and i == 0 else 1))
                inputs = width * block.expansion
        self.layers = nn.SequentialCell(layers)
        self.end = nn.Dense(inputs, classes)

    def construct(self, x: Tensor) -> Tensor:
        x = self.conv1(x)
        if self.pool is not None:
            x = self.pool(x)
        return self.end(self.layers(x).mean((2, 3)))


def resnet18(pixels: int) -> ResNet:
    return ResNet(Basic, (2, 2, 2, 2), pixels)


def resnet50(pixels: int) -> ResNet:
    return ResNet(Bottleneck, (3, 4, 6, 3), pixels)


class Inverted(nn.Cell):  # type: ignore[misc]
    """Sandler et al. 2018, figure 3d: expand, depthwise, project."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        cells = [Normalized(inputs, width, 1, activation=nn.ReLU6)] if expansion > 1 else []
        cells.append(Normalized(width, width, 3, stride, groups=width, activation=nn.ReLU6))
        cells.append(Normalized(width, outputs, 1, activation=None))
        self.branch = nn.SequentialCell(cells)
        self.residual = stride == 1 and inputs == outputs

    def construct(self, x: Tensor) -> Tensor:
        y = self.branch(x)
        return x + y if self.residual else y


class MobileNetV2(nn.Cell):  # type: ignore[misc]
    """Sandler et al. 2018, table 2; for images of 32 pixels three of the strides are 1."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        cells, inputs = [Normalized(3, 32, 3, activation=nn.ReLU6)], 32
        for expansion, outputs, depth, stride in (
            (1, 16, 1, 1),
            (6, 24, 2, 1),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ):
            for i in range(depth):
                cells.append(Inverted(inputs, outputs, stride if i == 0 else 1, expansion))
                inputs = outputs
        cells.append(Normalized(inputs, 1280, 1, activation=nn.ReLU6))
        self.features = nn.SequentialCell(cells)
        self.end = nn.Dense(1280, classes)

    def construct(self, x: Tensor) -> Tensor:
        return self.end(self.features(x).mean((2, 3)))


class LeNet5(nn.Cell):  # type: ignore[misc]
    """LeCun et al. 1998, section II.B, with ReLU and max pooling, as public recipes have it."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="valid")
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.pool, self.flatten = nn.MaxPool2d(2, 2), nn.Flatten()
        self.fc1, self.fc2, self.fc3 = nn.Dense(400, 120), nn.Dense(120, 84), nn.Dense(84, classes)

    def construct(self, x: Tensor) -> Tensor:
        x = self.pool(ops.relu(self.conv1(x)))
        x = self.flatten(self.pool(ops.relu(self.conv2(x))))
        return self.fc3(ops.relu(self.fc2(ops.relu(self.fc1(x)))))
