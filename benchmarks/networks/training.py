"""Measurements of one recipe, each in a process of its own: ``python -m benchmarks.networks.training REQUEST``.

The request and the answer are JSON, so that one training's memory and threads are not another's.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

_STEPS_A_TURN = 5
_LAST = 20
_MARK = "answer: "


def answer_of(output: str) -> dict[str, Any] | None:
    """What a process of this module printed; None if it did not come to its end."""
    for line in output.splitlines():
        if line.startswith(_MARK):
            found: dict[str, Any] = json.loads(line.removeprefix(_MARK))
            return found
    return None


def _set_mode(mode: str) -> None:
    import mindspore as ms

    ms.set_context(mode=ms.GRAPH_MODE if mode == "GRAPH_MODE" else ms.PYNATIVE_MODE)


def _memory() -> float:
    """MB that the process has held at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def whole(name: str, variant: int, mode: str, steps: int | None) -> dict[str, Any]:
    """A training from the network's construction to its last step, by ``Model.train``, and the accuracy then."""
    import mindspore as ms

    from .recipes import VARIANTS, batches, make_fast, model, recipes, shuffled

    _set_mode(mode)
    recipe = recipes()[name]
    make_fast(recipe)
    steps = steps or recipe.steps
    train, test = recipe.samples()
    dataset = batches(shuffled(train, recipe.batch, steps), recipe.batch)
    before = _memory()
    losses: list[float] = []
    first: list[float] = []

    class Losses(ms.Callback):  # type: ignore[misc]
        def on_train_step_end(self, run_context: Any) -> None:
            out = run_context.original_args().net_outputs
            losses.append(float((out[0] if isinstance(out, (tuple, list)) else out).asnumpy()))
            first.append(time.perf_counter())

    start, used = time.perf_counter(), time.process_time()
    made = model(recipe, VARIANTS[variant], steps)
    made.train(1, dataset, callbacks=[Losses()], dataset_sink_mode=False)
    seconds, used = time.perf_counter() - start, time.process_time() - used
    found: dict[str, Any] = {
        "seconds": seconds,
        "cpu_seconds": used,
        "first_step": first[0] - start,
        "steps": len(losses),
        "loss": float(np.mean(losses[-_LAST:])),
        "memory": _memory(),
        "memory_before": before,
    }
    if recipe.classifies:
        found["accuracy"] = float(made.eval(batches(test, 1), dataset_sink_mode=False)["accuracy"])
    return found


def move(cell: Any, share: float) -> int:
    """Go to this share of the training; the group of layers that is trained there. 0: all, as without freezing."""
    import mindspore as ms

    freezing = cell.optimizer
    if not hasattr(freezing, "schedule"):
        return 0
    ms.ops.assign(freezing.position, ms.Tensor([int(share * len(freezing.schedule))], ms.int32))
    return int(freezing.current())


def _shares(cell: Any) -> list[float]:
    """Of all steps of the training the share that each group of layers has."""
    schedule = np.asarray(getattr(cell.optimizer, "schedule", [0]))
    return (np.bincount(schedule) / len(schedule)).tolist()  # type: ignore[no-any-return]


def _call(cell: Any, batch: Sequence[Any]) -> float:
    out = cell(*batch)
    return float((out[0] if isinstance(out, (tuple, list)) else out).asnumpy())


def steps(name: str, variants: Sequence[int], mode: str, rounds: int) -> dict[str, Any]:
    """A few steps of each variant in turns: whatever else the machine does hits all of them.

    The turns are spread over the training, since a level trains less of the network at its end.
    """
    import mindspore as ms

    from .recipes import VARIANTS, make_fast, model, recipes

    _set_mode(mode)
    recipe = recipes()[name]
    make_fast(recipe)
    train, _ = recipe.samples()
    batch = [ms.Tensor(column[: recipe.batch]) for column in train]
    cells, compiling, losses = [], [], []
    for variant in variants:
        start, used = time.perf_counter(), time.process_time()
        cell = model(recipe, VARIANTS[variant], recipe.steps).train_network
        cell.set_train()
        losses.append(_call(cell, batch))
        compiling.append([time.perf_counter() - start, time.process_time() - used])
        cells.append(cell)
    turns: list[list[list[float]]] = [[] for _ in cells]
    trained = [0] * len(cells)
    gc.collect()
    for turn in range(rounds):
        for i, (cell, times) in enumerate(zip(cells, turns, strict=True)):
            group = move(cell, (turn + 0.5) / rounds)
            start, used = time.perf_counter(), time.process_time()
            if group != trained[i]:  # the first step of a group compiles its graph
                _call(cell, batch)
                compiling[i][0] += time.perf_counter() - start
                compiling[i][1] += time.process_time() - used
                trained[i] = group
                start, used = time.perf_counter(), time.process_time()
            for _ in range(_STEPS_A_TURN):
                _call(cell, batch)
            spent = time.perf_counter() - start, time.process_time() - used
            times.append([*(s / _STEPS_A_TURN for s in spent), group])
    return {
        "variants": list(variants),
        "turns": turns,
        "shares": [_shares(cell) for cell in cells],
        "compilation": compiling,
        "first_loss": losses,
    }


def main() -> None:
    os.environ.setdefault("GLOG_v", "3")
    import boost_ext

    request = json.loads(sys.argv[1])
    boost_ext.set_float32_matmul_precision(request.pop("precision"))
    found = {"whole": whole, "steps": steps}[request.pop("measure")](**request)
    print(_MARK + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
