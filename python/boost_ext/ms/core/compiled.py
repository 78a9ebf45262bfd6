"""Cells that are compiled when Python calls them in PYNATIVE_MODE.

By ``Cell.compile_and_run``, not by ``ms.jit``: a jit-compiled graph keeps the storage that a Parameter had at its first
call, and a later ``set_data`` or ``load_param_into_net`` passes it by without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from boost_ext.ms.core.fast_calls import call_fast
from boost_ext.ms.core.sparse_gradients import Values, contiguous
from boost_ext.ms.native import in_pynative_mode

__all__ = ["Compile", "Forward", "Gradients", "require_compile"]

Compile = Literal["step", "network", "off"]


def require_compile(owner: str, compile: str) -> None:
    """A ValueError for another value of the argument that says what PYNATIVE_MODE compiles."""
    if compile not in ("step", "network", "off"):
        raise ValueError(f"{owner}: compile must be 'step', 'network' or 'off', got {compile!r}")


class _Compiled(nn.Cell):
    """In GRAPH_MODE part of the caller's graph, if one calls it. In PYNATIVE_MODE a graph of its own, or eager without
    ``compile``."""

    def __init__(self, compile: bool) -> None:
        super().__init__(auto_prefix=False)
        self.compiles = compile

    def __call__(self, *args: Any) -> Any:
        is_eager = in_pynative_mode()
        if is_eager and not self.compiles:
            return super().__call__(*args)
        return call_fast(self, self.compile_and_run if is_eager else super().__call__, *args)


class Forward(_Compiled):
    """``cell(*inputs)``: what the network returns, its loss say."""

    def __init__(self, network: nn.Cell, compile: bool) -> None:
        super().__init__(compile)
        self.network = network

    def construct(self, *inputs: Any) -> Any:
        return self.network(*inputs)


class _ScaledLoss(nn.Cell):
    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, scale: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        loss = self.network(*inputs)
        first = loss
        if isinstance(loss, (tuple, list)):  # to be refused, but not in here: see below
            first = loss[0]
        return first * ops.cast(scale, first.dtype), loss


class Gradients(_Compiled):
    """``cell(scale, *inputs)``: the loss, and the gradients of ``scale * loss``. One forward and one backward pass.

    Args:
        refusal: see :class:`boost_ext.ms.core.sparse_gradients.Values`.
        watch: ``watch(scale, gradients)`` before the gradients are exchanged with other ranks, or None.
    """

    def __init__(
        self,
        network: nn.Cell,
        weights: Sequence[Parameter],
        reducer: nn.Cell | None,
        compile: bool,
        refusal: str | None = None,
        watch: nn.Cell | None = None,
    ) -> None:
        super().__init__(compile)
        self.__dict__["network"] = network  # not as a child, whose parameters are the training cell's
        self.__dict__["_again"] = partial(Gradients, network, weights, reducer, compile, refusal)
        self.watch = watch
        scaled = _ScaledLoss(network)
        self.value_and_grad = ms.value_and_grad(scaled, None, ParameterTuple(weights), has_aux=True)
        self.reducer = reducer
        self.whole = None if refusal is None else Values([w.name for w in weights], refusal)

    def construct(self, scale: Tensor, *inputs: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        (_, loss), grads = self.value_and_grad(scale, *inputs)
        # An exception inside of what MindSpore differentiates eagerly leaves traces in graphs that it compiles later.
        if isinstance(loss, (tuple, list)):
            raise TypeError("training step: network must return one Tensor, the loss, got several outputs")
        if self.whole is not None:
            grads = self.whole(grads)
        if self.watch is not None:
            grads = ops.depend(grads, self.watch(scale, grads))
        if self.reducer is not None:
            grads = self.reducer(grads)
        return loss, grads

    def watched(self, watch: nn.Cell) -> Gradients:
        """Another cell of the same arguments, which calls ``watch``."""
        again: Gradients = self._again(watch)
        return again

    def __call__(self, *args: Any) -> Any:
        loss, grads = super().__call__(*args)
        if in_pynative_mode():  # what follows works in place
            grads = contiguous(grads)
        return loss, grads
