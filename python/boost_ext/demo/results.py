"""What a run measures."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

__all__ = ["Evaluation", "Run"]


@dataclass(frozen=True)
class Evaluation:
    """One look at the test images."""

    step: int
    seconds: float
    """Since the run began: building, compiling, training and evaluating."""
    accuracy: float


@dataclass(frozen=True)
class Run:
    """One training run. Sequences have one entry for each step, ``evaluations`` one for each epoch."""

    name: str
    title: str
    batch_size: int
    steps_per_epoch: int
    losses: tuple[float, ...]
    loss_scales: tuple[float, ...]
    """The scale that the step used; empty for a run without loss scaling."""
    overflows: tuple[bool, ...]
    accepted_rhos: tuple[float, ...]
    """The step length that the line search accepted, 0 for none; empty for a run without line search."""
    step_seconds: tuple[float, ...]
    """From the batch in NumPy to the loss in NumPy. The first one includes compilation."""
    evaluations: tuple[Evaluation, ...]
    preparation_seconds: float
    """From the start to the first step: the network and the cell; for DimReduce the short run and the PCA too."""
    seconds: float
    """All of it."""

    @property
    def test_accuracy(self) -> float:
        """At the end, not the best one."""
        return self.evaluations[-1].accuracy

    @property
    def step_ms(self) -> float:
        """Median over all steps but the first."""
        return 1e3 * median(self.step_seconds[1:] or self.step_seconds)

    @property
    def first_step_ms(self) -> float:
        """The first step: compilation, where something is compiled."""
        return 1e3 * self.step_seconds[0]

    @property
    def overflow_count(self) -> int | None:
        """None for a run without loss scaling."""
        return sum(self.overflows) if self.loss_scales else None

    @property
    def line_search_acceptance(self) -> float | None:
        """Share of the steps whose line search accepted a step; None for a run without."""
        if not self.accepted_rhos:
            return None
        return sum(rho > 0 for rho in self.accepted_rhos) / len(self.accepted_rhos)

    def seconds_to(self, target: float) -> float | None:
        """When the test accuracy was first seen to reach the target; None if it never was."""
        return next((e.seconds for e in self.evaluations if e.accuracy >= target), None)

    def as_dict(self, target: float) -> dict[str, Any]:
        """Everything, with the figures of the table, as JSON takes it."""
        return {
            "test_accuracy": self.test_accuracy,
            "steps": len(self.losses),
            "step_ms": self.step_ms,
            "first_step_ms": self.first_step_ms,
            "seconds_to_target": self.seconds_to(target),
            "overflow_count": self.overflow_count,
            "line_search_acceptance": self.line_search_acceptance,
            **asdict(self),
        }
