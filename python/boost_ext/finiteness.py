"""What a check for inf and nan saw."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FiniteReport", "TensorReport"]


@dataclass(frozen=True)
class TensorReport:
    """What :func:`boost_ext.ops.unscale_and_check` saw in one tensor, after the multiplication."""

    inf: int
    """Number of infinite elements."""
    nan: int
    """Number of elements that are not a number."""
    first: int | None
    """Row-major index of the first of either, or None."""
    max_abs: float
    """Largest finite magnitude."""

    @property
    def found(self) -> bool:
        return self.first is not None


@dataclass(frozen=True)
class FiniteReport:
    """What :func:`boost_ext.ops.unscale_and_check` saw in all tensors. True when some element was inf or nan."""

    tensors: tuple[TensorReport, ...]

    def __bool__(self) -> bool:
        return any(t.found for t in self.tensors)

    def __str__(self) -> str:
        bad = [
            f"tensor {i}: {t.inf} inf, {t.nan} nan, first at {t.first}" for i, t in enumerate(self.tensors) if t.found
        ]
        return "; ".join(bad) if bad else f"all {len(self.tensors)} tensors are finite"
