"""Two ranks train with thor on batches of their own; each prints whether it went where the equations go."""

from __future__ import annotations

import mindspore as ms
import numpy as np
import pytest
from mindspore.communication import get_rank
from tests.ms.optim.thor_oracle import BLOCK, Oracle, Small, backward, batch, tensors, weights_of

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell

STEPS, RATE, DAMPING, MOMENTUM = 3, 0.1, 0.1, 0.9


def expected(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients and inverses are means over both ranks'."""
    w, moments, inverses = dict(weights), {}, {}
    for step in range(STEPS):
        both = [backward(w, *batch(10 * step + rank)) for rank in range(2)]
        if step % 2 == 0:
            oracle = Oracle(w, RATE, DAMPING)
            names = both[0][1]
            each = {n: [oracle._inverted(n, *layers[n]) for _, layers in both] for n in names}
            inverses = {n: tuple((one + two) / 2 for one, two in zip(*pair, strict=True)) for n, pair in each.items()}
        for name in w:
            g = (both[0][0][name] + both[1][0][name]) / 2
            if name in inverses:
                A, G = inverses[name]
                flat = g.reshape(len(g), -1)
                g = (A @ flat @ G if name.startswith("table") else G @ flat @ A).reshape(g.shape)
            moments[name] = MOMENTUM * moments.get(name, 0.0) + g
            w[name] = w[name] - RATE * moments[name]
    return w


def trained(mode: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    net = Small()
    exact = expected(weights_of(net))
    arguments = {"batch_size": 8, "frequency": 2, "block_size": BLOCK, "split_indices": [1, 3]}
    optimizer = optim.thor(net, ms.Tensor(RATE), DAMPING, MOMENTUM, **arguments)
    cell = BoostTrainOneStepCell(net, optimizer)
    for step in range(STEPS):
        cell(*tensors(batch(10 * step + get_rank())))
    for name, w in weights_of(net).items():
        np.testing.assert_allclose(w, exact[name], rtol=0, atol=2e-4 * abs(exact[name]).max(), err_msg=name)
    print(f"thor, {mode}: rank {get_rank()} is right", flush=True)


def made_too_early() -> None:
    """Before the parallel mode: each rank would keep the inverses of its own batches, and weights of its own."""
    net = Small()
    ms.reset_auto_parallel_context()
    optimizer = optim.thor(net, ms.Tensor(RATE), DAMPING, MOMENTUM, batch_size=8, frequency=2, block_size=BLOCK)
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    with pytest.raises(ValueError, match="parallel_mode must be set before thor is made"):
        BoostTrainOneStepCell(net, optimizer)
    print(f"thor, made too early: rank {get_rank()} is refused", flush=True)


def main(arguments: list[str]) -> None:
    made_too_early()
    for mode in arguments:
        trained(mode)
