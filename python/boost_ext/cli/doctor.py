"""The report of ``boost-ext doctor`` on a configuration or a training script. Data and words, without MindSpore."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from boost_ext import environment
from boost_ext import ops as ARRAY_OPS
from boost_ext.config import BoostConfig
from boost_ext.plan import Plan, plan

__all__ = [
    "ARRAY_OPS",
    "ARRAY_STEPS",
    "CellReport",
    "ScriptReport",
    "mindspore_boost_uses",
    "plan_of_file",
    "print_advice",
    "print_report",
]

ARRAY_STEPS = frozenset(name for name in ARRAY_OPS.__all__ if name.endswith("_step")) | {
    "accumulate",
    "centralize",
    "clip_by_global_norm",
    "dim_reduce_apply",
    "loss_scale_update",
    "unscale_and_check",
}
"""Functions of boost_ext.ops that write their arguments: signs of a training loop on arrays."""


def plan_of_file(path: Path, level: str = "O0", mode: str | None = None, *, rank_size: int = 1) -> Plan:
    """The plan of a configuration file.

    Args:
        path (Path): JSON.
        level (str): "O0", "O1" or "O2". Default: "O0".
        mode (str, optional): ``boost.mode``, instead of the file's. Default: None.
        rank_size (int): processes that train together. Default: 1.

    Raises:
        TypeError, ValueError, OSError: for an error in the file, see :meth:`boost_ext.config.BoostConfig.load`.
    """
    config = BoostConfig.load(path)
    if mode is not None:
        given = config.model_dump(exclude_unset=True)
        config = BoostConfig.load({**given, "boost": {**given.get("boost", {}), "mode": mode}})
    return plan(level, config, rank_size=rank_size)


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


def print_report(report: ScriptReport, console: Console) -> None:
    """Print the record of a script, and each plan as a table."""
    console.print(escape(f"{report.script}: {report.outcome}"), soft_wrap=True, highlight=False)
    for cell in report.cells:
        console.print(f"\n[bold]{cell.cell}[/], built at {escape(cell.where)}", soft_wrap=True, highlight=False)
        for name, fact in cell.facts.items():
            console.print(escape(f"  {name}: {fact}"), soft_wrap=True, highlight=False)
        if cell.plan is None:
            console.print("  no plan: built without AutoBoost, boost_level or boost_config_dict", highlight=False)
        else:
            console.print(cell.plan)
    for line in report.optimizers:
        console.print(f"[bold]Optimizer of boost_ext:[/] {escape(line)}", soft_wrap=True, highlight=False)
    if not report.takes_part:
        console.print(
            "[bold red]No training cell of boost_ext was built:[/] nothing of boost_ext takes part in the training. "
            "Use boost_ext.Model, boost_ext.amp.build_train_network, or the cells of boost_ext.boost.",
            soft_wrap=True,
            highlight=False,
        )
    if report.would is not None:
        console.print("What boost_level O1 would do:", report.would, sep="\n", highlight=False)
        console.print("Lines to change:", highlight=False)
        for where, line in report.changes:
            console.print(f"  {escape(where)}: {escape(line)}", soft_wrap=True, highlight=False)
    if report.others:
        console.print(
            "[bold red]It uses mindspore.boost:[/] write `from boost_ext import boost` instead of "
            "`from mindspore import boost`, boost_ext.Model instead of mindspore.Model and boost_ext.amp instead of "
            "mindspore.amp.",
            soft_wrap=True,
            highlight=False,
        )
        for line in report.others:
            console.print(f"  {escape(line)}", soft_wrap=True, highlight=False)


def print_advice(console: Console) -> None:
    """Print advice to make training faster on this machine, if there is any."""
    for what, advice in environment.advice().items():
        console.print(f"[bold yellow]Slow {what}:[/] {escape(advice)}", soft_wrap=True, highlight=False)
