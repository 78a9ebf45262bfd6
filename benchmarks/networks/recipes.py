"""How each network is trained: batch, loss, groups of parameters, schedule and loss scale of public recipes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from boost_ext import environment

from . import data
from .data import Array

_SEQUENCE = 64
_LOSS_SCALE = 1024.0


@dataclass(frozen=True)
class Recipe:
    """A network and its training."""

    name: str
    network: Callable[[], Any]
    samples: Callable[[], tuple[tuple[Array, ...], tuple[Array, ...]]]
    """To train on, and to test on."""
    batch: int
    steps: int
    optimizer: Callable[[Any, Any, int], Any]
    """Of a package (``mindspore.nn`` or ``boost_ext.optim``), a network and a number of steps."""
    classifies: bool = True
    """Whether a cross entropy follows the network; otherwise its output is the loss."""
    loss_scale: float | None = None
    convolves: bool = True
    """Whether it has convolutions larger than 1 x 1."""


def make_fast(recipe: Recipe) -> None:
    """Set what MindSpore needs here, for all variants alike: beside slow convolutions nothing else would show. Without
    convolutions oneDNN keeps AVX-512. Call it before MindSpore's first operation."""
    environment.make_fast(*(() if recipe.convolves else (environment.DISPATCH,)))


def _images(pictures: Callable[[], tuple[Array, Array]], pixels: int, channels: int) -> Any:
    def samples() -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        images, labels = pictures()
        return data.split(data.resized(images, pixels, channels), labels)

    return samples


def _cosine(steps: int, peak: float, warm_up: int) -> list[float]:
    """Goyal et al. 2017, section 2.2, then Loshchilov and Hutter 2017, equation 5."""
    rising = [peak * (i + 1) / warm_up for i in range(warm_up)]
    left = steps - warm_up
    return rising + [peak * (1 + math.cos(math.pi * i / left)) / 2 for i in range(left)]


def _linear(steps: int, peak: float, warm_up: int) -> list[float]:
    """Devlin et al. 2019, appendix A.2."""
    return [peak * min((i + 1) / warm_up, (steps - i) / (steps - warm_up)) for i in range(steps)]


def _one_dimensional(network: Any, decay: float) -> list[dict[str, Any]]:
    """No weight decay for what has one axis: normalizations and biases."""
    weights = network.trainable_params()
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.0},
        {"order_params": weights},
    ]


def _momentum(peak: float, decay: float, loss_scale: float = 1.0) -> Any:
    def optimizer(package: Any, network: Any, steps: int) -> Any:
        rates = _cosine(steps, peak, max(1, steps // 20))
        return package.Momentum(_one_dimensional(network, decay), rates, 0.9, loss_scale=loss_scale)

    return optimizer


def _plain_momentum(package: Any, network: Any, steps: int) -> Any:
    return package.Momentum(network.trainable_params(), 0.01, 0.9)


def _adam(schedule: Callable[[int, float, int], list[float]], peak: float, decay: float, beta2: float) -> Any:
    def optimizer(package: Any, network: Any, steps: int) -> Any:
        rates = schedule(steps, peak, max(1, steps // 10))
        return package.AdamWeightDecay(_one_dimensional(network, decay), rates, 0.9, beta2, 1e-6)

    return optimizer


def recipes() -> dict[str, Recipe]:
    """By name. Imports MindSpore."""
    from . import convolutional, transformers

    # MindSpore's model zoo: momentum 0.9, weight decay 1e-4 but for batch norms and biases, warm-up and cosine, a fixed
    # loss scale of 1024.
    scaled = {"optimizer": _momentum(0.05, 1e-4, _LOSS_SCALE), "loss_scale": _LOSS_SCALE}
    small = {"optimizer": _momentum(0.02, 1e-4, _LOSS_SCALE), "loss_scale": _LOSS_SCALE}
    words, gpt_words = 30522, 8192
    listed = (
        Recipe("lenet5", convolutional.LeNet5, _images(data.mnist, 32, 1), 64, 500, _plain_momentum),
        Recipe("resnet18-32", lambda: convolutional.resnet18(32), _images(data.digits, 32, 3), 16, 500, **scaled),
        Recipe("resnet18-112", lambda: convolutional.resnet18(112), _images(data.mnist, 112, 3), 4, 500, **small),
        Recipe("resnet50-64", lambda: convolutional.resnet50(64), _images(data.mnist, 64, 3), 4, 200, **small),
        # Sandler et al., section 6.1: weight decay 4e-5.
        Recipe(
            "mobilenetv2-32",
            convolutional.MobileNetV2,
            _images(data.digits, 32, 3),
            16,
            500,
            _momentum(0.05, 4e-5, _LOSS_SCALE),
            loss_scale=_LOSS_SCALE,
        ),
        Recipe(
            "bert",
            lambda: transformers.Bert(words, _SEQUENCE),
            lambda: data.split(*data.masked_words(words, _SEQUENCE)),
            8,
            500,
            _adam(_linear, 1e-4, 0.01, 0.999),
            classifies=False,
            convolves=False,
        ),
        # Brown et al. 2020, appendix B: beta2 0.95, weight decay 0.1, warm-up and cosine.
        Recipe(
            "gpt",
            lambda: transformers.Gpt(gpt_words, _SEQUENCE),
            lambda: data.split(*data.next_words(gpt_words, _SEQUENCE)),
            4,
            500,
            _adam(_cosine, 3e-4, 0.1, 0.95),
            classifies=False,
            convolves=False,
        ),
    )
    return {recipe.name: recipe for recipe in listed}


@dataclass(frozen=True)
class Variant:
    """Who trains: ``level`` None is ``mindspore.Model``; ``ours``: an optimizer of ``boost_ext.optim``."""

    level: str | None
    ours: bool

    @property
    def name(self) -> str:
        return f"{self.level or 'mindspore.Model'}, {'optim' if self.ours else 'nn'}"


VARIANTS = tuple(Variant(level, ours) for ours in (False, True) for level in (None, "O0", "O1", "O2"))


def model(recipe: Recipe, variant: Variant, steps: int) -> Any:
    """A Model that trains, ready for ``train``; its ``train_network`` makes a step."""
    import mindspore as ms
    from mindspore import nn

    import boost_ext
    from boost_ext import optim

    ms.set_seed(0)
    network = recipe.network()
    optimizer = recipe.optimizer(optim if variant.ours else nn, network, steps)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean") if recipe.classifies else None
    options: dict[str, Any] = {}
    if recipe.loss_scale is not None:
        options["loss_scale_manager"] = ms.FixedLossScaleManager(recipe.loss_scale, drop_overflow_update=False)
    metrics = {"accuracy"} if recipe.classifies else None
    if variant.level is None:
        return ms.Model(network, loss, optimizer, metrics, **options)
    config = {"grad_freeze": {"total_steps": steps}} if variant.level != "O0" else ""
    return boost_ext.Model(
        network, loss, optimizer, metrics, boost_level=variant.level, boost_config_dict=config, **options
    )


def batches(samples: tuple[Array, ...], size: int) -> Any:
    """A dataset in the order of the arrays."""
    from mindspore import dataset

    names = [f"column{i}" for i in range(len(samples))]
    made = dataset.NumpySlicesDataset(tuple(samples), names, shuffle=False)
    return made.batch(size, drop_remainder=True)


def shuffled(samples: tuple[Array, ...], size: int, steps: int) -> tuple[Array, ...]:
    """As many samples as `steps` batches take, in an order that is the same in every run."""
    rng = np.random.default_rng(2)
    count, rounds = len(samples[0]), -(-steps * size // len(samples[0]))
    order = np.concatenate([rng.permutation(count) for _ in range(rounds)])[: steps * size]
    return tuple(array[order] for array in samples)
