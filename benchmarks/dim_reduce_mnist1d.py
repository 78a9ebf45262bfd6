"""What the residual of DimReduce is worth: training with it, without it, and without the subspace, on mnist1d.

``python -m benchmarks.dim_reduce_mnist1d [--quick] [--seeds N] [--out DIR] [--page docs/dim_reduce.md]``: a table.

A perceptron of 40-64-64-10 trains with Momentum, and leaves a checkpoint at its start and after each epoch. Their
principal components are the matrix P. From the same initial weights, on the same batches of half of the signals:

- DimReduce with alpha = 0, which never leaves the subspace; with its default; with ten times as much of the residual;
- Momentum on the gradient as it is, on its part inside the subspace, and on its part outside (the bulk).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.files import write_text

from .weight_averaging_digits import interval

LAYERS = (40, 64, 64, 10)
FIRST_SEED, COMPONENTS = 100, 16
HEAD_BATCH, HEAD_EPOCHS = 100, 40
BATCH, STEPS, RATE, MOMENTUM = 2000, 200, 0.1, 0.9
CONFINED, RESIDUAL, MORE = "DimReduce, alpha 0", "DimReduce, alpha 0.001 (default)", "DimReduce, alpha 0.01"
ALPHAS = {CONFINED: 0.0, RESIDUAL: 0.001, MORE: 0.01}
WHOLE, INSIDE, BULK = "Momentum", "Momentum inside the subspace", "Momentum outside of it"

Numbers = dict[str, tuple[float, float]]
"""Training loss, and test accuracy in %."""


class Trainer:
    """One seed: the network, the first training, and P."""

    def __init__(self, seed: int, folder: Path, epochs: int) -> None:
        import mindspore as ms
        from mindspore import nn

        from boost_ext import optim
        from boost_ext.boost import BoostTrainOneStepCell

        from .networks.data import mnist1d
        from .rules_mnist1d import initial, new_network

        (self.x, self.y), self.test = mnist1d()
        self.seed, self.folder = seed, folder
        self.network = new_network(LAYERS)
        self.loss = nn.WithLossCell(self.network, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
        self.weights = self.network.trainable_params()
        self.start = {name: value.asnumpy() for name, value in initial(self.network, seed).items()}
        self.reset()
        cell = BoostTrainOneStepCell(self.loss, optim.Momentum(self.weights, RATE, MOMENTUM)).set_train()
        for epoch in range(epochs + 1):
            ms.save_checkpoint(self.network, str(folder / f"net-{epoch}.ckpt"))
            for _ in range(len(self.y) // HEAD_BATCH if epoch < epochs else 0):
                cell(*self.batch(HEAD_BATCH))
        self.first = self.numbers()

    def reset(self) -> None:
        """The initial weights, and the first batches."""
        from mindspore import Tensor

        for p in self.weights:
            p.set_data(Tensor(self.start[p.name]))
        self.draw = np.random.default_rng((self.seed, 2))

    def batch(self, count: int) -> tuple[Any, Any]:
        from mindspore import Tensor

        own = self.draw.choice(len(self.y), count, replace=False)
        return Tensor(self.x[own]), Tensor(self.y[own])

    def numbers(self) -> tuple[float, float]:
        from mindspore import Tensor

        loss = float(self.loss(Tensor(self.x), Tensor(self.y)).asnumpy())
        right = self.network(Tensor(self.test[0])).asnumpy().argmax(axis=1) == self.test[1]
        return loss, 100 * float(right.mean())

    def moved(self) -> Any:
        """How far the weights are from where they began, as one vector."""
        return np.concatenate([(p.asnumpy() - self.start[p.name]).ravel() for p in self.weights]).astype(np.float64)

    def dim_reduce(self, alpha: float, steps: int) -> tuple[float, float]:
        from mindspore import nn

        from boost_ext.boost import BoostTrainOneStepCell
        from boost_ext.config import DimReduceConfig

        self.reset()
        matrix = self.folder / "pca.safetensors"
        config = DimReduceConfig(
            n_components=COMPONENTS, weight_load_dir=str(self.folder), pca_mat_path=str(matrix), alpha=alpha
        )
        cell = BoostTrainOneStepCell(self.loss, nn.SGD(self.weights, 1.0), dim_reduce=config).set_train()
        for _ in range(steps):
            cell(*self.batch(BATCH))
        return self.numbers()

    def outside(self, P: Any) -> float:
        """The share of the way from the start that lies outside of the subspace."""
        way = self.moved()
        return float(np.linalg.norm(way - P.T @ (P @ way)) / np.linalg.norm(way))

    def momentum(self, keep: Callable[[Any], Any], steps: int) -> tuple[float, float]:
        """Momentum on what `keep` leaves of the gradient, as one vector."""
        import mindspore as ms
        from mindspore import Tensor

        self.reset()
        gradients_of = ms.value_and_grad(self.loss, None, self.weights)
        w = np.concatenate([self.start[p.name].ravel() for p in self.weights])
        v = np.zeros_like(w)
        ends = np.cumsum([p.size for p in self.weights])[:-1]
        for _ in range(steps):
            _, gradients = gradients_of(*self.batch(BATCH))
            v = MOMENTUM * v + keep(np.concatenate([g.asnumpy().ravel() for g in gradients]))
            w = w - np.float32(RATE) * v
            for p, part in zip(self.weights, np.split(w, ends), strict=True):
                p.set_data(Tensor(part.reshape(p.shape)))
        return self.numbers()

    def run(self, steps: int) -> Numbers:
        from boost_ext.pca import load_matrix

        found: Numbers = {}
        for name, alpha in ALPHAS.items():
            found[name] = self.dim_reduce(alpha, steps)
            if name == CONFINED:  # P is there now
                elements = sum(p.size for p in self.weights)
                path = self.folder / "pca.safetensors"
                P = np.asarray(load_matrix(path, n_components=COMPONENTS, n_elements=elements))
                assert self.outside(P) < 1e-3, "without its residual DimReduce must stay in the subspace"
        found[WHOLE] = self.momentum(lambda g: g, steps)
        found[INSIDE] = self.momentum(lambda g: P.T @ (P @ g), steps)
        assert self.outside(P) < 1e-3
        found[BULK] = self.momentum(lambda g: g - P.T @ (P @ g), steps)
        return found | {f"the first training: {HEAD_EPOCHS} epochs of batches of {HEAD_BATCH}": self.first}


def page(runs: list[Numbers]) -> Iterator[str]:
    yield "| training | training loss | test accuracy, % |"
    yield "|---|---|---|"
    for name in runs[0]:
        loss, right = (np.array([run[name][i] for run in runs]) for i in range(2))
        yield f"| {name} | {interval(loss, 3)} | {interval(right, 1)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dim_reduce_mnist1d", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: only whether it runs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/dim_reduce.md")
    options = parser.parse_args()

    runs = []
    for seed in range(FIRST_SEED, FIRST_SEED + (1 if options.quick else options.seeds)):
        with tempfile.TemporaryDirectory() as folder:
            trainer = Trainer(seed, Path(folder), COMPONENTS if options.quick else HEAD_EPOCHS)
            runs.append(trainer.run(5 if options.quick else STEPS))
        shown = "; ".join(f"{name} {loss:.3f}, {right:.1f} %" for name, (loss, right) in runs[-1].items())
        print(f"seed {seed}: {shown}", flush=True)
    lines = list(page(runs))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "dim_reduce_mnist1d.json", json.dumps(runs, indent=1) + "\n")
    if options.page is not None:
        from . import report

        report.update_section(options.page, "dim_reduce_mnist1d", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
