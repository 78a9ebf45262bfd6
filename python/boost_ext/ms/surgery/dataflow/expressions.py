"""Python's expressions, on nodes instead of tensors."""

from __future__ import annotations

import ast
import builtins
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from mindspore import Tensor, nn

from boost_ext.ms.surgery.dataflow.values import (
    LIMIT,
    UNKNOWN,
    Frame,
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

_OPERATORS: dict[type[ast.AST], Any] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip


def truth(value: Any) -> bool | None:
    """The truth of a value; None if it depends on data."""
    if isinstance(value, (Node, Unknown, Tensor, TensorMethod, Rest)):
        return None
    return bool(value)


class Expressions(ABC):
    """Evaluates expressions. A subclass defines calls, attributes and operations."""

    @abstractmethod
    def op(self, values: Any, kind: Kind = "op", name: str = "") -> Any:
        """The node of an operation that is not followed."""

    @abstractmethod
    def call(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """``function(*args, **kwargs)``."""

    @abstractmethod
    def attribute(self, value: Any, name: str, *default: Any) -> Any:
        """``getattr(value, name, *default)``."""

    @abstractmethod
    def item(self, node: Node) -> Node:
        """One of several tensors."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        """``target = value``."""

    def eval(self, node: ast.expr, frame: Frame) -> Any:
        """The value of an expression."""
        method: Callable[[Any, Frame], Any] | None = getattr(self, f"_eval_{type(node).__name__}", None)
        if method is None:
            raise NotUnderstoodError(f"a {type(node).__name__} expression")
        return method(node, frame)

    def _eval_Constant(self, node: ast.Constant, frame: Frame) -> Any:
        return node.value

    def _eval_JoinedStr(self, node: ast.JoinedStr, frame: Frame) -> Any:
        parts = [self.eval(v, frame) for v in node.values]
        return "".join(parts) if fixed(parts) else UNKNOWN

    def _eval_FormattedValue(self, node: ast.FormattedValue, frame: Frame) -> Any:
        value = self.eval(node.value, frame)
        return str(value) if fixed(value) and node.format_spec is None and node.conversion < 0 else UNKNOWN

    def _eval_Name(self, node: ast.Name, frame: Frame) -> Any:
        if node.id in frame.env:
            return frame.env[node.id]
        code = frame.function.__code__
        if node.id in code.co_freevars:
            return frame.function.__closure__[code.co_freevars.index(node.id)].cell_contents
        for scope in (frame.function.__globals__, vars(builtins)):
            if node.id in scope:
                return scope[node.id]
        raise NotUnderstoodError(f"the name {node.id}")

    def _eval_Attribute(self, node: ast.Attribute, frame: Frame) -> Any:
        return self.attribute(self.eval(node.value, frame), node.attr)

    def _eval_Tuple(self, node: ast.Tuple | ast.List, frame: Frame) -> Any:
        values: list[Any] = []
        for element in node.elts:
            if isinstance(element, ast.Starred):
                values.extend(self.items(self.eval(element.value, frame)))
            else:
                values.append(self.eval(element, frame))
        return tuple(values) if isinstance(node, ast.Tuple) else LocalList(values)

    _eval_List = _eval_Tuple

    def _eval_Dict(self, node: ast.Dict, frame: Frame) -> Any:
        result = LocalDict()
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                raise NotUnderstoodError("a dict of dicts")
            result[self.eval(key, frame)] = self.eval(value, frame)
        return result

    def _eval_ListComp(self, node: ast.ListComp | ast.GeneratorExp, frame: Frame) -> Any:
        result, inner = LocalList(), Frame(frame.function, dict(frame.env))

        def loop(generators: Sequence[ast.comprehension]) -> None:
            if not generators:
                result.append(self.eval(node.elt, inner))
                return
            first, *rest = generators
            for item in self.items(self.eval(first.iter, inner)):
                self.assign(first.target, item, inner)
                conditions = [truth(self.eval(c, inner)) for c in first.ifs]
                if None in conditions:
                    raise NotUnderstoodError("a comprehension with a condition on data")
                if all(conditions):
                    loop(rest)

        loop(node.generators)
        return result

    _eval_GeneratorExp = _eval_ListComp

    def _eval_Slice(self, node: ast.Slice, frame: Frame) -> Any:
        bounds = [None if b is None else self.eval(b, frame) for b in (node.lower, node.upper, node.step)]
        return slice(*bounds) if fixed(bounds) else UNKNOWN

    def _eval_Subscript(self, node: ast.Subscript, frame: Frame) -> Any:
        value, index = self.eval(node.value, frame), self.eval(node.slice, frame)
        if isinstance(value, (Node, Rest)):
            return self.item(value if isinstance(value, Node) else value.node)
        if isinstance(value, (Unknown, Tensor)):
            return self.op((value, index))
        if not fixed(index):
            if any(isinstance(v, nn.Cell) for v in flat(list(value))):
                raise NotUnderstoodError("a cell is chosen by data")
            return self.op((value, index))
        # A slice of a container of cells would be a new container, which renames their parameters.
        return LocalList(value)[index] if isinstance(index, slice) and isinstance(value, nn.Cell) else value[index]

    def _eval_Starred(self, node: ast.Starred, frame: Frame) -> Any:
        raise NotUnderstoodError("a starred expression")

    def _eval_Call(self, node: ast.Call, frame: Frame) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            first = next(iter(frame.env.values()))
            return super(self._eval_Name(ast.Name("__class__"), frame), first)
        function = self.eval(node.func, frame)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in node.args:
            if isinstance(argument, ast.Starred):
                value = self.eval(argument.value, frame)
                args.extend([Rest(value)] if isinstance(value, Node) else [value] if isinstance(value, Rest) else value)
            else:
                args.append(self.eval(argument, frame))
        for keyword in node.keywords:
            value = self.eval(keyword.value, frame)
            kwargs.update({keyword.arg: value} if keyword.arg else value)
        return self.call(function, args, kwargs)

    def binary(self, kind: ast.AST, left: Any, right: Any) -> Any:
        """``left <operator> right``; a sum or a difference of two tensors is a join."""
        nodes = [isinstance(v, (Node, TensorMethod)) for v in (left, right)]
        if any(nodes):
            joins = all(nodes) and isinstance(kind, (ast.Add, ast.Sub))
            squares = left is right and isinstance(kind, ast.Mult)
            return self.op((left, right), "add" if joins else "op", "square" if squares else type(kind).__name__)
        if any(isinstance(v, (Unknown, Tensor, Rest)) for v in (left, right)):
            return self.op((left, right))
        result = _OPERATORS[type(kind)](left, right)
        return LocalList(result) if isinstance(result, list) else result

    def _eval_BinOp(self, node: ast.BinOp, frame: Frame) -> Any:
        return self.binary(node.op, self.eval(node.left, frame), self.eval(node.right, frame))

    def _eval_UnaryOp(self, node: ast.UnaryOp, frame: Frame) -> Any:
        value = self.eval(node.operand, frame)
        return _OPERATORS[type(node.op)](value) if fixed(value) else self.op(value)

    def _eval_BoolOp(self, node: ast.BoolOp, frame: Frame) -> Any:
        values, stops = [], isinstance(node.op, ast.Or)
        for operand in node.values:
            values.append(self.eval(operand, frame))
            if truth(values[-1]) is stops:
                return values[-1]
        return self._undecided(values)

    def _undecided(self, values: list[Any]) -> Any:
        return values[-1] if all(truth(v) is not None for v in values) else self.op(values)

    def _eval_Compare(self, node: ast.Compare, frame: Frame) -> Any:
        left, values = self.eval(node.left, frame), list[Any]()
        for kind, operand in zip(node.ops, node.comparators, strict=True):
            right = self.eval(operand, frame)
            if isinstance(kind, (ast.Is, ast.IsNot)) and isinstance(left, Node) and right is None:
                values.append(UNKNOWN if left.optional else isinstance(kind, ast.IsNot))
            elif fixed((left, right)) or (isinstance(kind, (ast.Is, ast.IsNot)) and isinstance(left, Tensor)):
                values.append(_OPERATORS[type(kind)](left, right))
            else:
                values.append(self.op((left, right)))
            left = right
        return all(values) if all(truth(v) is not None for v in values) else self._undecided(values)

    def _eval_IfExp(self, node: ast.IfExp, frame: Frame) -> Any:
        known = truth(self.eval(node.test, frame))
        if known is None:
            return self.merge(self.eval(node.body, frame), self.eval(node.orelse, frame))
        return self.eval(node.body if known else node.orelse, frame)

    def merge(self, *values: Any) -> Any:
        """A value that is one of these, depending on data."""
        first = values[0]
        if all(v is first for v in values):
            return first
        if all(isinstance(v, (tuple, list)) and len(v) == len(first) for v in values):
            merged = [self.merge(*items) for items in zip(*values, strict=True)]
            return LocalList(merged) if isinstance(first, list) else tuple(merged)
        if any(isinstance(v, nn.Cell) for v in flat(values)):
            raise NotUnderstoodError("a cell is chosen by data")
        if nodes_of(values):
            merged_node = self.op(values)
            merged_node.optional = any(v is None for v in values)
            return merged_node
        simple = all(isinstance(v, (int, float, str)) for v in values)
        return first if simple and all(v == first for v in values) else UNKNOWN

    @staticmethod
    def items(value: Any) -> list[Any]:
        if isinstance(value, (Node, Unknown, Rest, TensorMethod, Tensor)):
            raise NotUnderstoodError("a loop over data")
        items = list(islice(iter(value), LIMIT + 1))
        if len(items) > LIMIT:
            raise NotUnderstoodError("a loop without end")
        return items
