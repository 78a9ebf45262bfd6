"""The memory of 10,000 training steps of LeNet5, beside MindSpore's own cell: ``python -m benchmarks.long_run``.

Each cell trains in a process of its own, in both modes, on batches that are new in every step. The resident memory is
read after every tenth of the steps. In the first tenth all is compiled and allocated. From then on a cell must not grow
more than MindSpore's, up to the noise of the allocator.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator

TENTHS, NOISE = 10, 4.0  # MB
MODES = ("graph", "pynative")
CELLS = ("MindSpore", "boost_ext", "boost_ext, loss scale")


def resident() -> float:
    """MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def train(cell_name: str, mode: str, steps: int) -> Iterator[float]:
    """The resident memory after each tenth of the steps."""
    from boost_ext import environment

    environment.make_fast()

    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn

    from boost_ext import boost
    from boost_ext.amp import DynamicLossScaleManager

    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_seed(0)
    layers = [nn.Conv2d(1, 6, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2)]
    layers += [nn.Conv2d(6, 16, 5, pad_mode="valid"), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten()]
    layers += [nn.Dense(400, 120), nn.ReLU(), nn.Dense(120, 84), nn.ReLU(), nn.Dense(84, 10)]
    net = nn.SequentialCell(*layers)
    network = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    optimizer = nn.Adam(net.trainable_params(), 1e-3)
    if cell_name == "MindSpore":
        cell = nn.TrainOneStepCell(network, optimizer)
    elif cell_name == "boost_ext":
        cell = boost.BoostTrainOneStepCell(network, optimizer)
    else:  # with a scale that changes every tenth step
        manager = DynamicLossScaleManager(1.0, 2, 10)
        cell = boost.BoostTrainOneStepWithLossScaleCell(network, optimizer, manager.get_update_cell())
    cell.set_train()
    rng = np.random.default_rng(0)
    for _ in range(TENTHS):
        for _ in range(steps // TENTHS):
            images = Tensor(rng.random((32, 1, 32, 32), np.float32))
            outputs = cell(images, Tensor(rng.integers(0, 10, 32).astype(np.int32)))
            (outputs[0] if isinstance(outputs, tuple) else outputs).asnumpy()
        yield resident()


def measured(cell_name: str, mode: str, steps: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.long_run", f"--steps={steps}", f"--one={cell_name}", f"--mode={mode}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.long_run", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--mode", choices=MODES, action="append")
    parser.add_argument("--one", choices=CELLS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    modes = options.mode or MODES
    if options.one:
        print(json.dumps(list(train(options.one, modes[0], options.steps))))
        return 0
    failed = 0
    for mode in modes:
        limit = 0.0
        for name in CELLS:
            memory = measured(name, mode, options.steps)
            growth = memory[-1] - memory[0]
            if name == CELLS[0]:
                limit = max(growth, 0.0) + NOISE
            failed += growth > limit
            print(f"{mode}, {name}: {growth:+.1f} MB from step {options.steps // TENTHS} to {options.steps};", end=" ")
            print("after each tenth", *(f"{m:.0f}" for m in memory), flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
