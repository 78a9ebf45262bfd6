"""The report: one HTML page of figures and tables. It needs nothing else, neither files nor a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from boost_ext.files import write_text
from boost_ext.report.plots import figures
from boost_ext.report.run import Run
from boost_ext.report.tables import Table, tables

__all__ = ["html", "write"]

# The policy makes the promise hold in the browser too: nothing is loaded, nothing is run.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --paper: #fff; --ink: #1a1a1a; --quiet: #555; --line: #ddd }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #121212; --ink: #e6e6e6; --quiet: #aaa; --line: #3a3a3a }}
  .panels, .legend {{ filter: brightness(1.5) }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }}
body {{ background: var(--paper); color: var(--ink) }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere }}
table {{ border-collapse: collapse; display: block; overflow-x: auto; font-variant-numeric: tabular-nums }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line) }}
tbody th {{ font-weight: normal; color: var(--quiet) }}
.panels {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)) }}
.panels {{ gap: 1rem; margin: 1.5rem 0 }}
.legend span {{ margin-left: .6rem }}
svg {{ width: 100%; height: auto }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
_CAPTION = """Faint lines: every recorded step. Strong lines: means of 1 % of the run. Crosses: losses that are inf or
nan, and steps that overflowed and changed no weight. Learning rates of parameter groups: solid, dashed, dotted,
dash-dotted. Of all tensors together: the median, and faintly the least and the largest. The first step compiles."""


def html(runs: Sequence[Run]) -> str:
    """The page.

    Args:
        runs (Sequence[Run]): one, or several to compare, which share the figures.

    Raises:
        ValueError: if there is no run.
        ImportError: if matplotlib is missing.

    Examples:
        >>> from boost_ext import run_report
        >>> from boost_ext.run_log import Header, RunLogWriter, Step
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Step(step=1, loss=0.5))
        >>> page = run_report.html([run_report.read("run.jsonl")])
        >>> "<svg" in page
        True
    """
    if not runs:
        raise ValueError("run_report.html: runs must hold at least one run, got none")
    names = _names(runs)
    title = f"Training run {names[0]}" if len(runs) == 1 else f"{len(runs)} training runs"
    drawn = figures(runs, names)
    curves = f"{drawn}\n<p>{_CAPTION}</p>" if drawn else "<p>No step was recorded.</p>"
    summary, *others = map(_table, tables(runs, names))
    return _PAGE.format(title=escape(title), body="\n".join([summary, curves, *others]))


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(title)}</th>' for title in table.head)
    rows = [
        f'<tr><th scope="row">{_text(first)}</th>{"".join(f"<td>{_text(cell)}</td>" for cell in rest)}</tr>'
        for first, *rest in table.rows
    ]
    body = "\n".join([f"<thead><tr>{head}</tr></thead>", "<tbody>", *rows, "</tbody>"])
    return f'<h2>{escape(table.heading)}</h2>\n<table class="{table.name}">{body}</table>'


def _text(value: Any) -> str:
    """Every word from a log goes through here: names are the user's data."""
    if value is None:
        return "-"
    return escape(f"{value:.6g}" if isinstance(value, float) else str(value))


def _names(runs: Sequence[Run]) -> list[str]:
    """The user's names of the runs, or those of the files; with a number where that does not tell them apart."""
    names = [run.header.name or run.path.name for run in runs]
    return [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names, 1)]


def write(runs: Sequence[Run], output: str | Path) -> Path:
    """Write the page, whole or not at all.

    Args:
        runs (Sequence[Run]): as for :func:`html`.
        output (Union[str, Path]): the file; one that exists is replaced, unless it is a log of `runs`.

    Returns:
        Path of the page.

    Raises:
        ValueError: if there is no run, or `output` is one of the logs.
        ImportError: if matplotlib is missing.

    Examples:
        >>> from boost_ext import run_report
        >>> from boost_ext.run_log import Header, RunLogWriter, Step
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Step(step=1, loss=0.5))
        >>> run_report.write([run_report.read("run.jsonl")], "run.html").name
        'run.html'
    """
    output = Path(output)
    if any(output.exists() and output.samefile(run.path) for run in runs):
        raise ValueError(f"run_report.write: output must not be a run log, got {output}")
    text = html(runs)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    return output
