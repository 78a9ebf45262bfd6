"""Data-parallel training on the processes of this machine, beside one process, started by MindSpore's msrun.

``python distributed.py FOLDER`` is one process of it: alone, or a rank if msrun has started it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.table import Table

from boost_ext.demo import msrun
from boost_ext.demo.settings import Settings
from boost_ext.files import parsed_json, write_text
from boost_ext.terminal import Fitting

__all__ = ["Result", "run", "table"]

_ARRIVAL, _LIMIT = 120, 900  # seconds until all ranks are there, and for everything
_SETTINGS = "settings.json"


@dataclass(frozen=True)
class Result:
    """What one kind of cell gave.

    Attributes:
        name, ranks: which cell, on how many processes.
        accuracy: test accuracy of rank 0. step_ms: median of a step, in ms. seconds: of training, compilation included.
        weights: a checksum of the last weights of each rank.
    """

    name: str
    ranks: int
    accuracy: float
    step_ms: float
    seconds: float
    weights: tuple[int, ...]


def run(ranks: int, settings: Settings, folder: Path) -> list[Result]:
    """Train alone, then on so many ranks. The batch is the same: each rank takes its share of it.

    Raises:
        ValueError: if the ranks cannot share the batch evenly.
        OSError: if a process failed; names where its log lies.
    """
    if settings.batch_size % ranks:
        raise ValueError(f"train: --batch-size must be a multiple of --ranks = {ranks}, got {settings.batch_size}")
    write_text(folder / _SETTINGS, json.dumps(settings.as_dict()))
    script, logs = Path(__file__), folder / "logs"
    logs.mkdir()
    _wait([sys.executable, str(script), str(folder)], {**os.environ}, logs / "alone.log", logs)
    together = msrun.command(ranks, logs, script, str(folder), arrival=_ARRIVAL)
    _wait(together, msrun.environment(max(1, (os.cpu_count() or 1) // ranks)), logs / "msrun.log", logs)
    return [*_results(folder, 1), *_results(folder, ranks)]


def _results(folder: Path, ranks: int) -> list[Result]:
    """Those of rank 0, with the checksums of all."""
    paths = [folder / f"results-{rank}-of-{ranks}.json" for rank in range(ranks)]
    each = [parsed_json(f"train: {path}", path.read_bytes()) for path in paths]
    return [
        Result(**{**first, "weights": tuple(rank[i]["weights"][0] for rank in each)}) for i, first in enumerate(each[0])
    ]


def table(results: list[Result], settings: Settings) -> Fitting:
    """The results, a row each."""
    view = Table(title=f"{settings.length}, batch {settings.batch_size}, shared by the processes")
    view.add_column("cell", overflow="fold")
    for column in ("processes", "test accuracy", "ms a step", "seconds", "same bits on all"):
        view.add_column(column, justify="right", no_wrap=True)
    for r in results:
        same = "" if r.ranks == 1 else "yes" if len(set(r.weights)) == 1 else "[bold red]no[/]"
        view.add_row(r.name, str(r.ranks), f"{r.accuracy:.2%}", f"{r.step_ms:.2f}", f"{r.seconds:.1f}", same)
    return Fitting(view)


def _wait(command: list[str], environment: dict[str, str], log: Path, logs: Path) -> None:
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environment)
        try:
            code = process.wait(_LIMIT)
        except BaseException as error:
            process.send_signal(signal.SIGINT)  # upon which msrun ends its workers
            process.wait(30)
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(
                    f"train: all processes must end within {_LIMIT} s; their logs are in {logs}"
                ) from error
            raise
    if code != 0:
        raise ChildProcessError(f"train: every process must end well, got exit code {code}; their logs are in {logs}")


def _main(folder: Path) -> None:
    """One process."""
    import mindspore as ms
    import numpy as np
    from mindspore import Tensor, nn

    from boost_ext.boost import BoostTrainOneStepCell
    from boost_ext.demo import digits
    from boost_ext.demo.network import accuracy, loss_function, momentum, new_network
    from boost_ext.distributed import init_ranks

    settings = Settings(**json.loads((folder / _SETTINGS).read_text()))
    ms.set_context(mode=ms.GRAPH_MODE if settings.mode == "graph" else ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    rank, ranks = 0, 1
    if "MS_ROLE" in os.environ:
        init_ranks(_ARRIVAL)
        rank, ranks = ms.communication.get_rank(), ms.communication.get_group_size()
        ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    data = digits.load()
    share = settings.batch_size // ranks
    mine = slice(rank * share, (rank + 1) * share)

    def train(name: str, make: Any) -> Result:
        start = perf_counter()
        network = new_network(settings.seed)
        cell = make(nn.WithLossCell(network, loss_function()), momentum(network, settings))
        cell.set_train()
        steps = []
        for epoch in range(settings.epochs):
            for images, labels in digits.batches(data, settings.batch_size, epoch, settings.seed):
                began = perf_counter()
                loss = cell(Tensor(images[mine]), Tensor(labels[mine]))
                (loss[0] if isinstance(loss, tuple) else loss).asnumpy()
                steps.append(perf_counter() - began)
        seconds = perf_counter() - start
        checksum = zlib.crc32(b"".join(p.asnumpy().tobytes() for p in network.trainable_params()))
        milliseconds = 1e3 * float(np.median(steps))
        return Result(name, ranks, accuracy(network, data), milliseconds, seconds, (checksum,))

    results = [train("boost_ext", BoostTrainOneStepCell), train("MindSpore", nn.TrainOneStepCell)]
    written = json.dumps([asdict(result) for result in results], indent=1)
    write_text(folder / f"results-{rank}-of-{ranks}.json", written)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
