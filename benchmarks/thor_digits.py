"""Steps to a fixed test accuracy: thor beside Momentum, on the digits of ``boost-ext train``.

``python -m benchmarks.thor_digits [--quick] [--out DIR]``: a table, and the plot ``thor_digits.png``.

Both train the same network on the same batches of 512, from the same initial weights, with momentum 0.9 and constant
learning rates. Momentum's is the best of :data:`RATES`, by the mean number of steps over the seeds that the table is
about: a choice in its favour. thor's rate and damping are those of :data:`THOR`, for all seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.files import save_figure

BATCH, TARGET = 512, 0.97
RATES = (0.05, 0.1, 0.2, 0.4)
THOR = {"learning_rate": 0.1, "damping": 0.03, "frequency": 4}
EVERY = 2  # steps between two looks at the test images


class Racer:
    """One optimizer on the digits, compiled once and started again for each seed and learning rate.

    Args:
        new_network: from a seed.
        optimizer: for such a network.
        batch: images of a step.
    """

    def __init__(self, new_network: Callable[[int], Any], optimizer: Callable[[Any], Any], batch: int = BATCH) -> None:
        from mindspore import nn

        from boost_ext.boost import BoostTrainOneStepCell
        from boost_ext.demo.digits import load
        from boost_ext.demo.network import loss_function

        self.new_network, self.batch = new_network, batch
        self.digits, self.network = load(), new_network(0)
        loss = nn.WithLossCell(self.network, loss_function())
        self.cell = BoostTrainOneStepCell(loss, optimizer(self.network)).set_train()
        self.start = self.cell.state_dict()

    def run(self, seed: int, steps: int, rate: float | None = None, target: float = 1.1) -> list[tuple[int, float]]:
        """``(steps made, test accuracy)`` until the steps or the target are reached.

        Args:
            rate: the learning rate, of the first group if there are some. Default: that of the optimizer.
        """
        from mindspore import Tensor

        from boost_ext.demo.digits import batches
        from boost_ext.demo.network import accuracy

        initial = {p.name: p.value() for p in self.new_network(seed).get_parameters()}
        if rate is not None:
            name = "learning_rate" if "learning_rate" in self.start else "learning_rate_group_0"
            initial[name] = Tensor(np.float32(rate))
        self.cell.load_state_dict(self.start | initial)
        curve: list[tuple[int, float]] = []
        made = 0
        for epoch in range(steps):
            for images, labels in batches(self.digits, self.batch, epoch, seed):
                self.cell(Tensor(images), Tensor(labels))
                made += 1
                if made % EVERY == 0:
                    curve.append((made, accuracy(self.network, self.digits)))
                if made == steps or (curve and curve[-1][1] >= target):
                    return curve
        return curve


def racers() -> tuple[Racer, Racer]:
    """Of Momentum and of thor."""
    from mindspore import Tensor

    from boost_ext import optim
    from boost_ext.demo.network import new_network

    def thor(network: Any) -> Any:
        settings = {"damping": THOR["damping"], "frequency": int(THOR["frequency"]), "batch_size": BATCH}
        return optim.thor(network, Tensor(THOR["learning_rate"]), momentum=0.9, **settings)

    momentum = Racer(new_network, lambda network: optim.Momentum(network.trainable_params(), RATES[0], 0.9))
    return momentum, Racer(new_network, thor)


def steps_to(curve: Sequence[tuple[int, float]], target: float, otherwise: int) -> int:
    """The first step at which a curve reaches the target; `otherwise` if it does not."""
    return next((step for step, right in curve if right >= target), otherwise)


def plot(path: Path, curves: dict[str, list[list[tuple[int, float]]]], batch: int = BATCH) -> None:
    """Median and range over the seeds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.6))
    for color, (label, runs) in zip(("tab:gray", "tab:blue"), curves.items(), strict=True):
        steps = [step for step, _ in runs[0]]
        right = 100 * np.array([[a for _, a in run] for run in runs])
        axes.plot(steps, np.median(right, axis=0), color=color, label=label)
        axes.fill_between(steps, right.min(axis=0), right.max(axis=0), color=color, alpha=0.2, linewidth=0)
    axes.axhline(100 * TARGET, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel=f"steps of {batch} images", ylabel="test accuracy, %", ylim=(80, 100))
    axes.legend(loc="lower right")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(path, figure, dpi=100)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thor_digits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, few steps and rates: only whether it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()

    from boost_ext import environment

    environment.make_fast()  # before MindSpore is imported
    steps, seeds = (12, range(2)) if options.quick else (60, range(4))
    momentum, thor = racers()
    curves: dict[str, list[list[tuple[int, float]]]] = {}

    def race(name: str, racer: Racer, rate: float | None) -> float:
        curves[name] = [racer.run(seed, steps, rate) for seed in seeds]
        counts = [steps_to(curve, TARGET, steps) for curve in curves[name]]
        print(f"{name}: {TARGET:.0%} after {counts} steps, mean {np.mean(counts):.1f}", flush=True)
        return float(np.mean(counts))

    rates = RATES[1:3] if options.quick else RATES
    best = min(rates, key=lambda rate: race(f"Momentum, rate {rate}", momentum, rate))
    race("thor", thor, None)
    path = options.out / "thor_digits.png"
    plot(path, {name: curves[name] for name in (f"Momentum, rate {best}", "thor")})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
