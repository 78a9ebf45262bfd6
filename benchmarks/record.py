"""Rows as JSON, as a Markdown table and as a plot, and where they were taken; needs NumPy only."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import boost_ext
from boost_ext.files import save_figure, write_text

from .bandwidth import Bandwidth
from .harness import Row

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
)


def machine(threads: int) -> dict[str, Any]:
    """Where and with what the times were taken."""
    model, flags = platform.processor(), set[str]()
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                model = value
            elif key in ("flags", "Features"):
                flags = set(value.split())
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": model,
        "cores": os.cpu_count(),
        "features": [feature for feature in _FEATURES if feature in flags],
        "load": round(os.getloadavg()[0], 2),
        "threads": threads,
        "boost_ext": boost_ext.build_info(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in ("numpy", "mindspore", "torch")},
    }


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
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _idle, _wait, *rest = map(int, stat.read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def milliseconds(time: float, spread: float) -> str:
    if math.isnan(time):
        return ""
    digits = 4 if time < 0.1 else 3 if time < 1 else 2 if time < 10 else 1 if time < 1000 else 0
    return f"{time:.{digits}f}" + (f" ±{100 * spread:.0f}%" if spread >= 0.005 else "")


def write_json(path: Path, about: dict[str, Any], bandwidth: Bandwidth, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    probes = [{"access": p.access, "by": p.name, "gb_per_second": round(p.gb_per_second, 2)} for p in bandwidth.probes]
    listed = [
        {key: None if isinstance(value, float) and math.isnan(value) else value for key, value in asdict(row).items()}
        | {"missed": row.missed and row.error is None}
        for row in rows
    ]
    document = about | {"bandwidth": probes, "rows": listed}
    write_text(path, json.dumps(document, indent=1) + "\n")


def update_page(path: Path, name: str, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """Put the rows into a Markdown page, see :func:`update_section`."""
    update_section(path, name, markdown(about, rows))


def update_section(path: Path, name: str, lines: Iterable[str]) -> None:
    """Put lines into a Markdown page, between the comments ``benchmark: NAME`` and ``end``; the rest stays.

    Raises:
        ValueError: the page has no such comments.
    """
    page = path.read_text(encoding="utf-8")
    start = f"<!-- benchmark: {name} -->\n"
    before, found, rest = page.partition(start)
    _, end, after = rest.partition("<!-- end -->")
    if not (found and end):
        raise ValueError(f"update_page: {path} must have the comments 'benchmark: {name}' and 'end', got none")
    write_text(path, before + start + "\n".join(lines) + "\n" + end + after)


def markdown(about: dict[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items() if v)
    yield f"{about['date'][:10]}, {_where(about)}; {versions}. Other processes took {about['others']:.0%} of the cores."
    yield ""
    yield "| case | ours ms | peer | peer ms | ratio | goal |"
    yield "|---|---|---|---|---|---|"
    last = ""
    for row in rows:
        case, last = ("" if row.case == last else row.case), row.case
        if row.error is not None:
            yield f"| {case} | {milliseconds(row.ours, 0)} | {row.peer} | no answer | | |"
            continue
        goal = "" if row.goal is None else f"({row.goal:.3g})" if row.missed else f"{row.goal:.3g}"
        time = "" if row.bandwidth else milliseconds(row.peer_time, 0)
        yield f"| {case} | {milliseconds(row.ours, 0)} | {row.peer} | {time} | {row.ratio:.3g} | {goal} |"


def _where(about: dict[str, Any]) -> str:
    if card := about.get("card"):
        return f"{card}, {about['copy_gb_per_second']:.0f} GB/s copied"
    return f"{about['cpu'].strip()}, {about['threads']} threads, {about['boost_ext']['isa']}"


def plot(path: Path, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """Ratios as bars on a logarithmic axis, a mark at each goal; nothing without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    shown = [row for row in rows if row.error is None]
    if not shown:
        return
    figure = Figure(figsize=(10, 1.5 + 0.22 * len(shown)), layout="constrained")
    axes = figure.subplots()
    height = range(len(shown))
    colours = ["#888888" if r.goal is None else "#c0392b" if r.missed else "#27804a" for r in shown]
    axes.barh(height, [row.ratio - 1 for row in shown], left=1, color=colours, height=0.7)
    goals = [(y, row.goal) for y, row in zip(height, shown, strict=True) if row.goal is not None]
    if goals:
        axes.scatter(
            [goal for _, goal in goals],
            [y for y, _ in goals],
            marker="|",
            s=90,
            color="black",
            label="goal",
        )
        axes.legend(loc="lower right")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(height, [f"{row.case}  |  {row.peer}" for row in shown], fontsize=7)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.grid(axis="x", which="both", linewidth=0.3)
    axes.set_xlabel("peer's time ÷ ours; beside a bandwidth: the fraction of it")
    axes.set_title(f"{_where(about)}, {about['date'][:10]}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(path, figure, dpi=130)
