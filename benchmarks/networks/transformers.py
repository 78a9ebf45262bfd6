"""Language models of about 30 million parameters, written from their papers. Each returns its loss."""

from __future__ import annotations

import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import Normal, initializer


def _dense(inputs: int, outputs: int) -> nn.Dense:
    return nn.Dense(inputs, outputs, weight_init=Normal(0.02))


def _embedding(size: int, width: int) -> Parameter:
    return Parameter(initializer(Normal(0.02), (size, width)))


class Attention(nn.Cell):  # type: ignore[misc]
    """Vaswani et al. 2017, section 3.2.2; ``causal``: no position sees a later one."""

    def __init__(self, width: int, heads: int, length: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.size, self.width = heads, width // heads, width
        self.qkv, self.out = _dense(width, 3 * width), _dense(width, width)
        later = np.triu(np.full((length, length), -1e4, np.float32), 1)
        self.mask = Tensor(later) if causal else None

    def construct(self, x: Tensor) -> Tensor:
        batch, length = x.shape[0], x.shape[1]
        qkv = self.qkv(x).reshape((batch, length, 3, self.heads, self.size)).transpose((2, 0, 3, 1, 4))
        scores = ops.matmul(qkv[0], qkv[1].swapaxes(-1, -2)) * self.size**-0.5
        if self.mask is not None:
            scores = scores + self.mask
        mixed = ops.matmul(ops.softmax(scores, -1), qkv[2])
        return self.out(mixed.swapaxes(1, 2).reshape((batch, length, self.width)))


class Layer(nn.Cell):  # type: ignore[misc]
    """Attention and a feed-forward part; ``before``: normalized before them (GPT-2) or after (BERT)."""

    def __init__(self, width: int, heads: int, length: int, before: bool) -> None:
        super().__init__()
        self.before = before
        self.attention = Attention(width, heads, length, causal=before)
        self.norm1, self.norm2 = nn.LayerNorm([width]), nn.LayerNorm([width])
        self.up, self.down = _dense(width, 4 * width), _dense(4 * width, width)

    def _feed(self, x: Tensor) -> Tensor:
        return self.down(ops.gelu(self.up(x)))

    def construct(self, x: Tensor) -> Tensor:
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + self._feed(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self._feed(x))


class Encoder(nn.Cell):  # type: ignore[misc]
    """Tokens (batch, length) to a vector for each position, (batch * length, width)."""

    def __init__(self, words: int, length: int, layers: int, width: int, before: bool) -> None:
        super().__init__()
        self.words, self.positions = _embedding(words, width), _embedding(length, width)
        self.norm = nn.LayerNorm([width])
        self.layers = nn.SequentialCell([Layer(width, width // 64, length, before) for _ in range(layers)])
        self.before, self.width = before, width

    def construct(self, tokens: Tensor) -> Tensor:
        x = ops.gather(self.words, tokens, 0) + self.positions
        x = self.norm(self.layers(x)) if self.before else self.layers(self.norm(x))
        return x.reshape((-1, self.width))


class Gpt(nn.Cell):  # type: ignore[misc]
    """Radford et al. 2019: 8 layers of 512; the table of words is the output layer, too.

    Inputs: tokens (batch, length), the next ones (batch, length). Output: the mean loss.
    """

    def __init__(self, words: int, length: int) -> None:
        super().__init__()
        self.encoder = Encoder(words, length, 8, 512, before=True)

    def construct(self, tokens: Tensor, following: Tensor) -> Tensor:
        logits = ops.matmul(self.encoder(tokens), self.encoder.words.T)
        return ops.cross_entropy(logits, following.reshape((-1,)))


class Bert(nn.Cell):  # type: ignore[misc]
    """Devlin et al. 2019, in the small size of Turc et al. 2019: 4 layers of 512; masked words alone.

    Inputs: tokens (batch, length), some of them masked; places (batch, masked) of these in their text;
    labels (batch, masked). Output: the mean loss of the masked words.
    """

    def __init__(self, words: int, length: int) -> None:
        super().__init__()
        self.encoder = Encoder(words, length, 4, 512, before=False)
        self.transform, self.norm = _dense(512, 512), nn.LayerNorm([512])
        self.bias = Parameter(initializer("zeros", (words,)))
        self.length = length

    def construct(self, tokens: Tensor, places: Tensor, labels: Tensor) -> Tensor:
        starts = ops.arange(0, tokens.shape[0] * self.length, self.length).reshape((-1, 1))
        masked = ops.gather(self.encoder(tokens), (places + starts).reshape((-1,)), 0)
        masked = self.norm(ops.gelu(self.transform(masked)))
        logits = ops.matmul(masked, self.encoder.words.T) + self.bias
        return ops.cross_entropy(logits, labels.reshape((-1,)))
