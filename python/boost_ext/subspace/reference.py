"""Which entries of a checkpoint are weights: the columns of a PCA matrix when no optimizer is there to name them."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from boost_ext.subspace.checkpoints import Reader, is_floating, open_checkpoint

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
        with open_checkpoint("reference_parameters", path, reader) as values:
            for name, array in values.items():
                if is_floating(array) and not any(fnmatch.fnmatchcase(name, pattern) for pattern in exclude):
                    shapes[name] = array.shape
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
