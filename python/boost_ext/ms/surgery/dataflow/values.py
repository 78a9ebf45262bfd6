"""The values that stand for tensors and other data while a construct is followed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Literal

from mindspore import Tensor, nn

Kind = Literal["input", "add", "norm", "weighted", "loss", "op"]
"""An "add" is a sum or a difference."""

LIMIT = 100_000  # nodes, or turns of one loop: more is no network


class NotUnderstoodError(Exception):
    """Why a construct cannot be followed."""


@dataclass(eq=False)
class Node:
    """The result of one operation: a tensor, or several. ``optional``: it may be None. ``name``: of the operation, or
    of the class of the cell."""

    index: int
    kind: Kind
    inputs: tuple[Node, ...]
    cell: nn.Cell | None = None
    caller: nn.Cell | None = None
    optional: bool = False
    name: str = ""


class Unknown:
    """A value that is no tensor and depends on the data: a shape, a number, the training flag."""


UNKNOWN = Unknown()


class LocalList(list[Any]):
    """A list that a construct made, which it may change."""


class LocalDict(dict[Any, Any]):
    """A dict that a construct made, which it may change."""


@dataclass
class TensorMethod:
    node: Node
    name: str


@dataclass
class Rest:
    """``*inputs`` of unknown length."""

    node: Node


def flat(value: Any) -> Iterable[Any]:
    """Nodes, cells and other leaves of nested arguments."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from flat(item)
    elif isinstance(value, dict):
        yield from flat(list(value.values()))
    elif isinstance(value, (TensorMethod, Rest)):
        yield value.node
    elif isinstance(value, MethodType):
        yield value.__self__
    else:
        yield value


def nodes_of(value: Any) -> tuple[Node, ...]:
    return tuple(v for v in flat(value) if isinstance(v, Node))


def fixed(value: Any) -> bool:
    """Whether Python can compute with the value: it depends on no data."""
    return not any(isinstance(v, (Node, Unknown, Tensor)) for v in flat(value))


@dataclass
class Frame:
    function: Any
    env: dict[str, Any]
    returns: list[Any] = field(default_factory=list)
