"""A step of several ranks: they must start alike, and a rank that does not answer must be told of in plain words."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from boost_ext.ms.ranks import COLLECTIVE_TIMEOUT, Ranks, exchange, require_alike
from boost_ext.ms.resume import checksum, constants_of, is_scratch, write

__all__ = ["Together"]


class Together:
    """What a training cell holds for its steps with other ranks."""

    def __init__(self) -> None:
        self._alike = False

    @contextmanager
    def step(self, cell: Any) -> Iterator[None]:
        """Around a step of the cell; nothing, if it trains alone.

        Raises:
            ValueError: before the first step, on every rank, if the ranks do not start alike; names what differs.
            RuntimeError: if a collective operation fails, of which MindSpore names the kernel only.
        """
        if cell.ranks.size == 1:
            yield
            return
        # MindSpore's own broadcast at compilation comes too late, and in PYNATIVE_MODE leaves other values.
        broadcast = ms.get_auto_parallel_context("parameter_broadcast")
        try:
            if broadcast:
                ms.set_auto_parallel_context(parameter_broadcast=False)
            if not self._alike:
                _start_alike(cell, broadcast)
                self._alike = True
            yield
        except RuntimeError as error:
            if not any(name in str(error) for name in ("AllReduce", "AllGather")):
                raise
            limit = os.environ.get(COLLECTIVE_TIMEOUT)
            within = f" within {COLLECTIVE_TIMEOUT} = {limit} s" if limit else ""
            raise RuntimeError(
                f"{type(cell).__name__}: rank {cell.ranks.rank} of {cell.ranks.size}, after {cell.steps_made} steps: "
                f"every other rank must answer{within}, got nothing from one: it ended, hangs, or runs other steps. "
                "Its log says why. Start all ranks again from the last checkpoint"
            ) from error
        finally:
            if broadcast:
                ms.set_auto_parallel_context(parameter_broadcast=True)


def _start_alike(cell: Any, broadcast: bool) -> None:
    """Not the statistics of batch norms, which are each rank's own: they differ after a resume. With AdaSum not
    the state of the optimizer, which steps on the gradients of one node, but for its masters."""
    owner = type(cell).__name__
    network = list(cell.network.get_parameters())
    layout = "".join(f"{p.name} {p.dtype} {p.shape};" for p in network)
    require_alike(owner, cell.ranks, {"the network": np.frombuffer(layout.encode(), np.uint8)})
    if broadcast and cell.steps_made == 0:
        _take_from_rank_0(network, cell.ranks)
    weights = {p.name: p for p in cell.optimizer.parameters}
    rest = {p.name: p for p in cell.optimizer.get_parameters() if p.name not in weights and not is_scratch(p.name)}
    if cell.check_adasum_enable():
        rest = {name: p for name, p in rest.items() if name.startswith("master.")}
    constants = {name: value for name, value in constants_of(cell).items() if not name.endswith("pca_matrix")}
    averaged = [constants.pop(name) for name in list(constants) if "weight_averaging" in name]
    require_alike(
        owner,
        cell.ranks,
        {
            "the weights": checksum(p.asnumpy() for p in weights.values()),
            "the state of the optimizer": checksum(p.asnumpy() for p in rest.values()),
            "the loss scale": cell.scale_sense.asnumpy(),
            "accumulation or freezing": np.asarray(list(constants.values()), np.int64),
            "the basis of weight averaging": np.asarray(averaged, np.int64),
            "the number of steps made": cell.steps_made,
        },
    )


def _take_from_rank_0(parameters: list[Parameter], ranks: Ranks) -> None:
    """What ``parameter_broadcast`` asks for."""
    arrays = [np.ascontiguousarray(p.asnumpy()) for p in parameters]
    data = b"".join(array.tobytes() for array in arrays)
    padded = data + bytes(-len(data) % 4)
    first = exchange(np.frombuffer(padded, np.int32), ranks)[0].tobytes()
    for parameter, array in zip(parameters, arrays, strict=True):
        mine, first = first[: array.nbytes], first[array.nbytes :]
        write(parameter, Tensor(np.frombuffer(mine, array.dtype).reshape(array.shape).copy(), parameter.dtype))
