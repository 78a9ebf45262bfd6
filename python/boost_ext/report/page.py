"""The report: one HTML page of figures and tables, made from page.html. It needs neither other files nor a network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from boost_ext.files import write_text
from boost_ext.report.plots import figures
from boost_ext.report.run import Run
from boost_ext.report.tables import tables
from boost_ext.requirements import imported

__all__ = ["html", "write"]


def html(runs: Sequence[Run]) -> str:
    """The page.

    Args:
        runs (Sequence[Run]): one, or several to compare, which share the figures.

    Raises:
        ValueError: if there is no run.
        ImportError: if jinja2 or matplotlib is missing.

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
    jinja2 = imported("report", "jinja2")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, finalize=_text, trim_blocks=True
    )
    names = _names(runs)
    colours, panels = figures(runs)
    page = environment.get_template("page.html").render(
        title=f"Training run {names[0]}" if len(runs) == 1 else f"{len(runs)} training runs",
        tables=tables(runs, names),
        legend=[*zip(colours, names, strict=True)] if len(runs) > 1 else [],
        panels=panels,
    )
    return f"{page}\n"


def _text(value: Any) -> Any:
    """How the page shows a value of the template."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else value


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
        ImportError: if jinja2 or matplotlib is missing.

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
