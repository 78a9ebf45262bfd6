"""The network: three convolutions with batch norm, one dense layer; 4258 weights."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn

from boost_ext import optim
from boost_ext.demo.digits import Digits
from boost_ext.demo.settings import Settings

__all__ = ["DigitsNet", "accuracy", "loss_function", "momentum", "new_network"]

CLASSES = 10


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Cell]:
    return [nn.Conv2d(inputs, outputs, 3, stride=stride), nn.BatchNorm2d(outputs), nn.ReLU()]


class DigitsNet(nn.Cell):
    """(batch, 1, 8, 8) → (batch, 10) logits."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        wide = 2 * channels
        self.layers = nn.SequentialCell(
            *_convolution(1, channels, 1),
            *_convolution(channels, wide, 2),
            *_convolution(wide, wide, 2),
            nn.Flatten(),
            nn.Dense(4 * wide, CLASSES),
        )

    def construct(self, images: Tensor) -> Tensor:
        return self.layers(images)


def new_network(seed: int) -> DigitsNet:
    """A network in training mode whose initial weights depend on the seed only."""
    ms.set_seed(seed)
    network = DigitsNet()
    network.set_train()
    return network


def loss_function() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


def momentum(network: nn.Cell, settings: Settings) -> nn.Cell:
    """MindSpore's, for as long as it has one: it is going to remove it."""
    cls = getattr(nn, "Momentum", optim.Momentum)
    return cls(network.trainable_params(), settings.learning_rate, settings.momentum)


def accuracy(network: nn.Cell, digits: Digits) -> float:
    """Share of the test images that the network names right; it is in training mode again afterwards."""
    network.set_train(False)
    logits = network(Tensor(digits.test_images)).asnumpy()
    network.set_train()
    return float((logits.argmax(axis=1) == digits.test_labels).mean())
