"""``boost-ext bench``: the ops beside NumPy, and beside PyTorch and MindSpore where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rich.markup import escape
from rich.table import Table

import boost_ext
from boost_ext import environment, machine
from boost_ext.bench.bandwidth import Bandwidth
from boost_ext.bench.cases import cases
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Row, milliseconds, run
from boost_ext.terminal import Fitting

__all__ = ["document", "measure", "names", "notes", "table"]


def names() -> list[str]:
    """Of the cases."""
    return [name for name, _ in cases(0)]


def measure(chosen: Sequence[str], elements: int, seconds: float, on_case: Callable[[str], None]) -> dict[str, Any]:
    """Check and time cases, each in turns with its peers, on the threads that are set.

    Args:
        chosen (Sequence[str]): of :func:`names`.
        elements (int): of the gradients.
        seconds (float): for each peer of a case.
        on_case (Callable): called with the name of a case before it begins.

    Returns:
        dict: ``about`` (machine, build, versions), ``others`` (the share of the cores that other processes took),
        ``bandwidth`` (list[Probe]) and ``rows`` (list[Row]).
    """
    threads = boost_ext.num_threads()
    if torch := torch_or_none():
        torch.set_num_threads(threads)
    on_case("bandwidth of the memory")
    watch, bandwidth = machine.Watch(), Bandwidth(threads, elements)
    rows: list[Row] = []
    for name, make in cases(elements):
        if name in chosen:
            on_case(name)
            rows += run(replace(make(), seconds=seconds), bandwidth)
    about = {**machine.facts(), "boost_ext": boost_ext.build_info(), "versions": machine.versions()}
    about["variables"] = environment.settings()
    return {"about": about, "others": watch.others(), "bandwidth": bandwidth.all_best(), "rows": rows}


def document(result: dict[str, Any]) -> dict[str, Any]:
    """As JSON knows it. The goals are those of the project's own benchmarks, at their sizes: not of these."""
    rows = [{k: v for k, v in row.as_dict().items() if k not in ("goal", "missed")} for row in result["rows"]]
    return {
        **result["about"],
        "others": round(result["others"], 3),
        "bandwidth": [probe.as_dict() for probe in result["bandwidth"]],
        "rows": rows,
    }


def table(rows: Sequence[Row]) -> Fitting:
    """A row a peer: its time divided by ours."""
    result = Table(title="Times of calls in turns, medians; ratio: peer's time / ours", title_justify="left")
    result.add_column("case", overflow="fold")
    result.add_column("ours ms", justify="right", no_wrap=True)
    result.add_column("peer", overflow="fold")
    result.add_column("peer ms", justify="right", no_wrap=True)
    result.add_column("ratio", justify="right", no_wrap=True)
    last = ""
    for row in rows:
        case, last = ("" if row.case == last else row.case), row.case
        if case:
            result.add_section()
        theirs = "" if row.bandwidth else milliseconds(row.peer_time)
        ratio = "no answer" if row.error is not None else f"{row.ratio:.2f}"
        peer = f"{row.peer} (share of it)" if row.bandwidth else row.peer
        result.add_row(escape(case), milliseconds(row.ours), escape(peer), theirs, ratio)
    return Fitting(result)


def notes(result: dict[str, Any]) -> list[str]:
    """Sentences on where this was measured."""
    about = result["about"]
    installed = ", ".join(f"{name} {number}" for name, number in about["versions"].items() if number)
    best = ", ".join(f"{probe.access} {probe.gb_per_second:.1f}" for probe in result["bandwidth"])
    build, variables = about["boost_ext"], [f"{name}={value}" for name, value in about["variables"].items()]
    return [
        f"{about['cpu']}, {build['threads']} threads, {build['isa']}; {', '.join([installed, *variables])}.",
        f"Bandwidth of the memory, GB/s: {best}.",
        f"Other processes took {result['others']:.0%} of the cores meanwhile."
        + (" So these ratios mean little: measure again on an idle machine." if result["others"] > 0.1 else ""),
        *(f"{row.peer}: {row.error}" for row in result["rows"] if row.error is not None),
    ]
