"""Steps and time to a fixed test accuracy: Muon beside AdamW, on the digits of ``boost-ext train``.

``python -m benchmarks.muon_digits [--quick] [--out DIR]``: a table, and the plot ``muon_digits.png``.

Both train a perceptron of 64-128-128-10 on the same batches of 128, from the same initial weights, with constant
learning rates and a weight decay of 0.01. Each rate is the best of :data:`RATES`, by the mean number of steps over
seeds that the table is not about. Muon steps the two matrices of the hidden layers; the last one and the biases make
AdamW's steps.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from .thor_digits import TARGET, Racer, plot, steps_to

BATCH, DECAY, LIMIT = 128, 0.01, 120
WIDTHS = (64, 128, 128, 10)
RATES = {"AdamW": (2e-3, 5e-3, 1e-2, 2e-2), "Muon": (0.025, 0.05, 0.1, 0.2)}
MUON = {"others": 3e-3, "momentum": 0.9}
TUNING, SEEDS = range(100, 112), range(10, 20)


def new_network(seed: int) -> Any:
    """He et al. 2015, equation 10; biases of 0."""
    from mindspore import Tensor, nn

    layers: list[Any] = [nn.Flatten()]
    for before, after in itertools.pairwise(WIDTHS):
        layers += [nn.Dense(before, after), nn.ReLU()]
    network = nn.SequentialCell(*layers[:-1])
    rng = np.random.default_rng(seed)
    for p in network.trainable_params():
        start = rng.normal(0, (2 / p.shape[1]) ** 0.5, p.shape) if p.ndim == 2 else np.zeros(p.shape)
        p.set_data(Tensor(start.astype(np.float32)))
    return network.set_train()


def racers() -> dict[str, Racer]:
    """Of AdamW and of Muon."""
    from boost_ext import optim

    def adamw(network: Any) -> Any:
        return optim.AdamW(network.trainable_params(), RATES["AdamW"][0], weight_decay=DECAY)

    def muon(network: Any) -> Any:
        *parameters, weight, bias = network.trainable_params()
        hidden = [p for p in parameters if p.ndim == 2]
        others = [p for p in parameters if p.ndim < 2]
        rates = RATES["Muon"][0], MUON["others"]
        groups = [{"params": hidden, "lr": rates[0]}, {"params": [*others, weight, bias], "lr": rates[1]}]
        return optim.Muon(groups, rates[0], DECAY, MUON["momentum"], adamw=(weight.name,))

    return {name: Racer(new_network, make, BATCH) for name, make in (("AdamW", adamw), ("Muon", muon))}


def mean_steps(racer: Racer, rate: float, seeds: range) -> float:
    """To the target."""
    return statistics.mean(steps_to(racer.run(seed, LIMIT, rate, TARGET), TARGET, LIMIT) for seed in seeds)


def medians(calls: dict[str, Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> dict[str, float]:
    """Of the seconds that each call takes, in turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start = clock()
            call()
            times[name].append(clock() - start)
    return {name: statistics.median(found) for name, found in times.items()}


def step_times(all_racers: dict[str, Racer], rounds: int) -> dict[str, float]:
    """Medians in seconds, in turns."""
    from mindspore import Tensor

    from boost_ext.demo.digits import batches

    images, labels = map(Tensor, next(iter(batches(all_racers["Muon"].digits, BATCH, 0, 0))))

    def step(racer: Racer) -> None:
        racer.cell(images, labels)[0].asnumpy()

    return medians({name: partial(step, racer) for name, racer in all_racers.items()}, rounds, time.perf_counter)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.muon_digits", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few seeds and one rate: only whether it runs")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    options = parser.parse_args()
    tuning, seeds = (TUNING[:1], SEEDS[:2]) if options.quick else (TUNING, SEEDS)
    both = racers()
    curves, steps = {}, {}
    for name, racer in both.items():
        rates = RATES[name][2:3] if options.quick else RATES[name]
        tuned = {rate: mean_steps(racer, rate, tuning) for rate in rates}
        best = min(tuned, key=lambda rate: tuned[rate])
        runs = curves[f"{name}, rate {best}"] = [racer.run(seed, LIMIT, best) for seed in seeds]
        counts = [steps_to(run, TARGET, LIMIT) for run in runs]
        steps[name] = statistics.mean(counts)
        print(f"{name}: {TARGET:.0%} after {counts} steps, mean {steps[name]:.1f}; rates {tuned}", flush=True)
    times = step_times(both, 20 if options.quick else 300)
    share = steps["Muon"] / steps["AdamW"]
    print(f"Muon of AdamW: {share:.2f} of the steps, {share * times['Muon'] / times['AdamW']:.2f} of the time")
    path = options.out / "muon_digits.png"
    plot(path, curves, BATCH)
    print(f"written to {path}")


if __name__ == "__main__":
    main()
