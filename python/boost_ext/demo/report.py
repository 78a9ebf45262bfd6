"""What the user gets to see: a table, three plots, and all numbers as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from boost_ext import convolutions, environment
from boost_ext.demo.results import Run
from boost_ext.demo.settings import Settings
from boost_ext.files import save_figure, write_text
from boost_ext.terminal import Fitting

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["explanations", "table", "write_json", "write_plots"]

# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = {"plain": "#000000", "boost": "#D55E00", "amp": "#0072B2", "dim_reduce": "#009E73"}
# plain and boost compute the same numbers, so that the one that is drawn last must let the other one through.
_DASHES = {"boost": (0, (4, 3))}


def table(runs: Sequence[Run], settings: Settings) -> Fitting:
    """One column a run, so that it fits a terminal of 80 characters."""
    result = Table(title=f"Handwritten digits, {settings.length} from the same initial weights")
    result.add_column("", no_wrap=True)
    for run in runs:
        result.add_column(run.name, justify="right")
    rows: dict[str, Callable[[Run], str]] = {
        "": lambda run: run.title,
        "test accuracy": lambda run: f"{run.test_accuracy:.2%}",
        "steps": lambda run: f"{len(run.losses)} of {run.batch_size}",
        "ms a step (median)": lambda run: f"{run.step_ms:.2f}",
        "ms, first step": lambda run: f"{run.first_step_ms:.0f}",
        "seconds in all": lambda run: f"{run.seconds:.1f}",
        f"seconds to {settings.target:.1%}": lambda run: _or_dash(run.seconds_to(settings.target), "{:.1f}"),
        "overflows": lambda run: _or_dash(run.overflow_count, "{}"),
        "line search accepted": lambda run: _or_dash(run.line_search_acceptance, "{:.0%}"),
    }
    for name, cell in rows.items():
        result.add_row(name, *map(cell, runs), end_section=not name)
    return Fitting(result)


def _or_dash(value: float | None, pattern: str) -> str:
    return "-" if value is None else pattern.format(value)


def explanations(runs: Sequence[Run], settings: Settings) -> list[str]:
    """Sentences on what the table shows: ratios from these measurements, and what a run did."""
    named = {run.name: run for run in runs}
    plain, boost = named.get("plain"), named.get("boost")
    lines = []
    if plain and boost:
        line = (
            f"boost against plain: a step in {boost.step_ms / plain.step_ms:.2f} of the time; with compilation and "
            f"evaluations the training {plain.seconds / boost.seconds:.1f} times as fast"
        )
        slow, fast = plain.seconds_to(settings.target), boost.seconds_to(settings.target)
        if slow is not None and fast is not None:
            line += f", {settings.target:.1%} test accuracy {slow / fast:.1f} times"
        if plain.losses == boost.losses:
            line += ", at the same losses bit for bit"
        lines.append(line + ".")
        if settings.mode == "graph":
            lines.append("In graph mode MindSpore compiles the plain step too; in PyNative mode it runs op by op.")
    if amp := named.get("amp"):
        line = (
            f"amp: the loss scale came from {_power(amp.loss_scales[0])} to {_power(amp.loss_scales[-1])}; "
            f"{amp.overflow_count} steps overflowed and changed nothing else."
        )
        if boost:
            line += (
                f" Here, on the CPU, a float16 step takes {amp.step_ms / boost.step_ms:.2f} of a float32 step's time."
            )
        lines.append(line)
    if reduced := named.get("dim_reduce"):
        lines.append(
            f"dim_reduce: the checkpoints of a short plain run (one every {settings.checkpoint_every} steps; "
            f"epochs: {settings.short_epochs}) span a subspace. The initial network is then trained again in it, "
            f"by quasi-Newton steps on batches of {reduced.batch_size}. Its times include the short run and the PCA: "
            f"{reduced.preparation_seconds:.1f} s."
        )
    return lines


def _power(scale: float) -> str:
    return f"2**{math.log2(scale):g}"


def write_json(path: Path, runs: Sequence[Run], settings: Settings, versions: dict[str, str | None]) -> None:
    """Settings, versions, what limits MindSpore's convolutions, and every curve."""
    content: dict[str, Any] = {
        "settings": settings.as_dict(),
        "versions": versions,
        "onednn_max_cpu_isa": convolutions.limit(),
        "ms_dev_host_blocking_run": os.environ.get(environment.DISPATCH),
        "runs": [run.as_dict(settings.target) for run in runs],
    }
    write_text(path, json.dumps(content, indent=1) + "\n")


def write_plots(folder: Path, runs: Sequence[Run], settings: Settings) -> list[Path]:
    """loss.png, accuracy.png and, if a run has a loss scale, loss_scale.png; returns what was written."""
    # The object interface: pyplot would look for a display and keep the figures alive.
    from matplotlib.figure import Figure

    drawings = {"loss.png": _draw_losses, "accuracy.png": _draw_accuracies}
    if any(run.loss_scales for run in runs):
        drawings["loss_scale.png"] = _draw_loss_scales
    written = []
    for name, draw in drawings.items():
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        draw(axes, runs, settings)
        axes.grid(True, alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        save_figure(folder / name, figure, dpi=120)
        written.append(folder / name)
    return written


def _draw_losses(axes: Axes, runs: Sequence[Run], settings: Settings) -> None:
    for run in runs:
        epochs = [(step + 1) / run.steps_per_epoch for step in range(len(run.losses))]
        # The mean over half an epoch: single batches of 32 jump over a decade.
        width = max(1, run.steps_per_epoch // 2)
        axes.plot(epochs, run.losses, color=_COLOURS[run.name], alpha=0.15, linewidth=0.8)
        axes.plot(
            epochs,
            _running_mean(run.losses, width),
            color=_COLOURS[run.name],
            linestyle=_DASHES.get(run.name, "-"),
            label=_label(run),
        )
    axes.set(
        yscale="log",
        xlabel="epoch",
        ylabel="training loss",
        title="Training loss: mean over half an epoch; faint, single batches",
    )


def _draw_accuracies(axes: Axes, runs: Sequence[Run], settings: Settings) -> None:
    for run in runs:
        axes.plot(
            [e.seconds for e in run.evaluations],
            [e.accuracy for e in run.evaluations],
            color=_COLOURS[run.name],
            marker="o",
            markersize=3.5,
            label=_label(run),
        )
    axes.axhline(settings.target, color="grey", linestyle=":", label=f"target {settings.target:.1%}")
    low = min(e.accuracy for run in runs for e in run.evaluations)
    axes.set(
        ylim=(max(0.0, min(low, settings.target) - 0.01), 1.0),
        xlabel="seconds, with compilation and evaluations",
        ylabel="test accuracy",
        title="Test accuracy over time",
    )


def _draw_loss_scales(axes: Axes, runs: Sequence[Run], settings: Settings) -> None:
    for run in (run for run in runs if run.loss_scales):
        steps = range(1, len(run.loss_scales) + 1)
        axes.step(steps, run.loss_scales, where="mid", color=_COLOURS[run.name], label=_label(run))
        skipped = [step for step, overflow in zip(steps, run.overflows, strict=True) if overflow]
        axes.plot(
            skipped,
            [run.loss_scales[step - 1] for step in skipped],
            linestyle="none",
            marker="x",
            color="#CC3311",
            label="overflow, step skipped",
        )
    axes.set_yscale("log", base=2)
    axes.set(
        xlabel="step",
        ylabel="loss scale",
        title=f"Loss scale: halved on overflow, doubled after {settings.scale_window} steps without",
    )


def _label(run: Run) -> str:
    return f"{run.name} ({run.title})"


def _running_mean(values: Sequence[float], width: int) -> list[float]:
    means = []
    for end in range(1, len(values) + 1):
        window = values[max(0, end - width) : end]
        means.append(sum(window) / len(window))
    return means
