"""Fewer points for a plot, without losing what it should show."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

__all__ = ["extremes", "mean_by_bucket", "running_mean"]

Values = np.ndarray[Any, np.dtype[np.float64]]
Indices = np.ndarray[Any, np.dtype[np.intp]]


def _edges(size: int, buckets: int) -> Indices:
    return np.linspace(0, size, min(size, buckets) + 1).astype(np.intp)


def extremes(values: Values, buckets: int) -> Indices:
    """Which elements to draw: the smallest and the largest finite one of each bucket, the first and the last of all.

    Args:
        values (ndarray): (n,).
        buckets (int): as many as the plot is wide, in pixels.

    Returns:
        Indices, ascending; all of the finite elements if those are at most 2 * buckets.
    """
    finite = np.flatnonzero(np.isfinite(values))
    if len(finite) <= 2 * buckets:
        return finite
    edges = _edges(len(finite), buckets)
    chosen = {0, len(finite) - 1}
    for start, stop in itertools.pairwise(edges):
        part = values[finite[start:stop]]
        chosen |= {int(start + part.argmin()), int(start + part.argmax())}
    return finite[np.array(sorted(chosen), np.intp)]


def mean_by_bucket(values: Values, buckets: int) -> Values:
    """The means of the finite elements of each bucket; nan for one without. The elements themselves if they are few."""
    if len(values) <= buckets:
        return values
    starts = _edges(len(values), buckets)[:-1]
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0), starts)
    counts = np.add.reduceat(finite.astype(np.float64), starts)
    return np.divide(sums, counts, out=np.full(len(starts), np.nan), where=counts > 0)


def running_mean(values: Values, width: int, points: int) -> tuple[Indices, Values]:
    """The mean of the finite ones of the last ``width`` elements, at evenly spaced places.

    Each window is summed by itself: in differences of a running sum one spike of 1e30 would wipe out all that follows.

    Args:
        values (ndarray): (n,).
        width (int): at least 1.
        points (int): at how many places, if there are that many.

    Returns:
        Tuple of the places, ascending, and the means; nan for a window without a finite element.
    """
    at = np.unique(np.linspace(0, len(values) - 1, min(len(values), points)).astype(np.intp))
    windows = np.stack([np.maximum(at + 1 - width, 0), at + 1], axis=1).ravel()
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.append(np.where(finite, values, 0.0), 0.0), windows)[::2]
    counts = np.add.reduceat(np.append(finite.astype(np.float64), 0.0), windows)[::2]
    return at, np.divide(sums, counts, out=np.full(len(at), np.nan), where=counts > 0)
