"""Calls of the ops with odd arguments: dtypes, shapes, strides, places, values, lists, numbers.

A call computes, or it is refused by a TypeError or ValueError that names the op. A refused call has written nothing. A
call that computes has written its written arguments and no byte beside them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from tests.ops.cases import CASES, Case, N, label, leaves

FENCE = 0 if "libasan" in os.environ.get("LD_PRELOAD", "") else 64
"""Bytes before and after each array. The address sanitizer has some of its own, which it sees reads of, too."""
NAMED = {"bfloat16": ml_dtypes.bfloat16}
DTYPES = [*map(np.dtype, ("f4", "f2", "f8", "i1", "i4", "i8", "?", ">f4")), np.dtype(ml_dtypes.bfloat16)]
SIZES = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 65, 127, 255, 257, 1025]
SHAPES = [
    (),
    (0, 3),
    (3, 0, 2),
    (1, 1),
    (5, 3),
    (3, 17),
    (16, 16),
    (2, 3, 4),
    (3, 1, 5, 2),
    (1,) * 9,
    (2**40, 0),
    (0, 2**40),
]
REALS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, 1e300, math.inf, -math.inf, math.nan]
INTEGERS = [-(2**31), -257, -1, 0, 1, 2, 5, 8, 24, 250, 2**16, 2**31 - 1]
NUMBERS = [*REALS, *INTEGERS, 2**63, -(2**63) - 1, 10**400, True, None, "1", np.float32(0.5), np.int64(2), np.ones(1)]


class Memory:
    """Bytes that arrays lie in, and which of them the op may write."""

    def __init__(self, size: int) -> None:
        self.bytes = np.full(size, 0xA5, np.uint8)
        self.may_change = np.zeros(size, bool)

    def note(self) -> None:
        self.before = self.bytes.copy()

    def changed(self) -> np.ndarray:
        return self.bytes != self.before


@dataclass
class Layout:
    """Where and how an array lies: its axes from the slowest, the step along each, bytes past the fence."""

    order: tuple[int, ...]
    steps: tuple[int, ...]
    shift: int = 0
    read_only: bool = False

    def strides(self, shape: tuple[int, ...], itemsize: int) -> tuple[tuple[int, ...], int, int]:
        """The strides, where the first element lies, and the bytes that all take."""
        strides, width, first = [0] * len(shape), itemsize, 0
        for axis in reversed(self.order):
            strides[axis] = width * self.steps[axis]
            first += width * (shape[axis] - 1) if self.steps[axis] < 0 and shape[axis] else 0
            width *= max(shape[axis], 1) * abs(self.steps[axis]) or 1
        return tuple(strides), first, width

    def place(self, values: np.ndarray, written: bool, memory: Memory | None, memories: list[Memory]) -> np.ndarray:
        """An array of these values; in new memory, unless there is some that it fits into."""
        if values.size == 0 and values.nbytes == 0 and max(values.shape, default=0) > 2**20:
            return values
        strides, first, width = self.strides(values.shape, values.itemsize)
        if memory is None or len(memory.bytes) < 2 * FENCE + width + self.shift:
            memory = Memory(2 * FENCE + width + self.shift)
            memories.append(memory)
        begin = FENCE + self.shift + first
        array: np.ndarray = np.ndarray(values.shape, values.dtype, memory.bytes.data, begin, strides)
        array[...] = values
        if written and not self.read_only:
            bytes_of = np.ndarray((*values.shape, values.itemsize), bool, memory.may_change.data, begin, (*strides, 1))
            bytes_of[...] = True
        array.flags.writeable = not self.read_only
        return array


@st.composite
def layouts(draw: st.DrawFn, axes: int) -> Layout:
    plain = tuple(range(axes))
    kind = draw(st.sampled_from(["plain", "read-only", "unaligned", "later", "order", "steps"]))
    if kind == "order":
        return Layout(tuple(draw(st.permutations(plain))), (1,) * axes)
    if kind == "steps":
        return Layout(plain, tuple(draw(st.sampled_from([1, 1, 2, -1, 0])) for _ in plain))
    return Layout(plain, (1,) * axes, {"unaligned": 1, "later": 4}.get(kind, 0), kind == "read-only")


def changed(draw: st.DrawFn, values: np.ndarray) -> np.ndarray:
    """Other values, another dtype or another shape."""
    kind = draw(st.sampled_from(["values", "dtype", "shape", "size"]))
    if kind == "values" and values.size:
        odd = INTEGERS if values.dtype.kind == "i" else REALS
        values = values.copy()
        new = np.asarray(draw(st.sampled_from(odd)))
        with np.errstate(all="ignore"):
            values.flat[draw(st.sampled_from([0, -1, values.size // 2]))] = new.astype(values.dtype)
    elif kind == "dtype":
        values = values.astype(draw(st.sampled_from(DTYPES)))
    elif kind in ("shape", "size"):
        shape = draw(st.sampled_from(SHAPES)) if kind == "shape" else (draw(st.sampled_from(SIZES)),)
        values = resized(values, shape)
    return values


def resized(values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if 0 in shape or not values.size:
        return np.ones(shape, values.dtype)
    return np.resize(values, shape)


def mapped(value: Any, name: str, change: Callable[[str, np.ndarray], Any]) -> Any:
    if isinstance(value, (list, tuple)):
        return [mapped(item, name, change) for item in value]
    return change(name, value) if isinstance(value, np.ndarray) else value


def relisted(draw: st.DrawFn, value: list[Any]) -> Any:
    """Another list, or something else in its place."""
    changes: dict[str, Callable[[], Any]] = {
        "fewer": lambda: value[:-1],
        "more": lambda: [*value, value[0]],
        "turned": lambda: value[::-1],
        "none": lambda: [],
        "tuple": lambda: tuple(value),
        "nested": lambda: [value],
        "first": lambda: value[0],
        "hole": lambda: [None, *value[1:]],
        "set": lambda: {1, 2},
        "generator": lambda: (item for item in value),
    }
    return changes[draw(st.sampled_from(sorted(changes)))]() if value else value


@dataclass
class Call:
    case: Case
    arguments: dict[str, Any]
    memories: list[Memory]

    def __repr__(self) -> str:
        return f"{label(self.case)}: {self.arguments}"

    def check(self) -> bool:
        """Whether it computed; AssertionError if it did what no call may."""
        for memory in self.memories:
            memory.note()
        refusal = ""
        try:
            with np.errstate(all="ignore"):
                self.case(self.arguments)
        except (TypeError, ValueError) as error:
            refusal = str(error)
        except RuntimeError as error:  # of a call that has computed: so many overflows are those of no training
            if "overflows in a row" not in str(error):
                raise
        for memory in self.memories:
            wrong = memory.changed() & ~(memory.may_change & (not refusal))
            assert not wrong.any(), f"wrote {wrong.sum()} bytes that are not its own; {refusal or 'not refused'}"
        assert not refusal or refusal.startswith(f"{self.case.op}: "), refusal
        return not refusal


@st.composite
def calls(draw: st.DrawFn, cases: list[Case] = CASES) -> Call:
    """A valid call of an op, in other sizes maybe, with some oddities."""
    case = draw(st.sampled_from(cases))
    arguments: dict[str, Any] = {**case.settings, **case.make(np.random.default_rng(0))}
    sizes = {
        (N,): (draw(st.sampled_from(SIZES)),),
        (2, N): draw(st.sampled_from([(2, N), (3, 5), (1, 0), (4, 4, 4)])),
    }
    if draw(st.booleans()):  # the same in all lists, so that most calls stay valid
        for name, argument in case.arrays.items():
            dtypes = [np.dtype(NAMED.get(text, text)) for text in re.split(", | or ", argument.dtype)]
            dtype = draw(st.sampled_from(dtypes))

            def other(_: str, a: np.ndarray, dtype: np.dtype = dtype) -> np.ndarray:
                return resized(a, sizes.get(a.shape, a.shape)).astype(dtype)

            if name in arguments:
                arguments[name] = mapped(arguments[name], name, other)
    count = sum(len(list(leaves(value))) for value in arguments.values())
    odd = draw(st.lists(st.integers(0, count - 1), max_size=3)) if count else []
    memories: list[Memory] = []
    seen = iter(range(count))

    def place(name: str, values: np.ndarray) -> np.ndarray:
        layout, memory = Layout(tuple(range(values.ndim)), (1,) * values.ndim), None
        if next(seen) in odd:
            if draw(st.booleans()):
                values = changed(draw, values)
            if memories and draw(st.integers(0, 3)) == 0:
                memory = draw(st.sampled_from(memories))
            layout = draw(layouts(values.ndim))
        return layout.place(values, case.arrays[name].written, memory, memories)

    arguments = {n: mapped(v, n, place) if n in case.arrays else v for n, v in arguments.items()}
    for name in draw(st.lists(st.sampled_from(sorted(arguments)), max_size=2, unique=True)):
        if isinstance(arguments[name], list):
            if draw(st.integers(0, 2)) == 0:
                arguments[name] = relisted(draw, arguments[name])
        elif name not in case.arrays:
            arguments[name] = draw(st.sampled_from(NUMBERS))
    return Call(case, arguments, memories)
