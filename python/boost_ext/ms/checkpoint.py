"""MindSpore checkpoints as NumPy arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy.typing as npt

__all__ = ["read_checkpoint"]

_FLOATS = {ms.float16, ms.bfloat16, ms.float32, ms.float64}


def read_checkpoint(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The entries of a .ckpt file by name: what :mod:`boost_ext.pca` takes as its ``reader``.

    Floating point entries come as float32, since NumPy has no bfloat16; whole numbers stay what they are, so that they
    are told from weights.
    """
    loaded = ms.load_checkpoint(str(path))
    return {
        name: (value.astype(ms.float32) if value.dtype in _FLOATS else value).asnumpy()
        for name, value in loaded.items()
    }
