"""The layers that thor treats: they gather the covariances of their inputs and of the gradients of their outputs.

A layer keeps its cell, Parameters and names. Only the primitive that multiplies by the weight is wrapped in a cell. The
forward pass is that of the primitive, bit for bit; in a compiled step a Dense or a convolution may have a faster one
(:mod:`boost_ext.ms.core.fast_functions`), whose result the same watch sees. In the backward pass the wrapper sees the
primitive's input and the gradient of its output, before bias and activation.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.ms import native
from boost_ext.ms.loss_scale.group_loss_scale import AnyPrecision

__all__ = ["CONVOLUTION", "DENSE", "EMBEDDING", "Observed", "ThorLayer", "convert_to_thor_net", "thor_layers"]

DENSE, CONVOLUTION, EMBEDDING = 0, 1, 2
_FLOATS = (ms.float32, ms.float16, ms.bfloat16)


class _Gather(AnyPrecision, native.Covariance):
    """The op; mixed precision does not cast its arguments."""


class _Backward(AnyPrecision):
    """``cell(y, x, step, layer, batch, A, G)``: y. The backward pass gathers A and G in the steps that need them."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind
        self.gather = _Gather()

    def construct(
        self, y: Tensor, x: Tensor, step: Tensor, layer: Tensor, batch: Tensor, A: Tensor, G: Tensor
    ) -> Tensor:
        return y

    # The graph compiler takes no Parameter as an attribute here, so they are arguments. Their gradients are never used:
    # the arguments themselves have the right shape and cost nothing.
    def bprop(
        self,
        y: Tensor,
        x: Tensor,
        step: Tensor,
        layer: Tensor,
        batch: Tensor,
        A: Tensor,
        G: Tensor,
        out: Tensor,
        dout: Tensor,
    ) -> tuple[Tensor, ...]:
        if self.kind == CONVOLUTION:
            rows, gradient = ops.reshape(x, (-1, x.shape[-1])), dout
        elif self.kind == EMBEDDING:
            rows = ops.cast(ops.reshape(x, (-1,)), ms.int32)
            gradient = ops.reshape(dout, (-1, dout.shape[-1]))
        else:
            rows, gradient = x, dout
        done = self.gather(step, layer, batch, rows, gradient, A, G)
        return ops.depend(dout, done), x, step, layer, batch, A, G


class _Watch(AnyPrecision):
    """``cell(y, x)``: y, the output of a primitive for x. Holds the matrices that the layer writes."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.backward = _Backward(kind)
        self.connected = False

    def connect(self, step: Parameter, layer: Tensor, batch: Tensor, A: Parameter, G: Parameter) -> None:
        # Not by assignment: the Parameters are no state of the network, and must not be in its checkpoint.
        self.__dict__.update(step=step, layer=layer, batch=batch, A=A, G=G, connected=True)

    def require_among(self, state: Sequence[Parameter]) -> None:
        """Refuse the training step of another optimizer: its graph would have two step counters of one name, and the
        error of the compiler does not explain it."""
        if self.connected and not any(p is self.step for p in state):
            raise ValueError(
                "training step: optimizer must be the thor that the network gathers for, got another one: thor(net, "
                "...) was called for this network before or after, and converted its layers. Give what it returned to "
                "a new Model or training cell, or train another network without it"
            )

    def construct(self, y: Tensor, x: Tensor) -> Tensor:
        if not self.connected:
            return y
        return self.backward(y, ops.stop_gradient(x), self.step, self.layer, self.batch, self.A, self.G)


class Observed(nn.Cell):
    """A primitive that multiplies by a weight, and a watch on its backward pass once an optimizer is connected. Mixed
    precision casts it as the layer, but not the matrices that it holds."""

    def __init__(self, primitive: ops.Primitive, kind: int, precision: dict[str, bool]) -> None:
        super().__init__(auto_prefix=False)
        self.primitive = primitive
        self.watch = _Watch(kind)
        self.weight_first = kind == EMBEDDING  # whether the weight comes first
        self.add_flags(**precision)  # or GRAPH_MODE would not cast the weight, which is an argument here

    @property
    def observed(self) -> ops.Primitive | None:
        """The primitive; None if level O1 has written this class anew, with casts."""
        return self.primitive if type(self) is Observed else None

    # A local name: level O1 of MindSpore's mixed precision rewrites the source of every cell that is called as
    # `self.x(...)`, with casts, and of no other.
    def construct(self, first: Tensor, second: Tensor, *axis: int) -> Tensor:
        watch = self.watch
        if self.weight_first:  # table, indices, axis
            return watch(self.primitive(first, second, *axis), second)
        return watch(self.primitive(first, second), first)


@dataclass(frozen=True)
class ThorLayer:
    """One converted layer.

    Attributes:
        kind: DENSE, CONVOLUTION or EMBEDDING.
        cell: the layer.
        weight: its Parameter.
        watch: sees its inputs and the gradients of its outputs.
        a_size, g_size: rows of A and of G.
    """

    kind: int
    cell: nn.Cell
    weight: Parameter
    watch: _Watch
    a_size: int
    g_size: int

    def numbers(self, frequency: int) -> Tensor:
        """``layer`` of csrc/ops/covariance.h."""
        c = self.cell
        numbers = [self.kind, frequency, self.g_size, *[0] * 12]
        if self.kind == CONVOLUTION:
            padding = (0, 0, 0, 0)
            if c.pad_mode == "pad":
                padding = (c.padding,) * 4 if isinstance(c.padding, int) else tuple(c.padding)
            numbers[3:] = [c.in_channels, *c.kernel_size, *c.stride, *c.dilation, c.pad_mode == "same", *padding]
        return Tensor(np.array(numbers, np.int32))


def _computes_as(cell: nn.Cell, layer: type[nn.Cell]) -> bool:
    """Whether a cell is a `layer` with the construct of MindSpore, or with the one that level O1 made of it."""
    owner = next(cls for cls in type(cell).__mro__ if "construct" in vars(cls))
    if Path(_file_of(owner)).parent.name == "rewritten_network":
        owner = owner.__bases__[0]
    # The source that level O1 writes imports layers again, under another module name.
    return owner is layer or (owner.__qualname__ == layer.__qualname__ and _file_of(owner) == _file_of(layer))


def _file_of(cls: type) -> str:
    return os.path.realpath(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def _primitive_of(cell: nn.Cell) -> tuple[int, str] | None:
    """The kind of a layer that can be converted, and the name of its primitive; else None."""
    if _computes_as(cell, nn.Dense):
        return DENSE, "matmul"
    if _computes_as(cell, nn.Conv2d):
        return (CONVOLUTION, "conv2d") if cell.group == 1 and cell.data_format == "NCHW" else None
    if _computes_as(cell, nn.Embedding):
        return (EMBEDDING, "gather") if not cell.use_one_hot else None
    return None


def _weight_of(cell: nn.Cell, kind: int) -> Parameter:
    return cell.embedding_table if kind == EMBEDDING else cell.weight


def _watch_in(cell: nn.Cell, name: str) -> _Watch | None:
    """The watch of a converted layer, else None. Level O1 may have rewritten the Observed around it."""
    watch = getattr(getattr(cell, name), "watch", None)
    return watch if isinstance(watch, _Watch) else None


def thor_layers(net: nn.Cell) -> list[ThorLayer]:
    """The converted layers of a network, in the order of its cells."""
    found = []
    for _, cell in net.cells_and_names():
        known = _primitive_of(cell)
        if known is None or (watch := _watch_in(cell, known[1])) is None:
            continue
        kind, weight = known[0], _weight_of(cell, known[0])
        if not weight.requires_grad:
            continue
        rows, columns = weight.shape[0], weight.size // weight.shape[0]
        sizes = (rows, columns) if kind == EMBEDDING else (columns, rows)
        found.append(ThorLayer(kind, cell, weight, watch, *sizes))
    return found


def convert_to_thor_net(net: nn.Cell) -> nn.Cell:
    """Convert the layers of a network for :func:`thor`, which calls this, in place.

    Replaces ``ConvertNetUtils().convert_to_thor_net`` of ``mindspore.train.train_thor``. It converts ``Dense``,
    ``Conv2d`` (NCHW, one group) and ``Embedding`` (without one-hot) layers whose weight is trained and belongs to no
    other layer. Cells, Parameters and names do not change, so checkpoints load in both directions. The layers compute
    the same bits. A network may be converted again.

    Args:
        net (Cell): with or without its loss.

    Returns:
        Cell, `net`.

    Raises:
        TypeError: if `net` is no Cell.
        ValueError: if no layer can be converted.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.optim import convert_to_thor_net
        >>> net = nn.SequentialCell(nn.Dense(8, 4))
        >>> convert_to_thor_net(net) is net
        True
    """
    if not isinstance(net, nn.Cell):
        raise TypeError(f"convert_to_thor_net: net must be a Cell, got {type(net).__name__}")
    candidates = [(cell, known) for _, cell in net.cells_and_names() if (known := _primitive_of(cell)) is not None]
    users: dict[int, int] = {}
    for cell, (kind, _) in candidates:
        users[id(_weight_of(cell, kind))] = users.get(id(_weight_of(cell, kind)), 0) + 1
    for cell, (kind, name) in candidates:
        weight, primitive = _weight_of(cell, kind), getattr(cell, name)
        fits = weight.requires_grad and weight.dtype in _FLOATS and users[id(weight)] == 1 and weight.size > 0
        if _watch_in(cell, name) is not None or not fits:
            continue
        cell.__dict__.pop(name, None)
        cell._primitives.pop(name, None)
        precision = {k: v for k, v in cell.get_flags().items() if k in ("fp16", "bf16", "fp32")}
        cell.insert_child_to_cell(name, Observed(primitive, kind, precision))
    if not thor_layers(net):
        raise ValueError(
            "convert_to_thor_net: net must have a Dense, a Conv2d of one group or an Embedding with a weight that "
            "trains and belongs to no other layer, got none"
        )
    forget_graphs(net)
    return net


def forget_graphs(net: nn.Cell) -> None:
    """Drop compiled graphs: the next call of a cell in GRAPH_MODE would run them."""
    for _, cell in net.cells_and_names():
        cell.compile_cache.clear()
