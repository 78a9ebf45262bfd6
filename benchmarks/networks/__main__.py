"""Whole trainings of public networks beside ``mindspore.Model``, in both modes.

``python -m benchmarks.networks [--quick] [--only NETWORK] [--mode graph|pynative] [--measure steps|whole]
[--precision medium]``. An hour and a half on two cores; ``--quick`` takes three minutes and tells only whether it all
runs. Without ``--variant`` the whole trainings are those of ``mindspore.Model``, O1 and O2.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from boost_ext.files import save_figure, write_text
from boost_ext.machine import Watch

from ..record import machine, update_section, where

MODES = {"graph": "GRAPH_MODE", "pynative": "PYNATIVE_MODE"}
_LIMIT = 3600.0
"""Seconds that a process of one measurement may take."""


def ask(request: dict[str, Any], limit: float = _LIMIT) -> dict[str, Any]:
    """The answer of a process of its own; {"error": why} if it has none."""
    from .training import answer_of

    command = [sys.executable, "-m", f"{__package__}.training", json.dumps(request)]
    try:
        # MindSpore, which this process has imported, has set OMP_NUM_THREADS to 1 where os.environ does not show it.
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env={**os.environ})
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {limit:.0f} s"}
    found = answer_of(done.stdout)
    if found is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        return {"error": lines[-1][:300] if lines else f"ended with {done.returncode}"}
    return found


def by_group(turns: list[list[float]], values: list[float], shares: list[float]) -> float:
    """The mean over a training: of the turns that trained the same group of layers the median, by the group's share."""
    groups = [int(turn[2]) for turn in turns]
    medians = {g: statistics.median(v for v, h in zip(values, groups, strict=True) if h == g) for g in set(groups)}
    return statistics.fmean(list(medians.values()), [shares[g] for g in medians])


def median_ratio(plain: list[list[float]], ours: list[list[float]], shares: list[float], which: int) -> float:
    """MindSpore's time divided by ours; ``which``: 0 for wall time, 1 for CPU time."""
    return 1 / by_group(ours, [o[which] / p[which] for p, o in zip(plain, ours, strict=True)], shares)


def ratio(plain: dict[str, Any], ours: dict[str, Any], key: str) -> str:
    return f"{plain[key] / ours[key]:.2f}" if key in plain and key in ours else ""


def steps_table(result: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield (
        "| network, mode | variant | wall ms a step | ratio | CPU ms a step | ratio | compilation, wall s | CPU s |"
        " first loss |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for key, found in result["steps"].items():
        if "error" in found:
            yield f"| {key} | no answer: {found['error']} | | | | | | | |"
            continue
        plain = found["turns"][0]
        for i, variant in enumerate(found["variants"]):
            turns, shares = found["turns"][i], found["shares"][i]
            wall, cpu = (1e3 * by_group(turns, [t[k] for t in turns], shares) for k in (0, 1))
            ratios = [median_ratio(plain, turns, shares, k) for k in (0, 1)]
            yield (
                f"| {key if i == 0 else ''} | {names[variant]} | {wall:.1f} | {ratios[0]:.2f} |"
                f" {cpu:.1f} | {ratios[1]:.2f} | {found['compilation'][i][0]:.1f} |"
                f" {found['compilation'][i][1]:.1f} | {found['first_loss'][i]:.4f} |"
            )


def whole_table(result: dict[str, Any], names: list[str]) -> Iterator[str]:
    yield (
        "| network, mode | variant | steps | wall s | ratio | CPU s | ratio | first step s | peak MB |"
        " times MindSpore's | loss at the end | accuracy |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for key, runs in result["whole"].items():
        plain = runs.get(names[0], {})
        for name, run in runs.items():
            first = key if name == next(iter(runs)) else ""
            if "error" in run:
                yield f"| {first} | {name} | no answer: {run['error']} | | | | | | | | | |"
                continue
            memory = f"{run['memory'] / plain['memory']:.2f}" if "memory" in plain else ""
            accuracy = f"{100 * run['accuracy']:.1f} %" if "accuracy" in run else ""
            yield (
                f"| {first} | {name} | {run['steps']} | {run['seconds']:.1f} | {ratio(plain, run, 'seconds')} |"
                f" {run['cpu_seconds']:.1f} | {ratio(plain, run, 'cpu_seconds')} | {run['first_step']:.1f} |"
                f" {run['memory']:.0f} | {memory} | {run['loss']:.4f} | {accuracy} |"
            )


def markdown(result: dict[str, Any], names: list[str]) -> Iterator[str]:
    about = result["about"]
    yield (
        f"{about['date'][:10]}, {where(about)}; MindSpore {about['versions']['mindspore']}, for all variants with the "
        f"variables that `boost-ext run` sets. Other processes took {result['others']:.0%} of the cores. Ratios: the "
        f"time of {names[0]} divided by ours."
        + (" Our float32 products are of medium precision." if result["precision"] == "medium" else "")
    )
    for part, table in (("steps", steps_table), ("whole", whole_table)):
        if result[part]:
            yield ""
            yield from table(result, names)


def plot(path: Path, result: dict[str, Any], names: list[str]) -> None:
    """How much sooner each whole training ends, and how much more memory it takes."""
    from matplotlib.figure import Figure

    if not result["whole"]:
        return
    figure = Figure(figsize=(13, 1.5 + 1.4 * len(result["whole"])), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    keys = list(result["whole"])
    for i, name in enumerate(names):
        for axes, measure in ((left, "seconds"), (right, "memory")):
            found = [result["whole"][key] for key in keys]
            pairs = [(runs.get(names[0], {}), runs.get(name, {})) for runs in found]
            values = [
                (mine[measure] / theirs[measure] if measure == "memory" else theirs[measure] / mine[measure])
                if measure in theirs and measure in mine
                else 0.0
                for theirs, mine in pairs
            ]
            axes.barh([k + 0.1 * i for k in range(len(keys))], values, 0.09, label=name)
    left.set(yticks=[k + 0.05 * (len(names) - 1) for k in range(len(keys))], yticklabels=keys)
    left.set_xlabel(f"wall time of {names[0]} ÷ ours, whole training")
    right.set_xlabel(f"peak memory, {names[0]} = 1")
    left.invert_yaxis()
    for axes in (left, right):
        axes.axvline(1, color="black", linewidth=0.8)
        axes.grid(axis="x", linewidth=0.3)
    right.legend(fontsize=8)
    save_figure(path, figure, dpi=130)


def main() -> None:
    from .recipes import VARIANTS, recipes

    listed = recipes()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.networks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two small networks, a few steps: whether it all runs")
    parser.add_argument("--only", action="append", choices=tuple(listed), help="these networks alone")
    parser.add_argument("--mode", action="append", choices=tuple(MODES))
    parser.add_argument("--measure", choices=("steps", "whole"))
    parser.add_argument("--variant", action="append", choices=tuple(v.name for v in VARIANTS))
    parser.add_argument(
        "--precision", choices=("highest", "medium"), default="highest", help="of float32 products in our variants"
    )
    parser.add_argument("--rounds", type=int, default=8, help="of five steps for each variant")
    parser.add_argument("--out", type=Path, default=Path("runs/bench/networks"))
    parser.add_argument("--page", type=Path, help="a Markdown page whose table to write again, docs/benchmarks.md")
    options = parser.parse_args()

    from rich.console import Console
    from rich.progress import Progress

    console = Console(highlight=False)
    names = [variant.name for variant in VARIANTS]
    chosen = [i for i, name in enumerate(names) if i == 0 or not options.variant or name in options.variant]
    networks = options.only or (["lenet5", "resnet18-32"] if options.quick else list(listed))
    modes = [MODES[mode] for mode in options.mode or (["graph"] if options.quick else MODES)]
    if options.quick and not options.variant:
        chosen = [0, 2, names.index("O1, optim")]
    # The optimizers of boost_ext train as the adopted ones do: their steps tell the difference.
    timed_whole = [names.index(f"{who}, nn") for who in ("mindspore.Model", "O1", "O2")]
    if options.quick or options.variant:
        timed_whole = chosen
    rounds, length = (2, 20) if options.quick else (options.rounds, None)
    watch = Watch()
    common = {"precision": options.precision}
    result: dict[str, Any] = {"about": machine(len(os.sched_getaffinity(0))), **common, "steps": {}, "whole": {}}
    work: list[tuple[str, str, str]] = []
    for mode in modes:
        for network in networks:
            if options.measure != "whole":
                work.append(("steps", network, mode))
            # MindSpore's own PYNATIVE_MODE has no compilation to win back: its steps tell it all.
            if options.measure != "steps" and (mode == "GRAPH_MODE" or options.measure == "whole"):
                work += [("whole", network, mode)]
    options.out.mkdir(parents=True, exist_ok=True)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("networks", total=len(work))
        for measure, network, mode in work:
            key = f"{network}, {mode}"
            progress.update(task, description=f"{measure}: {key}")
            if measure == "steps":
                request = {"name": network, "mode": mode, "variants": chosen, "rounds": rounds}
                result["steps"][key] = ask({**request, **common, "measure": measure})
            else:
                runs = result["whole"].setdefault(key, {})
                for i in timed_whole:
                    progress.update(task, description=f"{measure}: {key}, {names[i]}")
                    request = {"name": network, "mode": mode, "variant": i, "steps": length}
                    runs[names[i]] = ask({**request, **common, "measure": measure})
            progress.advance(task)
            result["others"] = round(watch.others(), 3)
            write_text(options.out / "networks.json", json.dumps(result, indent=1))
    lines = list(markdown(result, names))
    write_text(options.out / "networks.md", "\n".join(lines) + "\n")
    plot(options.out / "networks.png", result, names)
    if options.page:
        update_section(options.page, "networks", lines, about=result["about"])
    console.print("\n".join(lines), soft_wrap=True)
    console.print(f"{watch.seconds():.0f} s; written to {options.out}")
    failed = [f for f in result["steps"].values() if "error" in f]
    failed += [run for runs in result["whole"].values() for run in runs.values() if "error" in run]
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
