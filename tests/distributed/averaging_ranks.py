"""Two ranks train an average on batches of their own; rank 0 builds the basis. Each prints whether it is right, and
whether the moving average beside it is: of the statistics of a batch norm too, which differ; and resumed."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn
from mindspore.communication import get_rank
from tests.ms.test_weight_averaging import Definition, Regression, basis_of, batch, close, gradients, made, sgd

from boost_ext.boost import BoostTrainOneStepCell, ExponentialMovingAverage
from boost_ext.distributed import load_rank_state, save_rank_state


def main(arguments: list[str]) -> None:
    folder = Path(arguments[0])
    net = Regression()
    twa = made(net, weight_load_dir=folder, pca_mat_path=folder / "twa.npy", timeout=120)
    definition = Definition(basis_of(twa), sgd(0.1))
    average = ExponentialMovingAverage(0.5, warm_up=False)
    cell = BoostTrainOneStepCell(net, twa, weight_average=average)
    means = [w.asnumpy().astype(np.float64) for w in average.weights]
    for step in range(3):
        cell(*batch(10 * step + get_rank()))
        both = [gradients(definition.weights(), 10 * step + rank) for rank in range(2)]
        definition.apply([(a + b) / 2 for a, b in zip(*both, strict=True)])
        close(net, definition)
        means = [(a + w.asnumpy()) / 2 for a, w in zip(means, average.weights, strict=True)]
        for got, expected in zip(average.averages, means, strict=True):
            np.testing.assert_allclose(got.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    resumed(folder / "state", get_rank())
    print(f"averaging: rank {get_rank()} is right", flush=True)


def resumed(folder: Path, rank: int) -> None:
    ms.set_seed(0)
    net = nn.SequentialCell(nn.Dense(4, 3, "ones"), nn.BatchNorm1d(3), nn.Dense(3, 1, "ones"))
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    average = ExponentialMovingAverage(0.9)
    with_loss = nn.WithLossCell(net, nn.MSELoss())
    cell = BoostTrainOneStepCell(with_loss, optimizer, weight_average=average).set_train()
    rng = np.random.default_rng(rank)
    x, y = (Tensor(rng.standard_normal((8, n)).astype(np.float32)) for n in (4, 1))
    cell(x, y)
    save_rank_state(cell, folder)
    weights = []
    for _ in range(2):
        load_rank_state(cell, folder)
        cell(x, y)
        weights.append([p.asnumpy() for p in net.get_parameters()])
    for first, second in zip(*weights, strict=True):
        np.testing.assert_array_equal(first, second)
