"""The plots of a report, as SVG to put into a page. Runs are told apart by colour."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from boost_ext.run_report.run import Column, Run
from boost_ext.run_report.sampling import extremes, mean_by_bucket, running_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "Plot", "plots"]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#E69F00", "#56B4E9")
_SLOT_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
_OVERFLOW = "#CC3311"
_BUCKETS = 600
_DASHES = ("solid", "dashed", "dotted", "dashdot")
_METRICS = 20
"""More metrics than this are in the table only."""


@dataclass(frozen=True)
class Plot:
    """A drawing and what it needs to be understood."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class _Drawing:
    title: str
    caption: str
    wanted: Callable[[Run], bool]
    draw: Callable[[Sequence[Axes], Sequence[tuple[Run, str]]], None]
    panels: Callable[[Sequence[tuple[Run, str]]], int] = lambda runs: 1


def plots(runs: Sequence[Run]) -> list[Plot]:
    """One for each quantity that some run has recorded, all runs in one."""
    import matplotlib
    from matplotlib.figure import Figure  # pyplot would look for a display and keep the figures alive

    drawn = []
    for name, drawing in _DRAWINGS.items():
        chosen = [(run, COLOURS[i % len(COLOURS)]) for i, run in enumerate(runs) if drawing.wanted(run)]
        if not chosen:
            continue
        panels = drawing.panels(chosen)
        # Text as text can be read aloud and searched; the salt keeps the ids of two plots apart.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
            figure = Figure(figsize=(9, 3.4 * panels), layout="constrained")
            axes = list(figure.subplots(panels, 1, squeeze=False)[:, 0])
            drawing.draw(axes, chosen)
            for panel in axes:
                panel.grid(True, alpha=0.3)
                panel.spines[["top", "right"]].set_visible(False)
            file = io.StringIO()
            nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
            figure.savefig(file, format="svg", metadata=nothing)
        text = file.getvalue()
        drawn.append(Plot(name, drawing.title, drawing.caption, text[text.index("<svg") :]))
    return drawn


def _has(*names: str) -> Callable[[Run], bool]:
    def wanted(run: Run) -> bool:
        columns = [run.column(name) for name in names]
        return all(column is not None and bool(np.isfinite(column).any()) for column in columns)

    return wanted


def _freezes(run: Run) -> bool:
    share = run.column("frozen_share")
    return share is not None and (_has("freeze_index")(run) or bool((share > 0).any()))


def _line(
    axes: Axes, x: Column, y: Column, colour: str, *, faint: bool = False, step: bool = False, dashes: str = "solid"
) -> None:
    at = extremes(np.where(np.isfinite(x), y, np.nan), _BUCKETS)
    axes.plot(
        x[at],
        y[at],
        color=colour,
        alpha=0.3 if faint else 1.0,
        linewidth=0.8 if faint else 1.4,
        drawstyle="steps-mid" if step else "default",
        linestyle=dashes,
        marker="." if len(at) == 1 else None,
    )


def _curve(axes: Axes, run: Run, name: str, colour: str, *, x: str = "step", factor: float = 1.0) -> None:
    """Every step faintly, and the mean over the last 2 % of the run."""
    values = factor * run.columns[name]
    width = len(values) // 50
    if width < 2:
        _line(axes, run.columns[x], values, colour)
        return
    _line(axes, run.columns[x], values, colour, faint=True)
    at, mean = running_mean(values[1:], width, 2 * _BUCKETS)  # the first step compiles
    _line(axes, run.columns[x][1:][at], mean, colour)


def _log_if_positive(axes: Axes, runs: Sequence[tuple[Run, str]], name: str) -> None:
    values = np.concatenate([run.columns[name] for run, _ in runs])
    if (values[np.isfinite(values)] > 0).all():
        axes.set_yscale("log")


def _draw_loss(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for panel, x in zip(axes, ("step", "elapsed"), strict=False):
        for run, colour in runs:
            _curve(panel, run, "loss", colour, x=x)
            broken = np.flatnonzero(~np.isfinite(run.columns["loss"]))
            broken = broken[:: len(broken) // _BUCKETS + 1]
            bottom = np.full(len(broken), 0.02)
            panel.plot(
                run.columns[x][broken],
                bottom,
                transform=panel.get_xaxis_transform(),
                linestyle="none",
                marker="x",
                color=_OVERFLOW,
            )
        _log_if_positive(panel, runs, "loss")
        panel.set(xlabel="step" if x == "step" else "seconds since the start", ylabel="loss")


def _loss_panels(runs: Sequence[tuple[Run, str]]) -> int:
    return 2 if len(runs) > 1 and all(_has("elapsed")(run) for run, _ in runs) else 1


def _draw_rates(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        for number, rates in enumerate(run.learning_rates.values()):
            _line(axes[0], run.columns["step"], rates, colour, dashes=_DASHES[number % len(_DASHES)])
    values = np.concatenate([rates for run, _ in runs for rates in run.learning_rates.values()])
    if (values[np.isfinite(values)] > 0).all():
        axes[0].set_yscale("log")
    axes[0].set(xlabel="step", ylabel="learning rate")


def _metric_names(runs: Sequence[tuple[Run, str]]) -> list[str]:
    return list(dict.fromkeys(name for run, _ in runs for name in run.metrics))[:_METRICS]


def _draw_metrics(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for panel, name in zip(axes, _metric_names(runs), strict=True):
        for run, colour in runs:
            if name in run.metrics:
                steps, values = run.metrics[name]
                at = extremes(values, _BUCKETS)
                panel.plot(steps[at], values[at], color=colour, marker=".", linewidth=1.4)
        panel.set_xlabel("step")
        panel.set_ylabel(name if len(name) <= 40 else f"{name[:39]}…").set_parse_math(False)


def _draw_loss_scale(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        steps, scales = run.columns["step"], run.columns["loss_scale"]
        _line(axes[0], steps, scales, colour, step=True)
        overflow = np.isin(steps, run.overflow_steps())
        at = np.flatnonzero(overflow & np.isfinite(scales))
        if len(at) > _BUCKETS:  # more than there are places in the plot
            place = ((steps[at] - steps[0]) / max(1.0, steps[-1] - steps[0]) * _BUCKETS).astype(int)
            at = at[np.unique(place, return_index=True)[1]]
        axes[0].plot(steps[at], scales[at], linestyle="none", marker="x", color=_OVERFLOW)
    axes[0].set_yscale("log", base=2)
    axes[0].set(xlabel="step", ylabel="loss scale")


def _draw_gradient(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        _curve(axes[0], run, "largest_gradient", colour)
    _log_if_positive(axes[0], runs, "largest_gradient")
    axes[0].set(xlabel="step", ylabel="largest magnitude")


def _draw_norm(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        _curve(axes[0], run, "gradient_norm", colour)
    _log_if_positive(axes[0], runs, "gradient_norm")
    axes[0].set(xlabel="step", ylabel="norm")


def _draw_frozen(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        _curve(axes[0], run, "frozen_share", colour)
    axes[0].set(xlabel="step", ylabel="frozen share", ylim=(-0.02, 1.02))


def _draw_line_search(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        accepted = run.columns["accepted"]
        at, mean = running_mean(accepted, max(10, len(accepted) // 50), 2 * _BUCKETS)
        _line(axes[0], run.columns["step"][at], mean, colour)
        _curve(axes[1], run, "rho", colour)
    axes[0].set(xlabel="step", ylabel="share accepted", ylim=(-0.02, 1.02))
    axes[1].set(xlabel="step", ylabel="step length")


def _draw_seconds(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    for run, colour in runs:
        _curve(axes[0], run, "seconds", colour, factor=1e3)
    _log_if_positive(axes[0], runs, "seconds")
    axes[0].set(xlabel="step", ylabel="ms a step")


def _draw_slots(axes: Sequence[Axes], runs: Sequence[tuple[Run, str]]) -> None:
    names = list(dict.fromkeys(name for run, _ in runs for name in run.slots))
    top = 0.0
    for panel, (run, colour) in zip(axes, runs, strict=True):
        # A step without a slot's time spends none in it; a bucket without any time is left out.
        means = np.stack([1e3 * mean_by_bucket(run.slots.get(n, np.full(len(run), np.nan)), _BUCKETS) for n in names])
        known = np.isfinite(means).any(axis=0)
        means = np.nan_to_num(means[:, known])
        steps = mean_by_bucket(run.columns["step"], _BUCKETS)[known]
        layers = panel.stackplot(
            steps,
            means,
            colors=[_SLOT_COLOURS[i % len(_SLOT_COLOURS)] for i in range(len(names))],
        )
        # With a space in front no name of a slot is one that matplotlib hides.
        legend = panel.legend(layers, [f" {name}" for name in names], frameon=False, ncols=len(names))
        for text in legend.get_texts():
            text.set_parse_math(False)
        # The first steps compile and would flatten the rest.
        top = max(top, 1.5 * float(np.percentile(means.sum(axis=0), 95)))
        panel.set(xlabel="step", ylabel="ms a step")
        panel.spines["left"].set(color=colour, linewidth=3)
    for panel in axes:
        panel.set_ylim(0, top or None)


_MEAN = (
    "Faint: every recorded step, of a long run the smallest and the largest of each stretch; strong: the mean over 2 %."
)

_DRAWINGS = {
    "loss": _Drawing("Loss", f"{_MEAN} Crosses at the bottom: inf or nan.", _has("loss"), _draw_loss, _loss_panels),
    "metrics": _Drawing(
        "Metrics",
        "Of each evaluation, after the training steps that had been made.",
        lambda run: bool(run.metrics),
        _draw_metrics,
        lambda runs: len(_metric_names(runs)),
    ),
    "learning_rate": _Drawing(
        "Learning rate",
        "Of the last update. Groups of parameters, in the optimizer's order: solid, dashed, dotted, dash-dotted.",
        lambda run: any(bool(np.isfinite(rates).any()) for rates in run.learning_rates.values()),
        _draw_rates,
    ),
    "loss_scale": _Drawing(
        "Loss scale",
        "After each step. Crosses: steps that overflowed and changed no weight.",
        _has("loss_scale"),
        _draw_loss_scale,
    ),
    "largest_gradient": _Drawing(
        "Largest gradient",
        f"The largest finite magnitude over all gradients. {_MEAN}",
        _has("largest_gradient"),
        _draw_gradient,
    ),
    "gradient_norm": _Drawing(
        "Gradient norm",
        f"Of all gradients together, before clipping. {_MEAN}",
        _has("gradient_norm"),
        _draw_norm,
    ),
    "frozen_share": _Drawing(
        "Frozen share",
        f"Share of the parameter elements whose gradient was not computed. {_MEAN}",
        _freezes,
        _draw_frozen,
    ),
    "line_search": _Drawing(
        "Line search",
        f"Share of the steps whose line search accepted a step length, and that length, 0 for none. {_MEAN}",
        _has("accepted", "rho"),
        _draw_line_search,
        lambda runs: 2,
    ),
    "seconds": _Drawing(
        "Time of a step",
        f"On the host, until the loss is there. The first step compiles. {_MEAN}",
        _has("seconds"),
        _draw_seconds,
    ),
    "slots": _Drawing(
        "Time by slot",
        "Stacked; of a long run the means of each stretch. One panel a run, with its colour at the left. Peaks are cut "
        "off, the first step's for example, which compiles.",
        lambda run: any(bool(np.isfinite(column).any()) for column in run.slots.values()),
        _draw_slots,
        len,
    ),
}
