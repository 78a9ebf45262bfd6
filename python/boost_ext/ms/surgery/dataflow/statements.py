"""Python's statements, on nodes instead of tensors."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Sequence
from typing import Any

from boost_ext.ms.surgery.dataflow.expressions import Expressions, truth
from boost_ext.ms.surgery.dataflow.values import (
    LIMIT,
    UNKNOWN,
    Frame,
    LocalDict,
    LocalList,
    Node,
    NotUnderstoodError,
    Rest,
    Unknown,
    fixed,
)

_TRANSPARENT = {"jit", "staticmethod", "classmethod", "ms_function"}  # decorators


def _copy(env: dict[str, Any]) -> dict[str, Any]:
    own = (LocalList, LocalDict)
    return {name: type(value)(value) if isinstance(value, own) else value for name, value in env.items()}


class Statements(Expressions):
    """Runs a function on nodes."""

    def run(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of ``function(*args, **kwargs)``."""
        function = inspect.unwrap(function)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
        except (OSError, TypeError, SyntaxError) as e:
            raise NotUnderstoodError(f"its source is not available ({e})") from e
        if not isinstance(tree, ast.FunctionDef):
            raise NotUnderstoodError("it is not a plain function")
        for decorator in tree.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if ast.unparse(called).rpartition(".")[2] not in _TRANSPARENT:
                raise NotUnderstoodError(f"the decorator {ast.unparse(called)}")
        frame = Frame(function, self._bind(function, tree.args, args, kwargs))
        if self._block(tree.body, frame) is None:
            frame.returns.append(None)
        return self.merge(*frame.returns) if frame.returns else None

    def _bind(self, function: Any, spec: ast.arguments, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)]
        values, rest = list(args), None
        if values and isinstance(values[-1], Rest):
            rest = values.pop().node
        if any(isinstance(v, Rest) for v in values) or (len(values) > len(names) and spec.vararg is None):
            raise NotUnderstoodError("its arguments do not fit")
        env, given = dict(zip(names, values, strict=False)), dict(kwargs)
        defaults = dict(zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False))
        defaults |= function.__kwdefaults__ or {}
        for name in [*names[len(values) :], *(a.arg for a in spec.kwonlyargs)]:
            if name in given:
                env[name] = given.pop(name)
            elif rest is not None and name in names:
                env[name] = self.item(rest)
                env[name].optional = name in defaults
            elif name in defaults:
                env[name] = defaults[name]
            else:
                raise NotUnderstoodError(f"the argument {name} is missing")
        if spec.vararg is not None:
            env[spec.vararg.arg] = tuple(values[len(names) :]) if rest is None else Rest(rest)
        if spec.kwarg is not None:
            env[spec.kwarg.arg] = given
        return env

    # Statements. A block says how it was left: None (at its end), "return", "break" or "continue".

    def _block(self, statements: Sequence[ast.stmt], frame: Frame) -> str | None:
        for statement in statements:
            method = getattr(self, f"_do_{type(statement).__name__}", None)
            if method is None:
                raise NotUnderstoodError(f"a {type(statement).__name__} statement")
            left: str | None = method(statement, frame)
            if left is not None:
                return left
        return None

    def _do_Expr(self, statement: ast.Expr, frame: Frame) -> None:
        self.eval(statement.value, frame)

    def _do_Pass(self, statement: ast.Pass, frame: Frame) -> None:
        pass

    _do_Assert = _do_Pass

    def _do_Raise(self, statement: ast.Raise, frame: Frame) -> str:
        return "return"  # without a value: nothing comes out of this path

    def _do_Return(self, statement: ast.Return, frame: Frame) -> str:
        frame.returns.append(None if statement.value is None else self.eval(statement.value, frame))
        return "return"

    def _do_Break(self, statement: ast.Break, frame: Frame) -> str:
        return "break"

    def _do_Continue(self, statement: ast.Continue, frame: Frame) -> str:
        return "continue"

    def _do_Assign(self, statement: ast.Assign, frame: Frame) -> None:
        value = self.eval(statement.value, frame)
        for target in statement.targets:
            self.assign(target, value, frame)

    def _do_AnnAssign(self, statement: ast.AnnAssign, frame: Frame) -> None:
        if statement.value is not None:
            self.assign(statement.target, self.eval(statement.value, frame), frame)

    def _do_AugAssign(self, statement: ast.AugAssign, frame: Frame) -> None:
        target = statement.target
        old = self.eval(ast.parse(ast.unparse(target), mode="eval").body, frame)
        value = self.eval(statement.value, frame)
        if isinstance(old, LocalList) and isinstance(value, (list, tuple)):
            value = LocalList(value)
        self.assign(target, self.binary(statement.op, old, value), frame)

    def assign(self, target: ast.expr, value: Any, frame: Frame) -> None:
        if isinstance(target, ast.Name):
            frame.env[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            count = len(target.elts)
            if any(isinstance(e, ast.Starred) for e in target.elts):
                raise NotUnderstoodError("a starred assignment")
            if isinstance(value, (Node, Rest)):
                node = value.node if isinstance(value, Rest) else value
                value = [self.item(node) for _ in range(count)]
            items = [UNKNOWN] * count if isinstance(value, Unknown) else self.items(value)
            if len(items) != count:
                raise NotUnderstoodError(f"{len(items)} values for {count} names")
            for element, item in zip(target.elts, items, strict=True):
                self.assign(element, item, frame)
        elif isinstance(target, ast.Subscript):
            sequence, index = self.eval(target.value, frame), self.eval(target.slice, frame)
            if not isinstance(sequence, (LocalList, LocalDict)) or not fixed(index):
                raise NotUnderstoodError(f"an assignment to {ast.unparse(target)}")
            sequence[index] = value
        else:
            raise NotUnderstoodError(f"an assignment to {ast.unparse(target)}")

    def _do_If(self, statement: ast.If, frame: Frame) -> str | None:
        known = truth(self.eval(statement.test, frame))
        if known is not None:
            return self._block(statement.body if known else statement.orelse, frame)
        before = frame.env
        lefts: list[str | None] = []
        envs: list[dict[str, Any]] = []
        for block in (statement.body, statement.orelse):
            frame.env = _copy(before)
            lefts.append(self._block(block, frame))
            envs.append(frame.env)
        if set(lefts) - {None, "return"}:
            raise NotUnderstoodError("a loop is left by a condition on data")
        alive = [env for env, left in zip(envs, lefts, strict=True) if left is None]
        if not alive:
            return "return"
        names = dict.fromkeys(name for env in alive for name in env)
        frame.env = {name: self.merge(*(env[name] for env in alive if name in env)) for name in names}
        return None

    def _do_For(self, statement: ast.For, frame: Frame) -> str | None:
        for item in self.items(self.eval(statement.iter, frame)):
            self.assign(statement.target, item, frame)
            left = self._block(statement.body, frame)
            if left == "return":
                return left
            if left == "break":
                return None
        return self._block(statement.orelse, frame)

    def _do_While(self, statement: ast.While, frame: Frame) -> str | None:
        for _ in range(LIMIT):
            known = truth(self.eval(statement.test, frame))
            if known is None:
                raise NotUnderstoodError("a loop over data")
            left = self._block(statement.body, frame) if known else "end"
            if left == "return":
                return left
            if left in ("break", "end"):
                return self._block(statement.orelse, frame) if left == "end" else None
        raise NotUnderstoodError("a loop without end")
