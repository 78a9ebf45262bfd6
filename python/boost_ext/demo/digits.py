"""The data: 1797 handwritten digits of 8 × 8 pixels that scikit-learn ships (UCI, Alpaydin and Kaynak, 1998)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Digits", "batches", "load", "steps_per_epoch"]

SPLIT_SEED = 2021
"""The split never changes, so that accuracies of different runs are about the same images."""
TEST_SHARE = 0.2

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Digits:
    """Images (count, 1, 8, 8) float32, normalised with the training images' mean and deviation; labels int32."""

    train_images: Array
    train_labels: Array
    test_images: Array
    test_labels: Array


def load(split_seed: int = SPLIT_SEED) -> Digits:
    """The digits, split into 1438 training and 359 test images."""
    from sklearn.datasets import load_digits

    data = load_digits()
    order = np.random.default_rng(split_seed).permutation(len(data.target))
    images = data.images[order, None].astype(np.float32)
    labels = data.target[order].astype(np.int32)
    tests = int(TEST_SHARE * len(labels))
    train = images[tests:]
    images = (images - train.mean()) / train.std()
    return Digits(images[tests:], labels[tests:], images[:tests], labels[:tests])


def batches(digits: Digits, batch_size: int, epoch: int, seed: int) -> Iterator[tuple[Array, Array]]:
    """One epoch of full batches, in an order that depends on seed and epoch only; the rest is left out."""
    order = np.random.default_rng((seed, epoch)).permutation(len(digits.train_labels))
    for start in range(0, len(order) - batch_size + 1, batch_size):
        chosen = order[start : start + batch_size]
        yield digits.train_images[chosen], digits.train_labels[chosen]


def steps_per_epoch(digits: Digits, batch_size: int) -> int:
    """How many batches :func:`batches` yields."""
    return len(digits.train_labels) // batch_size
