"""MindSpore and PyTorch, where they are installed, and arrays in bfloat16."""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import Any

import numpy as np


@cache
def mindspore_or_none() -> ModuleType | None:
    try:
        import mindspore
    except ImportError:
        return None
    mindspore.set_device("CPU")
    module: ModuleType = mindspore
    return module


@cache
def torch_or_none() -> ModuleType | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_grad_enabled(False)
    module: ModuleType = torch
    return module


def bfloat16(array: Any) -> Any:
    """A NumPy array in bfloat16, or None without ml_dtypes."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return array.astype(ml_dtypes.bfloat16)


def torch_bfloat16(array: Any) -> Any:
    """A tensor on the storage of `bfloat16`'s result."""
    torch = torch_or_none()
    assert torch is not None
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
