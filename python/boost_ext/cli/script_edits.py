"""``boost-ext run --dry``: the edits of a script that have the effect of ``boost-ext run``. The script is not run."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from boost_ext import convolutions

__all__ = ["diff", "edited"]

_MODEL = "boost_ext.Model"
_OURS = {
    **dict.fromkeys(("mindspore.Model", "mindspore.train.Model", "mindspore.train.model.Model"), _MODEL),
    **{
        f"mindspore.nn.{inside}{name}": f"boost_ext.nn.{name}"
        for name, file in (("TrainOneStepCell", "cell_wrapper"), ("TrainOneStepWithLossScaleCell", "loss_scale"))
        for inside in ("", "wrap.", f"wrap.{file}.")
    },
}
_BUILD = {f"mindspore.{inside}build_train_network" for inside in ("", "amp.", "train.", "train.amp.")}
_LINES = re.compile(r"[^\n]*\n|[^\n]+")
"""As patch counts: str.splitlines also ends them at a form feed."""
_BOOST_LEVEL_PLACE = 7
"""Its place among the positional arguments of Model."""


class _Edit(NamedTuple):
    """Bytes of the source to replace, as ast counts."""

    start: int
    end: int
    text: str


def diff(before: str, after: str, name: str) -> str:
    """The unified diff, for ``patch -p0``; "" for equal texts."""
    lines = difflib.unified_diff(_LINES.findall(before), _LINES.findall(after), name, name)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def edited(source: str, level: str, variables: Mapping[str, str], precision: str = "highest") -> tuple[str, list[str]]:
    """Replace the training classes of MindSpore in a script by those of boost_ext.

    Args:
        source (str): the script.
        level (str): "O0", "O1" or "O2". Above O0, calls get it as ``boost_level``.
        variables (Mapping[str, str]): environment variables that the script has to set. That of convolutions becomes a
            note, unless the script names any.
        precision (str): for :func:`boost_ext.set_float32_matmul_precision`. Default: "highest", which needs no line.

    Returns:
        tuple(str, list[str]): the new source, and notes on lines that were not edited.

    Raises:
        ValueError: if it is not Python.
    """
    try:
        script = _Script(source, level, precision)
    except SyntaxError as error:
        raise ValueError(f"run: script must be Python, got line {error.lineno}: {error.msg}") from error
    except (RecursionError, MemoryError) as error:  # of Python's parser
        raise ValueError("run: script must be Python, got code that is nested too deeply") from error
    named = "conv" in source.lower()
    changed = script.edited({name: v for name, v in variables.items() if named or name != convolutions.VARIABLE})
    if not named and convolutions.VARIABLE in variables:
        script.notes.append(str(convolutions.advice()))
    return changed, script.notes


class _Script:
    def __init__(self, source: str, level: str, precision: str) -> None:
        self.level = level
        self.precision = precision
        self.tree = ast.parse(source)
        self.bytes = source.encode()
        self.starts = [0]
        for line in self.bytes.splitlines(keepends=True):  # bytes: at \n, \r\n and \r, as Python counts
            self.starts.append(self.starts[-1] + len(line))
        self.edits: list[_Edit] = []
        self.notes: list[str] = []
        self.imports: set[str] = set()
        self.bound = dict(self._bindings())
        self.parents = {id(child): node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def edited(self, variables: Mapping[str, str]) -> str:
        uses = list(self._uses())
        # A base class or isinstance() needs MindSpore's class. If all uses are calls, the import can change instead.
        kept = {node.id for node, _ in uses if isinstance(node, ast.Name) and self._call(node) is None}
        for node, full in uses:
            call = self._call(node)
            if call is None:
                self._note_reference(node, full)
                continue
            ours = _OURS[full]
            if not isinstance(node, ast.Name) or node.id in kept:
                self._replace(node, ours)
                self.imports.add(ours.rpartition(".")[0])
            self._add_level(call, ours)
        for statement in ast.walk(self.tree):
            if isinstance(statement, ast.ImportFrom):
                self._edit_import(statement, kept)
        self._note_the_rest({full for _, full in uses})
        self._insert_imports(variables)
        result = self.bytes
        for edit in sorted(self.edits, reverse=True):
            result = result[: edit.start] + edit.text.encode() + result[edit.end :]
        return result.decode()

    def _bindings(self) -> Iterator[tuple[str, str]]:
        """Names that the script imports from MindSpore, with their full names."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if _of_mindspore(alias.name):
                        yield (alias.asname, alias.name) if alias.asname else ("mindspore", "mindspore")
            elif isinstance(node, ast.ImportFrom) and not node.level and _of_mindspore(node.module):
                yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)

    def _full(self, node: ast.AST) -> str:
        if isinstance(node, ast.Name):
            return self.bound.get(node.id, "")
        if isinstance(node, ast.Attribute) and (owner := self._full(node.value)):
            return f"{owner}.{node.attr}"
        return ""

    def _uses(self) -> Iterator[tuple[ast.expr, str]]:
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Name, ast.Attribute)) and (full := self._full(node)) in _OURS:
                yield node, full

    def _call(self, node: ast.expr) -> ast.Call | None:
        parent = self.parents[id(node)]
        return parent if isinstance(parent, ast.Call) and parent.func is node else None

    def _note_reference(self, node: ast.expr, full: str) -> None:
        parent = self.parents[id(node)]
        if isinstance(parent, ast.ClassDef):
            self._note(node, f"a class derived from {full} stays as it is")
        elif not (isinstance(parent, ast.Call) and ast.unparse(parent.func) in ("isinstance", "issubclass")):
            self._note(node, f"{full} stays here, where it is not called")

    def _note(self, node: ast.expr | ast.stmt, text: str) -> None:
        if (note := f"line {node.lineno}: {text}") not in self.notes:
            self.notes.append(note)

    def _note_the_rest(self, used: set[str]) -> None:
        trains = bool(used)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                if _of_mindspore(node.module):
                    self._note(node, "names that * imports are not looked at")
            elif isinstance(node, ast.Call) and self._full(node.func) in _BUILD:
                trains = True
                self._note(
                    node,
                    "build_train_network stays here, and `boost-ext run` swaps it: boost_ext.amp.build_train_network "
                    "returns (loss, overflow, loss scale)",
                )
            elif isinstance(node, ast.Attribute) and node.attr == "net_outputs" and _MODEL in map(_OURS.get, used):
                self._note(node, "with boost_ext.Model net_outputs is (loss, overflow, loss scale)")
        if not trains:
            self.notes.append(
                "no Model, training cell or build_train_network of MindSpore is named in this file; `boost-ext run` "
                "also swaps those that other files make, such as a toolkit's"
            )

    def _add_level(self, call: ast.Call, ours: str) -> None:
        if self.level == "O0":
            return
        by_place = ours == _MODEL and len(call.args) > _BOOST_LEVEL_PLACE
        if by_place or any(k.arg in (None, "boost_level") for k in call.keywords):
            self._note(call, f"boost_level {self.level} is yours to write here")
            return
        end = self._at(call.end_lineno, call.end_col_offset) - 1  # of the closing parenthesis
        before = self.bytes[:end].rstrip()
        comma = "" if before.endswith((b",", b"(")) else ", "
        self.edits.append(_Edit(len(before), len(before), f'{comma}boost_level="{self.level}"'))

    def _edit_import(self, node: ast.ImportFrom, kept: set[str]) -> None:
        """Remove the replaced names from an import, and import ours after it."""
        moved = [
            alias
            for alias in node.names
            if not node.level and f"{node.module}.{alias.name}" in _OURS and (alias.asname or alias.name) not in kept
        ]
        if not moved:
            return
        lines = []
        for alias in moved:
            package, _, name = _OURS[f"{node.module}.{alias.name}"].rpartition(".")
            lines.append(f"from {package} import {name}" + (f" as {alias.asname}" if alias.asname else ""))
        indent = self.bytes[self.starts[node.lineno - 1] :][: node.col_offset].decode()
        start, end = self._span(node)
        if len(moved) == len(node.names):
            self.edits.append(_Edit(start, end, f"\n{indent}".join(lines)))
            return
        for i, alias in enumerate(node.names):
            if alias not in moved:
                continue
            if i + 1 < len(node.names):  # up to the next name
                self.edits.append(_Edit(self._span(alias)[0], self._span(node.names[i + 1])[0], ""))
            else:  # from the last one that stays; those between are gone already
                last = max(j for j in range(i) if node.names[j] not in moved)
                self.edits = [e for e in self.edits if e.start < self._span(node.names[last])[1] or e.start > end]
                self.edits.append(_Edit(self._span(node.names[last])[1], self._span(alias)[1], ""))
        self.edits.append(_Edit(end, end, "".join(f"\n{indent}{line}" for line in lines)))

    def _insert_imports(self, variables: Mapping[str, str]) -> None:
        body = self.tree.body
        first = next((i for i, node in enumerate(body) if not _comes_first(node)), None)
        if first is None:
            return
        imports = [node for node in body[first:] if isinstance(node, (ast.Import, ast.ImportFrom))]
        of_mindspore = [
            node
            for node in imports
            if any(_of_mindspore(a.name if isinstance(node, ast.Import) else node.module) for a in node.names)
        ]
        call = ""
        if self.precision != "highest":
            self.imports.add("boost_ext")
            call = f'\nboost_ext.set_float32_matmul_precision("{self.precision}")\n'
        lines = "".join(f"import {package}\n" for package in sorted(self.imports)) + call
        if lines:
            at = self.starts[of_mindspore[-1].end_lineno or 0] if of_mindspore else self.starts[body[first].lineno - 1]
            self.edits.append(_Edit(at, at, lines))
        if variables:
            at = self.starts[body[first].lineno - 1]
            lines = "".join(f'os.environ.setdefault("{name}", "{value}")\n' for name, value in variables.items())
            self.edits.append(_Edit(at, at, f"import os\n\n{lines}"))

    def _at(self, line: int | None, column: int | None) -> int:
        return self.starts[(line or 1) - 1] + (column or 0)

    def _span(self, node: ast.expr | ast.stmt | ast.alias) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _replace(self, node: ast.expr, text: str) -> None:
        self.edits.append(_Edit(*self._span(node), text))


def _of_mindspore(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "mindspore"


def _comes_first(node: ast.stmt) -> bool:
    """The docstring, and imports from __future__."""
    docstring = (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")
