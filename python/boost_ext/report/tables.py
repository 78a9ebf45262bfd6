"""The tables of a report, as texts: the page escapes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from boost_ext.report.run import Column, Run

__all__ = ["Table", "tables"]

_TENSORS = 200
"""More overflowing tensors than this are counted, not listed."""


class Table(NamedTuple):
    """The first cell of a row is its heading; a cell is a text, a number or None."""

    name: str
    heading: str
    head: Sequence[str]
    rows: Sequence[Sequence[Any]]


def tables(runs: Sequence[Run], names: Sequence[str]) -> list[Table]:
    """The summary of all runs; for each run the tables that it has; and what the runs were."""
    found = [_by_run("summary", "Summary", names, [_summary(run) for run in runs])]
    for make in (_faults, _health, _overflows, _freezing, _plan):
        for run, name in zip(runs, names, strict=True):
            table = make(run)
            if table.rows:
                found.append(table._replace(heading=f"{table.heading}: {name}") if len(runs) > 1 else table)
    return [*found, _by_run("header", "Runs", names, [_header(run) for run in runs])]


def _by_run(name: str, heading: str, names: Sequence[str], runs: Sequence[Mapping[str, Any]]) -> Table:
    """One column a run; a row that no run knows anything of is left out."""
    rows = [
        [title, *(run.get(title) for run in runs)] for title in dict.fromkeys(title for run in runs for title in run)
    ]
    return Table(name, heading, ["", *names], [row for row in rows if any(cell is not None for cell in row[1:])])


def _header(run: Run) -> dict[str, Any]:
    header = run.header
    trained = header.parameters
    cell = header.cell
    if cell is not None and not header.observed:
        cell += ", which is not of boost_ext: little but loss and time is known"
    ended = "no end was recorded: killed, or still going"
    if run.end is not None:
        ended = "at the end" if run.end.error is None else f"by an error: {run.end.error}"
    rank = f", rank {header.rank} of {header.ranks}" if header.ranks > 1 else ""
    return {
        "file": run.path.name,
        "started": header.started,
        "ended": ended,
        "resumed at steps": ", ".join(map(str, run.resumed_at)) or None,
        "training cell": cell,
        "network": header.network,
        "optimizer": header.optimizer,
        "trained parameters": trained and f"{trained.elements:,} elements in {trained.tensors:,} tensors",
        "mode": header.mode,
        "device": header.device and header.device + rank,
        "steps an epoch": header.steps_per_epoch,
        "recorded": "every step" if header.every == 1 else f"every {header.every} steps",
        **header.versions,
    }


def _summary(run: Run) -> dict[str, Any]:
    def of(name: str, figure: Callable[[Column], Any]) -> Any:
        """A figure of the column, without the steps that do not have it; inf and nan of a loss are its values."""
        values = run.column(name)
        if values is not None and name != "loss":
            values = values[~np.isnan(values)]
        return None if values is None or not len(values) else figure(values)

    def last(values: Column) -> float:
        return float(values[-1])

    def tail(values: Column) -> float:
        return float(values[-max(1, len(values) // 50) :].mean())

    rates = [column[np.isfinite(column)] for column in run.learning_rates.values()]
    rows = {
        "steps recorded": len(run),
        "last step": of("step", lambda steps: int(steps[-1])),
        "last loss": of("loss", last),
        "mean loss of the last 2 %": of("loss", tail),
        "steps that overflowed": None if run.column("overflow") is None else len(run.overflow_steps()),
        "last learning rate": ", ".join(f"{column[-1]:.6g}" for column in rates if len(column)) or None,
        "last loss scale": of("loss_scale", last),
        "mean frozen share": of("frozen_share", _share),
        "micro-batches a step, at most": of("micro_batch", lambda counts: int(counts.max())),
        "line search accepted": of("accepted", _share),
        "line searches failed in a row, at most": of("failed_in_a_row", lambda counts: int(counts.max())),
        "ms a step (median)": of("seconds", _median),
        "ms, first step": of("seconds", lambda seconds: f"{float(f'{1e3 * seconds[0]:.3g}'):g}"),
        "seconds in all": of("elapsed", last),
    }
    for metric, (_, values) in run.metrics.items():
        rows[f"last {metric}"] = last(values)
        finite = values[np.isfinite(values)]
        rows[f"{metric}, smallest to largest"] = f"{finite.min():.6g} to {finite.max():.6g}" if len(finite) else None
    return rows | {f"ms in slot {slot} (median)": _median(seconds) for slot, seconds in run.slots.items()}


def _share(values: Column) -> str:
    return f"{values.mean():.1%}"


def _median(seconds: Column | None) -> str | None:
    known = None if seconds is None else seconds[~np.isnan(seconds)]
    return None if known is None or not len(known) else f"{1e3 * np.median(known):.3g}"


def _faults(run: Run) -> Table:
    """Where inf or nan came up first, in each look that saw some."""
    head = ["step", "rank", "of", "tensor", "inf", "nan", "first index"]
    faults = run.looks.faults
    rows: list[list[Any]] = [
        [f.step if f.after is None else f"{f.after + 1} to {f.step}", f.rank, f.of, f.name, f.inf, f.nan, f.first_index]
        for f in faults[:_TENSORS]
    ]
    more = [[f"and {len(faults) - _TENSORS} more"]] if len(faults) > _TENSORS else []
    return Table("faults", "Faults, the first cause in a step", head, rows + more)


def _health(run: Run) -> Table:
    """A row a parameter."""
    head = ["tensor", "looks with inf or nan", "first in step", "exploding", "dead", "gradient norm", "largest norm"]
    head += ["zeros in the gradient", "update / weight"]
    found = run.looks.histories()
    rows: list[list[Any]] = [
        [
            h.name,
            h.bad,
            h.first_bad,
            h.exploding,
            h.dead,
            h.norm,
            h.largest_norm,
            None if h.zero_share is None else f"{h.zero_share:.1%}",
            None if h.update_ratio is None else f"{h.update_ratio:.2g}",
        ]
        for h in found[:_TENSORS]
    ]
    more = [[f"and {len(found) - _TENSORS} more"]] if len(found) > _TENSORS else []
    return Table("health", f"Health of the tensors, in {len(run.looks):,} looks", head, rows + more)


def _overflows(run: Run) -> Table:
    """The tensors that overflowed, the most frequent one first."""
    head = ["tensor", "steps", "inf", "nan", "first in step", "first index there", "largest finite magnitude"]
    found = run.overflows()
    rows: list[list[Any]] = [
        [o.name, o.steps, o.inf, o.nan, o.first_step, o.first_index, o.largest] for o in found[:_TENSORS]
    ]
    more = [[f"and {len(found) - _TENSORS} more"]] if len(found) > _TENSORS else []
    return Table("overflows", "Overflowing gradients", head, rows + more)


def _freezing(run: Run) -> Table:
    """How often each group was trained."""
    head = ["freeze index", "steps", "share of the steps", "frozen share", "ms a step (median)"]
    index, share, seconds = (run.column(name) for name in ("freeze_index", "frozen_share", "seconds"))
    rows = []
    for group in [] if index is None else np.unique(index[np.isfinite(index)]):
        chosen = index == group
        frozen = None if share is None else _share(share[chosen])
        time = None if seconds is None else _median(seconds[chosen])
        rows.append([int(group), int(chosen.sum()), f"{chosen.mean():.1%}", frozen, time])
    return Table("freezing", "Gradient freezing", head, rows)


def _plan(run: Run) -> Table:
    """The features, after anything else in the plan."""
    plan = dict(run.header.plan or {})
    features = plan.get("features")
    if isinstance(features, Mapping) and all(isinstance(decision, Mapping) for decision in features.values()):
        del plan["features"]
    else:
        features = {}
    rows = [[key, _text(value)] for key, value in plan.items()]
    for name, decision in features.items():
        why = "; ".join([str(decision.get("reason") or ""), *map(str, decision.get("ignored") or [])])
        details = "; ".join(f"{key}: {_text(value)}" for key, value in (decision.get("details") or {}).items())
        rows.append([name, decision.get("status"), why, details])
    return Table("plan", "Plan", ["feature", "status", "why", "details"], rows)


def _text(value: Any) -> str:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
