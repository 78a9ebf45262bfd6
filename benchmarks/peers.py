"""MindSpore and PyTorch as peers, where they are installed, and arrays in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .harness import Peer


@cache
def mindspore_or_none() -> ModuleType | None:
    try:
        import mindspore
    except ImportError:
        return None
    mindspore.set_device("CPU")
    return mindspore


@cache
def torch_or_none() -> ModuleType | None:
    try:
        import torch
    except ImportError:
        return None
    torch.set_grad_enabled(False)
    return torch


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


def mindspore_peers(
    name: str,
    function: Callable[..., Any],
    *args: Any,
    pynative_goal: float | None = None,
    graph_goal: float | None = None,
    tolerance: float | None = None,
) -> tuple[Peer, ...]:
    """`function` of tensors as a Cell, once in PyNative mode and once in graph mode.

    NumPy arrays among `args`, and lists of them, become tensors on the same storage.
    """
    from .harness import Peer

    ms = mindspore_or_none()
    assert ms is not None

    class Construct(ms.nn.Cell):  # type: ignore[name-defined]
        def construct(self, *inputs: Any) -> Any:
            return function(*inputs)

    def tensor(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)):
            return tuple(tensor(item) for item in arg)
        return ms.Tensor.from_numpy(arg) if isinstance(arg, np.ndarray) else arg

    tensors = [tensor(arg) for arg in args]

    def peer(label: str, mode: int, goal: float | None) -> Peer:
        cell = Construct()  # each mode its own: what graph mode compiled would stay with the Cell
        return Peer(
            f"MS {name} {label}",
            lambda: settled(cell(*tensors)),
            goal,
            partial(in_mode, mode),
            tolerance,
        )

    return (
        peer("PyNative", ms.PYNATIVE_MODE, pynative_goal),
        peer("graph", ms.GRAPH_MODE, graph_goal),
    )


def settled(result: Any) -> Any:
    """Wait until MindSpore's queue has really computed `result`."""
    for item in result if isinstance(result, (list, tuple)) else (result,):
        if isinstance(item, (list, tuple)):
            settled(item)
        else:
            item.data_ptr()
    return result


@contextmanager
def in_mode(mode: int) -> Iterator[None]:
    ms = mindspore_or_none()
    assert ms is not None
    if ms.get_context("mode") != mode:
        ms.set_context(mode=mode)
    try:
        yield
    finally:
        if mode != ms.PYNATIVE_MODE:
            ms.set_context(mode=ms.PYNATIVE_MODE)
