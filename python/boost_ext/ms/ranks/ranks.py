"""What ranks tell one another, beside gradients: who trains together, and whether they start alike."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn, ops
from mindspore.communication import GlobalComm, get_group_size, get_rank, init

__all__ = ["ALONE", "COLLECTIVE_TIMEOUT", "Ranks", "answered", "exchange", "init_ranks", "rank_count", "require_alike"]

_SHOWN = 200  # characters of a value in an error
COLLECTIVE_TIMEOUT, _ARRIVAL = "MS_CPU_COMM_OP_TIMEOUT", "MS_TOPO_TIMEOUT"


def rank_count() -> int:
    """Processes that have met; 1 before, and alone."""
    return int(get_group_size()) if GlobalComm.INITED else 1


class Ranks(NamedTuple):
    """The processes that train one network together, data parallel.

    Attributes:
        rank: of this process. size: how many there are.
        mean: whether gradients are averaged (``gradients_mean``), not added up.
    """

    rank: int
    size: int
    mean: bool

    @classmethod
    def of(cls, step: nn.TrainOneStepCell) -> Ranks:
        """Those of a training cell: more than one only in a data-parallel run."""
        if not step.reducer_flag or rank_count() == 1:
            return ALONE
        return cls(get_rank(), rank_count(), bool(step.mean))


ALONE = Ranks(0, 1, True)


def init_ranks(timeout: int = 600) -> None:
    """Join the other ranks: ``mindspore.communication.init()`` with bounded waiting.

    On a CPU a rank that does not arrive, or does not answer in a collective operation (it ended, hangs, or runs other
    steps), is an error after ``timeout`` seconds. The environment variables MS_TOPO_TIMEOUT and MS_CPU_COMM_OP_TIMEOUT
    win, if they are set. docs/distributed.md has the effect of each fault.

    Args:
        timeout (int): seconds, >= 1; more than the ranks ever differ, compilation included. Default: 600.

    Raises:
        TypeError, ValueError: if `timeout` is no int or less than 1.
        RuntimeError: if not all ranks arrived.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, int):
        raise TypeError(f"init_ranks: timeout must be an int, got {type(timeout).__name__}")
    if timeout < 1:
        raise ValueError(f"init_ranks: timeout must be >= 1, got {timeout}")
    for name in (COLLECTIVE_TIMEOUT, _ARRIVAL):
        os.environ.setdefault(name, str(timeout))
    try:
        init()
    except RuntimeError as error:
        expected = os.environ.get("MS_WORKER_NUM", "all")
        where = f"{os.environ.get('MS_SCHED_HOST')}:{os.environ.get('MS_SCHED_PORT')}"
        raise RuntimeError(
            f"init_ranks: {expected} ranks must meet at the scheduler {where} within {os.environ[_ARRIVAL]} s, got an "
            f"error: at least one did not arrive; its log says why. MindSpore: {str(error).splitlines()[0]}"
        ) from error


@contextmanager
def answered(owner: str, ranks: Ranks, steps: Callable[[], int]) -> Iterator[None]:
    """The context of collective operations.

    Raises:
        RuntimeError: if one fails: names the rank and the number of steps made.
    """
    try:
        yield
    except RuntimeError as error:
        if not any(name in str(error) for name in ("AllReduce", "AllGather")):
            raise
        limit = os.environ.get(COLLECTIVE_TIMEOUT)
        within = f" within {COLLECTIVE_TIMEOUT} = {limit} s" if limit else ""
        raise RuntimeError(
            f"{owner}: rank {ranks.rank} of {ranks.size}, after {steps()} steps: every other rank must answer{within}, "
            "got nothing from one: it ended, hangs, or runs other steps. Its log says why. Start all ranks again from "
            "the last checkpoint"
        ) from error


class _AllGather(nn.Cell):
    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.gather = ops.AllGather()

    def construct(self, values: Tensor) -> Tensor:
        return self.gather(values)


def exchange(values: npt.ArrayLike, ranks: Ranks) -> npt.NDArray[np.int32]:
    """The values of all ranks, int32 of one length: (ranks, length). All must call it."""
    mine = np.atleast_1d(np.asarray(values, np.int32))
    return np.asarray(_AllGather()(Tensor(mine)).asnumpy()).reshape(ranks.size, -1)


def require_alike(owner: str, ranks: Ranks, facts: Mapping[str, Mapping[str, Any]]) -> None:
    """All ranks must have the same facts, strings or arrays by kind and name. One exchange of a checksum a kind; where
    one differs, another of the names.

    Raises:
        ValueError: on every rank, if one differs; names it, and the values if they are strings.
    """
    mine = [_checksums(named) for named in facts.values()]
    sums = [zlib.crc32(json.dumps(known).encode()) for known in mine]
    table = exchange(np.asarray(sums, np.uint32).view(np.int32), ranks)
    for i, kind in enumerate(facts):
        others = np.flatnonzero(table[:, i] != table[0, i])
        if len(others):
            raise ValueError(f"{owner}: {_difference(kind, facts[kind], mine[i], int(others[0]), ranks)}")


def _checksums(named: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else f"{zlib.crc32(np.ascontiguousarray(value).tobytes()):08x}"
        for name, value in named.items()
    }


def _difference(kind: str, named: Mapping[str, Any], mine: dict[str, str], other: int, ranks: Ranks) -> str:
    first, theirs = _of_two(mine, other, ranks)
    names = [name for name in {**first, **theirs} if first.get(name) != theirs.get(name)]
    if not names:  # the same names in another order
        names = [name for name, mate in zip(first, theirs, strict=True) if name != mate]
    name, more = names[0], f", and {len(names) - 1} more" if len(names) > 1 else ""
    if all(isinstance(value, str) for value in named.values()):
        pair = [f"{known.get(name, 'nothing')[:_SHOWN]} on rank {r}" for known, r in ((theirs, other), (first, 0))]
        return (
            f"{name} must be the same on all ranks, got {' and '.join(pair)}{more}; give all ranks the same arguments"
        )
    return (
        f"{kind} must be the same on all ranks, got others on rank {other} than on rank 0: {name}{more}; give all "
        "ranks the same arguments and, by mindspore.set_seed or a checkpoint, the same initial values"
    )


def _of_two(mine: dict[str, str], other: int, ranks: Ranks) -> list[dict[str, str]]:
    """What rank 0 and another one have."""
    data = json.dumps(mine).encode()
    longest = int(exchange(len(data), ranks).max())
    table = exchange(np.frombuffer(data.ljust(-(-longest // 4) * 4), np.int32), ranks)
    return [json.loads(table[rank].tobytes()) for rank in (0, other)]
