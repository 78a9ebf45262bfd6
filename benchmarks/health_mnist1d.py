"""What HealthMonitor shows of the learning rate, on mnist1d: the update ratios of a perceptron beside its accuracy.

``python -m benchmarks.health_mnist1d [--quick] [--seeds N] [--out DIR] [--page docs/health.md]``: 600 steps of
``benchmarks.rules_mnist1d`` for each learning rate, which stays as it is, with a look every 20 steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.files import write_text
from boost_ext.health import HealthMonitor

from . import report
from .rules_mnist1d import FIRST_SEED, SETTINGS, Racer
from .weight_averaging_digits import interval

RATES = {
    "Momentum, Nesterov": (0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
    "AdamW": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
}
EVERY = 20


def watched(racer: Racer, seed: int, rate: float, steps: int) -> tuple[dict[str, float], float]:
    """The median update ratio of each matrix, and the accuracy of the test in %."""
    weights = {p.name: p for p in racer.network.trainable_params() if p.ndim == 2}
    monitor, seen = HealthMonitor(every=EVERY), {name: [] for name in weights}

    def look(step: int) -> None:
        health = monitor.check(step, weights=weights)
        for row in health.tensors if health is not None else ():
            if row.update_ratio is not None:
                seen[row.name].append(row.update_ratio)

    _, accuracy = racer.run(seed, rate, steps, falls=False, after=look)
    return {name: float(np.median(ratios)) for name, ratios in seen.items()}, accuracy


def rows(found: list[tuple[str, float, list[Any]]]) -> Iterator[str]:
    yield "| rule | learning rate | update ratio: first matrix | middle | last | test accuracy, % |"
    yield "|---|---|---|---|---|---|"
    for rule, rate, runs in found:
        ratios = np.median([list(ratios.values()) for ratios, _ in runs], axis=0)
        shown = " | ".join(f"{x:.1g}" for x in ratios)
        yield f"| {rule} | {rate:g} | {shown} | {interval([right for _, right in runs], 1)} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.health_mnist1d", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, few steps: only whether it runs")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--page", type=Path, help="docs/health.md")
    options = parser.parse_args()
    setting = SETTINGS["batches of 100"]
    seeds = range(FIRST_SEED, FIRST_SEED + (1 if options.quick else options.seeds))
    found = []
    for rule, rates in RATES.items():
        racer = Racer(rule, setting)
        for rate in rates:
            runs = [watched(racer, seed, rate, 60 if options.quick else setting.steps) for seed in seeds]
            found.append((rule, rate, runs))
            print(list(rows(found[-1:]))[-1], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "health_mnist1d.json", json.dumps(found, indent=1) + "\n")
    if options.page is not None:
        report.update_section(options.page, "health_mnist1d", [*rows(found), ""])


if __name__ == "__main__":
    main()
