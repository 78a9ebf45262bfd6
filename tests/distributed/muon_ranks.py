"""Two ranks train with Muon on batches of their own; each prints whether it went where the equations go."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore.communication import get_rank
from tests import oracle
from tests.ms.optim.thor_oracle import Small, Weights, backward, batch, tensors, weights_of

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell

STEPS, RATE, DECAY = 3, 0.05, 0.1
BY_ADAMW = ("table", "head")


def expected(w: Weights) -> Weights:
    """By the mean of both ranks' gradients."""
    zeros = {name: np.zeros_like(x) for name, x in w.items()}
    moments, squares = dict(zeros), dict(zeros)
    for step in range(STEPS):
        both = [backward(w, *batch(10 * step + rank))[0] for rank in range(2)]
        for name, value in w.items():
            u = (both[0][name] + both[1][name]) / 2
            if value.ndim >= 2 and not name.startswith(BY_ADAMW):
                stepped = oracle.muon_step(value, u, moments[name], RATE, DECAY)
            else:
                averages = moments[name], squares[name]
                stepped = oracle.adamw_step(value, u, *averages, RATE, step + 1, 0.9, 0.999, 1e-8, DECAY)
                squares[name] = stepped.state[1]
            w[name], moments[name] = stepped.w, stepped.state[0]
    return w


def trained(mode: str) -> None:
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    net = Small()
    exact = expected(weights_of(net))
    cell = BoostTrainOneStepCell(net, optim.Muon(net.trainable_params(), RATE, DECAY, adamw=BY_ADAMW))
    for step in range(STEPS):
        cell(*tensors(batch(10 * step + get_rank())))
    for name, w in weights_of(net).items():
        np.testing.assert_allclose(w, exact[name], rtol=0, atol=2e-4 * abs(exact[name]).max(), err_msg=name)
    print(f"muon, {mode}: rank {get_rank()} is right", flush=True)


def main(arguments: list[str]) -> None:
    for mode in arguments:
        trained(mode)
