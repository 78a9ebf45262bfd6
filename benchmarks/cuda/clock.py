"""Times on a card, and what its memory gives.

`device_seconds` is what a call takes on the device: the host first enqueues a pause and a flush of the cache, so that
it is ahead, and then event, call, event. `call_seconds` is what a caller sees, enqueueing included.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

from boost_ext.bench.bandwidth import Access, Probe

_FLUSH = 1 << 28  # bytes; caches have up to some 100 MB
_PROBE = 1 << 28  # elements of float32: 1 GiB is read, and 1 GiB written
_LONGEST_PAUSE = 0.05  # seconds
_MOST_REPEATS = 50


class Clock:
    def __init__(self, torch: ModuleType) -> None:
        self._cuda: Any = torch.cuda
        self._flush = torch.empty(_FLUSH, dtype=torch.uint8, device="cuda")

    @cached_property
    def _cycles_per_second(self) -> float:
        cycles, times = 10_000_000, []
        for _ in range(20):  # the card's clock is slow at first
            start, end = self._events()
            start.record()
            self._cuda._sleep(cycles)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1e-3)
        return cycles / min(times)

    def _events(self) -> tuple[Any, Any]:
        return tuple(self._cuda.Event(enable_timing=True) for _ in range(2))

    def _pause(self, seconds: float) -> None:
        self._cuda._sleep(int(min(seconds, _LONGEST_PAUSE) * self._cycles_per_second))

    def device_seconds(self, call: Callable[[], Any], repeat: int) -> float:
        repeat = min(repeat, _MOST_REPEATS)
        enqueued = self._enqueue_seconds(call)
        pairs = []
        for _ in range(repeat):
            start, end = self._events()
            self._flush.zero_()
            self._pause(1.5 * enqueued + 2e-5)
            start.record()
            call()
            end.record()
            pairs.append((start, end))
        self._cuda.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in pairs)) * 1e-3 / repeat

    def _enqueue_seconds(self, call: Callable[[], Any]) -> float:
        """What the host needs for it, on an empty queue."""
        self._cuda.synchronize()
        start = time.perf_counter()
        call()
        enqueued = time.perf_counter() - start
        self._cuda.synchronize()
        return enqueued

    def call_seconds(self, call: Callable[[], Any], repeat: int) -> float:
        repeat = max(repeat, 5)
        self._cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeat):
            call()
        self._cuda.synchronize()
        return (time.perf_counter() - start) / repeat


class CopyBandwidth:
    """What a copy from device to device moves, bytes read and written together."""

    def __init__(self, torch: ModuleType, clock: Clock) -> None:
        elements = _PROBE
        while 8 * elements > torch.cuda.mem_get_info()[0] // 4:
            elements //= 2
        source, to = (torch.ones(elements, device="cuda") for _ in range(2))

        def copy() -> None:
            to.copy_(source)

        copy()
        seconds = min(clock.device_seconds(copy, 5) for _ in range(5))
        self.probes = [Probe("copy", "PyTorch copy_", 8 * elements, copy, seconds)]

    def best(self, access: Access) -> Probe:
        return self.probes[0]

    def all_best(self) -> list[Probe]:
        return self.probes
