"""MindSpore and PyTorch, where they are installed, and arrays in half precision."""

from __future__ import annotations

from collections.abc import Iterator
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


def halves(*arrays: Any) -> Iterator[tuple[Any, ...]]:
    """NumPy arrays behind the name of a half precision, "bf16" where there is ml_dtypes, and "fp16"."""
    if bfloat16(np.zeros(0)) is not None:
        yield ("bf16", *(bfloat16(a) for a in arrays))
    yield ("fp16", *(a.astype(np.float16) for a in arrays))


def torch_tensor(array: Any) -> Any:
    """A tensor on the storage of a NumPy array, bfloat16 too."""
    torch = torch_or_none()
    assert torch is not None
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
