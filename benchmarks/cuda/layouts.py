"""Sizes of the cases, and a case that knows how it is timed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from boost_ext.bench.data import cuts
from boost_ext.bench.harness import Case

from .devices import Device

ALIGNMENT = 128  # elements: 512 bytes of float32, 256 of halves, as the allocators of frameworks align
_BYTES = 200  # an element of the largest case: tensors, those of the peers, float64 to compare with


@dataclass(frozen=True)
class CudaCase(Case):
    access: str = "copy"
    seconds: float = 0.3
    whole_call: bool = False
    """Timed as a caller sees it, with what the host does; else only what the device does."""


@dataclass(frozen=True)
class Layout:
    """`count` tensors with `n` elements together."""

    n: int
    count: int
    large: bool = False
    """So much that its bandwidth is judged: 1e9 bytes and more."""
    cut: bool = False
    """Side by side in one buffer, aligned to an element, as the views of a bucket; else each as an allocator aligns."""

    def __str__(self) -> str:
        return f"{self.count} tensor{'s' * (self.count > 1)}{' cut from a buffer' * self.cut}, {self.n:.1e}"

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """Where in a buffer of `room` elements each tensor begins and ends."""
        found, start = [], 0
        for begin, end in pairwise([0, *cuts(self.n, self.count), self.n]):
            found.append((start, start + end - begin))
            start += end - begin
            if not self.cut:
                start = -(-start // ALIGNMENT) * ALIGNMENT
        return found

    @property
    def room(self) -> int:
        return self.places[-1][1]

    @property
    def bandwidth_goal(self) -> float | None:
        return 0.9 if self.large else None


@dataclass(frozen=True)
class Layouts:
    middle: Layout
    many: Layout
    large: Layout
    tiny: Layout
    cut: Layout
    matrix: tuple[int, int]
    """Rows and columns of P."""
    side: int
    """Of square matrices."""


def layouts(device: Device, small: bool) -> Layouts:
    if small:
        return Layouts(
            Layout(6_000, 6),
            Layout(20_000, 50),
            Layout(9_001, 1, large=True),
            Layout(18_000, 60),
            Layout(20_000, 50, cut=True),
            (8, 3_001),
            24,
        )
    most = min(250_000_000, device.free // _BYTES)
    columns = min(10_000_000, device.free // (8 * _BYTES))
    return Layouts(
        Layout(25_000_000, 60),
        Layout(20_000_000, 500),
        Layout(most, 1, large=True),
        Layout(18_000, 60),
        Layout(20_000_000, 500, cut=True),
        (32, columns),
        512,
    )
