"""What an average of checkpoints is worth, and one that is trained: on the digits of ``boost-ext train``.

``python -m benchmarks.weight_averaging_digits [--quick] [--seeds N] [--out DIR] [--page docs/weight_averaging.md]``: a
table, and the plot ``weight_averaging_digits.png``.

For each seed the network trains with Momentum at a constant rate, for as many epochs as :data:`HEADS` says, and leaves
a checkpoint at the end of each of the last ones. From there on, on the same batches: the last weights; the average of
the checkpoints with new moving statistics (SWA); :class:`TrainableWeightAveraging` for one and two epochs more;
Momentum for one and two epochs more, at its rate and at a tenth of it, which is what one would do without averages. The
rate of the coordinates was chosen on other seeds (``--sweep``): that with the lowest mean loss over heads and epochs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.files import save_figure, write_text

HEADS = {"12 epochs, the last 8 averaged": (12, 8), "4 epochs, all averaged": (4, 4)}
MORE = 2
BATCH, RATE, MOMENTUM = 32, 0.05, 0.9
TWA_RATE, TWA_MOMENTUM = 0.2, 0.9
SWEEP = (0.005, 0.02, 0.05, 0.2)
FIRST_SWEEP_SEED = 1000
LAST, AVERAGE, TRAINED = "last weights", "average (SWA)", "trainable average"
ON, LOWER = "Momentum goes on", "Momentum goes on, rate / 10"

Numbers = dict[str, tuple[float, float]]


class Trainer:
    """The digits and one network; Momentum's cell is compiled once and started again for each seed."""

    def __init__(self) -> None:
        from mindspore import nn

        from boost_ext import optim
        from boost_ext.boost import BoostTrainOneStepCell
        from boost_ext.demo.digits import load
        from boost_ext.demo.network import loss_function, new_network

        self.digits, self.network = load(), new_network(0)
        self.loss = nn.WithLossCell(self.network, loss_function())
        momentum = optim.Momentum(self.network.trainable_params(), RATE, MOMENTUM)
        self.cell = BoostTrainOneStepCell(self.loss, momentum).set_train()
        self.start = self.cell.state_dict()

    def epoch(self, cell: Any, seed: int, epoch: int) -> None:
        from mindspore import Tensor

        from boost_ext.demo.digits import batches

        for images, labels in batches(self.digits, BATCH, epoch, seed):
            cell(Tensor(images), Tensor(labels))

    def head(self, seed: int, epochs: int, checkpoints: int) -> list[dict[str, Any]]:
        """Train from the start; the checkpoints, and in the cell the end of the training."""
        from boost_ext.demo.network import new_network

        initial = {p.name: p.value() for p in new_network(seed).get_parameters()}
        self.cell.load_state_dict(self.start | initial)
        kept = []
        for epoch in range(epochs):
            self.epoch(self.cell, seed, epoch)
            if epoch >= epochs - checkpoints:
                kept.append({p.name: p.asnumpy().copy() for p in self.network.trainable_params()})
        return kept

    def test(self) -> tuple[float, float]:
        """Test accuracy in %, and mean cross entropy."""
        from mindspore import Tensor

        self.network.set_train(False)
        logits = self.network(Tensor(self.digits.test_images)).asnumpy().astype(np.float64)
        self.network.set_train()
        labels = self.digits.test_labels
        top = logits.max(axis=1, keepdims=True)
        own = logits[np.arange(len(labels)), labels] - top[:, 0]
        entropy = np.log(np.exp(logits - top).sum(axis=1)) - own
        return 100 * float((logits.argmax(axis=1) == labels).mean()), float(entropy.mean())

    def statistics(self) -> None:
        """Batch norms' moving statistics for the weights of now."""
        from boost_ext.boost import update_batch_norm
        from boost_ext.demo.digits import batches

        update_batch_norm(self.network, ((images,) for images, _ in batches(self.digits, BATCH, 0, 0)))

    def averaged(
        self, seed: int, epochs: int, kept: Sequence[dict[str, Any]], rate: float
    ) -> Iterator[tuple[str, tuple[float, float]]]:
        """The average, and trained for each epoch more."""
        from boost_ext.boost import BoostTrainOneStepCell, TrainableWeightAveraging

        twa = TrainableWeightAveraging(self.network.trainable_params(), rate, TWA_MOMENTUM, weight_load_dir=kept)
        cell = BoostTrainOneStepCell(self.loss, twa).set_train()
        self.statistics()
        yield AVERAGE, self.test()
        for more in range(1, MORE + 1):
            self.epoch(cell, seed, epochs + more - 1)
            self.statistics()
            yield after(TRAINED, more), self.test()

    def goes_on(
        self, seed: int, epochs: int, name: str, rate: float, state: dict[str, Any]
    ) -> Iterator[tuple[str, tuple[float, float]]]:
        from mindspore import Tensor

        self.cell.load_state_dict(state | {"learning_rate": Tensor(np.float32(rate))})
        for more in range(1, MORE + 1):
            self.epoch(self.cell, seed, epochs + more - 1)
            yield after(name, more), self.test()

    def run(self, seed: int, head: tuple[int, int]) -> Numbers:
        """(accuracy, loss) on the test images by what they are of."""
        kept = self.head(seed, *head)
        end = self.cell.state_dict()
        found: Numbers = {LAST: self.test()}
        for name, rate in ((ON, RATE), (LOWER, RATE / 10)):
            found |= dict(self.goes_on(seed, head[0], name, rate, end))
        return found | dict(self.averaged(seed, head[0], kept, TWA_RATE))

    def sweep(self, seed: int, head: tuple[int, int]) -> Numbers:
        kept = self.head(seed, *head)
        return {f"rate {rate}, {name}": f for rate in SWEEP for name, f in self.averaged(seed, head[0], kept, rate)}


def after(name: str, epochs: int) -> str:
    return f"{name}, {epochs} epoch{'s' if epochs > 1 else ''} more"


def interval(values: Any, digits: int) -> str:
    """The mean, and the half width of its 95 % interval by Student's t."""
    from scipy import stats

    numbers = np.asarray(values)
    if len(numbers) < 2:
        return f"{numbers.mean():.{digits}f}"
    half = float(stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers)))
    return f"{numbers.mean():.{digits}f} ± {half:.{digits}f}"


def page(heads: dict[str, list[Numbers]]) -> Iterator[str]:
    """The tables: means over the seeds, and of the differences to the average of the same seed."""
    for head, runs in heads.items():
        yield f"**{head}**, {len(runs)} seeds; means ± half their 95 % intervals; differences within a seed."
        yield ""
        yield "| weights | test loss | difference to the average's | test accuracy, % |"
        yield "|---|---|---|---|"
        for name in runs[0]:
            loss, right = (np.array([run[name][i] for run in runs]) for i in (1, 0))
            change = loss - np.array([run.get(AVERAGE, run[name])[1] for run in runs])
            shown = interval(change, 4) if change.any() else ""
            yield f"| {name} | {interval(loss, 4)} | {shown} | {interval(right, 2)} |"
        yield ""


def plot(path: Path, heads: dict[str, list[Numbers]]) -> None:
    """The test loss of each seed, and the means."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(1, len(heads), figsize=(11, 3.4), sharey=True)
    for axes, (head, runs) in zip(np.atleast_1d(grid), heads.items(), strict=True):
        names = list(runs[0])
        for y, name in enumerate(names):
            losses = [run[name][1] for run in runs]
            colour = "tab:blue" if name.startswith(TRAINED) else "tab:green" if name == AVERAGE else "tab:gray"
            axes.scatter(losses, [y] * len(losses), color=colour, alpha=0.35, s=18, linewidth=0)
            axes.scatter([np.mean(losses)], [y], color=colour, marker="|", s=260)
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set(xlabel="test loss; a dot a seed, a stroke their mean")
        axes.set_title(head, fontsize=9)
        axes.grid(axis="x", linewidth=0.3)
    axes.invert_yaxis()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(path, figure, dpi=100)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_averaging_digits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed: only whether it runs")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--sweep", action="store_true", help="the rates of the coordinates, on other seeds")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--page", type=Path, metavar="FILE", help="docs/weight_averaging.md, and the plot beside it")
    options = parser.parse_args()

    from boost_ext import environment

    environment.make_fast()  # before MindSpore is imported
    from rich.progress import track

    first = FIRST_SWEEP_SEED if options.sweep else 0
    seeds = range(first, first + (1 if options.quick else options.seeds))
    trainer = Trainer()
    one = trainer.sweep if options.sweep else trainer.run
    runs = {name: [one(seed, head) for seed in track(seeds, description=name)] for name, head in HEADS.items()}
    lines = list(page(runs))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "weight_averaging_digits.json", json.dumps(runs, indent=1) + "\n")
    plot(options.out / "weight_averaging_digits.png", runs)
    if options.page is not None:
        from . import report

        report.update_section(options.page, "weight_averaging_digits", lines)
        plot(options.page.with_name("weight_averaging_digits.png"), runs)
    print("\n".join(lines))
    print(f"written to {options.out}")


if __name__ == "__main__":
    main()
