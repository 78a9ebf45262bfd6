"""A run by columns, small enough for a million steps."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from boost_ext.report.log import End, Evaluation, Header, Health, Step, TensorOverflow, iterate
from boost_ext.report.looks import Looks

__all__ = ["Overflows", "Run", "read"]

Column = np.ndarray[Any, np.dtype[np.float64]]

_NUMBERS = (
    "step",
    "epoch",
    "loss",
    "loss_scale",
    "overflow",
    "largest_gradient",
    "gradient_norm",
    "frozen_share",
    "freeze_index",
    "micro_batch",
    "seconds",
    "elapsed",
)

_LINE_SEARCH = ("accepted", "rho", "failed_in_a_row")


@dataclass(frozen=True)
class Overflows:
    """One tensor that overflowed, over all its steps.

    Examples:
        >>> from boost_ext import run_report
        >>> from boost_ext.run_log import Header, RunLogWriter, Step, TensorOverflow
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Step(step=1, overflow=True, overflowed=(TensorOverflow(name="w", inf=2, nan=0),)))
        >>> run_report.read("run.jsonl").overflows()[0].inf
        2
    """

    name: str
    steps: int
    """In how many recorded steps."""
    inf: int
    nan: int
    first_step: int
    first_index: int | None
    """In the first of these steps."""
    largest: float | None
    """Finite magnitude, over all of them."""


@dataclass(frozen=True)
class Run:
    """A run. A column has one float64 a recorded step, nan where the log has nothing.

    Examples:
        >>> from boost_ext import run_report
        >>> from boost_ext.run_log import Header, RunLogWriter, Step
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Step(step=1, loss=0.5))
        >>> run = run_report.read("run.jsonl")
        >>> len(run), run.columns["loss"].tolist()
        (1, [0.5])
    """

    path: Path
    header: Header
    columns: dict[str, Column]
    """The numbers of :class:`boost_ext.report.log.Step` and of its line search; only those that the log has."""
    slots: dict[str, Column]
    """Seconds of a step, by slot of the training cell."""
    learning_rates: dict[str, Column]
    """By number of the group, from "0"."""
    metrics: dict[str, tuple[Column, Column]]
    """By name: the steps after which it was measured, and its values."""
    overflowed: tuple[tuple[int, TensorOverflow], ...]
    """Steps, and the tensors that overflowed in them."""
    looks: Looks
    """The health of its tensors."""
    resumed_at: tuple[int, ...]
    """The first steps after the run was resumed."""
    end: End | None
    """None for a run that was killed, or that is still going."""

    def __len__(self) -> int:
        return len(self.columns["step"])

    def column(self, name: str) -> Column | None:
        """The column, or None if the log has nothing of it."""
        return self.columns.get(name)

    def overflow_steps(self) -> Column:
        """The steps that overflowed."""
        overflow = self.columns.get("overflow")
        return self.columns["step"][:0] if overflow is None else self.columns["step"][overflow == 1]

    def overflows(self) -> list[Overflows]:
        """The tensors that overflowed, the most frequent one first."""
        tensors: dict[str, list[tuple[int, TensorOverflow]]] = {}
        for step, tensor in self.overflowed:
            tensors.setdefault(tensor.name, []).append((step, tensor))
        rows = [_summed(name, entries) for name, entries in tensors.items()]
        return sorted(rows, key=lambda row: (-row.steps, -row.inf - row.nan, row.first_step, row.name))


def _summed(name: str, entries: Sequence[tuple[int, TensorOverflow]]) -> Overflows:
    largest = [tensor.largest for _, tensor in entries if tensor.largest is not None]
    return Overflows(
        name=name,
        steps=len({step for step, _ in entries}),
        inf=sum(tensor.inf for _, tensor in entries),
        nan=sum(tensor.nan for _, tensor in entries),
        first_step=entries[0][0],
        first_index=entries[0][1].first_index,
        largest=max(largest, default=None),
    )


class _Rows:
    """Steps as they come; a resumed run takes its place from its first step on."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in (*_NUMBERS, *_LINE_SEARCH)}
        self.present = {"step"}
        self.slots: dict[str, array[float]] = {}
        self.rates: dict[str, array[float]] = {}
        self.evaluations: list[Evaluation] = []
        self.overflowed: list[tuple[int, TensorOverflow]] = []
        self.looks = Looks()
        self.elapsed_before = 0.0

    def append(self, step: Step) -> None:
        before = len(self.columns["step"])
        for name in _NUMBERS[:-1]:
            self._put(name, getattr(step, name))
        self._put("elapsed", None if step.elapsed is None else self.elapsed_before + step.elapsed)
        search = step.line_search
        for name in _LINE_SEARCH:
            self._put(name, None if search is None else getattr(search, name))
        _put_named(self.slots, step.slots or {}, before)
        _put_named(self.rates, {str(i): rate for i, rate in enumerate(step.learning_rates or ())}, before)
        self.overflowed += ((step.step, tensor) for tensor in step.overflowed or ())

    def _put(self, name: str, value: float | None) -> None:
        if value is not None:
            self.present.add(name)
        self.columns[name].append(np.nan if value is None else value)

    def cut(self, step: int) -> None:
        """Forget the steps from this one on: the run that was resumed has made them again."""
        keep = len(self.columns["step"])
        while keep and self.columns["step"][keep - 1] >= step:
            keep -= 1
        for column in (*self.columns.values(), *self.slots.values(), *self.rates.values()):
            del column[keep:]
        self.evaluations = [evaluation for evaluation in self.evaluations if evaluation.step < step]
        self.overflowed = [entry for entry in self.overflowed if entry[0] < step]
        self.looks.cut(step)
        elapsed = self.columns["elapsed"][-1] if keep else np.nan
        self.elapsed_before = 0.0 if np.isnan(elapsed) else elapsed  # each part of the run counts from its own start


def _put_named(columns: dict[str, array[float]], values: Mapping[str, float], before: int) -> None:
    """A step's values of columns that come and go; `before` steps were there."""
    for name in dict.fromkeys((*columns, *values)):
        columns.setdefault(name, array("d", [np.nan]) * before).append(values.get(name, np.nan))


def _metrics(evaluations: Sequence[Evaluation]) -> dict[str, tuple[Column, Column]]:
    names = dict.fromkeys(name for evaluation in evaluations for name in evaluation.metrics)
    found = {}
    for name in names:
        pairs = [(e.step, e.metrics[name]) for e in evaluations if name in e.metrics]
        steps, values = np.array(pairs, np.float64).T
        found[name] = (steps, values)
    return found


def read(path: str | Path, on_progress: Callable[[int, int], None] | None = None) -> Run:
    """Read a run log.

    Args:
        path (Union[str, Path]): what :class:`boost_ext.callbacks.BoostMonitor` wrote.
        on_progress (Callable, optional): called now and then with the bytes that were read and their total.

    Raises:
        ValueError: as :func:`boost_ext.report.log.iterate`.

    Examples:
        >>> from boost_ext import run_report
        >>> from boost_ext.run_log import Header, RunLogWriter, Step
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Step(step=1, loss=0.5))
        >>> run_report.read("run.jsonl").columns["loss"].tolist()
        [0.5]
    """
    rows, headers, resumed_at, end = _Rows(), list[Header](), list[int](), None
    resumed = False
    for record in iterate(path, on_progress):
        if isinstance(record, Header):
            resumed = bool(headers)
            headers.append(record)
        if resumed and isinstance(record, (Step, Health)):
            rows.cut(record.step)
            resumed_at.append(record.step)
            resumed = False
        if isinstance(record, Step):
            rows.append(record)
        if isinstance(record, Health):
            rows.looks.append(record)
        if isinstance(record, Evaluation):
            rows.evaluations.append(record)
        end = record if isinstance(record, End) else None
    return Run(
        path=Path(path),
        header=headers[0],
        columns={name: np.asarray(rows.columns[name]) for name in rows.columns if name in rows.present},
        slots={name: np.asarray(column) for name, column in rows.slots.items()},
        learning_rates={name: np.asarray(column) for name, column in rows.rates.items()},
        metrics=_metrics(rows.evaluations),
        overflowed=tuple(rows.overflowed),
        looks=rows.looks,
        resumed_at=tuple(resumed_at),
        end=end,
    )
