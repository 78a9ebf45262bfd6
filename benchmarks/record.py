"""Rows as JSON, as a Markdown table and as a plot, and where they were taken; needs NumPy only."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import boost_ext
from boost_ext import environment
from boost_ext.bench.harness import Row, milliseconds
from boost_ext.files import save_figure, write_text
from boost_ext.machine import facts, versions


def machine(threads: int) -> dict[str, Any]:
    """Where and with what the times were taken."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **facts(),
        "threads": threads,
        "boost_ext": boost_ext.build_info(),
        "versions": versions("numpy", "mindspore", "torch"),
        "variables": environment.settings(),
    }


def write_json(path: Path, about: dict[str, Any], probes: list[dict[str, Any]], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    document = about | {"bandwidth": probes, "rows": [row.as_dict() for row in rows]}
    write_text(path, json.dumps(document, indent=1) + "\n")


def update_page(path: Path, name: str, about: dict[str, Any], rows: Sequence[Row]) -> None:
    """Put the rows into a Markdown page, see :func:`update_section`. Tables of other CPUs and cards stay, behind it."""
    update_section(path, name, markdown(about, rows), about)


def update_section(path: Path, name: str, lines: Iterable[str], about: dict[str, Any] | None = None) -> None:
    """Put lines into a Markdown page, between the comments ``benchmark: NAME`` and ``end``; the rest stays.

    With ``about``, lines that begin with the date and with another :func:`where` stay too, behind these.

    Raises:
        ValueError: the page has no such comments.
    """
    before, held, after = _section(path, name)
    others: list[str] = []
    if about is not None:
        of_each = re.split(r"(?m)^(?=\d{4}-\d\d-\d\d, )", held)
        others = [f"\n{t.strip()}" for t in of_each if "|---|" in t and f", {where(about)}" not in t]
    write_text(path, before + "\n".join([*lines, *others]) + "\n" + after)


def _section(path: Path, name: str) -> tuple[str, str, str]:
    """What is before it, what it holds, and what is behind it."""
    page = path.read_text(encoding="utf-8")
    before, start, rest = page.partition(f"<!-- benchmark: {name} -->\n")
    held, end, after = rest.partition("<!-- end -->")
    if not (start and end):
        raise ValueError(f"update_page: {path} must have the comments 'benchmark: {name}' and 'end', got none")
    return before + start, held, end + after


def markdown(about: dict[str, Any], rows: Sequence[Row]) -> Iterator[str]:
    versions = ", ".join(f"{k} {v}" for k, v in about["versions"].items() if v)
    set_to = "".join(f"; {k}={v}" for k, v in about.get("variables", {}).items())
    others = f"Other processes took {about['others']:.0%} of the cores."
    yield f"{about['date'][:10]}, {_heading(about)}; {versions}{set_to}. {others}"
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


def where(about: dict[str, Any]) -> str:
    """The machine, by which tables of one benchmark are told apart."""
    if card := about.get("card"):
        return f"{card}, "
    return f"{about['cpu'].strip()}, {about['threads']} threads, {about['boost_ext']['isa']}"


def _heading(about: dict[str, Any]) -> str:
    """The machine, and the rate of the copy that was measured on a card."""
    return where(about) + (f"{about['copy_gb_per_second']:.0f} GB/s copied" if about.get("card") else "")


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
    axes.set_title(f"{_heading(about)}, {about['date'][:10]}", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_figure(path, figure, dpi=130)
