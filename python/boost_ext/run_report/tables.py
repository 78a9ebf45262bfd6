"""The tables of a report, as HTML. Every word from a log goes through :func:`escape`: names are the user's data."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from boost_ext.run_report.run import Column, Run

__all__ = ["freeze_table", "header_table", "overflow_table", "plan_tables", "rows_table", "summary_table"]

_LONG = 24
"""Characters that fit into the narrowest column."""
_DOTS = re.compile(r"([._/])(?=\w)")
_TENSORS = 200
"""More overflowing tensors than this are counted, not listed."""


def rows_table(head: Sequence[str], rows: Sequence[Sequence[Any]], *, name: str) -> str:
    """A table; cells are text, which is escaped here. The first cell of a row is its heading."""
    titles = "".join(f'<th scope="col">{escape(str(cell))}</th>' for cell in head)
    lines = [f'<table class="{escape(name)}">', f"<thead><tr>{titles}</tr></thead>", "<tbody>"]
    for first, *rest in rows:
        cells = "".join(f"<td>{_html(cell)}</td>" for cell in rest)
        lines.append(f'<tr><th scope="row">{_html(first)}</th>{cells}</tr>')
    lines.append("</tbody></table>")
    return "\n".join(lines)


def _html(cell: Any) -> str:
    """A long name may be broken after a dot, and nowhere else: `block.0.conv.weight`."""
    words = [_DOTS.sub("\\1\0", word) if len(word) > _LONG else word for word in _text(cell).split(" ")]
    return escape(" ".join(words)).replace("\0", "<wbr>")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def _by_run(runs: Sequence[Run], names: Sequence[str], rows: Mapping[str, Callable[[Run], Any]], *, name: str) -> str:
    """One column a run; a row that no run knows anything of is left out."""
    cells = [[title, *map(value, runs)] for title, value in rows.items()]
    return rows_table(["", *names], [row for row in cells if any(cell is not None for cell in row[1:])], name=name)


def header_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """What each run was: the headers."""
    versions = dict.fromkeys(package for run in runs for package in run.header.versions)

    def parameters(run: Run) -> str | None:
        trained = run.header.parameters
        return None if trained is None else f"{trained.elements:,} elements in {trained.tensors:,} tensors"

    def device(run: Run) -> str | None:
        header = run.header
        return header.device and header.device + (f", rank {header.rank} of {header.ranks}" if header.ranks > 1 else "")

    rows: dict[str, Callable[[Run], Any]] = {
        "file": lambda run: run.path.name,
        "started": lambda run: run.header.started,
        "ended": _ending,
        "resumed at steps": lambda run: ", ".join(map(str, run.resumed_at)) or None,
        "training cell": _cell,
        "network": lambda run: run.header.network,
        "optimizer": lambda run: run.header.optimizer,
        "trained parameters": parameters,
        "mode": lambda run: run.header.mode,
        "device": device,
        "steps an epoch": lambda run: run.header.steps_per_epoch,
        "recorded": lambda run: "every step" if run.header.every == 1 else f"every {run.header.every} steps",
    }
    for package in versions:
        rows[package] = partial(_version, package)
    return _by_run(runs, names, rows, name="header")


def _version(package: str, run: Run) -> str | None:
    return run.header.versions.get(package)


def _cell(run: Run) -> str | None:
    cell, known = run.header.cell, run.header.observed
    return cell if cell is None or known else f"{cell}, which is not of boost_ext: little but loss and time is known"


def _ending(run: Run) -> str:
    if run.end is None:
        return "no end was recorded: killed, or still going"
    return "at the end" if run.end.error is None else f"by an error: {run.end.error}"


def summary_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Each run in a few numbers."""
    rows: dict[str, Callable[[Run], Any]] = {
        "steps recorded": len,
        "last step": lambda run: int(run.columns["step"][-1]) if len(run) else None,
        "last loss": lambda run: _of(run, "loss", lambda values: values[-1]),
        "mean loss of the last 2 %": lambda run: _of(run, "loss", _tail),
        "steps that overflowed": lambda run: None if run.column("overflow") is None else len(run.overflow_steps()),
        "last learning rate": _last_rates,
        "last loss scale": lambda run: _of(run, "loss_scale", lambda values: values[-1]),
        "mean frozen share": lambda run: _percent(_of(run, "frozen_share", np.mean)),
        "micro-batches a step, at most": lambda run: _whole(_of(run, "micro_batch", np.max)),
        "line search accepted": lambda run: _percent(_of(run, "accepted", np.mean)),
        "line searches failed in a row, at most": lambda run: _whole(_of(run, "failed_in_a_row", np.max)),
        "ms a step (median)": lambda run: _milliseconds(_of(run, "seconds", np.median)),
        "ms, first step": lambda run: _milliseconds(_of(run, "seconds", lambda values: values[0])),
        "seconds in all": lambda run: _of(run, "elapsed", lambda values: values[-1]),
    }
    for metric in dict.fromkeys(metric for run in runs for metric in run.metrics):
        rows[f"last {metric}"] = partial(_last_metric, metric)
        rows[f"{metric}, smallest to largest"] = partial(_range, metric)
    for slot in dict.fromkeys(slot for run in runs for slot in run.slots):
        rows[f"ms in slot {slot} (median)"] = partial(_slot, slot)
    return _by_run(runs, names, rows, name="summary")


def _last_rates(run: Run) -> str | None:
    """Of each group, at the last step that knows of it."""
    known = [column[np.isfinite(column)] for column in run.learning_rates.values()]
    return ", ".join(f"{column[-1]:.6g}" for column in known if len(column)) or None


def _last_metric(metric: str, run: Run) -> float | None:
    return float(run.metrics[metric][1][-1]) if metric in run.metrics else None


def _range(metric: str, run: Run) -> str | None:
    if metric not in run.metrics:
        return None
    values = run.metrics[metric][1]
    values = values[np.isfinite(values)]
    return f"{values.min():.6g} to {values.max():.6g}" if len(values) else None


def _slot(slot: str, run: Run) -> str | None:
    return _milliseconds(_median(run.slots.get(slot)))


def _of(run: Run, name: str, figure: Callable[[Column], Any]) -> float | None:
    """A figure of the column, without the steps that do not have it; inf and nan of a loss are its values."""
    column = run.column(name)
    if column is None:
        return None
    values = column if name == "loss" else column[~np.isnan(column)]
    return float(figure(values)) if len(values) else None


def _tail(values: Column) -> float:
    return float(values[-max(1, len(values) // 50) :].mean())


def _median(column: Column | None) -> float | None:
    values = [] if column is None else column[~np.isnan(column)].tolist()
    return statistics.median(values) if values else None


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:.3g}"


def overflow_table(run: Run) -> str:
    """The tensors that overflowed, the most frequent one first; empty text if none did."""
    overflows = run.overflows()
    if not overflows:
        return ""
    head = ["tensor", "steps", "inf", "nan", "first in step", "first index there", "largest finite magnitude"]
    rows = [(o.name, o.steps, o.inf, o.nan, o.first_step, o.first_index, o.largest) for o in overflows[:_TENSORS]]
    table = rows_table(head, rows, name="overflows")
    if len(overflows) > _TENSORS:
        table += f"<p>And {len(overflows) - _TENSORS} more tensors.</p>"
    return table


def freeze_table(run: Run) -> str:
    """How often each group was trained; empty text for a run without freezing."""
    index, share, seconds = (run.column(name) for name in ("freeze_index", "frozen_share", "seconds"))
    if index is None:
        return ""
    rows = []
    for group in np.unique(index[np.isfinite(index)]):
        chosen = index == group
        frozen = None if share is None else _percent(float(share[chosen].mean()))
        time = None if seconds is None else _milliseconds(_median(seconds[chosen]))
        rows.append((int(group), int(chosen.sum()), _percent(float(chosen.mean())), frozen, time))
    head = ["freeze index", "steps", "share of the steps", "frozen share", "ms a step (median)"]
    return rows_table(head, rows, name="freezing")


def plan_tables(plan: Mapping[str, Any]) -> str:
    """The plan: its features as a table, anything else in it as a list before."""
    features = plan.get("features")
    if not isinstance(features, Mapping) or not all(isinstance(decision, Mapping) for decision in features.values()):
        features = {}
    rest = {key: value for key, value in plan.items() if key != "features" or not features}
    text = "".join(f"<p>{escape(str(key))}: {escape(_json(value))}</p>" for key, value in rest.items())
    if not features:
        return text
    head = ["feature", "status", "why", "details"]
    rows = []
    for name, decision in features.items():
        why = "; ".join([str(decision.get("reason") or ""), *map(str, decision.get("ignored") or [])])
        details = decision.get("details") or {}
        rows.append((name, decision.get("status"), why, "; ".join(f"{k}: {_json(v)}" for k, v in details.items())))
    return text + rows_table(head, rows, name="plan")


def _json(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
