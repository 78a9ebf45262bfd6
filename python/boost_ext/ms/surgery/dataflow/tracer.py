"""Calls of cells, functions and operations, and the graph of their nodes."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from mindspore import Tensor, nn
from mindspore.ops import Primitive

from boost_ext.ms.surgery.dataflow.statements import Statements
from boost_ext.ms.surgery.dataflow.values import (
    LIMIT,
    UNKNOWN,
    Kind,
    LocalDict,
    LocalList,
    Node,
    NotUnderstoodError,
    Rest,
    TensorMethod,
    Unknown,
    fixed,
    flat,
    nodes_of,
)

_JOINS = {"Add", "AddN", "AddExt", "AddV2", "TensorAdd", "InplaceAddExt", "add", "addn", "add_", "tensor_add", "sum"}
_JOINS |= {"Sub", "SubExt", "InplaceSubExt", "sub", "sub_", "subtract", "tensor_sub"}
_WEIGHTED = ("Conv", "conv", "MatMul", "matmul", "Dense", "dense", "linear")
_LOSSES = ("loss", "Loss", "entropy", "Entropy")
_NO_TENSOR = {"shape", "Shape", "ndim", "Rank", "rank", "dim", "dtype", "DType", "size", "Size", "TensorShape"}
_NO_TENSOR |= {"len", "isinstance", "type", "hasattr", "callable", "print", "name", "itemsize", "nbytes"}
_NO_TENSOR |= {"int", "float", "bool", "item", "asnumpy", "tolist"}
_REDUCTIONS = {"mean", "sum", "ReduceMean", "ReduceSum", "reduce_mean", "reduce_sum"}
_VIEWS = {"T", "mT", "H", "mH", "real", "imag"}
_PURE = (
    range,
    enumerate,
    zip,
    reversed,
    len,
    list,
    tuple,
    int,
    float,
    bool,
    str,
    abs,
    min,
    max,
    isinstance,
    sorted,
    dict,
)
_LIBRARIES = {"mindspore", "numpy", "builtins"}


@dataclass
class Flow:
    """The data flow of a network.

    ``outputs``: of the network, and of cells that were followed on their own. ``opaque``: the cells that could not be
    followed. ``pinned``: by identity, cells that are used without being called, and how.
    """

    nodes: list[Node] = field(default_factory=list)
    outputs: list[Node] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    opaque: list[nn.Cell] = field(default_factory=list)
    pinned: dict[int, str] = field(default_factory=dict)


def trace(network: nn.Cell, leaf: Callable[[nn.Cell], Kind | None], names: dict[int, str]) -> Flow:
    """Follow ``network`` from its inputs to its outputs.

    Args:
        network (Cell): what to follow.
        leaf (Callable): the kind of node that a cell is, or None to follow the cell's own construct.
        names (dict): by identity, the names of cells for the notes.
    """
    tracer = _Tracer(leaf, names)
    tracer.enter(network)
    for cell in tracer.flow.opaque:  # grows while it is read
        children = list(cell.cells())
        while children:
            child = children.pop(0)
            if isinstance(child, nn.CellList):
                children.extend(child.cells())
            elif child is not None and id(child) not in tracer.followed and leaf(child) is None:
                tracer.enter(child)
    return tracer.flow


def _name(function: Any) -> str:
    for attribute in ("name", "__name__"):
        if isinstance(name := getattr(function, attribute, None), str):
            return name
    return type(function).__name__


def _changes_nothing(method: BuiltinMethodType) -> bool:
    """Whether a method changes none of the user's objects. A construct may change its own lists."""
    owner = method.__self__
    if isinstance(owner, dict) and not isinstance(owner, LocalDict):
        return method.__name__ in {"get", "items", "keys", "values", "copy"}
    return isinstance(owner, (LocalList, LocalDict, str, tuple))


def _kind(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Kind:
    if name in _REDUCTIONS and len(args) == 1 and isinstance(args[0], Node) and not kwargs:
        return "loss"  # one number for the whole batch
    if name in _JOINS:
        return "add"
    if any(word in name for word in _LOSSES):
        return "loss"
    return "weighted" if name.startswith(_WEIGHTED) else "op"


def _reached_into(cell: nn.Cell) -> Iterator[nn.Cell]:
    """The cells that a class may reach by an attribute of another object than self."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(type(cell))))
    except (OSError, TypeError, SyntaxError):
        tree = ast.Module([], [])
    attributes = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute)]
    named = {n.attr for n in attributes if not (isinstance(n.value, ast.Name) and n.value.id == "self")}
    for _, parent in cell.cells_and_names():
        yield from (child for key, child in parent._cells.items() if key in named)


class _Tracer(Statements):
    def __init__(self, leaf: Callable[[nn.Cell], Kind | None], names: dict[int, str]) -> None:
        self.flow, self.leaf, self.names = Flow(), leaf, names
        self.followed: dict[int, nn.Cell] = {}
        self.callers: list[nn.Cell] = []

    def node(self, kind: Kind, values: Any = (), cell: nn.Cell | None = None, name: str = "") -> Node:
        if len(self.flow.nodes) >= LIMIT:
            raise NotUnderstoodError("it is too large")
        inputs = tuple(dict.fromkeys(nodes_of(values)))
        if any(n.index >= len(self.flow.nodes) or self.flow.nodes[n.index] is not n for n in inputs):
            raise NotUnderstoodError("it uses what came out of a construct that was not understood")
        caller = self.callers[-1] if self.callers else None
        name = name if cell is None else type(cell).__name__
        self.flow.nodes.append(Node(len(self.flow.nodes), kind, inputs, cell, caller, name=name))
        return self.flow.nodes[-1]

    def op(self, values: Any, kind: Kind = "op", name: str = "") -> Any:
        for value in flat(values):
            if isinstance(value, nn.Cell):
                for _, cell in value.cells_and_names():
                    self.flow.pinned[id(cell)] = "is handed to an operation"
        nodes = nodes_of(values)
        return self.node("op" if kind == "add" and len(nodes) < 2 else kind, nodes, name=name) if nodes else UNKNOWN

    def item(self, node: Node) -> Node:
        # What goes into a network has no common origin; the results of an operation do.
        return self.node("input") if node.kind == "input" else self.node("op", node)

    def attribute(self, value: Any, name: str, *default: Any) -> Any:
        if isinstance(value, Node):
            if name in _NO_TENSOR and name not in {"size", "dim"}:
                return UNKNOWN
            return self.op(value) if name in _VIEWS else TensorMethod(value, name)
        if isinstance(value, (Unknown, Rest)):
            return UNKNOWN
        if isinstance(value, nn.Cell):
            if name == "training":
                return UNKNOWN  # the rewrite is the same for training and evaluation
            if name != "construct" and self.leaf(value) == "norm":
                self.flow.pinned[id(value)] = f"has its attribute {name} read"
        return getattr(value, name, *default)

    def enter(self, cell: nn.Cell) -> None:
        """Follow a cell whose inputs are inputs of the network."""
        self.flow.outputs.extend(nodes_of(self.call_cell(cell, [Rest(self.node("input"))], {})))

    def call_cell(self, cell: nn.Cell, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        kind = self.leaf(cell)
        if kind is not None:
            return self.node(kind, (args, kwargs), cell)
        flow = self.flow
        mark = len(flow.nodes)
        followed = dict(self.followed)
        self.followed[id(cell)] = cell
        self.callers.append(cell)
        try:
            return self.run(type(cell).construct, (cell, *args), kwargs)
        except NotUnderstoodError as e:
            reason = str(e)
        except RecursionError:
            reason = "it is nested too deeply"
        except Exception as e:  # a property or an operator of the user's may raise anything
            reason = f"{type(e).__name__}: {e}"
        finally:
            self.callers.pop()
        for child in _reached_into(cell):
            flow.pinned[id(child)] = "may be called from a construct that was not understood"
        del flow.nodes[mark:]
        self.followed = {**followed, id(cell): cell}
        if cell not in flow.opaque:
            flow.opaque.append(cell)
            name = self.names.get(id(cell)) or "the network"
            flow.notes.append(f"{name} ({type(cell).__name__}) was not understood: {reason}")
        return self.op((*args, kwargs), name=type(cell).__name__)

    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        values = (*args, kwargs)
        if isinstance(function, nn.Cell):
            return self.call_cell(function, args, kwargs)
        if isinstance(function, (Node, Unknown, Rest)):
            return self.op((function, values))
        if isinstance(function, TensorMethod):
            kind = _kind(function.name, (function.node, *args), kwargs)
            return UNKNOWN if function.name in _NO_TENSOR else self.op((function, values), kind, function.name)
        if isinstance(function, MethodType) and isinstance(function.__self__, nn.Cell):
            if function.__func__ is type(function.__self__).construct:
                return self.call_cell(function.__self__, args, kwargs)
            return self.run(function.__func__, (function.__self__, *args), kwargs)
        if isinstance(function, BuiltinMethodType) and _changes_nothing(function):
            return function(*args, **kwargs)
        if function is getattr and isinstance(args[1], str):
            return self.attribute(*args)
        if any(function is p for p in _PURE) and not any(isinstance(a, (Node, Unknown, Rest, Tensor)) for a in args):
            result = function(*args, **kwargs)
            return result if isinstance(result, (int, float, str, range, tuple, dict)) else LocalList(result)
        if isinstance(function, type) and issubclass(function, Primitive) and fixed(values):
            return function(*args, **kwargs)
        name = _name(function)
        if name in _NO_TENSOR and not fixed(values):
            return UNKNOWN
        plain = inspect.unwrap(function)
        if isinstance(plain, FunctionType) and plain.__module__.partition(".")[0] not in _LIBRARIES:
            return self.call_function(plain, args, kwargs)
        return self.op(values, _kind(name, args, kwargs), name)

    def call_function(self, function: FunctionType, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A function of the user; one operation if it cannot be followed and calls no cells."""
        mark, values = len(self.flow.nodes), (*args, kwargs)
        try:
            return self.run(function, args, kwargs)
        except NotUnderstoodError as e:
            held = [c.cell_contents for c in function.__closure__ or ()]
            if any(isinstance(v, nn.Cell) for v in flat((values, held))):
                raise
            del self.flow.nodes[mark:]
            self.flow.notes.append(f"the function {function.__name__} was not understood: {e}")
            return self.op(values, name=function.__name__)
