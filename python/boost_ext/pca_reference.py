"""Which entries of a checkpoint are weights: the columns of a PCA matrix when no optimizer is there to name them."""

from __future__ import annotations

import fnmatch
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

__all__ = ["NO_WEIGHTS", "Reference", "reference_parameters"]

NO_WEIGHTS = (
    "*moving_mean",
    "*moving_variance",
    "moments.*",
    "moment1.*",
    "moment2.*",
    "accum.*",
    "stat.*",
    "beta1_power",
    "beta2_power",
    "learning_rate",
    "momentum",
    "global_step",
    "scale_sense",
    "dim_reduce.*",
    "weight_averaging.*",
)
"""Batch norm statistics and what MindSpore's optimizers and our cells keep, as patterns of names."""

Reader = Callable[[Path], Mapping[str, Any]]


class Reference(NamedTuple):
    """Shapes of the weights by name, in the checkpoint's order, and the names of the other entries."""

    shapes: dict[str, tuple[int, ...]]
    left_out: list[str]


def reference_parameters(path: Path, *, exclude: Sequence[str] = NO_WEIGHTS, reader: Reader | None = None) -> Reference:
    """The floating point entries of a checkpoint whose names match none of ``exclude``.

    Args:
        path: .npz or .safetensors, or what ``reader`` reads.
        exclude: patterns as in :mod:`fnmatch`, with capitals distinguished.
        reader: path → mapping of name to array.

    Raises:
        ValueError: if the file cannot be read, or no entry is left.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    left_out: list[str] = []
    try:
        for name, shape, floating in _entries(path, reader):
            if floating and not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
                shapes[name] = shape
            else:
                left_out.append(name)
    except ImportError:
        raise
    except Exception as error:  # readers are foreign code; whatever they raise, name the file
        raise ValueError(
            f"reference_parameters: {path} must be a readable checkpoint, got {type(error).__name__}: {error}"
        ) from error
    if not shapes:
        raise ValueError(f"reference_parameters: {path} must hold weights, got only {left_out}")
    return Reference(shapes, left_out)


def _entries(path: Path, reader: Reader | None) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Name, shape, and whether it is floating point."""
    if path.suffix == ".safetensors":
        safetensors = importlib.import_module("safetensors")
        with safetensors.safe_open(str(path), framework="np") as file:
            for name in file.keys():  # noqa: SIM118, no mapping
                entry = file.get_slice(name)
                yield name, tuple(entry.get_shape()), entry.get_dtype() in ("F16", "BF16", "F32", "F64")
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as arrays:
            for name, array in arrays.items():
                yield name, array.shape, array.dtype.kind == "f"
    elif reader is not None:
        for name, array in reader(path).items():
            yield name, array.shape, array.dtype.kind == "f"
    else:
        raise ValueError("only .npz and .safetensors are read without a reader")
