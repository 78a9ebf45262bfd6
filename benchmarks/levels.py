"""What the boost levels bring.

``python -m benchmarks.levels [--quick] [--seeds N] [--only time|accuracy] [--data digits|mnist1d] [--sweep]``

Time: a ResNet-20 on CIFAR-shaped random images, a few steps of each variant in turns, so that whatever else the machine
does hits all of them, and beforehand what it takes to compile each. Accuracy: a smaller ResNet on scikit-learn's
digits or on mnist1d, the same seeds for every variant. The sweep is what the defaults of O1 and O2 were chosen by; what
is said of their accuracy comes from other seeds (``--first-seed``).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext import environment
from boost_ext.files import save_figure, write_text

FREEZE = {"mode": "manual", "less_bn": False, "grad_freeze": True}
LESS_BN = {"mode": "manual", "less_bn": True, "grad_freeze": False}


@dataclass(frozen=True)
class Variant:
    """A way to train; ``level`` None: MindSpore's own TrainOneStepCell.

    What the sections leave out is the level's default: that is what O1 and O2 are measured with.
    """

    name: str
    level: str | None
    boost: dict[str, Any] = field(default_factory=dict)
    less_bn: dict[str, bool] = field(default_factory=dict)
    grad_freeze: dict[str, float] = field(default_factory=dict)
    watched: bool = False
    """The health of the gradients is counted in each step."""


VARIANTS = (
    Variant("MindSpore", None),
    Variant("O0", "O0"),
    Variant("O0, watch()", "O0", watched=True),
    Variant("less_bn alone", "O1", LESS_BN, {"fn_flag": False, "gc_flag": False}),
    Variant("less_bn, gc", "O1", LESS_BN, {"fn_flag": False, "gc_flag": True}),
    Variant("less_bn, gc, fn", "O1", LESS_BN, {"fn_flag": True, "gc_flag": True}),
    Variant("grad_freeze, p 0.7", "O1", FREEZE, grad_freeze={"freeze_p": 0.7}),
    Variant("O1", "O1"),
    Variant("O2", "O2"),
)
SWEEP = (
    VARIANTS[1],
    Variant("FN head", "O1", LESS_BN, {"fn_flag": True}),
    *(
        Variant(
            f"type {kind}, {n} groups, p {p}", "O1", grad_freeze={"freeze_type": kind, "param_groups": n, "freeze_p": p}
        )
        for kind, n, p in ((1, 10, 0.7), (1, 10, 0.4), (2, 2, 0.8), (2, 2, 0.7), (2, 2, 0.6), (2, 3, 0.6), (2, 2, 0.4))
    ),
)
DATA = ("digits", "mnist1d")


def resnet(channels: Sequence[int], blocks: int, inputs: int) -> Any:
    """He et al. 2016, section 4.2: basic blocks, each but the first stage at half the size of the one before."""
    from mindspore import Tensor, nn, ops

    class Block(nn.Cell):  # type: ignore[misc]
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(before, after, 3, stride), nn.BatchNorm2d(after)
            self.conv2, self.bn2 = nn.Conv2d(after, after, 3), nn.BatchNorm2d(after)
            self.down_sample = None
            if before != after:
                self.down_sample = nn.SequentialCell(nn.Conv2d(before, after, 1, stride), nn.BatchNorm2d(after))

        def construct(self, x: Tensor) -> Tensor:
            identity = x if self.down_sample is None else self.down_sample(x)
            y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
            return ops.relu(y + identity)

    class ResNet(nn.Cell):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(inputs, channels[0], 3), nn.BatchNorm2d(channels[0])
            layers = []
            for stage, width in enumerate(channels):
                before = channels[max(stage - 1, 0)]
                layers += [
                    Block(before if i == 0 else width, width, 2 if stage and i == 0 else 1) for i in range(blocks)
                ]
            self.layers = nn.SequentialCell(*layers)
            self.end = nn.Dense(channels[-1], 10)

        def construct(self, x: Tensor) -> Tensor:
            x = self.layers(ops.relu(self.bn1(self.conv1(x))))
            return self.end(x.mean((2, 3)))

    return ResNet()


def cell_of(variant: Variant, network: Any, rate: Any, total_steps: int) -> Any:
    """The training cell."""
    from mindspore import nn

    from boost_ext import amp

    optimizer = nn.Momentum(network.trainable_params(), rate, 0.9, weight_decay=1e-4)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    if variant.level is None:
        return nn.TrainOneStepCell(nn.WithLossCell(network, loss), optimizer).set_train()
    freeze = {**variant.grad_freeze, "total_steps": total_steps}
    config = {"boost": variant.boost, "less_bn": variant.less_bn, "grad_freeze": freeze}
    cell = amp.build_train_network(network, optimizer, loss, boost_level=variant.level, boost_config_dict=config)
    if variant.watched:
        cell.watch()
    return cell


def step_times(mode: int, batch_size: int, rounds: int, depth: int) -> tuple[dict[str, float], dict[str, float]]:
    """For each variant mean milliseconds of a step, and seconds until all its graphs are compiled."""
    import mindspore as ms
    from rich.progress import track

    from .networks.training import move

    ms.set_context(mode=mode)
    rng = np.random.default_rng(0)
    batch = (
        ms.Tensor(rng.standard_normal((batch_size, 3, 32, 32)).astype(np.float32)),
        ms.Tensor(rng.integers(0, 10, batch_size).astype(np.int32)),
    )
    cells, compiling = {}, {}
    # In PYNATIVE_MODE the training cells run the graphs of GRAPH_MODE; only MindSpore's own cell differs there.
    names = {"MindSpore", "O0", "O1", "O2"} if mode == ms.PYNATIVE_MODE else {v.name for v in VARIANTS}
    for variant in track([v for v in VARIANTS if v.name in names], description="compiling"):
        ms.set_seed(0)
        cells[variant.name] = cell_of(variant, resnet((16, 32, 64), depth, 3), 1e-3, 5 * rounds)
        start = time.perf_counter()
        cells[variant.name](*batch)
        compiling[variant.name] = time.perf_counter() - start
    spent, trained = dict.fromkeys(cells, 0.0), dict.fromkeys(cells, 0)
    for turn in track(range(rounds), description="timing"):
        for name, cell in cells.items():
            group, start = move(cell, (turn + 0.5) / rounds), time.perf_counter()
            if group != trained[name]:  # the first step of a group compiles its graph
                cell(*batch)
                compiling[name] += time.perf_counter() - start
                trained[name], start = group, time.perf_counter()
            for _ in range(5):
                result = cell(*batch)
                (result[0] if isinstance(result, tuple) else result).asnumpy()
            spent[name] += time.perf_counter() - start
    return {name: 1e3 * seconds / (5 * rounds) for name, seconds in spent.items()}, compiling


def loaded(name: str) -> Any:
    """Training and test images, one channel."""
    from boost_ext.demo import digits

    if name == "digits":
        return digits.load()
    from .networks import data

    train, test = data.mnist1d()
    (x, y), (test_x, test_y) = ((signals[:, None, None], labels) for signals, labels in (train, test))
    return digits.Digits(x, y, test_x, test_y)


def accuracies(variants: Sequence[Variant], seeds: range, epochs: int, dataset: str) -> dict[str, list[float]]:
    """Test accuracy after the last epoch, for each variant and seed."""
    import mindspore as ms
    from rich.progress import track

    from boost_ext.demo import digits as data
    from boost_ext.demo.network import accuracy

    ms.set_context(mode=ms.PYNATIVE_MODE)
    digits, channels = loaded(dataset), (8, 16) if dataset == "digits" else (8, 16, 32)
    steps = data.steps_per_epoch(digits, 32) * epochs
    rates = (0.05 * (1 + np.cos(np.pi * np.arange(steps) / steps))).tolist()
    found: dict[str, list[float]] = {}
    for variant in variants:
        network = resnet(channels, 2, 1)
        cell = cell_of(variant, network, rates, steps)
        start = cell.state_dict()
        for seed in track(seeds, description=f"{variant.name}, {len(seeds)} seeds"):
            cell.load_state_dict(start)
            ms.set_seed(seed)
            for name, parameter in resnet(channels, 2, 1).parameters_dict().items():
                if name in network.parameters_dict():
                    ms.ops.assign(network.parameters_dict()[name], parameter.value())
            cell.set_train()
            for epoch in range(epochs):
                for images, labels in data.batches(digits, 32, epoch, seed):
                    cell(ms.Tensor(images), ms.Tensor(labels))
            found.setdefault(variant.name, []).append(accuracy(network, digits))
    return found


def compilation(times: dict[str, dict[str, float]], compiling: dict[str, dict[str, float]]) -> list[str]:
    """How long each variant compiles, and after how many steps that has paid."""
    lines = [
        "",
        "| variant | " + " | ".join(f"{mode}, compilation s | steps to make up for it" for mode in times) + " |",
    ]
    lines += ["|---|" + "---|" * (2 * len(times))]
    for name in compiling[next(iter(times))]:
        cells = []
        for mode, t in times.items():
            seconds = compiling[mode].get(name)
            if seconds is None:
                cells.append(" | ")
                continue
            saved, more = (t["O0"] - t[name]) / 1e3, seconds - compiling[mode]["O0"]
            pays = f"{more / saved:.0f}" if saved > 0 and more > 0 else ""
            cells.append(f"{seconds:.1f} | {pays}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The 95 % confidence interval of the mean, by Student's t, and the standard error."""
    from scipy import stats

    if len(values) < 2:
        return (float("nan"),) * 3
    error = float(values.std(ddof=1) / np.sqrt(len(values)))
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return float(values.mean()) - half, float(values.mean()) + half, error


def markdown(result: dict[str, Any]) -> str:
    """The tables of docs/benchmarks.md."""
    lines: list[str] = []
    if times := result.get("milliseconds"):
        lines += ["| variant | " + " | ".join(f"{mode}, ms | faster than O0" for mode in times) + " |"]
        lines += ["|---|" + "---|" * (2 * len(times))]
        for variant in VARIANTS:
            cells = [
                f"{t[variant.name]:.1f} | {100 * (1 - t[variant.name] / t['O0']):+.0f} %"
                if variant.name in t
                else " | "
                for t in times.values()
            ]
            lines.append(f"| {variant.name} | " + " | ".join(cells) + " |")
        lines += compilation(times, result["compilation"])
    if found := result.get("accuracy"):
        plain, first = np.array(found["O0"]), result["first_seed"]
        lines += [
            "",
            f"| variant | test accuracy, {result['data']}, seeds {first} to {first + len(plain) - 1} |"
            " difference to O0, same seeds | 95 % interval |",
            "|---|---|---|---|",
        ]
        for name, values in found.items():
            scores, change = 100 * np.array(values), 100 * (np.array(values) - plain)
            low, high, error = interval(change)
            lines.append(
                f"| {name} | {scores.mean():.2f} ± {scores.std():.2f} | {change.mean():+.2f} ± {error:.2f} |"
                f" {low:+.2f} … {high:+.2f} |"
            )
    return "\n".join(lines)


def plot(path: Path, result: dict[str, Any]) -> None:
    """Bars of the step time relative to O0, and the accuracies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    names = [v.name for v in VARIANTS]
    for i, (mode, times) in enumerate(result.get("milliseconds", {}).items()):
        relative = [times.get(name, np.nan) / times["O0"] for name in names]
        left.barh(np.arange(len(names)) + 0.38 * i, relative, 0.36, label=mode)
    left.set(yticks=np.arange(len(names)) + 0.19, yticklabels=names, xlabel="time of a step, O0 = 1")
    left.invert_yaxis()
    left.axvline(1, color="0.5", linewidth=0.8)
    if result.get("milliseconds"):
        left.legend()
    for i, values in enumerate(result.get("accuracy", {}).values()):
        right.plot(values, np.full(len(values), i), "o", alpha=0.6)
        right.plot(np.mean(values), i, "k|", markersize=18)
        right.set_yticks(range(i + 1), list(result["accuracy"])[: i + 1])
    right.set_xlabel("test accuracy, one point a seed, line: mean")
    right.invert_yaxis()
    save_figure(path, figure, dpi=140)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.levels", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, one round: only whether it all runs")
    parser.add_argument("--only", choices=("time", "accuracy"))
    parser.add_argument("--data", choices=DATA, default=DATA[0], help="for the accuracy")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--variant", action="append", help="these alone, by name, and O0; for the accuracy")
    parser.add_argument("--sweep", action="store_true", help="the accuracy of O1 by how it freezes")
    parser.add_argument("--rounds", type=int, default=40, help="of five steps for each variant")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/levels"))
    options = parser.parse_args()
    os.environ.setdefault("GLOG_v", "3")
    environment.make_fast()  # for all variants alike; beside slow convolutions nothing else of a step would show

    import mindspore as ms
    from rich.console import Console

    from boost_ext.machine import Watch

    from . import report

    watch = Watch()
    result: dict[str, Any] = report.machine(len(os.sched_getaffinity(0)))
    result |= {"quick": options.quick, "rounds": options.rounds, "epochs": options.epochs, "seeds": options.seeds}
    result |= {"first_seed": options.first_seed, "data": options.data}
    if options.only != "accuracy":
        shape = (4, 1, 1) if options.quick else (32, options.rounds, 3)
        result |= {"milliseconds": {}, "compilation": {}}
        for name, mode in (("GRAPH_MODE", ms.GRAPH_MODE), ("PYNATIVE_MODE", ms.PYNATIVE_MODE)):
            result["milliseconds"][name], result["compilation"][name] = step_times(mode, *shape)
    if options.only != "time":
        # O0 trains as MindSpore does, which the tests show.
        variants = SWEEP if options.sweep else tuple(v for v in VARIANTS[1:] if not v.watched)
        if options.variant:
            variants = tuple(v for v in variants if v.name in ("O0", *options.variant))
        seeds = range(options.first_seed, options.first_seed + (1 if options.quick else options.seeds))
        result["accuracy"] = accuracies(variants, seeds, 1 if options.quick else options.epochs, options.data)
    result["others"] = round(watch.others(), 3)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "levels.json", json.dumps(result, indent=1))
    write_text(options.out / "levels.md", markdown(result) + "\n")
    plot(options.out / "levels.png", result)
    Console(highlight=False).print(markdown(result))
    print(
        f"{watch.seconds():.0f} s; other processes took {result['others']:.0%} of the cores; written to {options.out}"
    )


if __name__ == "__main__":
    main()
