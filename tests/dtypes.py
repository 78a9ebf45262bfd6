"""The storage types and sizes that every op is tested with, and how near to the exact result it must come."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

FLOATS = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
DTYPES = [pytest.param(dtype, id=name) for name, dtype in FLOATS.items()]

# Half a unit in the last place of 1, and the smallest number above 0.
UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}
SUMMED = {"float32": 0.0, "float16": 3 * 2.0**-24, "bfloat16": 3 * 2.0**-24}
"""Four products of half precision are summed in float32: what three roundings may change, of the sum of magnitudes."""
TINY = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133, "float64": 2.0**-1074}
LARGEST = {name: float(ml_dtypes.finfo(dtype).max) for name, dtype in FLOATS.items()}

# Around the lanes of the kernels and around each block length that one of them uses.
SIZES = [0, 1, 15, 16, 17, 63, 64, 65] + [
    block + offset for block in (4096, 8192, 16384, 32768) for offset in (-1, 0, 1)
]


def normal(rng: np.random.Generator, shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> npt.NDArray:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype)


def bits(array: npt.NDArray) -> npt.NDArray:
    """The stored bits, so that -0 differs from 0 and a nan equals itself."""
    return np.ascontiguousarray(array).reshape(-1).view(f"u{array.dtype.itemsize}")


def assert_same_bits(actual: npt.NDArray, expected: npt.NDArray) -> None:
    assert actual.dtype == expected.dtype
    found, wanted = bits(actual), bits(expected)
    if not np.array_equal(found, wanted):  # ten times as fast as the report of where they differ
        np.testing.assert_array_equal(found, wanted)


def assert_close(actual: npt.NDArray, exact: npt.NDArray, magnitude: npt.ArrayLike = 0.0, roundings: int = 0) -> None:
    """Every element within one rounding to its storage type, and `roundings` of float32 on `magnitude`,
    the sum of the absolute values of its terms: the bound that rounding-error analysis gives."""
    kind = actual.dtype.name
    got = actual.astype(np.float64)
    exact = np.broadcast_to(np.asarray(exact, np.float64), got.shape)
    # 1.01: products of the (1 + unit)s, and the rounding of a value that has moved up a binade.
    float32 = roundings * UNIT["float32"] * np.asarray(magnitude, np.float64)
    bound = 1.01 * (UNIT[kind] * np.abs(exact) + float32 + TINY[kind])
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(got[~finite], exact[~finite])
    error = np.abs(got - np.where(finite, exact, 0.0))
    wrong = np.flatnonzero(finite & ~(error <= bound))
    assert wrong.size == 0, (
        f"{wrong.size} of {got.size} elements are off, the first at {wrong[0]}: "
        f"got {got.flat[wrong[0]]}, expected {exact.flat[wrong[0]]} "
        f"within {np.broadcast_to(bound, got.shape).flat[wrong[0]]}"
    )
