"""The layers that thor treats: they gather the covariances of their inputs and of the gradients of their outputs.

A layer stays the cell that it is, with its Parameters and their names; only the primitive inside that multiplies with
the weight gets a cell around it. Forward that cell is the primitive, to the bit. Backward it sees, before bias and
activation, what the primitive has got and the gradient of what it has returned, in the ordinary backward pass.
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
    """The op, with all that it reads and writes in the precision that it has."""


class _Backward(AnyPrecision):
    """``cell(y, x, step, layer, batch, A, G)``: y; on the way back A and G are gathered, if this step is due."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.kind = kind
        self.gather = _Gather()

    def construct(
        self, y: Tensor, x: Tensor, step: Tensor, layer: Tensor, batch: Tensor, A: Tensor, G: Tensor
    ) -> Tensor:
        return y

    # The graph compiler takes no Parameter that is an attribute here; they come as arguments, which nobody asks the
    # gradients of: what is returned for them has the right shape, and costs nothing.
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
    """``cell(y, x)``: y, what a primitive has made of x. Holds what a gathering layer writes into."""

    def __init__(self, kind: int) -> None:
        super().__init__()
        self.backward = _Backward(kind)
        self.connected = False

    def connect(self, step: Parameter, layer: Tensor, batch: Tensor, A: Parameter, G: Parameter) -> None:
        # Not by assignment: the Parameters are no state of the network, and belong into no checkpoint of it.
        self.__dict__.update(step=step, layer=layer, batch=batch, A=A, G=G, connected=True)

    def require_among(self, state: Sequence[Parameter]) -> None:
        """Refuse a training step whose state is not that of the optimizer that this gathers for: its graph would have
        two counters of one name, which the compiler's error does not explain."""
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
    """A primitive that multiplies with a weight, and what comes back through it. Until an optimizer is there, it is
    the primitive alone. In mixed precision it is cast as the layer is, and what it holds is not."""

    def __init__(self, primitive: ops.Primitive, kind: int, precision: dict[str, bool]) -> None:
        super().__init__(auto_prefix=False)
        self.primitive = primitive
        self.watch = _Watch(kind)
        self.weight_first = kind == EMBEDDING  # whether the weight comes first
        self.add_flags(**precision)  # or GRAPH_MODE would not cast the weight, which is an argument here

    # A local name: level O1 of MindSpore's mixed precision writes the source of every cell that is called as
    # `self.x(...)` anew, in a file of its own and with casts, but of nothing that is called otherwise.
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
        watch: what sees its inputs and the gradients of its outputs.
        a_size, g_size: rows of A and of G.
    """

    kind: int
    cell: nn.Cell
    weight: Parameter
    watch: _Watch
    a_size: int
    g_size: int

    def numbers(self, frequency: int) -> Tensor:
        """``layer`` of csrc/doors/mindspore_curvature.cpp."""
        c = self.cell
        numbers = [self.kind, frequency, self.g_size, *[0] * 12]
        if self.kind == CONVOLUTION:
            padding = (0, 0, 0, 0)
            if c.pad_mode == "pad":
                padding = (c.padding,) * 4 if isinstance(c.padding, int) else tuple(c.padding)
            numbers[3:] = [c.in_channels, *c.kernel_size, *c.stride, *c.dilation, c.pad_mode == "same", *padding]
        return Tensor(np.array(numbers, np.int32))


def _computes_as(cell: nn.Cell, layer: type[nn.Cell]) -> bool:
    """Whether a cell is a `layer`, with the construct of MindSpore, or with what level O1 has made of it."""
    owner = next(cls for cls in type(cell).__mro__ if "construct" in vars(cls))
    if Path(_file_of(owner)).parent.name == "rewritten_network":
        owner = owner.__bases__[0]
    # What level O1 has written imports layers a second time, by another name.
    return owner is layer or (owner.__qualname__ == layer.__qualname__ and _file_of(owner) == _file_of(layer))


def _file_of(cls: type) -> str:
    return os.path.realpath(getattr(sys.modules.get(cls.__module__), "__file__", None) or "")


def _primitive_of(cell: nn.Cell) -> tuple[int, str] | None:
    """The kind of a layer that thor can treat, and the name of its primitive."""
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
    """Of a converted layer. What is around it may have been written anew, and is no Observed then."""
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
    """Let the layers of a network gather what :func:`thor` needs, in place; :func:`thor` calls it.

    Stands where ``ConvertNetUtils().convert_to_thor_net`` of ``mindspore.train.train_thor`` stands. Converted are the
    ``Dense``, ``Conv2d`` (NCHW, one group) and ``Embedding`` (without one-hot) layers whose weight trains and belongs
    to no other layer. Their cells, Parameters and names stay what they are, so checkpoints fit in both directions; they
    compute the same bits. A network may be converted twice.

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
    """Or the next call of a cell in GRAPH_MODE would run what was compiled before."""
    for _, cell in net.cells_and_names():
        cell.compile_cache.clear()
