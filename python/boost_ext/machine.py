"""Where something runs: versions, CPU, memory, limits. For bug reports, and beside every number that was measured."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["Watch", "cores_allowed", "facts", "limits", "usable_cores", "versions"]

_PACKAGES = ("numpy", "mindspore", "torch", "ml_dtypes", "scikit-learn", "matplotlib")
_FEATURES = (
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "asimd",
    "asimdhp",
    "bf16",
    "sve",
    "sve2",
)
"""What Linux calls the extensions that matter here."""
_UNLIMITED = 1 << 60
"""A limit of memory beyond this is none: cgroups of version 1 have a large number there."""


def versions(*packages: str) -> dict[str, str | None]:
    """Python's, and those of packages; None for what is not installed. Default: all that a bug report needs."""
    return {"python": platform.python_version()} | {name: _version(name) for name in packages or _PACKAGES}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def facts() -> dict[str, Any]:
    """The machine as JSON knows it; None, or empty, where the system does not tell.

    Returns:
        dict: ``system``, ``libc``, ``cpu``, ``features`` of it, ``cores``, ``cores_allowed`` (by affinity),
        ``cores_limit`` (of the container's CPU time, a number of cores), ``memory``, ``memory_free`` and
        ``memory_limit`` (of the container) in bytes, and ``load``.
    """
    model, features = _cpu()
    cores, memory = limits()
    memory_all, memory_free = _memory()
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip() or None,
        "cpu": model,
        "features": [feature for feature in _FEATURES if feature in features],
        "cores": os.cpu_count(),
        "cores_allowed": cores_allowed(),
        "cores_limit": cores,
        "memory": memory_all,
        "memory_free": memory_free,
        "memory_limit": memory,
        "load": round(os.getloadavg()[0], 2),
    }


def cores_allowed() -> int | None:
    """How many CPUs this process may use, by affinity."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def usable_cores() -> float:
    """How many cores' time this process gets: by affinity, and by the container's limit."""
    return min(cores_allowed() or 1, limits()[0] or float("inf"))


def _lines(path: Path) -> list[str]:
    """Of a file of the system; none where it is not readable."""
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _cpu(information: Path = Path("/proc/cpuinfo")) -> tuple[str, set[str]]:
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in _lines(information))}
    name = told.get("model name") or platform.processor() or platform.machine()
    # A virtual machine may say "AMD EPYC" of every generation.
    if not any(letter.isdigit() for letter in name) and "cpu family" in told and "model" in told:
        name = f"{name} (family {told['cpu family']}, model {told['model']})"
    return name, set(told.get("flags", told.get("Features", "")).split())


def _memory() -> tuple[int | None, int | None]:
    kilobytes = {key: value.split()[0] for line in _lines(Path("/proc/meminfo")) for key, value in [line.split(":", 1)]}
    found = [kilobytes.get(key) for key in ("MemTotal", "MemAvailable")]
    whole, free = (None if value is None else 1024 * int(value) for value in found)
    return whole, free


def limits(
    groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> tuple[float | None, int | None]:
    """How many cores' time and how many bytes of memory the control groups of this process allow; None: no limit.

    Args:
        groups (Path): the groups, by controller. Default: those of this process.
        root (Path): where the groups are mounted. Default: the usual place.
    """
    cores, memory = [], []
    for line in _lines(groups):
        _, controllers, path = line.split(":", 2)
        for folder in _folders(root / controllers, path):
            quota = _words(folder / "cpu.max") or _words(folder / "cpu.cfs_quota_us", folder / "cpu.cfs_period_us")
            if len(quota) == 2 and quota[0] not in ("max", "-1"):
                cores.append(int(quota[0]) / int(quota[1]))
            for name in ("memory.max", "memory.limit_in_bytes"):
                memory += [int(word) for word in _words(folder / name) if word != "max" and int(word) < _UNLIMITED]
    return min(cores, default=None), min(memory, default=None)


def _folders(mounted: Path, path: str) -> Iterator[Path]:
    """Of a group and those that it is in: each may have a limit. In a container the outer ones are not there."""
    group = Path(path.lstrip("/"))
    yield from (mounted / part for part in (group, *group.parents) if (mounted / part).is_dir())


def _words(*paths: Path) -> list[str]:
    return [word for path in paths for line in _lines(path) for word in line.split()]


class Watch:
    """The seconds since it was made, and the share of the cores that other processes took meanwhile.

    Beside a busy neighbour no number is worth much, and the threads' least.
    """

    def __init__(self) -> None:
        self._start, self._own, self._all = time.perf_counter(), _own_seconds(), _busy_seconds()

    def seconds(self) -> float:
        return time.perf_counter() - self._start

    def others(self) -> float:
        """Zero where the system does not tell."""
        others = _busy_seconds() - self._all - (_own_seconds() - self._own)
        return max(0.0, others / self.seconds() / (os.cpu_count() or 1))


def _own_seconds() -> float:
    """What this process has worked, and those that it started and that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def _busy_seconds() -> float:
    """What all cores together have worked since the start of the system, stolen time included."""
    lines = _lines(Path("/proc/stat"))
    if not lines:
        return 0.0
    user, nice, system, _idle, _wait, *rest = map(int, lines[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")
