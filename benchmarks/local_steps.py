"""Local steps beside data parallel training: ``python -m benchmarks.local_steps [--quick] [--only accuracy|ranks]``.

``accuracy``: on the digits, or with ``--data mnist1d`` on its signals, 4 and 8 simulated ranks. Synchronous training
averages the ranks' gradients in each step. Local steps begin at the same weights, and see the same batches on the same
ranks. Test accuracy after equally many steps.

``ranks``: two processes of this machine train the digits on a network of 25e6 parameters until the test loss of the
common weights is below a limit: data parallel, then by local steps. The time of evaluation is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.files import write_text

HIDDEN, BATCH, RATE, MOMENTUM = 64, 16, 0.05, 0.9
EVERY = 10  # of the simulated ranks
BETWEEN = 20  # of the two processes
KINDS: dict[str, dict[str, Any]] = {
    "nesterov, int8": {"outer": "nesterov", "compress": "int8"},
    "mean": {"outer": "mean"},
    "mean, int8": {"outer": "mean", "compress": "int8"},
    "mean, topk, error_decay 0.95": {"outer": "mean", "compress": "topk", "error_decay": 0.95},
    "adasum, int8": {"outer": "adasum", "compress": "int8"},
    "adacons, int8": {"outer": "adacons", "compress": "int8"},
}
LIMIT = 0.25
Array = np.ndarray


def part_of(count: int, rank: int, ranks: int, seed: int) -> Array:
    """The samples of a rank."""
    return np.random.default_rng((seed, 1)).permutation(count)[rank::ranks]


class Perceptron:
    """Two layers and a softmax, with Momentum, in NumPy."""

    def __init__(self, seed: int, inputs: int, outputs: int) -> None:
        rng = np.random.default_rng((seed, 2))
        shapes = ((inputs, HIDDEN), (HIDDEN, outputs))
        layers = [(rng.standard_normal(s) * np.sqrt(2 / s[0])).astype(np.float32) for s in shapes]
        self.weights = [layers[0], np.zeros(HIDDEN, np.float32), layers[1], np.zeros(outputs, np.float32)]
        self.moments = [np.zeros_like(w) for w in self.weights]

    def gradients(self, x: Array, y: Array) -> list[Array]:
        a, b, c, d = self.weights
        hidden = np.maximum(x @ a + b, 0)
        logits = hidden @ c + d
        share = np.exp(logits - logits.max(axis=1, keepdims=True))
        share /= share.sum(axis=1, keepdims=True)
        share[np.arange(len(y)), y] -= 1
        share /= len(y)
        back = (share @ c.T) * (hidden > 0)
        return [x.T @ back, back.sum(axis=0), hidden.T @ share, share.sum(axis=0)]

    def step(self, gradients: list[Array], rate: float) -> None:
        from boost_ext import ops

        ops.momentum_step(self.weights, gradients, self.moments, lr=rate, momentum=MOMENTUM)

    def accuracy(self, x: Array, y: Array) -> float:
        a, b, c, d = self.weights
        return float(((np.maximum(x @ a + b, 0) @ c + d).argmax(axis=1) == y).mean())


@cache
def samples(data: str) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """To train and to test: rows of features, and labels."""
    if data == "mnist1d":
        from .networks.data import mnist1d

        return mnist1d()
    from boost_ext.demo.digits import load

    def rows(images: Array, labels: Array) -> tuple[Array, Array]:
        return images.reshape(len(labels), -1), labels

    digits = load()
    return rows(digits.train_images, digits.train_labels), rows(digits.test_images, digits.test_labels)


def trained(data: str, seed: int, ranks: int, steps: int, rule: dict[str, Any] | None) -> float:
    """The test accuracy; without a rule of synchronous training."""
    from boost_ext.local_steps import LocalStepsSimulator

    (x, y), test = samples(data)
    replicas = [Perceptron(seed, x.shape[1], 10) for _ in range(1 if rule is None else ranks)]
    parts = [part_of(len(y), rank, ranks, seed) for rank in range(ranks)]
    local = None if rule is None else LocalStepsSimulator([r.weights for r in replicas], every=EVERY, **rule)
    draws = [np.random.default_rng((seed, 3, rank)) for rank in range(ranks)]
    for step in range(steps):
        rate = RATE * 0.5 * (1 + np.cos(np.pi * step / steps))
        batches = [draw.choice(part, BATCH, replace=False) for draw, part in zip(draws, parts, strict=True)]
        if local is None:
            found = [replicas[0].gradients(x[own], y[own]) for own in batches]
            mean = [np.mean(g, axis=0, dtype=np.float32) for g in zip(*found, strict=True)]
            replicas[0].step(mean, rate)
            continue
        for replica, own in zip(replicas, batches, strict=True):
            replica.step(replica.gradients(x[own], y[own]), rate)
        local.step()
    return replicas[0].accuracy(*test)


def accuracies(data: str, seeds: int, steps: int) -> Iterator[str]:
    """The rows of a table."""
    yield "| exchange once in 10 steps | 4 ranks, % | difference | 8 ranks, % | difference |"
    yield "|---|---|---|---|---|"
    counts = (4, 8)
    synchronous = {n: np.array([trained(data, seed, n, steps, None) for seed in range(seeds)]) for n in counts}
    yield "| synchronous | " + " | ".join(f"{100 * synchronous[n].mean():.2f} | " for n in counts) + " |"
    for name, rule in KINDS.items():
        cells = []
        for n in counts:
            found = np.array([trained(data, seed, n, steps, rule) for seed in range(seeds)])
            difference = 100 * (found - synchronous[n])
            half = 1.96 * difference.std(ddof=1) / np.sqrt(seeds) if seeds > 1 else float("nan")
            cells.append(f"{100 * found.mean():.2f} | {difference.mean():+.2f} ± {half:.2f}")
        yield f"| {name} | {' | '.join(cells)} |"


def worker(width: int, folder: Path) -> None:
    """One of two ranks: both trainings, one after the other; rank 0 writes what they took."""
    import mindspore as ms
    from mindspore import Tensor, nn
    from mindspore.communication import get_rank

    from boost_ext import optim
    from boost_ext.boost import BoostTrainOneStepCell
    from boost_ext.distributed import LocalSteps, init_ranks

    ms.set_device("CPU")
    init_ranks(600)
    ms.set_context(mode=ms.GRAPH_MODE)
    (x, y), test = samples("digits")
    rank, found = get_rank(), {}
    tests = Tensor(test[0][:128]), Tensor(test[1][:128])
    part = part_of(len(y), rank, 2, 0)
    for kind in ("data parallel", "local steps"):
        ms.set_seed(0)
        net = nn.SequentialCell(nn.Dense(64, width), nn.ReLU(), nn.Dense(width, width), nn.ReLU(), nn.Dense(width, 10))
        with_loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
        optimizer = optim.Momentum(net.trainable_params(), 0.02, MOMENTUM)
        local = None
        if kind == "data parallel":
            ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
        else:
            ms.reset_auto_parallel_context()
            local = LocalSteps(every=BETWEEN, outer="mean", compress="int8")
        cell = BoostTrainOneStepCell(with_loss, optimizer, local_steps=local).set_train()
        draw, times, loss = np.random.default_rng((3, rank)), [], float("inf")
        elements = sum(p.size for p in net.trainable_params())
        while loss > LIMIT and len(times) < 200:
            own = draw.choice(part, BATCH, replace=False)
            batch = Tensor(x[own]), Tensor(y[own])
            begin = time.perf_counter()
            cell(*batch)[0].asnumpy()
            times.append(time.perf_counter() - begin)
            if len(times) % BETWEEN == 0:
                loss = float(with_loss(*tests).asnumpy())
        sent = 4 * elements * len(times) if local is None else local.sent_bytes * (len(times) // BETWEEN)
        times[0] = float(np.median(times))  # without the compilation
        found[kind] = {"steps": len(times), "seconds": sum(times), "step": float(np.median(times)), "bytes": sent}
        found[kind] |= {"loss": loss, "parameters": elements, "exchange": float(max(times)), "all": times}
        print(kind, found[kind], flush=True)
    if rank == 0:
        write_text(folder / "local_steps.json", json.dumps(found, indent=1) + "\n")


def on_ranks(width: int, folder: Path) -> Iterator[str]:
    """The rows of a table."""
    from tests.distributed.launch import launch

    folder.mkdir(parents=True, exist_ok=True)
    script = Path(__file__).resolve()
    launch(script, 2, "worker", str(width), str(folder), folder=folder, timeout=1500).require_success()
    found = json.loads((folder / "local_steps.json").read_text())
    yield "| | steps | seconds | ms of a median step | MB that a rank sends | test loss |"
    yield "|---|---|---|---|---|---|"
    for kind, row in found.items():
        numbers = f"{row['seconds']:.1f} | {1e3 * row['step']:.0f} | {row['bytes'] / 1e6:.0f} | {row['loss']:.3f}"
        yield f"| {kind} | {row['steps']} | {numbers} |"
    first, last = found["data parallel"], found["local steps"]
    yield ""
    yield (
        f"{first['parameters'] / 1e6:.1f} million parameters: {first['seconds'] / last['seconds']:.1f} times sooner, "
        f"{first['bytes'] / last['bytes']:.0f} times fewer bytes."
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.local_steps", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and few: only whether it all runs")
    parser.add_argument("--only", choices=["accuracy", "ranks"])
    parser.add_argument("--data", choices=["digits", "mnist1d"], default="digits", help="of the simulated ranks")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("runs/bench/local_steps"))
    options = parser.parse_args()
    if options.only != "ranks":
        seeds, steps = (2, 100) if options.quick else (options.seeds, 600)
        print("\n".join(accuracies(options.data, seeds, steps)))
    if options.only != "accuracy":
        print("\n".join(on_ranks(200 if options.quick else 4960, options.out.absolute())))


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        main()
