"""A small network with every layer that thor treats, and its training in float64 NumPy, with the matrices by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from tests import kfac

Weights = dict[str, np.ndarray]
ROWS, WIDTH, CLASSES = 6, 4, 5
BLOCK = 16


class Small(nn.Cell):
    """An embedding, a convolution with a bias, two Dense, and a scale that is no layer's weight; with its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH)
        self.conv = nn.Conv2d(2, 3, 3, stride=2, pad_mode="same", has_bias=True)
        self.hidden = nn.Dense(27 + WIDTH, 7, activation="tanh")
        self.scale = Parameter(Tensor(np.ones(7), ms.float32), name="scale")
        self.head = nn.Dense(7, CLASSES, has_bias=False)
        self.loss = nn.CrossEntropyLoss()
        rng = np.random.default_rng(0)
        for p in self.trainable_params():
            p.set_data(Tensor((0.5 * rng.standard_normal(p.shape)).astype(np.float32)))

    def logits(self, ids: Tensor, image: Tensor) -> Tensor:
        words = self.table(ids).mean(axis=1)
        shapes = ops.relu(self.conv(image))
        both = ops.concat((words, shapes.reshape(image.shape[0], -1)), 1)
        return self.head(self.hidden(both) * self.scale)

    def construct(self, ids: Tensor, image: Tensor, label: Tensor) -> Tensor:
        return self.loss(self.logits(ids, image), label)


def batch(seed: int, size: int = 8) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1000 + seed)
    ids = rng.integers(0, ROWS - 1, (size, 3)).astype(np.int32)  # the last row is used by nobody
    image = rng.standard_normal((size, 2, 6, 5)).astype(np.float32)
    return ids, image, rng.integers(0, CLASSES, size).astype(np.int32)


def tensors(arrays: tuple[np.ndarray, ...]) -> tuple[Tensor, ...]:
    return tuple(Tensor(a) for a in arrays)


def weights_of(net: nn.Cell) -> Weights:
    return {p.name: p.asnumpy().astype(np.float64) for p in net.trainable_params()}


def backward(w: Weights, ids: Any, image: Any, label: Any) -> tuple[Weights, dict[str, tuple[Any, Any, int]]]:
    """Gradients; and for each layer its rows a, the gradients of its outputs for the mean loss, and its positions."""
    n = len(ids)
    words = w["table.embedding_table"][ids].mean(axis=1)
    padding = (*kfac.same_padding(6, 3, 2, 1), *kfac.same_padding(5, 3, 2, 1))
    seen = kfac.patches(image, (3, 3), (2, 2), (1, 1), padding)
    kernel = w["conv.weight"].reshape(3, -1)
    before = seen @ kernel.T + w["conv.bias"]
    shapes = np.maximum(before, 0).reshape(n, 9, 3).transpose(0, 2, 1).reshape(n, -1)
    both = np.concatenate([words, shapes], axis=1)
    hidden = np.tanh(both @ w["hidden.weight"].T + w["hidden.bias"])
    scaled = hidden * w["scale"]
    logits = scaled @ w["head.weight"].T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    d_logits = (p - np.eye(CLASSES)[label]) / n
    d_scaled = d_logits @ w["head.weight"]
    d_hidden = d_scaled * w["scale"] * (1 - hidden**2)
    d_both = d_hidden @ w["hidden.weight"]
    d_words = np.repeat(d_both[:, None, :WIDTH] / 3, 3, axis=1).reshape(-1, WIDTH)
    d_conv = d_both[:, WIDTH:].reshape(n, 3, 9).transpose(0, 2, 1).reshape(-1, 3) * (before > 0)
    one_hot = np.eye(ROWS)[ids.reshape(-1)]
    grads = {
        "table.embedding_table": one_hot.T @ d_words,
        "conv.weight": (d_conv.T @ seen).reshape(3, 2, 3, 3),
        "conv.bias": d_conv.sum(axis=0),
        "hidden.weight": d_hidden.T @ both,
        "hidden.bias": d_hidden.sum(axis=0),
        "scale": (d_scaled * hidden).sum(axis=0),
        "head.weight": d_logits.T @ scaled,
    }
    layers = {
        "table.embedding_table": (one_hot, d_words, 1),
        "conv.weight": (seen, d_conv, 9),
        "hidden.weight": (both, d_hidden, 1),
        "head.weight": (scaled, d_logits, 1),
    }
    return grads, layers


@dataclass
class Oracle:
    """thor on :class:`Small`, in float64; its fields are arguments of :func:`boost_ext.optim.thor`."""

    w: Weights
    rate: Any
    damping: Any
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 8
    nesterov: bool = False
    decays: Any = None
    clip: bool = False
    frequency: int = 2
    block: int = BLOCK
    count: int = 0
    moments: Weights = field(default_factory=dict)
    inverses: dict[str, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def _inverted(self, name: str, rows: Any, dout: Any, positions: int) -> tuple[np.ndarray, np.ndarray]:
        share = np.sqrt(positions) / len(dout)
        # Of an embedding: uses of a row, by the batch.
        A = kfac.covariance(rows, 1 / self.batch_size if name.startswith("table") else share)
        G = kfac.covariance(dout, share * self.batch_size**2)
        damping = np.sqrt(self._at(self.damping))

        def invert(matrix: np.ndarray) -> np.ndarray:
            blocks = kfac.blocks_of(matrix, min(self.block, len(matrix)))
            return kfac.from_blocks(np.stack([kfac.damped_inverse(b, damping) for b in blocks]), len(matrix))

        return invert(A), invert(G)

    def _at(self, value: Any) -> float:
        values = np.atleast_1d(np.asarray(value, np.float32)).astype(np.float64)
        return float(values[min(self.count, len(values) - 1)])

    def step(self, *arrays: np.ndarray) -> None:
        grads, layers = backward(self.w, *arrays)
        if self.count % self.frequency == 0:
            self.inverses = {name: self._inverted(name, *layer) for name, layer in layers.items()}
        for name, g in grads.items():
            if name in self.inverses:
                A, G = self.inverses[name]
                g = g.reshape(len(g), -1)
                g = (A @ g @ G if name.startswith("table") else G @ g @ A).reshape(self.w[name].shape)
            if self.decays is None or self.decays(name):
                g = g + self.weight_decay * self.w[name]
            if self.clip:
                g = g / max(1.0, float(np.linalg.norm(g)))
            moment = self.momentum * self.moments.get(name, 0.0) + g
            self.moments[name] = moment
            ahead = g + self.momentum * moment if self.nesterov else moment
            self.w[name] = self.w[name] - self._at(self.rate) * ahead
        self.count += 1
