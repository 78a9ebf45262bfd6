"""The checks for inf and nan, and their reports; re-exported by :mod:`boost_ext.ops`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from boost_ext import _core
from boost_ext.ops.arguments import Array, Arrays, like_theirs, scalar

__all__ = ["DeviceReport", "FiniteReport", "TensorReport", "tensor_statistics", "unscale_and_check"]


@dataclass(frozen=True)
class TensorReport:
    """The report of :func:`boost_ext.ops.unscale_and_check` on one tensor, after the multiplication.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> report = ops.unscale_and_check([np.float32([1, -2, np.nan])], 1.0, report=True)
        >>> report.tensors[0]
        TensorReport(inf=0, nan=1, first=2, max_abs=2.0)
    """

    inf: int
    """Number of infinite elements."""
    nan: int
    """Number of elements that are not a number."""
    first: int | None
    """Index of the first of either in the order of the memory, which is row-major in C-contiguous tensors; or None."""
    max_abs: float
    """Largest finite magnitude."""

    @property
    def found(self) -> bool:
        return self.first is not None


@dataclass(frozen=True)
class FiniteReport:
    """The report of :func:`boost_ext.ops.unscale_and_check` on all tensors. True if some element was inf or nan.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> report = ops.unscale_and_check([np.float32([1, np.inf]), np.ones(3, np.float32)], 1.0, report=True)
        >>> print(bool(report), report)
        True tensor 0: 1 inf, 0 nan, first at 1
    """

    tensors: tuple[TensorReport, ...]

    def __bool__(self) -> bool:
        return any(t.found for t in self.tensors)

    def __str__(self) -> str:
        bad = [
            f"tensor {i}: {t.inf} inf, {t.nan} nan, first at {t.first}" for i, t in enumerate(self.tensors) if t.found
        ]
        return "; ".join(bad) if bad else f"all {len(self.tensors)} tensors are finite"


@dataclass(frozen=True)
class DeviceReport:
    """The report of :func:`boost_ext.ops.unscale_and_check` on tensors of a device, in the memory of the device."""

    found: Array
    """float32 (1,): 1 if some element was inf or nan, else 0."""
    rows: Array
    """float64 (tensors, 4): number of inf, of nan, first index of either or -1, largest finite magnitude."""

    def fetch(self) -> FiniteReport:
        """The report on the host. Waits for the stream."""
        rows = self.rows if isinstance(self.rows, np.ndarray) else self.rows.numpy()
        return _report((int(inf), int(nan), int(first), float(largest)) for inf, nan, first, largest in rows)

    def __bool__(self) -> bool:
        return bool(self.found)

    def __str__(self) -> str:
        return str(self.fetch())


def _report(rows: Iterable[tuple[int, int, int, float]]) -> FiniteReport:
    return FiniteReport(
        tuple(TensorReport(inf, nan, first if first >= 0 else None, max_abs) for inf, nan, first, max_abs in rows)
    )


@overload
def unscale_and_check(
    grads: Arrays, inv_scale: float | Array, report: Literal[False] = False, *, out: None = None
) -> bool: ...
@overload
def unscale_and_check(
    grads: Arrays, inv_scale: float | Array, report: Literal[True], *, out: None = None
) -> FiniteReport: ...
@overload
def unscale_and_check(
    grads: Arrays, inv_scale: float | Array, report: Literal[False] = False, *, out: Array
) -> Array: ...
@overload
def unscale_and_check(
    grads: Arrays, inv_scale: float | Array, report: Literal[True], *, out: Array
) -> DeviceReport: ...
@overload
def unscale_and_check(
    grads: Arrays, inv_scale: float | Array, report: bool = False, *, out: Array | None = None
) -> Any: ...
def unscale_and_check(
    grads: Arrays, inv_scale: float | Array, report: bool = False, *, out: Array | None = None
) -> Any:
    """Multiply all gradients by ``inv_scale`` in place and see whether any element is inf or nan, in one pass.

    With ``inv_scale=1`` nothing is written and read-only arrays are accepted. A tensor that is listed twice (tied
    weights) is multiplied once.

    Args:
        grads: tensors.
        inv_scale: the reciprocal of the loss scale; finite and > 0. A number or an array of one float32. An
            array on a device is not read by the host, and not checked.
        report: also count, for each tensor, inf and nan, and find the first of them and the largest finite magnitude.
            It is the same pass.
        out: one float32, written: 1 if something was found, else 0. Default: none.

    Returns:
        Whether something was found, or a :class:`FiniteReport` that is true when something was found. With `out`, and
        for arrays on a device (without a wait): `out`, or a new array like it, or with `report` a
        :class:`DeviceReport`.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> grads = [np.float32([1024, 2048]), np.float32([512])]
        >>> print(ops.unscale_and_check(grads, 1 / 1024), *grads)
        False [1. 2.] [0.5]
    """
    rows = True if report else None
    found = _core.unscale_and_check(grads, scalar("unscale_and_check", "inv_scale", inv_scale), rows, out)
    if not report:
        return found
    seen = DeviceReport(found[1], found[0])
    return seen.fetch() if isinstance(seen.found, bool) else seen


def tensor_statistics(tensors: Arrays, scale: float | Array = 1.0, *, out: Array | None = None) -> Array:
    """Six numbers about each tensor, in one read: is it finite, how large is it, how much of it is zero.

    A row holds the number of elements that are inf, the number that are nan, the index of the first of either in the
    order of the memory or -1, the largest finite magnitude, the number of zeros, and the sum of the squares of the
    finite elements. The first four are those of :func:`unscale_and_check` with ``report=True``. The norm of a finite
    tensor is the root of the last one. :class:`boost_ext.health.HealthMonitor` makes a report of the rows.

    Args:
        tensors: float32, float16 or bfloat16; only read. A tensor may be listed more than once.
        scale: finite and > 0: what the tensors were multiplied with, such as the loss scale. Magnitudes and squares are
            those of ``tensors / scale``. A number or an array of one float32, which on a device is not checked.
        out: ``(T, 6)`` float64, written; if None a new array where ``tensors`` are: a PyTorch tensor if they are some,
            else NumPy's or a device's.

    Returns:
        ``out``. Squares are summed in float64, on the CPU four of half precision first in float32
        (at most 3·2⁻²⁴ of the sum); the bits do not depend on the number of threads.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> print(ops.tensor_statistics([np.float32([3, 0, -4]), np.float32([1, np.nan, np.inf])]))
        [[ 0.  0. -1.  4.  1. 25.]
         [ 1.  1.  1.  1.  0.  1.]]
    """
    result = _core.tensor_statistics(tensors, scalar("tensor_statistics", "scale", scale), out)
    return result if out is not None else like_theirs(result, tensors)
