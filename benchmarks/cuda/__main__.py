"""``python -m benchmarks.cuda [--quick | --dry-run] [--only NAME] [--budget SECONDS] [--out DIR] [--page FILE]``.

What is measured is written after each case, so that little is lost where a card, a kernel or the time gives up.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import boost_ext
from boost_ext.bench.harness import Row, milliseconds, run
from boost_ext.machine import Watch

from .. import record
from . import gradients, matrices, projections, steps
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
        gradients.dropout,
        projections.dim_reduce_apply,
        projections.bfgs_update,
        matrices.orthogonalize,
        matrices.muon_step,
        matrices.precondition,
        matrices.damped_inverse,
    )
}
US = "boost_ext"
NO_KERNEL = "no CUDA kernel"
ANSWERED = (AssertionError, AttributeError, RuntimeError, TypeError, ValueError)
LONGEST = 60  # seconds for a case; a kernel that never ends is not waited for


def arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cuda", description="boost_ext on a GPU beside PyTorch")
    parser.add_argument("--quick", action="store_true", help="small sizes and no goals: only whether it all runs")
    parser.add_argument("--dry-run", action="store_true", help="as --quick, on emulated kernels: answers, no times")
    parser.add_argument("--only", metavar="NAME", action="append", default=[], help=f"of: {', '.join(GROUPS)}")
    parser.add_argument("--budget", type=float, default=math.inf, help="seconds after which no other case is begun")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/cuda"), help="default: runs/bench/cuda")
    parser.add_argument("--resume", action="store_true", help="only what --out has nothing of: after a lost card")
    parser.add_argument("--page", type=Path, help="a Markdown page whose tables to write again, docs/benchmarks.md")
    parser.add_argument("--results", type=Path, help="for --page, of another machine: visit.sh's bench.json")
    options = parser.parse_args(given)
    for name in options.only:
        if name not in GROUPS:
            parser.error(f"--only must be one of {', '.join(GROUPS)}, got {name}")
    if options.results and not options.page:
        parser.error("--results is for --page, got none")
    return options


def cases(device: Device, name: str, sizes: Layouts) -> Iterator[CudaCase | Row]:
    """The cases of a group; one that cannot be made, for lack of memory for one, is a row and the last."""
    try:
        yield from GROUPS[name](device, sizes)
    except ANSWERED as error:
        yield broken(name, error)


def measured(device: Device, case: CudaCase | Row, bandwidth: Any, quick: bool) -> Iterator[Row]:
    """The rows of a case; what went wrong is a row, too."""
    if isinstance(case, Row):
        yield case
        return
    if quick:
        peers = tuple(replace(peer, goal=None) for peer in case.peers)
        case = replace(case, seconds=0.05, bandwidth_goal=None, peers=peers)
    if bandwidth is None:
        case = replace(case, traffic=None)
    try:
        yield from run(case, bandwidth, device.calls if case.whole_call else device.means)
    except ANSWERED as error:
        yield broken(case.name, error)


def broken(case: str, error: Exception) -> Row:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    if "has a CPU kernel only" in reason:
        reason = NO_KERNEL
    return Row(case, math.nan, 0, US, math.nan, 0, math.nan, None, 0, reason)


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
        ours = milliseconds(row.ours, row.ours_spread)
        theirs = "" if row.bandwidth else f" {milliseconds(row.peer_time, row.peer_spread)} ms,"
        print(f"  {row.case}: {ours} ms; {row.peer}{theirs} {row.ratio:.2f}{goal}", flush=True)


def print_answers(rows: Sequence[Row]) -> None:
    """Of a dry run: who gave the right answers."""
    for row in rows:
        print(f"  {row.case}: {row.peer}: {row.error or 'the same answer'}", flush=True)


def main(given: Sequence[str] | None = None) -> int:
    options = arguments(given)
    if options.results:
        return page_of(options.results, options.page)
    small = options.quick or options.dry_run
    build = boost_ext.build_info()["cuda"]
    if build is None or build["emulated"] != options.dry_run:
        needs = "a build with BOOST_EXT_CUDA_EMULATOR" if options.dry_run else "a build with BOOST_EXT_WITH_CUDA"
        print(f"benchmarks.cuda needs {needs}, got {boost_ext.build_info()}", file=sys.stderr)
        return 2
    names = [n for n in options.only or GROUPS if not (options.resume and (options.out / f"{n}.json").exists())]
    if not names:
        return 0
    device: Device = Emulator() if options.dry_run else Card()
    bandwidth, about = None, {}
    if isinstance(device, Card):
        bandwidth = CopyBandwidth(device.torch, device.clock)
        about = about_card(device, bandwidth) | {"quick": options.quick}
        print(f"{about['card']}, {about['copy_gb_per_second']} GB/s copied, {about['versions']}")
    sizes = layouts(device, small)
    end, everything = time.perf_counter() + options.budget, []
    for name in names:
        if time.perf_counter() > end:
            print(f"{name}: not begun, the time is over")
            continue
        rows, watch = [], Watch()
        print(name, flush=True)
        if bandwidth is not None:
            write(options, name, about, watch, bandwidth, rows)
        for case in watched(cases(device, name, sizes)):
            rows += (of_case := list(measured(device, case, bandwidth, small)))
            if bandwidth is None:
                print_answers(of_case or [Row(case.name, 0, 0, US, 0, 0, 1, None, 0)])
                continue
            print_rows(of_case)
            write(options, name, about, watch, bandwidth, rows)
            if isinstance(device, Card) and device.lost():
                print(f"{name}: the card is lost, the others need a new process (--resume)")
                return 3
            if time.perf_counter() > end:
                print(f"{name}: the time is over")
                break
        everything += rows
    if bandwidth is not None:
        record.plot(options.out / "ratios.png", about, everything)
    judged = [row for row in everything if row.goal is not None and row.error is None]
    wrong = [row for row in everything if failed(row)]
    print(f"{sum(not row.missed for row in judged)} of {len(judged)} goals met, {len(wrong)} cases failed")
    return 1 if wrong else 0


def watched(cases: Iterator[Any]) -> Iterator[Any]:
    """Ends the process, and says where it is, if it is with one of them for too long."""
    try:
        while True:
            faulthandler.dump_traceback_later(LONGEST, exit=True)
            if (case := next(cases, None)) is None:
                return
            yield case
    finally:
        faulthandler.cancel_dump_traceback_later()


def write(
    options: argparse.Namespace, name: str, about: dict[str, Any], watch: Watch, bandwidth: Any, rows: list[Row]
) -> None:
    about = about | {"others": round(watch.others(), 3), "seconds": round(watch.seconds(), 1)}
    record.write_json(options.out / f"{name}.json", about, [probe.as_dict() for probe in bandwidth.probes], rows)
    if options.page and rows:
        record.update_page(options.page, f"cuda {name}", about, rows)


def page_of(results: Path, page: Path) -> int:
    """The tables of what was measured elsewhere; those of which there is nothing stay as they are."""
    known = {field.name for field in fields(Row)}
    for name, document in json.loads(results.read_text(encoding="utf-8")).items():
        listed = ({k: v for k, v in row.items() if k in known} for row in document["rows"])
        rows = [
            Row(**{**row, **{k: math.nan for k in ("ours", "peer_time", "ratio") if row[k] is None}}) for row in listed
        ]
        if rows:
            record.update_page(page, f"cuda {name}", document, rows)
        print(f"{name}: {len(rows)} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
