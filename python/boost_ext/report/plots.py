"""The figures of a report: a panel for each quantity that some run has recorded. Runs are told apart by colour."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from boost_ext.report.run import Column, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["figures", "stretches"]

_INK = "#010203"
"""Of text and axes, and of a run: the page's own colour takes its place, which is light on a dark page."""

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", _INK, "#E69F00", "#56B4E9")
_BAD = "#CC3311"
_DASHES = ("solid", "dashed", "dotted", "dashdot")
_INCHES = (4.6, 2.7)
"""Of a panel. Two stand side by side on a wide page."""
_NUMBERED = re.compile(r' id="[\w.]+_\d+"')
"""The names that matplotlib gives to parts, the same in each panel; nothing refers to them."""
_STRETCHES = 100
_MARKS = 600
"""More crosses than this are not told apart."""
_METRICS = 20
"""More metrics than this are in the table only."""

_CURVES = {
    "loss": "loss",
    "largest_gradient": "largest gradient",
    "gradient_norm": "gradient norm",
    "frozen_share": "frozen share",
    "accepted": "line search accepted",
    "rho": "step length",
    "seconds": "seconds a step",
}

_SPREADS = (
    ("gradient", "norm", "gradient norms of the tensors"),
    ("weight", "update_ratio", "update / weight of the tensors"),
)

Coloured: TypeAlias = Sequence[tuple[Run, str]]


class _Panel(NamedTuple):
    name: str
    label: str
    draw: Callable[[Any], None]
    xlabel: str = "step"


def figures(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """The colours of the runs, for CSS, and the panels as SVG; no panels if there is nothing to draw.

    Raises:
        ImportError: if matplotlib is missing.
    """
    import matplotlib

    coloured = [(run, _COLOURS[i % len(_COLOURS)]) for i, run in enumerate(runs)]
    settings: dict[Any, Any] = dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
    )
    # Text as text can be read aloud and searched. Points that a reader could not tell apart are left out.
    settings |= {"svg.fonttype": "none", "path.simplify": True, "path.simplify_threshold": 1.0}
    with matplotlib.rc_context(settings):
        drawn = [_svg(panel, f"{number}-{panel.name}") for number, panel in enumerate(_panels(coloured))]
    return [colour.replace(_INK, "currentColor") for _, colour in coloured], drawn


def _svg(panel: _Panel, salt: str) -> str:
    """A panel, narrow enough for a phone. `salt` makes its identifiers its own on the page."""
    import matplotlib
    from matplotlib.figure import Figure  # pyplot would look for a display and keep the figures alive

    drawn = Figure(figsize=_INCHES, layout="constrained")
    axes = drawn.subplots()
    axes.set_gid(f"panel-{panel.name}")
    panel.draw(axes)
    axes.set_xlabel(panel.xlabel)
    label = panel.label if len(panel.label) <= 40 else f"{panel.label[:39]}…"
    axes.set_ylabel(label).set_parse_math(False)
    axes.grid(True, alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    file = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context({"svg.hashsalt": salt}):
        drawn.savefig(file, format="svg", metadata=metadata, transparent=True)
    text = file.getvalue()
    return _NUMBERED.sub("", text[text.index("<svg") :]).replace(_INK, "currentColor")


def _legend(axes: Axes, handles: Sequence[Any], names: Sequence[str]) -> None:
    # With a space in front no name is one that matplotlib hides.
    legend = axes.legend(handles, [f" {name}" for name in names], loc="best", frameon=False, fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)


def _panels(runs: Coloured) -> list[_Panel]:
    panels = []
    for name, label in _CURVES.items():
        chosen = [(run, colour) for run, colour in runs if _has(run.columns, name)]
        if name == "frozen_share":
            chosen = [(run, colour) for run, colour in chosen if (run.columns[name] > 0).any()]
        if chosen:
            panels.append(_Panel(name, label, partial(_curves, chosen, name, "step")))
        if name == "loss" and len(chosen) > 1 and all(_has(run.columns, "elapsed") for run, _ in chosen):
            draw = partial(_curves, chosen, name, "elapsed")
            panels.append(_Panel("loss_over_time", label, draw, "seconds since the start"))
    if chosen := [(run, colour) for run, colour in runs if _has(run.columns, "loss_scale")]:
        panels.append(_Panel("loss_scale", "loss scale", partial(_loss_scales, chosen)))
    if chosen := [(run, colour) for run, colour in runs if _has(run.learning_rates, *run.learning_rates)]:
        panels.append(_Panel("learning_rate", "learning rate", partial(_rates, chosen)))
    for metric in list(dict.fromkeys(name for run, _ in runs for name in run.metrics))[:_METRICS]:
        panels.append(_Panel("metrics", metric, partial(_metric, runs, metric)))
    for of, number, label in _SPREADS:
        known = [(spread, c) for run, c in runs if np.isfinite((spread := run.looks.spread(of, number))[1]).any()]
        if known:
            panels.append(_Panel(number, label, partial(_spreads, known)))
    for run, colour in runs:
        if _has(run.slots, *run.slots):
            panels.append(_Panel("slots", "ms a step", partial(_slots, run, colour)))
    return panels


def _has(columns: Mapping[str, Column], *names: str) -> bool:
    """Whether there is something to draw in any of these columns."""
    return any(name in columns and bool(np.isfinite(columns[name]).any()) for name in names)


def stretches(values: Column, count: int) -> Column:
    """The means of the finite elements of `count` stretches, nan for one without; the elements themselves if few."""
    if len(values) <= count:
        return values
    parts = [part[np.isfinite(part)] for part in np.array_split(values, count)]
    return np.array([part.mean() if len(part) else np.nan for part in parts])


def _line(axes: Axes, x: Column, y: Column, **options: Any) -> None:
    known = np.isfinite(x) & np.isfinite(y)
    axes.plot(x[known], y[known], marker="." if known.sum() == 1 else None, **options)


def _log_if_positive(axes: Axes, columns: Sequence[Column]) -> None:
    values = np.concatenate(columns)
    if (values[np.isfinite(values)] > 0).all():
        axes.set_yscale("log")


def _curves(runs: Coloured, name: str, x: str, axes: Axes) -> None:
    """Every step faintly, and the means of stretches."""
    for run, colour in runs:
        at, values = run.columns[x], run.columns[name]
        few = len(values) <= _STRETCHES
        _line(axes, at, values, color=colour, linewidth=1.4 if few else 0.8, alpha=1.0 if few else 0.3)
        if not few:  # without the first step, which compiles
            _line(axes, stretches(at[1:], _STRETCHES), stretches(values[1:], _STRETCHES), color=colour, linewidth=1.4)
        if name == "loss":
            broken = np.flatnonzero(~np.isfinite(values))
            _crosses(axes, at[broken], np.full(len(broken), 0.02), transform=axes.get_xaxis_transform())
    _log_if_positive(axes, [run.columns[name] for run, _ in runs])


def _crosses(axes: Axes, x: Column, y: Column, **options: Any) -> None:
    some = slice(None, None, len(x) // _MARKS + 1)
    axes.plot(x[some], y[some], linestyle="none", marker="x", color=_BAD, **options)


def _loss_scales(runs: Coloured, axes: Axes) -> None:
    for run, colour in runs:
        steps, scales = run.columns["step"], run.columns["loss_scale"]
        _line(axes, steps, scales, color=colour, drawstyle="steps-mid")
        overflow = np.isin(steps, run.overflow_steps()) & np.isfinite(scales)
        _crosses(axes, steps[overflow], scales[overflow])
    axes.set_yscale("log", base=2)


def _rates(runs: Coloured, axes: Axes) -> None:
    for run, colour in runs:
        for number, rates in enumerate(run.learning_rates.values()):
            _line(axes, run.columns["step"], rates, color=colour, linestyle=_DASHES[number % len(_DASHES)])
    _log_if_positive(axes, [rates for run, _ in runs for rates in run.learning_rates.values()])


def _metric(runs: Coloured, metric: str, axes: Axes) -> None:
    for run, colour in runs:
        if metric in run.metrics:
            axes.plot(*run.metrics[metric], color=colour, marker=".")


def _spreads(runs: Sequence[tuple[tuple[Column, Column], str]], axes: Axes) -> None:
    """The median over the tensors, and faintly the least and the largest."""
    for (steps, (least, median, largest)), colour in runs:
        _line(axes, steps, median, color=colour, linewidth=1.4)
        for edge in (least, largest):
            _line(axes, steps, edge, color=colour, linewidth=0.8, alpha=0.5)
    _log_if_positive(axes, [edge for (_, edges), _ in runs for edge in edges])


def _slots(run: Run, colour: str, axes: Axes) -> None:
    # A step without a slot's time spends none in it; a stretch without any time is left out.
    means = np.stack([1e3 * stretches(column, _STRETCHES) for column in run.slots.values()])
    known = np.isfinite(means).any(axis=0)
    means = np.nan_to_num(means[:, known])
    _legend(axes, axes.stackplot(stretches(run.columns["step"], _STRETCHES)[known], means), list(run.slots))
    # The first steps compile and would flatten the rest.
    axes.set_ylim(0, 1.5 * float(np.percentile(means.sum(axis=0), 95)) or None)
    axes.spines["left"].set(color=colour, linewidth=3)
