"""Rows as a table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from boost_ext.bench.bandwidth import Bandwidth
from boost_ext.bench.harness import Row, milliseconds

from .record import machine, plot, update_page, update_section, write_json

__all__ = [
    "console",
    "machine",
    "plot",
    "print_heading",
    "print_missed",
    "print_rows",
    "update_page",
    "update_section",
    "write_json",
]

console = Console(width=None if Console().is_terminal else 140, highlight=False)


def print_heading(about: dict[str, Any], bandwidth: Bandwidth) -> None:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items() if number)
    console.print(
        f"{about['cpu']}, {about['cores']} cores, {about['threads']} threads, "
        f"{about['boost_ext']['isa']}; load {about['load']}; {versions}"
    )
    best = bandwidth.all_best()
    console.print(
        "bandwidth, GB/s: " + ", ".join(f"{p.access} [bold]{p.gb_per_second:.1f}[/bold] ({p.name})" for p in best)
    )


def print_rows(title: str, rows: Sequence[Row]) -> None:
    table = Table(title=title, title_justify="left")
    table.add_column("case", overflow="fold")
    for heading in ("ours ms", "of bandwidth"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("peer", overflow="fold")
    for heading in ("peer ms", "ratio", "goal"):
        table.add_column(heading, justify="right", no_wrap=True)
    last = ""
    for row in rows:
        case, last = ("" if row.case == last else row.case), row.case
        if case and table.rows:
            table.add_section()
        if row.error is not None:
            table.add_row(case, milliseconds(row.ours, row.ours_spread), "", row.peer, "[yellow]no answer[/]", "", "")
            continue
        ratio, goal = f"{row.ratio:.2f}", "" if row.goal is None else f"≥ {row.goal:g}"
        if row.goal is not None:
            colour = "red" if row.missed else "green"
            ratio, goal = f"[{colour}]{ratio}[/]", f"{goal} {'missed' if row.missed else 'met'}"
        where = (
            (ratio, row.peer, "", "")
            if row.bandwidth
            else ("", row.peer, milliseconds(row.peer_time, row.peer_spread), ratio)
        )
        table.add_row(case, milliseconds(row.ours, row.ours_spread), *where, goal)
    console.print(table)
    for row in rows:
        if row.error is not None:
            console.print(f"[yellow]{row.case}: {row.peer}: {row.error}[/]", soft_wrap=True)


def print_missed(rows: Sequence[Row]) -> None:
    judged = [row for row in rows if row.goal is not None and row.error is None]
    missed = [row for row in judged if row.missed]
    console.print(f"{len(judged) - len(missed)} of {len(judged)} goals met")
    for row in missed:
        console.print(
            f"[red]missed[/] {row.case}: {row.ratio:.2f} of {row.peer}, goal {row.goal:g}",
            soft_wrap=True,
        )
