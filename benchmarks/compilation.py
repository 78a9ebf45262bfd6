"""How long a layer makes the first step of a training, which compiles it, beside ``nn.TrainOneStepCell``.

``python -m benchmarks.compilation [--quick]``: a table of milliseconds a layer, in GRAPH_MODE at O0. Each is the
difference of the first steps of a network with 80 of a layer and of one with 10, divided by 70, in a process each.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

LAYERS = {
    "Conv2d(8, 8, 3)": (2, 8, 8, 8),
    "Conv2d(8, 8, 3, has_bias=True)": (2, 8, 8, 8),
    "BatchNorm2d(8)": (2, 8, 8, 8),
    "MaxPool2d(3, 1, 'same')": (2, 8, 8, 8),
    "Dense(8, 8)": (4, 8),
    "LayerNorm((8,))": (4, 8),
    "GELU()": (4, 8),
}
"""And the shape of what each is given, and of what it gives."""
COUNTS = 10, 80


def first_step(layer: str, count: int, boosted: bool) -> float:
    """Seconds of the first step of a network with so many of this layer, behind one Dense."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    from boost_ext.boost import BoostTrainOneStepCell

    ms.set_context(mode=ms.GRAPH_MODE)
    x = ms.Tensor(np.ones(LAYERS[layer], np.float32))
    network = nn.SequentialCell(nn.Dense(8, 8), *(eval(f"nn.{layer}", {"nn": nn}) for _ in range(count)))
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    loss = nn.WithLossCell(network, nn.MSELoss())
    cell: Any = BoostTrainOneStepCell if boosted else nn.TrainOneStepCell
    step = cell(loss, optimizer).set_train()
    begin = time.perf_counter()
    step(x, x)
    return time.perf_counter() - begin


def milliseconds(layer: str, boosted: bool, counts: tuple[int, int]) -> float:
    seconds = []
    for count in counts:
        with ProcessPoolExecutor(1, get_context("spawn")) as one:  # MindSpore keeps what it has compiled
            seconds.append(one.submit(first_step, layer, count, boosted).result())
    return (seconds[1] - seconds[0]) / (counts[1] - counts[0]) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compilation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few layers: only whether it runs")
    counts = (1, 3) if parser.parse_args().quick else COUNTS
    print("| ms a layer | boost_ext | MindSpore | of the time |\n|---|---|---|---|")
    for layer in LAYERS:
        ours, theirs = milliseconds(layer, True, counts), milliseconds(layer, False, counts)
        print(f"| `{layer}` | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} |", flush=True)


if __name__ == "__main__":
    main()
