"""The record of a training script: what ``boost-ext doctor`` finds in it, and what ``boost-ext run`` replaces.

The commands print it, and what stops or swaps the training fills it in. Works without MindSpore.
"""

from __future__ import annotations

import ast
import os
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.markup import escape

from boost_ext import ops as ARRAY_OPS
from boost_ext.plan import Plan

__all__ = ["ARRAY_OPS", "ARRAY_STEPS", "CellReport", "Record", "ScriptReport", "Swap", "mindspore_boost_uses"]

ARRAY_STEPS = frozenset(name for name in ARRAY_OPS.__all__ if name.endswith("_step")) | {
    "accumulate",
    "adaptive_clip",
    "bfgs_update",
    "centralize",
    "clip_by_global_norm",
    "dim_reduce_apply",
    "dim_reduce_direction",
    "dim_reduce_trial",
    "ema_update",
    "loss_scale_update",
    "unscale_and_check",
}
"""Functions of boost_ext.ops that write their arguments: signs of a training loop on arrays."""


@dataclass(frozen=True)
class CellReport:
    """A training cell that a script has built.

    Attributes:
        cell (str): its class.
        where (str): the line of the script that built it.
        plan (Plan, optional): None for a cell that was built without AutoBoost.
        facts (dict): its network, optimizer and options.
    """

    cell: str
    where: str
    plan: Plan | None
    facts: dict[str, str]


@dataclass(frozen=True)
class ScriptReport:
    """The record of a script up to its first training step.

    Attributes:
        script (str): its path.
        outcome (str): how it ended, a sentence.
        cells (list[CellReport]): the training cells of boost_ext that it has built.
        others (list[str]): signs of a training with mindspore.boost, a line each.
        failed (bool): whether it ended with an error.
        optimizers (list[str]): the optimizers of boost_ext that it has built, a line each.
        ours (bool): whether it stopped at something of boost_ext.
        would (Plan, optional): the effect of level O1, for a script without boost_ext.
        changes (list[tuple[str, str]]): a line of such a script, and its replacement.
    """

    script: str
    outcome: str
    cells: list[CellReport] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    failed: bool = False
    optimizers: list[str] = field(default_factory=list)
    ours: bool = False
    would: Plan | None = None
    changes: list[tuple[str, str]] = field(default_factory=list)

    @property
    def takes_part(self) -> bool:
        """Whether something of boost_ext takes part in the training."""
        return bool(self.cells or self.optimizers or self.ours)

    @property
    def healthy(self) -> bool:
        """Whether it trains with boost_ext, and with nothing of mindspore.boost."""
        return self.takes_part and not self.others and not self.failed


def mindspore_boost_uses(path: Path) -> Iterator[str]:
    """The lines of a Python file that import or mention mindspore.boost, as ``file:line: code``."""
    source = path.read_text(encoding="utf-8")
    lines = source.split("\n")  # as Python counts them: a form feed ends no line
    tree = ast.parse(source)
    aliases = {"mindspore"}
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "mindspore" and alias.asname:
                    aliases.add(alias.asname)
                if _is_boost(alias.name):
                    found.add(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
            if any(map(_is_boost, names)):
                found.add(node.lineno)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "boost" and ast.unparse(node.value) in aliases:
            found.add(node.lineno)
    yield from (f"{path.name}:{number}: {lines[number - 1].strip()}" for number in sorted(found))


def _is_boost(module: str) -> bool:
    return module == "mindspore.boost" or module.startswith("mindspore.boost.")


@dataclass
class Swap:
    """A training cell or a Model of the script that was replaced.

    Attributes:
        where (str): the line of the script.
        what (str): the name in the script.
        plan (Plan): of the training.
        notes (list[str]): shown after the plan.
        counter (Callable): returns the steps that the cell of boost_ext has made, in other graphs too.
        first (float): seconds of the first step, compilation included; 0 before it.
        between (array): seconds from the end of each step to the end of the next one.
        calls (int): steps made from Python.
        gave_way (str): why MindSpore's own cell took over; "" if it did not.
    """

    where: str
    what: str
    plan: Plan
    counter: Callable[[], int]
    notes: list[str] = field(default_factory=list)
    first: float = 0.0
    between: array[float] = field(default_factory=lambda: array("d"))
    calls: int = 0
    gave_way: str = ""
    _ended: float = 0.0

    def stepped(self, began: float, ended: float) -> None:
        """Count a step by Python's clock."""
        if self._ended:
            self.between.append(ended - self._ended)
        else:
            self.first = ended - began
        self._ended = ended
        self.calls += 1


@dataclass
class Record:
    """The record of a run, printed to ``file`` while the script runs.

    Attributes:
        script (str): its path.
        swaps (list[Swap]): the replacements.
        left (list[tuple[str, str, str]]): line, name and reason of what was not replaced.
        variables (dict[str, str]): the environment variables that the run has set.
        variables_file (Path): where to write them as JSON at the end. Default: None.
        file (TextIO): Default: stderr, so that the output of the script stays its own.
    """

    script: str
    variables: dict[str, str] = field(default_factory=dict)
    swaps: list[Swap] = field(default_factory=list)
    left: list[tuple[str, str, str]] = field(default_factory=list)
    file: TextIO | None = None
    variables_file: Path | None = None

    def __post_init__(self) -> None:
        self._console = Console(file=self.file, stderr=self.file is None, soft_wrap=True, highlight=False)
        # msrun's workers print the same: one of them is enough.
        self._speaks = (os.environ.get("RANK_ID") or os.environ.get("MS_NODE_ID") or "0") == "0"
        self._shown: set[str] = set()

    def say(self, text: str) -> None:
        """Print a line."""
        if self._speaks:
            self._console.print(f"[bold]boost-ext run:[/] {escape(text)}")

    def swapped(self, swap: Swap) -> Swap:
        """Record a replacement, and print its plan: above level O0 all of it, else the applied features."""
        self.swaps.append(swap)
        self.say(f"{swap.where}: {swap.what} trains with boost_ext, level {swap.plan.level}")
        text = str(swap.plan)
        if self._speaks and swap.plan.level != "O0" and text not in self._shown:
            self._shown.add(text)
            self._console.print(swap.plan if self._console.is_terminal else escape(text))
        elif swap.plan.level == "O0":
            for name, decision in swap.plan.features.items():
                if decision.status == "applied":
                    self.say(f"  {decision.reason}")
                elif name == "fused_optimizer":
                    self.say(f"  the optimizer steps as it is: {decision.reason}")
        for note in swap.notes:
            self.say(f"  {note}")
        return swap

    def leave(self, where: str, what: str, why: str) -> None:
        """Record and print what was not replaced, once for each line."""
        if (where, what, why) not in self.left:
            self.left.append((where, what, why))
            self.say(f"{where}: {what} stays MindSpore's: {why}")
