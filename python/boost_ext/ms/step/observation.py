"""The record of a training cell's last step, read from its state after the step."""

from __future__ import annotations

from typing import Any, TypedDict

import numpy as np

from boost_ext.ms.step.pipeline import NOT_RUN, SLOTS

__all__ = ["Observation", "Overflowed", "observation"]


class Overflowed(TypedDict):
    """A gradient that held inf or nan."""

    name: str
    """Of its parameter."""
    inf: int
    nan: int
    first_index: int
    """Of the first of them, row by row."""
    largest: float
    """The largest finite magnitude."""


class LineSearch(TypedDict):
    """Of dimension reduction."""

    accepted: bool
    rho: float
    """The accepted step length; 0 if none was."""
    failed_in_a_row: int
    """Searches that accepted none, up to this step; 0 if it did."""


class Observation(TypedDict):
    """One training step."""

    step: int
    """Steps made, inside graphs around the cell too."""
    loss_scale: float
    """Of the next step."""
    overflow: bool | None
    """None with ``check_overflow=False``, and for a step in a graph that was compiled before :meth:`instrument`."""
    overflowed: list[Overflowed]
    largest_gradient: float | None
    """The largest finite magnitude of all gradients, as the optimizer got them; None before the first step, and with
    ``check_overflow=False``."""
    gradient_norm: float | None
    """Of all gradients together, before clipping; None without clip_norm."""
    frozen_share: float
    """Share of the parameter elements that the step left out, from 0 to 1."""
    freeze_index: int | None
    """The group that the step trained; None without freezing."""
    micro_batch: int | None
    """Micro-batches in the accumulators; None without accumulation."""
    line_search: LineSearch | None
    seconds: dict[str, float] | None
    """Time of each slot; None if the cell is not instrumented."""


def observation(cell: Any, number: int, step: int) -> Observation:
    """The record of the last step of ``cell``, which its pipeline ``number`` made."""
    pipeline = cell.pipelines[number]
    report = pipeline.report.asnumpy()
    checks = pipeline.guard.checks
    ran = bool(step) and not (checks and np.any(report[:, 0] == NOT_RUN))
    rows = np.flatnonzero(report[:, 2] >= 0)
    overflowed = [_overflowed(pipeline.names[i], report[i]) for i in rows]
    index = number if cell.freeze else None
    dim_reduce = getattr(pipeline.apply_slot, "dim_reduce", None)
    stamps = pipeline.stamps.asnumpy() if pipeline.instrumented and ran else None
    return Observation(
        step=step,
        loss_scale=float(cell.scale_sense.asnumpy().reshape(())),
        overflow=bool(overflowed) if checks and (ran or not step) else None,
        overflowed=overflowed,
        largest_gradient=float(report[:, 3].max(initial=0)) if ran and checks else None,
        gradient_norm=None if cell.grad_norm is None or not step else float(cell.grad_norm.asnumpy()[0]),
        frozen_share=float(cell.optimizer.frozen_shares[index]) if index is not None else 0.0,
        freeze_index=index,
        micro_batch=None if cell.accumulation is None else int(cell.accumulation.count.asnumpy()),
        line_search=None if dim_reduce is None else _line_search(dim_reduce),
        seconds=None if stamps is None else dict(zip(SLOTS, np.diff(stamps).tolist(), strict=True)),
    )


def _line_search(dim_reduce: Any) -> LineSearch:
    rho = float(dim_reduce.accepted_rho.asnumpy()[0])
    return LineSearch(accepted=rho > 0, rho=rho, failed_in_a_row=dim_reduce.failed_in_a_row())


def _overflowed(name: str, row: Any) -> Overflowed:
    inf, nan, first = (int(v) for v in row[:3])
    return Overflowed(name=name, inf=inf, nan=nan, first_index=first, largest=float(row[3]))
