"""Arrays that carry how far float32 arithmetic may be from them: an oracle that is fed with these gives the bounds of
rounding-error analysis, element by element, beside the exact result."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dtypes import TINY, UNIT

U = UNIT["float32"]


def constant(value: Any) -> Rounded:
    """Settings: rounded to float32, and once more where the op multiplies them beforehand."""
    exact = np.asarray(value, np.float64)
    return Rounded(exact, np.where(exact == exact.astype(np.float32), 0.0, 2 * U * np.abs(exact)))


class Rounded(NDArrayOperatorsMixin):
    """A float64 array, and the largest error of its float32 counterpart."""

    def __init__(self, value: Any, error: Any = 0.0) -> None:
        self.value = np.asarray(value, np.float64)
        self.error = np.broadcast_to(np.asarray(error, np.float64), self.value.shape)

    @property
    def ndim(self) -> int:
        return self.value.ndim

    @property
    def size(self) -> int:
        return self.value.size

    def ravel(self) -> Rounded:
        return Rounded(self.value.ravel(), self.error.ravel())

    def mean(self, axis: Any, keepdims: bool) -> Rounded:
        error = self.error.mean(axis=axis, keepdims=keepdims)
        return after_rounding(self.value.mean(axis=axis, keepdims=keepdims), error)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any) -> Any:
        assert method == "__call__"
        args = [x if isinstance(x, Rounded) else constant(x) for x in inputs]
        with np.errstate(all="ignore"):
            value = ufunc(*(a.value for a in args))
            if ufunc in COMPARISONS:
                return value
            return after_rounding(value, PROPAGATION[ufunc](value, *args))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.linalg.norm:  # in float64; the ratio of two norms is rounded
            return after_rounding(np.linalg.norm(args[0].value), np.linalg.norm(args[0].error))
        assert function is np.where
        condition, x, y = args
        x, y = (v if isinstance(v, Rounded) else constant(v) for v in (x, y))
        # Near the boundary float32 may take the other one; the rules are continuous there.
        return Rounded(np.where(condition, x.value, y.value), np.maximum(x.error, y.error))


def after_rounding(value: Any, error: Any) -> Rounded:
    return Rounded(value, error + U * (np.abs(value) + error) + TINY["float32"])


def _divide(_: Any, x: Rounded, y: Rounded) -> Any:
    smallest = np.abs(y.value) - y.error
    error = (np.abs(x.value) * y.error + np.abs(y.value) * x.error) / (np.abs(y.value) * smallest)
    return np.where(smallest > 0, error, np.inf)


def _sqrt(value: Any, x: Rounded) -> Any:
    return np.where(x.error > 0, x.error / (value + np.sqrt(np.maximum(x.value - x.error, 0))), 0)


def _power(value: Any, x: Rounded, p: Rounded) -> Any:
    if p.value == 2:
        return _multiply(value, x, x)
    up = np.abs((x.value + x.error) ** p.value - value)
    down = np.abs(value - np.maximum(x.value - x.error, 0) ** p.value)
    exponent = np.where(x.value > 0, np.abs(np.log(x.value)) * p.error, 0) * value
    return np.maximum(up, down) + exponent + 8 * U * value  # CUDA's powf: up to 4 units in the last place


def _multiply(_: Any, x: Rounded, y: Rounded) -> Any:
    return np.abs(x.value) * y.error + np.abs(y.value) * x.error + x.error * y.error


COMPARISONS = (np.greater, np.less, np.greater_equal, np.less_equal, np.not_equal, np.equal)
PROPAGATION = {
    np.add: lambda _, x, y: x.error + y.error,
    np.subtract: lambda _, x, y: x.error + y.error,
    np.multiply: _multiply,
    np.divide: _divide,
    np.sqrt: _sqrt,
    np.power: _power,
    np.absolute: lambda _, x: x.error,
    np.sign: lambda _, x: np.where(np.abs(x.value) <= x.error, 2.0, 0.0),  # float32 may have another one
    np.maximum: lambda _, x, y: np.maximum(x.error, y.error),
}


def assert_within(actual: np.ndarray, exact: Rounded, what: str = "") -> None:
    """Every element within its bound, and one rounding to the storage type."""
    kind = actual.dtype.name
    got = actual.astype(np.float64)
    narrow = UNIT[kind] * (np.abs(exact.value) + exact.error) + TINY[kind] if kind != "float32" else 0.0
    wrong = np.flatnonzero(~(np.abs(got - exact.value) <= 1.01 * (exact.error + narrow) + TINY[kind]))
    assert wrong.size == 0, (
        f"{what}: {wrong.size} of {got.size} elements are off, the first at {wrong[0]}: got {got.flat[wrong[0]]}, "
        f"expected {exact.value.flat[wrong[0]]} within {exact.error.flat[wrong[0]]}"
    )
