"""What the memory gives: the best of several ways to read, copy, update and add, on all threads.

Ours and others' ways: were it only ours, a slow kernel would lower its own goal.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np

from boost_ext import ops
from boost_ext.bench.frameworks import torch_or_none

Access = Literal["read", "copy", "update", "triad"]
"""read; b = a; a = s * a in place; c = a + b. Each load and each store in the program counts."""

_FACTOR = 1 - 2.0**-20  # an update that is not skipped, and hardly changes anything
_ROUNDS = 9


@dataclass(frozen=True)
class Probe:
    """One way to move `bytes` bytes."""

    access: Access
    name: str
    bytes: int
    run: Callable[[], Any]
    seconds: float = 0.0

    @property
    def gb_per_second(self) -> float:
        return self.bytes / self.seconds / 1e9

    def as_dict(self) -> dict[str, Any]:
        """As JSON knows it."""
        return {"access": self.access, "by": self.name, "gb_per_second": round(self.gb_per_second, 2)}


class Bandwidth:
    """The probes, timed once; `best` gives the fastest one of a kind for use beside a case."""

    def __init__(self, threads: int, elements: int) -> None:
        rng = np.random.default_rng(0)
        a, b, c = (rng.random(elements, np.float32) + np.float32(0.5) for _ in range(3))
        pool = ThreadPoolExecutor(threads)
        cuts = np.linspace(0, elements, threads + 1).astype(int)
        parts = [slice(start, stop) for start, stop in pairwise(cuts)]

        def spread(part: Callable[[slice], Any]) -> Callable[[], Any]:
            return lambda: list(pool.map(part, parts))

        factor = np.float32(_FACTOR)
        size = 4 * elements
        ways: list[Probe] = [
            Probe("read", "unscale_and_check", size, partial(ops.unscale_and_check, a, 1.0)),
            Probe("read", "global_norm", size, partial(ops.global_norm, a)),
            Probe("read", "pca_project", size, partial(ops.pca_project, a.reshape(32, -1), b[: elements // 32])),
            Probe("read", "NumPy max", size, spread(lambda s: a[s].max())),
            Probe("copy", "NumPy copyto", 2 * size, spread(lambda s: np.copyto(b[s], a[s]))),
            Probe("copy", "dim_reduce_trial", 2 * size, partial(ops.dim_reduce_trial, c, a, b, 0.0)),
            Probe("update", "unscale_and_check", 2 * size, partial(ops.unscale_and_check, a, _FACTOR)),
            Probe(
                "update",
                "NumPy multiply",
                2 * size,
                spread(lambda s: np.multiply(a[s], factor, a[s])),
            ),
            Probe("triad", "dim_reduce_trial", 3 * size, partial(ops.dim_reduce_trial, c, a, b, 0.5)),
            Probe("triad", "NumPy add", 3 * size, spread(lambda s: np.add(a[s], b[s], c[s]))),
        ]
        if torch := torch_or_none():
            ta, tb, tc = (torch.from_numpy(x) for x in (a, b, c))
            ways += [
                Probe("read", "PyTorch sum", size, lambda: ta.sum()),
                Probe("copy", "PyTorch copy_", 2 * size, lambda: tb.copy_(ta)),
                Probe("update", "PyTorch mul_", 2 * size, lambda: ta.mul_(_FACTOR)),
                Probe("triad", "PyTorch add", 3 * size, lambda: torch.add(ta, tb, out=tc)),
            ]
        times: list[list[float]] = [[] for _ in ways]
        for _ in range(_ROUNDS):  # in turns: what is the machine's mood must not choose the best one
            for way, seconds in zip(ways, times, strict=True):
                rest()
                start = time.perf_counter()
                way.run()
                seconds.append(time.perf_counter() - start)
        self.probes = [
            replace(way, seconds=statistics.median(seconds)) for way, seconds in zip(ways, times, strict=True)
        ]

    def best(self, access: Access) -> Probe:
        return min(
            (probe for probe in self.probes if probe.access == access),
            key=lambda probe: probe.seconds / probe.bytes,
        )

    def all_best(self) -> list[Probe]:
        return [self.best(access) for access in get_args(Access)]


def rest() -> None:
    """Wait until no thread of this process computes.

    The workers of OpenBLAS spin for up to 0.1 s after a call, on the core of whoever comes next;
    those of OpenMP and MindSpore for a while, too.
    """
    for _ in range(60):
        before = time.process_time()
        time.sleep(0.005)
        if time.process_time() - before < 0.001:
            return
