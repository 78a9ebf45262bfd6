"""How many collectives run eagerly, by name; those of compiled graphs nobody sees."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from mindspore.ops import Primitive

ALL = {"AllReduce", "AllGather", "Broadcast", "ReduceScatter", "Reduce", "AlltoAll", "AlltoAllV", "AllGatherV"}
ALL |= {"Send", "Receive", "CollectiveGather", "CollectiveScatter", "Barrier", "NeighborExchange"}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Counts while the block runs."""
    seen: Counter[str] = Counter()
    call: Callable[..., Any] = Primitive.__call__

    def counting(self: Any, *args: Any) -> Any:
        if self.name in ALL:
            seen[self.name] += 1
        return call(self, *args)

    with mock.patch.object(Primitive, "__call__", counting):
        yield seen
