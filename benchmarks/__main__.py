"""``python -m benchmarks [--quick] [--only NAME] [--threads N] [--out DIR] [--page FILE]``."""

from __future__ import annotations

import argparse
import os
import pkgutil
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path


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


def main() -> None:
    package = Path(__file__).parent
    names = sorted(
        module.name.removeprefix("bench_")
        for module in pkgutil.iter_modules([str(package)])
        if module.name.startswith("bench_")
    )
    options = arguments(names)
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(options.threads)  # read when the libraries are loaded, below
    os.environ.setdefault("GLOG_v", "3")  # MindSpore warns about every op it has to build

    from dataclasses import replace

    import boost_ext
    from boost_ext.bench import harness
    from boost_ext.bench.bandwidth import Bandwidth
    from boost_ext.bench.frameworks import torch_or_none
    from boost_ext.machine import Watch

    from . import report

    boost_ext.set_num_threads(options.threads)
    if torch := torch_or_none():
        torch.set_num_threads(options.threads)
    out = options.out or Path("runs/bench/quick" if options.quick else "runs/bench")
    started = time.perf_counter()
    about = report.machine(options.threads) | {"quick": options.quick}
    bandwidth = Bandwidth(options.threads, 1_000_000 if options.quick else 32_000_000)
    report.print_heading(about, bandwidth)

    everything: list[harness.Row] = []
    for name in options.only or names:
        rows: list[harness.Row] = []
        watch = Watch()
        for case in import_module(f"{__package__}.bench_{name}").cases(options.quick):
            if options.quick:
                case = replace(
                    case,
                    seconds=0.1,
                    bandwidth_goal=None,
                    peers=tuple(replace(peer, goal=None) for peer in case.peers),
                )
            rows += harness.run(case, bandwidth)
        others = watch.others()
        report.print_rows(f"{name}, {watch.seconds():.0f} s; other processes took {others:.0%} of the cores", rows)
        report.write_json(out / f"{name}.json", about | {"others": round(others, 3)}, bandwidth, rows)
        if options.page:
            report.update_page(options.page, name, about | {"others": others}, rows)
        everything += rows
    report.plot(out / "ratios.png", about, everything)
    report.print_missed(everything)
    report.console.print(f"{time.perf_counter() - started:.0f} s; written to {out}")


if __name__ == "__main__":
    main()
