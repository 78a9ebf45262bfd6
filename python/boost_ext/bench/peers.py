"""MindSpore and PyTorch as peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from boost_ext.bench.frameworks import mindspore_or_none, torch_or_none
from boost_ext.bench.harness import Peer


def grad_scaler_step(tensors: list[Any], clip_norm: float, goal: float | None, **adam: Any) -> Peer:
    """The whole guarded step of PyTorch on such tensors, with a loss scale of 1 that stays."""
    torch = torch_or_none()
    assert torch is not None
    optimizer = torch.optim.Adam(tensors, fused=True, **adam)
    where = tensors[0].device
    scaler = torch.amp.GradScaler(where.type, init_scale=1.0, growth_interval=2**31 - 1)
    scaler.scale(torch.ones((), device=where))

    def run() -> Any:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(tensors, clip_norm, foreach=True)
        scaler.step(optimizer)
        scaler.update()
        return tensors

    return Peer("PyTorch GradScaler, clip_grad_norm_, Adam fused", run, goal)


def torch_weights(weights: Any, grads: Any) -> list[Any]:
    """Tensors on the storage of the weights, with their gradients, as ``torch.optim`` takes them."""
    torch = torch_or_none()
    assert torch is not None
    tensors = [torch.from_numpy(w) for w in weights]
    for tensor, grad in zip(tensors, grads, strict=True):
        tensor.grad = torch.from_numpy(grad)
    return tensors


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


def optimizer_cell(
    make: Callable[[Any], Any], weights: Any, grads: Any, prepare: Callable[[Any], Any] | None = None
) -> Any:
    """A Cell that steps an optimizer, which `make` makes of the weights' Parameters, on gradients that went through
    `prepare`. It holds them: as arguments they would cost 15 µs each."""
    ms: Any = mindspore_or_none()

    def parameters(prefix: str, arrays: Any) -> list[Any]:
        return [ms.Parameter(ms.Tensor(a), name=f"{prefix}{i}") for i, a in enumerate(arrays)]

    class Step(ms.nn.Cell):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.optimizer = make(parameters("w", weights))
            self.grads = ms.ParameterTuple(parameters("g", grads))

        def construct(self) -> Any:
            if prepare is None:
                return self.optimizer(self.grads)
            return self.optimizer(prepare(self.grads))

    return Step()


def stepped(cell: Any) -> Any:
    """The weights after a step of an :func:`optimizer_cell`."""
    cell()
    return settled(list(cell.optimizer.parameters))


def optimizer_peers(
    name: str,
    make: Callable[[Any], Any],
    weights: Any,
    grads: Any,
    *,
    pynative_goal: float | None,
    graph_goal: float | None,
    prepare: Callable[[Any], Any] | None = None,
) -> Iterator[Peer]:
    """An :func:`optimizer_cell` in both modes, each with weights of its own."""
    ms = mindspore_or_none()
    assert ms is not None
    for label, mode, goal in (("PyNative", ms.PYNATIVE_MODE, pynative_goal), ("graph", ms.GRAPH_MODE, graph_goal)):
        run = partial(stepped, optimizer_cell(make, weights, grads, prepare))
        yield Peer(f"{name} {label}", run, goal, partial(in_mode, mode))


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
