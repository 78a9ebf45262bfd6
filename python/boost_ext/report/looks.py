"""The health of the tensors of a run, small enough for ten thousand looks at hundreds of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from boost_ext.report.log import Fault, Health

__all__ = ["Looks", "TensorHistory"]

Column = np.ndarray[Any, np.dtype[np.float64]]

_ROLES = ("gradient", "weight", "update", "loss")
_ROW = np.dtype(
    [
        ("name", np.int32),
        ("of", np.int8),
        ("bad", np.bool_),
        ("dead", np.bool_),
        ("exploding", np.bool_),
        ("norm", np.float64),
        ("zero_share", np.float64),
        ("update_ratio", np.float64),
    ]
)


@dataclass(frozen=True)
class TensorHistory:
    """A parameter over all looks of a run.

    Examples:
        >>> from boost_ext import run_report
        >>> from boost_ext.run_log import Header, Health, RunLogWriter, TensorHealth
        >>> seen = TensorHealth(of="gradient", name="w", elements=2, zeros=1, largest=4.0, norm=4.0)
        >>> with RunLogWriter("run.jsonl", Header(started="2025-01-01T12:00:00+00:00")) as writer:
        ...     writer.write(Health(step=1, tensors=(seen,)))
        >>> run_report.read("run.jsonl").looks.histories()[0].zero_share
        0.5
    """

    name: str
    bad: int
    """Looks in which it, its gradient or its update held inf or nan."""
    first_bad: int | None
    """The step of the first one."""
    dead: int
    exploding: int
    """Looks in which it was so."""
    norm: float | None
    """Of the gradient, in the last look."""
    largest_norm: float | None
    """Over all looks."""
    zero_share: float | None
    """Of the gradient, in the last look."""
    update_ratio: float | None
    """In the last look that has one."""


class Looks:
    """The health of the tensors of a run: its records of kind ``health``, by numbers.

    Attributes:
        faults: the first cause in each look that had one.

    Examples:
        >>> from boost_ext.run_log import Health, TensorHealth
        >>> from boost_ext.run_report import Looks
        >>> looks = Looks()
        >>> seen = TensorHealth(of="gradient", name="w", elements=2, zeros=1, largest=4.0, norm=4.0)
        >>> looks.append(Health(step=7, tensors=(seen,)))
        >>> steps, (least, median, largest) = looks.spread("gradient", "norm")
        >>> steps.tolist(), median.tolist()
        ([7.0], [4.0])
    """

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        self._names: dict[str, int] = {}
        self._looks: list[tuple[int, Any]] = []

    def __len__(self) -> int:
        return len(self._looks)

    def append(self, health: Health) -> None:
        """Take a record."""
        rows = np.empty(len(health.tensors), _ROW)
        for i, t in enumerate(health.tensors):
            of_gradient = t.of == "gradient"
            rows[i] = (
                self._names.setdefault(t.name, len(self._names)),
                _ROLES.index(t.of),
                not t.finite,
                of_gradient and t.name in health.dead,
                of_gradient and t.name in health.exploding,
                t.norm,
                t.zero_share,
                np.nan if t.update_ratio is None else t.update_ratio,
            )
        self._looks.append((health.step, rows))
        if health.fault is not None:
            self.faults.append(health.fault)

    def cut(self, step: int) -> None:
        """Forget the steps from this one on."""
        self._looks = [look for look in self._looks if look[0] < step]
        self.faults = [fault for fault in self.faults if fault.step < step]

    def spread(self, of: str, number: str) -> tuple[Column, Column]:
        """The steps, and the least, the median and the largest of a number over the tensors, as rows; nan without."""
        steps, values = [], []
        for step, rows in self._looks:
            known = rows[number][(rows["of"] == _ROLES.index(of)) & np.isfinite(rows[number])]
            steps.append(step)
            values.append(np.quantile(known, (0, 0.5, 1)) if len(known) else np.full(3, np.nan))
        return np.array(steps, np.float64), np.array(values, np.float64).reshape(-1, 3).T

    def histories(self) -> list[TensorHistory]:
        """A row for each parameter: those with findings first, then the largest gradients."""
        found = list(self._histories())
        return sorted(found, key=lambda h: (-h.bad, -h.exploding, -h.dead, -(h.largest_norm or 0.0), h.name))

    def _histories(self) -> Iterator[TensorHistory]:
        if not self._looks:
            return
        rows = np.concatenate([rows for _, rows in self._looks])
        steps = np.concatenate([np.full(len(rows), step) for step, rows in self._looks])
        order = np.argsort(rows["name"], kind="stable")
        starts = np.searchsorted(rows["name"][order], np.arange(len(self._names) + 1))
        for name, number in self._names.items():
            mine = order[starts[number] : starts[number + 1]]
            if len(mine):
                yield _history(name, steps[mine], rows[mine])


def _history(name: str, steps: Any, rows: Any) -> TensorHistory:
    gradients = rows[rows["of"] == _ROLES.index("gradient")]
    ratios = rows["update_ratio"][np.isfinite(rows["update_ratio"])]
    bad = np.unique(steps[rows["bad"]])
    return TensorHistory(
        name=name,
        bad=len(bad),
        first_bad=int(bad[0]) if len(bad) else None,
        dead=int(rows["dead"].sum()),
        exploding=int(rows["exploding"].sum()),
        norm=float(gradients["norm"][-1]) if len(gradients) else None,
        largest_norm=float(gradients["norm"].max()) if len(gradients) else None,
        zero_share=float(gradients["zero_share"][-1]) if len(gradients) else None,
        update_ratio=float(ratios[-1]) if len(ratios) else None,
    )
