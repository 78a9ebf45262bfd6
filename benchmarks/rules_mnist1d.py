"""Optimizer rules beside AdamW and Nesterov momentum, all tuned alike, and an average of weights, on mnist1d.

``python -m benchmarks.rules_mnist1d [--quick] [--seeds N] [--only NAME] [--rule NAME] [--out DIR] [--pages docs]``:
tables of the test accuracy after a fixed number of steps, with small and with large batches; and that of an exponential
moving average, with a constant learning rate.

The network is a perceptron of 40-128-128-10. Each learning rate falls to 0 by a cosine. Its largest value is the best
of a grid of factor √10 around a usual one, by the accuracy on 1,000 signals that are neither trained on nor in the
table, with a seed that is not in the table either. The grid grows until the best is not at its edge. All else stays at
the defaults, with a weight decay of 0.01 where the rule decouples it (Lion: 0.1). Schedule-Free keeps its learning
rate; "clipped" is by unit, at 0.1 of the norm of its weights (``adaptive_clip``).
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from boost_ext.files import write_text

from .weight_averaging_digits import interval

LAYERS = (40, 128, 128, 10)
TUNING_SEED, FIRST_SEED = 1000, 0
DECAY = 0.01
FACTOR, WIDER = 10**0.5, 4
CLIPPING = 0.1
AVERAGES = "averages"
FALLING, LAST, AVERAGE = "rate falls to 0", "constant rate", "constant rate, average of decay 0.99"


class Setting(NamedTuple):
    """Samples of a batch, steps, the rule that the others are compared with, and the rules with a usual rate each."""

    batch: int
    steps: int
    beside: str
    rates: dict[str, float]


SETTINGS = {
    "batches of 100": Setting(
        100,
        600,
        "AdamW",
        {
            "AdamW": 3e-3,
            "Momentum, Nesterov": 0.1,
            "NAdamW": 3e-3,
            "AdamW, cautious": 3e-3,
            "Schedule-Free AdamW": 1e-2,
            "Momentum, Nesterov, clipped": 0.1,
            "Lion": 3e-4,
            "AdEMAMix": 3e-3,
            "Adan": 1e-2,
            "Lamb": 1e-2,
            "Muon": 1e-2,
            "Apollo": 3e-3,
            "APOLLO-Mini": 3e-3,
            "GaLore": 3e-3,
            "GaLore, rank 20": 3e-3,
            "thor": 1e-2,
        },
    ),
    "batches of 1000": Setting(
        1000, 150, "Momentum, Nesterov", {"Momentum, Nesterov": 0.3, "LARS": 30.0, "AdamW": 1e-2, "Lamb": 3e-2}
    ),
}


def optimizer_of(rule: str, network: Any, setting: Setting) -> Any:
    from mindspore import Tensor

    from boost_ext import optim

    weights, rate = network.trainable_params(), setting.rates[rule]
    long = float(setting.steps)  # the schedules of AdEMAMix end with the training

    def momentum() -> Any:
        return optim.Momentum(weights, rate, 0.9, use_nesterov=True)

    makers: dict[str, Callable[[], Any]] = {
        "Momentum, Nesterov": momentum,
        "Momentum, Nesterov, clipped": momentum,
        "Schedule-Free AdamW": lambda: optim.ScheduleFreeAdamW(weights, rate, weight_decay=DECAY),
        "LARS": lambda: optim.LARS(momentum()),
        "AdamW": lambda: optim.AdamW(weights, rate, weight_decay=DECAY),
        "AdamW, cautious": lambda: optim.AdamW(weights, rate, weight_decay=DECAY, cautious=True),
        "NAdamW": lambda: optim.NAdamW(weights, rate, weight_decay=DECAY),
        "Lion": lambda: optim.Lion(weights, rate, weight_decay=10 * DECAY),
        "Lamb": lambda: optim.Lamb(weights, rate, weight_decay=DECAY),
        "Adan": lambda: optim.Adan(weights, rate, weight_decay=DECAY),
        "AdEMAMix": lambda: optim.AdEMAMix(weights, rate, weight_decay=DECAY, alpha_steps=long, beta3_steps=long),
        "Muon": lambda: optim.Muon(
            weights, rate, weight_decay=DECAY, adjust_lr_fn="match_rms_adamw", adamw=(weights[-2].name,)
        ),
        "Apollo": lambda: optim.Apollo(weights, rate, weight_decay=DECAY, scale=8.0, adamw=(weights[-2].name,)),
        "APOLLO-Mini": lambda: optim.Apollo(
            weights, rate, DECAY, rank=1, scale_type="tensor", scale=128.0, adamw=(weights[-2].name,)
        ),
        "GaLore": lambda: optim.GaLore(weights, rate, weight_decay=DECAY, scale=1.0, adamw=(weights[-2].name,)),
        "GaLore, rank 20": lambda: optim.GaLore(weights, rate, DECAY, rank=20, scale=1.0, adamw=(weights[-2].name,)),
        "thor": lambda: optim.thor(network, Tensor(rate), 0.03, 0.9, batch_size=setting.batch, frequency=4),
    }
    return makers[rule]()


def new_network(layers: Sequence[int] = LAYERS) -> Any:
    """A perceptron."""
    from mindspore import nn

    cells: list[Any] = []
    for inputs, outputs in itertools.pairwise(layers):
        cells += [nn.Dense(inputs, outputs), nn.ReLU()]
    return nn.SequentialCell(*cells[:-1])


def initial(network: Any, seed: int) -> dict[str, Any]:
    """He's weights, and biases of 0, by the names of the parameters."""
    from mindspore import Tensor

    rng = np.random.default_rng((seed, 1))
    found = {}
    for p in network.trainable_params():
        value = np.zeros(p.shape) if p.ndim == 1 else rng.standard_normal(p.shape) * np.sqrt(2 / p.shape[1])
        found[p.name] = Tensor(value.astype(np.float32))
    return found


def best_rate(score: Callable[[float], float], usual: float, factor: float = FACTOR) -> float:
    """The learning rate of the largest score, of a grid around a usual one that the best is not at the edge of."""
    middle = round(np.log(usual) / np.log(factor))
    known = {at: score(factor**at) for at in (middle - 1, middle, middle + 1)}
    for _ in range(WIDER):
        best = max(known, key=lambda at: known[at])
        beyond = min(known) - 1 if best == min(known) else max(known) + 1 if best == max(known) else None
        if beyond is None:
            break
        known[beyond] = score(factor**beyond)
    return float(factor ** max(known, key=lambda at: known[at]))


class Racer:
    """One rule; its step is compiled once, and begins again for each seed and learning rate."""

    def __init__(self, rule: str, setting: Setting, average: Any = None) -> None:
        from mindspore import Tensor, nn

        from boost_ext.boost import BoostTrainOneStepCell

        from .networks.data import mnist1d

        (x, y), (test_x, self.test_y) = mnist1d()
        self.train, self.held_out = (x[:3000], y[:3000]), (Tensor(x[3000:]), y[3000:])
        self.test_x, self.setting = Tensor(test_x), setting
        self.network = new_network()
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        self.optimizer = optimizer_of(rule, self.network, setting)
        self.free = rule.startswith("Schedule-Free")
        clipping = CLIPPING if rule.endswith("clipped") else None
        with_loss = nn.WithLossCell(self.network, loss)
        self.cell = BoostTrainOneStepCell(
            with_loss, self.optimizer, weight_average=average, adaptive_clip=clipping
        ).set_train()
        self.start = self.cell.state_dict()
        self.rate = next(p for p in self.cell.get_parameters() if p.name == "learning_rate")

    def run(
        self, seed: int, rate: float, steps: int, falls: bool = True, after: Callable[[int], Any] = lambda step: None
    ) -> tuple[float, float]:
        """Accuracies in %: of the signals held out for tuning, and of the test. `falls`: by a cosine, to 0. `after` is
        called behind each step, with its number from 1 on."""
        from mindspore import Tensor

        self.cell.load_state_dict(self.start | initial(self.network, seed))
        draw, (x, y) = np.random.default_rng((seed, 2)), self.train
        for step in range(steps):
            share = 0.5 * (1 + np.cos(np.pi * step / steps)) if falls and not self.free else 1.0
            self.rate.set_data(Tensor(np.float32(rate * share)))
            own = draw.choice(len(y), self.setting.batch, replace=False)
            self.cell(Tensor(x[own]), Tensor(y[own]))
            after(step + 1)
        if self.free:
            self.optimizer.eval()
        return self.accuracy(*self.held_out), self.tested()

    def tested(self) -> float:
        return self.accuracy(self.test_x, self.test_y)

    def accuracy(self, x: Any, y: Any) -> float:
        return 100 * float((self.network(x).asnumpy().argmax(axis=1) == y).mean())

    def tuned(self, steps: int, falls: bool = True) -> float:
        """The best learning rate, by the signals held out."""
        usual = float(self.start["learning_rate"].asnumpy())
        return best_rate(lambda rate: self.run(TUNING_SEED, rate, steps, falls)[0], usual)


def averages(seeds: Sequence[int], steps: int, tune: bool) -> dict[str, tuple[float, list[float]]]:
    """Nesterov momentum: the last weights, and their average, of the same trainings; and with a falling rate."""
    from boost_ext.boost import ExponentialMovingAverage

    setting, average = SETTINGS["batches of 100"], ExponentialMovingAverage(0.99)
    rule = "Momentum, Nesterov"
    racer = Racer(rule, setting, average)
    rates = {falls: racer.tuned(steps, falls) if tune else setting.rates[rule] for falls in (True, False)}
    found: dict[str, tuple[float, list[float]]] = {
        FALLING: (rates[True], []),
        LAST: (rates[False], []),
        AVERAGE: (rates[False], []),
    }
    for seed in seeds:
        found[FALLING][1].append(racer.run(seed, rates[True], steps)[1])
        found[LAST][1].append(racer.run(seed, rates[False], steps, falls=False)[1])
        average.swap_in()
        found[AVERAGE][1].append(racer.tested())
        average.swap_out()
    return found


def rows(title: str, what: str, first: str, found: dict[str, tuple[float, list[float]]]) -> Iterator[str]:
    """The table: means over the seeds, and of the differences within a seed."""
    beside = np.array(found[first][1])
    yield f"{title}, {len(beside)} seeds:"
    yield ""
    yield f"| {what} | learning rate | test accuracy, % | difference to {first} |"
    yield "|---|---|---|---|"
    for name, (rate, right) in found.items():
        shown = "" if name == first else interval(np.array(right) - beside, 1)
        yield f"| {name} | {rate:.2g} | {interval(right, 1)} | {shown} |"
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rules_mnist1d", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two seeds, few steps: only whether it runs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", choices=[*SETTINGS, AVERAGES])
    parser.add_argument("--rule", action="append", help="these alone, and the one that they are compared with")
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--pages", type=Path, metavar="DIR", help="docs: optimizers.md and moving_average.md in there")
    options = parser.parse_args()
    if options.rule and options.pages:
        parser.error("--pages takes all rules, not --rule alone")

    lines, everything = [], {}
    seeds = range(FIRST_SEED, FIRST_SEED + (2 if options.quick else options.seeds))
    for name, setting in SETTINGS.items():
        if options.only not in (None, name):
            continue
        steps = 20 if options.quick else setting.steps
        found: dict[str, tuple[float, list[float]]] = {}
        for rule in setting.rates:
            if options.rule and rule not in (setting.beside, *options.rule):
                continue
            racer = Racer(rule, setting)
            rate = setting.rates[rule] if options.quick else racer.tuned(steps)
            found[rule] = (rate, [racer.run(seed, rate, steps)[1] for seed in seeds])
            print(f"{name}: {rule}, rate {rate:.2g}: {interval(found[rule][1], 2)} %", flush=True)
        everything[name] = found
        lines += list(rows(f"{name[0].upper()}{name[1:]}, {steps} steps", "rule", setting.beside, found))
    averaged: list[str] = []
    if options.only in (None, AVERAGES):
        steps = 20 if options.quick else SETTINGS["batches of 100"].steps
        everything[AVERAGES] = averages(seeds, steps, not options.quick)
        averaged = list(rows(f"Batches of 100, {steps} steps", "weights", LAST, everything[AVERAGES]))
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "rules_mnist1d.json", json.dumps(everything, indent=1) + "\n")
    if not options.quick:  # what does not learn is a mistake in here, not a result
        slow = [name for found in everything.values() for name, (_, right) in found.items() if np.mean(right) < 45]
        assert not slow, f"{slow} must reach 45 %"
    if options.pages is not None:
        from . import report

        for page, section in (("optimizers.md", lines), ("moving_average.md", averaged)):
            if section:
                report.update_section(options.pages / page, "rules_mnist1d", section)
    print("\n".join(lines + averaged))


if __name__ == "__main__":
    main()
