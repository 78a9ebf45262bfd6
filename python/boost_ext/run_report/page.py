"""The report: one HTML page that needs nothing else, neither files nor a network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from boost_ext.files import write_text
from boost_ext.run_report import tables
from boost_ext.run_report.plots import COLOURS, plots
from boost_ext.run_report.run import Run

__all__ = ["html", "write"]

# The policy makes the promise hold in the browser too: nothing is loaded, nothing is run.
_HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --text: #222; --faint: #555; --line: #ddd; --page: #fff }}
@media (prefers-color-scheme: dark) {{
  :root {{ --text: #e6e6e6; --faint: #aaa; --line: #444; --page: #181818 }}
}}
body {{ font: 15px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem; overflow-wrap: break-word }}
h1, h2, h3 {{ line-height: 1.2 }}
table {{ border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }}
th, td {{ text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line);
  font-variant-numeric: tabular-nums }}
tbody th {{ font-weight: normal; color: var(--faint) }}
.plan td:nth-child(2) {{ white-space: nowrap }}
@media (max-width: 40rem) {{
  .plan thead {{ display: none }}
  .plan tbody, .plan tr, .plan th, .plan td {{ display: block; border: 0; padding-bottom: 0 }}
  .plan tr {{ border-bottom: 1px solid var(--line); padding-bottom: .4rem }}
}}
svg {{ max-width: 100%; height: auto; background: #fff; font-family: system-ui, sans-serif }}
figure {{ margin: 1rem 0 }}
figcaption {{ color: var(--faint) }}
.run {{ display: inline-block; margin-right: 1.5rem }}
.swatch {{ display: inline-block; width: .9em; height: .9em; margin-right: .4em; vertical-align: -.1em;
  outline: 1px solid var(--line) }}
</style>
</head>
<body>
"""


def html(runs: Sequence[Run]) -> str:
    """The page.

    Args:
        runs (Sequence[Run]): one, or several to compare, which share the plots.

    Raises:
        ValueError: if there is no run.
        ImportError: if matplotlib is missing.
    """
    if not runs:
        raise ValueError("run_report.html: runs must hold at least one run, got none")
    names = _names(runs)
    title = f"Training run {names[0]}" if len(runs) == 1 else f"{len(runs)} training runs"
    parts = [_HEAD.format(title=escape(title)), f"<h1>{escape(title)}</h1>"]
    if len(runs) > 1:
        parts.append("<p>" + "".join(_swatch(name, i) for i, name in enumerate(names)) + "</p>")
    parts += [tables.summary_table(runs, names), "<h2>Curves</h2>"]
    drawn = plots(runs)
    for plot in drawn:
        parts.append(
            f'<figure id="{plot.name}"><h3>{escape(plot.title)}</h3>\n{plot.svg}\n'
            f"<figcaption>{escape(plot.caption)}</figcaption></figure>"
        )
    if not drawn:
        parts.append("<p>No step was recorded.</p>")
    for heading, table, otherwise in (
        ("Overflowing gradients", tables.overflow_table, "No tensor was recorded to overflow."),
        ("Gradient freezing", tables.freeze_table, None),
        ("Plan", _plan, "No plan was recorded: the training cell was made without one."),
    ):
        parts += _section(heading, runs, names, [table(run) for run in runs], otherwise)
    parts += ["<h2>Runs</h2>", tables.header_table(runs, names), "</body>\n</html>\n"]
    return "\n".join(parts)


def _section(
    heading: str, runs: Sequence[Run], names: Sequence[str], texts: Sequence[str], otherwise: str | None
) -> list[str]:
    """A table a run, under the run's name if there are several; left out if there is none, and nothing to say."""
    if otherwise is None and not any(texts):
        return []
    parts = [f"<h2>{escape(heading)}</h2>"]
    for i, (name, text) in enumerate(zip(names, texts, strict=True)):
        if len(runs) > 1:
            parts.append(f"<h3>{_swatch(name, i)}</h3>")
        parts.append(text or f"<p>{escape(otherwise or 'Nothing was recorded.')}</p>")
    return parts


def _plan(run: Run) -> str:
    return "" if run.header.plan is None else tables.plan_tables(run.header.plan)


def _swatch(name: str, number: int) -> str:
    colour = COLOURS[number % len(COLOURS)]
    return f'<span class="run"><span class="swatch" style="background:{colour}"></span>{escape(name)}</span>'


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
    """
    output = Path(output)
    if any(output.exists() and output.samefile(run.path) for run in runs):
        raise ValueError(f"run_report.write: output must not be a run log, got {output}")
    text = html(runs)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_text(output, text)
    return output
