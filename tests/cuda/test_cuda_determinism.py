"""The same bits in whatever order blocks and threads run: the emulator's is another one at every launch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from every_op import calls

import device
from on_cuda import EMULATED, needs_cuda

pytestmark = needs_cuda

# Elements, of several blocks.
SIZE = 9_001 if EMULATED else 100_003
RUNS = 2 if EMULATED else 3


def arrays(value: Any) -> Iterator[bytes]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from arrays(item)
    elif isinstance(value, dict):
        yield from arrays(list(value.values()))
    else:
        yield np.asarray(value).tobytes()


def after(size: int) -> Iterator[tuple[str, list[bytes]]]:
    """Every op over tensors of `size` elements, as bytes: results, and arguments after the call."""
    for case, name, given in calls([size]):
        op = device.on_device(case.function, *device.memory_of("cuda"))
        result = op(**{**case.settings, **given})
        yield name, [*arrays(given), *arrays(result)]


def test_same_bits_in_every_run():
    first = list(after(SIZE))
    for _ in range(RUNS - 1):
        for (name, expected), (_, found) in zip(first, after(SIZE), strict=True):
            assert found == expected, name
