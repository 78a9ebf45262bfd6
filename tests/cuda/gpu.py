"""A GPU that PyTorch can use, for the tests that need one."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np
import pytest

from device import cudart
from on_cuda import CUDA, EMULATED


def missing_gpu() -> str:
    """What is missing for kernels on a GPU; empty if nothing."""
    if CUDA is None:
        return "this build has no CUDA kernels"
    if EMULATED:
        return "the CUDA kernels of this build run on the host"
    count = ctypes.c_int(0)
    try:
        status = cudart().cudaGetDeviceCount(ctypes.byref(count))
    except (RuntimeError, pytest.UsageError) as error:
        return str(error)
    return "" if status == 0 and count.value > 0 else f"CUDA finds no GPU: error {status}"


def missing() -> str:
    """The same, and PyTorch on it."""
    if reason := missing_gpu():
        return reason
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "PyTorch has no GPU"


REASON = missing()
needs_gpu = pytest.mark.skipif(bool(REASON), reason=REASON)
if REASON:
    torch: Any = None
else:
    import torch


def to_gpu(array: np.ndarray, device: int = 0) -> Any:
    """A tensor on a GPU with the bits of `array`."""
    array = np.array(array, order="C")
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).to(f"cuda:{device}").view(torch.bfloat16)
    return torch.from_numpy(array).to(f"cuda:{device}")


def to_host(tensor: Any) -> np.ndarray:
    """An array with the bits of `tensor`, whichever stream it was written on."""
    torch.cuda.synchronize()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.int16).cpu().numpy().view(ml_dtypes.bfloat16)
    return tensor.cpu().numpy()


@functools.cache
def cycles_per_second() -> float:
    """Of torch.cuda._sleep, when the card is awake: its clock is slow at first."""
    cycles, times = 50_000_000, []
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(6):
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e-3)
    return cycles / min(times)


def sleep(seconds: float) -> None:
    """The current stream does nothing for so long."""
    torch.cuda._sleep(int(seconds * cycles_per_second()))
