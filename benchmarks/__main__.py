"""``python -m benchmarks [--quick] [--only NAME] [--threads N] [--out DIR] [--page FILE]``.

Each benchmark has a process of its own, since MindSpore keeps the memory of graphs and Parameters until its process
ends. One whose cases do not fit together has several, one for each of its ``PROCESSES``.
"""

from __future__ import annotations

import argparse
import math
import os
import pkgutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boost_ext.bench.harness import Row

GIB = {"pca_back_project": 8.0, "pca_matrix": 8.0, "step": 8.0}
"""The memory that a benchmark needs, with all its peers. One that is not here needs no more than `OTHERS`."""
OTHERS, QUICK = 5.0, 2.0


def arguments(names: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="boost_ext beside its peers")
    parser.add_argument("--quick", action="store_true", help="small sizes and no goals: only whether it all runs")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help=f"of: {', '.join(names)}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="ours and the peers'")
    parser.add_argument("--out", type=Path, help="default: runs/bench, with --quick runs/bench/quick")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables to write again, docs/benchmarks.md")
    options = parser.parse_args()
    for name in options.only:
        if name not in names:
            parser.error(f"--only must be one of {', '.join(names)}, got {name}")
    if options.threads < 1:
        parser.error(f"--threads must be at least 1, got {options.threads}")
    return options


def needed(name: str, quick: bool) -> float:
    return QUICK if quick else GIB.get(name, OTHERS)


def memory_notice(names: Sequence[str], quick: bool, facts: dict[str, Any]) -> str:
    """What the benchmarks need, and what there is.

    Raises:
        MemoryError: that is less.
    """
    dearest = max(names, key=lambda name: needed(name, quick))
    need = needed(dearest, quick)
    known = [facts[key] / 2**30 for key in ("memory_free", "memory_limit") if facts[key] is not None]
    notice = f"memory: {need:g} GiB needed, by {dearest}; {min(known, default=math.nan):.1f} GiB free"
    if known and min(known) < need:
        raise MemoryError(f"{notice}. Take --quick, or --only with smaller benchmarks")
    return notice


def main() -> None:
    package = Path(__file__).parent
    names = sorted(
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules([str(package)])
        if module.name.startswith("bench_")
    )
    options = arguments(names)
    chosen, quick, threads = options.only or names, options.quick, options.threads
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)  # read when the libraries are loaded, below
    os.environ.setdefault("GLOG_v", "3")  # MindSpore warns about every op it has to build

    from boost_ext import environment
    from boost_ext.machine import Watch

    from . import report
    from .measured import bandwidth, parts, rows_apart, rows_of

    environment.make_fast(environment.DISPATCH)  # nothing convolves here
    out = options.out or Path("runs/bench/quick" if quick else "runs/bench")
    started = time.perf_counter()
    about = report.machine(threads) | {"quick": quick}
    try:
        report.console.print(memory_notice(chosen, quick, about))
    except MemoryError as error:
        sys.exit(str(error))
    report.print_heading(about, bandwidth(threads, quick))
    probes = [probe.as_dict() for probe in bandwidth(threads, quick).probes]
    if not quick:
        bandwidth.cache_clear()  # each process measures its own

    everything: list[Row] = []
    for name in chosen:
        watch = Watch()
        call = rows_of if quick else rows_apart
        results = [call(name, part, threads, quick) for part in range(len(parts(name)))]
        rows = [row for found, _ in results for row in found]
        others, peak = watch.others(), max(peak for _, peak in results)
        seconds = f"{watch.seconds():.0f} s"
        report.print_rows(f"{name}, {seconds}, {peak:.1f} GiB; other processes took {others:.0%} of the cores", rows)
        if peak > needed(name, quick):
            report.console.print(f"[red]{name} took more memory than GIB says[/]")
        facts = about | {"others": round(others, 3), "peak_gib": round(peak, 2)}
        report.write_json(out / f"{name}.json", facts, probes, rows)
        if options.page:
            report.update_page(options.page, name, facts, rows)
        everything += rows
    report.plot(out / "ratios.png", about, everything)
    report.print_missed(everything)
    report.console.print(f"{time.perf_counter() - started:.0f} s; written to {out}")


if __name__ == "__main__":
    main()
