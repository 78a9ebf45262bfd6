"""The check for inf and nan, and what it saw; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from dataclasses import dataclass

from boost_ext import _core
from boost_ext._arguments import Arrays, number

__all__ = ["FiniteReport", "TensorReport", "unscale_and_check"]


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


def unscale_and_check(grads: Arrays, inv_scale: float, report: bool = False) -> bool | FiniteReport:
    """Multiply all gradients by ``inv_scale`` in place and see whether any element is inf or nan, in one pass.

    With ``inv_scale=1`` nothing is written and read-only arrays are accepted. A tensor that is listed twice (tied
    weights) is multiplied once.

    Args:
        grads: tensors.
        inv_scale: the reciprocal of the loss scale; finite and > 0.
        report: also count, for each tensor, inf and nan, and find the first of them and the largest finite magnitude.
            It is the same pass.

    Returns:
        Whether something was found, or a :class:`FiniteReport` that is true when something was found.
    """
    found = _core.unscale_and_check(grads, number("unscale_and_check", "inv_scale", inv_scale), bool(report))
    if isinstance(found, bool):
        return found
    return FiniteReport(
        tuple(TensorReport(inf, nan, first if first >= 0 else None, max_abs) for inf, nan, first, max_abs in found)
    )
