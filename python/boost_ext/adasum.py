"""AdaSum over ranks: the schedule of exchanges, its cost, and a simulator of all ranks in one process.

The definition. N nodes bring a vector each (the weight deltas of one dtype, one tensor behind the other). P is the
largest power of two <= N. The vector of node P + i is first added to that of node i; then neighbours are added, then
pairs of neighbours, and so on: a binary tree. "Added" is the adaptive sum of :func:`boost_ext.ops.adasum_pair`, tensor
by tensor, the lower node first; every sum is rounded to the vector's dtype.

The exchange. Halves are exchanged and each rank continues with one half (recursive vector halving, distance
doubling); at the end all parts are gathered. With several devices in a node each of them does this with its share of
the vector. The dot products of parts are added up in the order of the ranks, in float64, by every rank alike: so all
ranks, and the simulator, have the same bits.

Source: Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, sections 3 and 4.
Imports without MindSpore.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from boost_ext import ops

__all__ = ["Exchange", "Schedule", "adasum_simulate", "padded", "schedule"]

_ALIGNED = 16  # elements


@dataclass(frozen=True)
class Exchange:
    """One exchange of one rank.

    Attributes:
        pair (tuple[int, int]): the two ranks, the lower one first.
        holders (tuple[int]): the ranks whose dot products are added up, rising.

    Examples:
        >>> from boost_ext.adasum import schedule
        >>> schedule(rank=1, device_number=1, group_number=2).levels[0]
        Exchange(pair=(0, 1), holders=(0, 1))
    """

    pair: tuple[int, int]
    holders: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """The exchanges of one rank.

    Attributes:
        rank, device_number, group_number (int): which rank; devices of a node; nodes.
        fold (Exchange, optional): the upper rank gives its whole share to the lower one, and has nothing to do then.
        levels (tuple[Exchange]): halves are exchanged; the lower rank keeps the lower half.
        parts (tuple[int]): for each rank which part of the vector it holds at the end, -1 for none.

    Examples:
        >>> from boost_ext.adasum import schedule
        >>> third = schedule(rank=2, device_number=1, group_number=3)  # gives its share to rank 0
        >>> third.gives_away, third.part_count
        (True, 2)
    """

    rank: int
    device_number: int
    group_number: int
    fold: Exchange | None
    levels: tuple[Exchange, ...]
    parts: tuple[int, ...]

    @property
    def part_count(self) -> int:
        """Parts that the vector is cut into."""
        return max(self.parts) + 1

    @property
    def gives_away(self) -> bool:
        """Whether this rank only gives its share to another one."""
        return self.fold is not None and self.rank == self.fold.pair[1]


def _power_below(count: int) -> int:
    """The largest power of two <= count."""
    return 1 << (count.bit_length() - 1)


def _reversed(number: int, bits: int) -> int:
    return sum((number >> i & 1) << (bits - 1 - i) for i in range(bits))


def _checked(owner: str, **numbers: Any) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
            raise TypeError(f"{owner}: {name} must be an int, got {type(value).__name__}")
        if value < (0 if name == "rank" else 1):
            raise ValueError(f"{owner}: {name} must be >= {0 if name == 'rank' else 1}, got {value}")


def schedule(rank: int, device_number: int, group_number: int) -> Schedule:
    """The exchanges of `rank`, of ``device_number * group_number`` ranks; node k has those from k * device_number on.

    Raises:
        TypeError: if an argument is no int.
        ValueError: if one is out of range.

    Examples:
        >>> from boost_ext.adasum import schedule
        >>> [exchange.pair for exchange in schedule(rank=0, device_number=1, group_number=4).levels]
        [(0, 1), (0, 2)]
    """
    _checked("AdaSum", rank=rank, device_number=device_number, group_number=group_number)
    if rank >= device_number * group_number:
        raise ValueError(f"AdaSum: rank must be < {device_number * group_number}, got {rank}")
    node, device = divmod(rank, device_number)
    power = _power_below(group_number)
    depth = power.bit_length() - 1

    def devices(first: int, count: int) -> tuple[int, ...]:
        return tuple(range(first * device_number, (first + count) * device_number))

    def pair(lower: int, upper: int) -> tuple[int, int]:
        return lower * device_number + device, upper * device_number + device

    lower = node % power
    fold = Exchange(pair(lower, lower + power), devices(lower, 1)) if lower + power < group_number else None
    levels = tuple(
        Exchange(pair(node & ~(1 << i), node | 1 << i), devices(node >> i + 1 << i + 1, 2 << i)) for i in range(depth)
    )
    parts = [
        d * power + _reversed(k, depth) if k < power else -1 for k in range(group_number) for d in range(device_number)
    ]
    return Schedule(rank, device_number, group_number, fold, levels if node < power else (), tuple(parts))


def padded(elements: int, parts: int) -> int:
    """The length of a vector of so many elements that is cut into so many parts.

    Examples:
        >>> from boost_ext.adasum import padded
        >>> padded(elements=100, parts=2)
        128
    """
    return parts * max(1, -(-elements // (parts * _ALIGNED))) * _ALIGNED


def adasum_simulate(deltas: Sequence[Any], device_number: int = 1) -> list[Any]:
    """The adaptive sum of several ranks' weight deltas in one process, with the bits that a run over ranks has.

    Args:
        deltas (Sequence): for each node its list of arrays: float32, float16 or bfloat16 (``ml_dtypes``), of the same
            shapes and dtypes for all nodes. Not changed.
        device_number (int): devices of each node. It changes the sums by rounding only: the parts are smaller.
            Default: 1.

    Returns:
        list: new arrays, the adaptive sum of the nodes' deltas. See this module's docstring for the definition.

    Raises:
        TypeError: if `deltas` is no sequence of lists of arrays, or a dtype is another one.
        ValueError: if it is empty, or nodes have different shapes or dtypes.

    A run over ranks gives these bits but for two things that MindSpore's arithmetic does: it may give 0 where this
    gives -0, and numbers below the smallest normal float32 become 0 there.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import adasum_simulate
        >>> nodes = [[np.float32([1, 0])], [np.float32([0, 1])], [np.float32([0, 1])]]  # a tensor of each node
        >>> print(adasum_simulate(nodes)[0])
        [0.75 1.25]
    """
    owner = "adasum_simulate"
    _checked(owner, device_number=device_number)
    if not isinstance(deltas, (list, tuple)) or not all(isinstance(node, (list, tuple)) for node in deltas):
        raise TypeError(f"{owner}: deltas must be a list with a list of arrays for each node")
    if not deltas or not deltas[0]:
        raise ValueError(f"{owner}: deltas must hold at least one node, with at least one array each, got none")
    nodes = [[np.asarray(array, order="C") for array in node] for node in deltas]
    kinds = [(array.shape, array.dtype) for array in nodes[0]]
    for k, node in enumerate(nodes):
        if [(array.shape, array.dtype) for array in node] != kinds:
            raise ValueError(f"{owner}: deltas[{k}] must have the shapes and dtypes of deltas[0]")
    result: list[Any] = [None] * len(kinds)
    for dtype in dict.fromkeys(dtype for _, dtype in kinds):
        chosen = [i for i, (_, other) in enumerate(kinds) if other == dtype]
        vectors = [[node[i].reshape(-1) for i in chosen] for node in nodes]
        for i, array in zip(chosen, _tree(vectors, device_number), strict=True):
            result[i] = array.reshape(kinds[i][0]).copy()
    return result


def _tree(vectors: list[list[Any]], device_number: int) -> list[Any]:
    """The adaptive sum of the nodes' tensors, which are flat and of one dtype."""
    power = _power_below(len(vectors))
    size = padded(sum(array.size for array in vectors[0]), power * device_number)
    for i in range(len(vectors) - power):
        vectors[i] = _added(vectors[i], vectors[power + i], size, range(device_number))
    vectors, depth = vectors[:power], 0
    while len(vectors) > 1:
        depth += 1
        # The ranks in order, node by node, each with its part.
        order = [d * 2**depth + _reversed(k, depth) for k in range(2**depth) for d in range(device_number)]
        vectors = [_added(a, b, size, order) for a, b in zip(vectors[::2], vectors[1::2], strict=True)]
    return vectors[0]


def _added(a: list[Any], b: list[Any], size: int, order: Sequence[int]) -> list[Any]:
    """The adaptive sum of two vectors; the dot products of their parts are added up in this order."""
    ends = np.cumsum([array.size for array in a])
    step = size // len(order)
    dots = np.zeros((len(a), 3))
    for part in order:
        begin, end = part * step, (part + 1) * step
        for t, (first, last) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            low, high = max(first, begin) - first, min(last, end) - first
            if low < high:
                dots[t] += ops.adasum_dots([a[t][low:high]], [b[t][low:high]])[0]
    return list(ops.adasum_combine(a, b, dots))
