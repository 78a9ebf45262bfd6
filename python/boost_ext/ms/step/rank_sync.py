"""Steps on several ranks: a consistency check before the first one, and a clear error if a rank does not answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from boost_ext.ms.core.resume import constants_of, moving_of, write
from boost_ext.ms.ranks.ranks import Ranks, answered, exchange, require_alike
from boost_ext.ms.step.settings import settings_of

__all__ = ["RankSync"]

_COUNTS = ("boost.steps", "accumulation_step", "scale_sense")
_OF_THE_GUARD = ("loss_scale.found", "loss_scale.reported")


class RankSync:
    """The context in which a training cell makes its steps with other ranks."""

    def __init__(self) -> None:
        self._alike = False

    @contextmanager
    def step(self, cell: Any) -> Iterator[None]:
        """The context of one step. It does nothing on a single rank.

        Raises:
            ValueError: before the first step, on every rank, if the ranks differ. The message says where.
            RuntimeError: if a collective operation fails.
        """
        if cell.ranks.size == 1:
            yield
            return
        # MindSpore's own broadcast at compilation comes too late, and in PYNATIVE_MODE leaves other values.
        broadcast = ms.get_auto_parallel_context("parameter_broadcast")
        try:
            if broadcast:
                ms.set_auto_parallel_context(parameter_broadcast=False)
            with answered(type(cell).__name__, cell.ranks, lambda: int(cell.steps_made)):
                if not self._alike:
                    _start_alike(cell, broadcast)
                    self._alike = True
                yield
        finally:
            if broadcast:
                ms.set_auto_parallel_context(parameter_broadcast=True)


def _start_alike(cell: Any, broadcast: bool) -> None:
    """Compare settings, weights and state over the ranks.

    Not compared: statistics and dropout states of the network, which are each rank's own. With AdaSum the state of the
    optimizer either, except masters: it steps on the gradients of one node."""
    owner = type(cell).__name__
    network = {p.name: p for p in cell.network.get_parameters()}
    layout = {"the network": {f"the parameter {name}": _layout(p) for name, p in network.items()}}
    settings = settings_of(cell)
    for name, value in constants_of(cell).items():
        if not name.endswith("pca_matrix"):  # of which each rank has its rows
            settings[name.rpartition(".")[2].replace("_", " ")] = str(value)
    trained = {p.name: p for p in cell.optimizer.parameters}
    # Statistics of batch norms are each rank's own, and so are their averages.
    own = {*network, *(f"ema.{name}" for name in network.keys() - trained.keys())}
    held = moving_of(cell)
    groups = () if cell.loss_scale_update is None else cell.loss_scale_update.get_parameters()
    scales = {p.name: p for p in groups if p.name not in _OF_THE_GUARD}  # the network may hold them too
    if broadcast and cell.steps_made == 0:
        taken = {**network, **held, **scales}  # masters and averages began with the weights
        shapes = {f"the state {name}": _layout(p) for name, p in taken.items()}
        require_alike(owner, cell.ranks, {**layout, "the settings": settings, "the state": shapes})
        _take_from_rank_0(list(taken.values()), cell.ranks)
    moving = {name: p for name, p in held.items() if name not in own and name not in trained}
    if cell.check_adasum_enable():
        moving = {name: p for name, p in moving.items() if name in _COUNTS or name.startswith("master.")}
    moving |= scales
    require_alike(
        owner,
        cell.ranks,
        {
            **layout,
            "the settings": settings,
            "the weights": {name: p.asnumpy() for name, p in trained.items()},
            "the state": {name: p.asnumpy() for name, p in moving.items()},
        },
    )


def _layout(parameter: Parameter) -> str:
    return f"{parameter.dtype} {tuple(parameter.shape)}"


def _take_from_rank_0(parameters: list[Parameter], ranks: Ranks) -> None:
    """Copy the parameters of rank 0 to this rank, for ``parameter_broadcast``."""
    arrays = [np.ascontiguousarray(p.asnumpy()) for p in parameters]
    data = b"".join(array.tobytes() for array in arrays)
    padded = data + bytes(-len(data) % 4)
    first = exchange(np.frombuffer(padded, np.int32), ranks)[0].tobytes()
    for parameter, array in zip(parameters, arrays, strict=True):
        mine, first = first[: array.nbytes], first[array.nbytes :]
        write(parameter, Tensor(np.frombuffer(mine, array.dtype).reshape(parameter.shape).copy(), parameter.dtype))
