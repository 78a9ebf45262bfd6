"""``python -m benchmarks.cuda [--quick | --dry-run] [--only NAME] [--budget SECONDS] [--out DIR] [--page FILE]``."""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import boost_ext

from .. import record
from ..harness import Row, run
from . import gradients, projections, steps
from .clock import CopyBandwidth
from .devices import Card, Device, Emulator
from .layouts import CudaCase, Layouts, layouts

GROUPS: dict[str, Callable[[Device, Layouts], Iterator[CudaCase]]] = {
    group.__name__: group
    for group in (
        gradients.unscale_and_check,
        gradients.global_norm,
        steps.optimizer_step,
        steps.guarded_step,
        projections.pca_project,
        projections.pca_back_project,
        gradients.adasum_pair,
        gradients.accumulate,
        gradients.centralize,
        projections.dim_reduce_apply,
        projections.bfgs_update,
    )
}
US = "boost_ext"
NO_KERNEL = "no CUDA kernel"
ANSWERED = (AssertionError, AttributeError, RuntimeError, TypeError, ValueError)


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description="boost_ext on a GPU beside PyTorch")
    parser.add_argument("--quick", action="store_true", help="small sizes and no goals: only whether it all runs")
    parser.add_argument("--dry-run", action="store_true", help="as --quick, on emulated kernels: answers, no times")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help=f"of: {', '.join(GROUPS)}")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no other NAME is begun")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/cuda"), help="default: runs/bench/cuda")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables to write again, docs/benchmarks.md")
    options = parser.parse_args(given)
    for name in options.only:
        if name not in GROUPS:
            parser.error(f"--only must be one of {', '.join(GROUPS)}, got {name}")
    return options


def measured(device: Device, case: CudaCase, bandwidth: Any, quick: bool) -> Iterator[Row]:
    """The rows of a case; what went wrong is a row, too."""
    if quick:
        peers = tuple(replace(peer, goal=None) for peer in case.peers)
        case = replace(case, seconds=0.05, bandwidth_goal=None, peers=peers)
    if bandwidth is None:
        case = replace(case, traffic=None)
    try:
        yield from run(case, bandwidth, device.calls if case.whole_call else device.means)
    except ANSWERED as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if "has a CPU kernel only" in reason:
            reason = NO_KERNEL
        yield Row(case.name, math.nan, 0, US, math.nan, 0, math.nan, None, 0, reason)


def failed(row: Row) -> bool:
    """Whether our own call went wrong: it is no failure that there is no kernel, or that a peer cannot."""
    return row.peer == US and row.error is not None and row.error != NO_KERNEL


def card(torch: Any) -> dict[str, Any]:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.split()
    except (OSError, subprocess.TimeoutExpired):
        listed = []
    return {"card": torch.cuda.get_device_name(), "driver": listed[0] if listed else None}


def about_card(device: Card, bandwidth: CopyBandwidth) -> dict[str, Any]:
    about = record.machine(boost_ext.num_threads()) | card(device.torch)
    build = boost_ext.build_info()["cuda"]
    about["versions"] |= {"CUDA": build and build["runtime"], "driver": about["driver"]}
    return about | {"copy_gb_per_second": round(bandwidth.probes[0].gb_per_second, 1)}


def print_rows(rows: Sequence[Row]) -> None:
    """A line each."""
    for row in rows:
        if row.error is not None:
            print(f"  {row.case}: {row.peer}: {row.error}")
            continue
        goal = "" if row.goal is None else f", goal {row.goal:.3g} {'missed' if row.missed else 'met'}"
        ours = record.milliseconds(row.ours, row.ours_spread)
        theirs = "" if row.bandwidth else f" {record.milliseconds(row.peer_time, row.peer_spread)} ms,"
        print(f"  {row.case}: {ours} ms; {row.peer}{theirs} {row.ratio:.2f}{goal}", flush=True)


def print_answers(rows: Sequence[Row]) -> None:
    """Of a dry run: who gave the right answers."""
    for row in rows:
        print(f"  {row.case}: {row.peer}: {row.error or 'the same answer'}", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    small = options.quick or options.dry_run
    build = boost_ext.build_info()["cuda"]
    if build is None or build["emulated"] != options.dry_run:
        needs = "a build with BOOST_EXT_CUDA_EMULATOR" if options.dry_run else "a build with BOOST_EXT_WITH_CUDA"
        print(f"benchmarks.cuda needs {needs}, got {boost_ext.build_info()}", file=sys.stderr)
        return 2
    device: Device = Emulator() if options.dry_run else Card()
    bandwidth, about = None, {}
    if isinstance(device, Card):
        bandwidth = CopyBandwidth(device.torch, device.clock)
        about = about_card(device, bandwidth) | {"quick": options.quick}
        print(f"{about['card']}, {about['copy_gb_per_second']} GB/s copied, {about['versions']}")
    (options.out / "tables.md").unlink(missing_ok=True)
    sizes = layouts(device, small)
    started, everything = time.perf_counter(), []
    for name in options.only or GROUPS:
        if time.perf_counter() - started > options.budget:
            print(f"{name}: not begun, the time is over")
            continue
        rows, watch = [], record.Watch()
        print(name)
        for case in GROUPS[name](device, sizes):
            rows += (of_case := list(measured(device, case, bandwidth, small)))
            if bandwidth is not None:
                print_rows(of_case)
                continue
            print_answers(of_case or [Row(case.name, 0, 0, US, 0, 0, 1, None, 0)])
        everything += rows
        if bandwidth is not None:
            others = round(watch.others(), 3)
            write(options, name, about | {"others": others, "seconds": round(watch.seconds(), 1)}, bandwidth, rows)
    if bandwidth is not None:
        record.plot(options.out / "ratios.png", about, everything)
    judged = [row for row in everything if row.goal is not None and row.error is None]
    wrong = [row for row in everything if failed(row)]
    print(f"{sum(not row.missed for row in judged)} of {len(judged)} goals met, {len(wrong)} cases failed")
    return 1 if wrong else 0


def write(options: argparse.Namespace, name: str, about: dict[str, Any], bandwidth: Any, rows: Sequence[Row]) -> None:
    record.write_json(options.out / f"{name}.json", about, bandwidth, rows)
    heading = [f"### {name} on CUDA", "", f"<!-- benchmark: cuda {name} -->"]
    with (options.out / "tables.md").open("a", encoding="utf-8") as tables:
        tables.write("\n".join([*heading, *record.markdown(about, rows), "<!-- end -->", "", ""]))
    if options.page:
        record.update_page(options.page, f"cuda {name}", about, rows)


if __name__ == "__main__":
    sys.exit(main())
