"""The report of ``boost-ext doctor`` on a configuration or a training script, in words. Works without MindSpore."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape

from boost_ext import environment
from boost_ext.config import BoostConfig
from boost_ext.plan import Plan, plan
from boost_ext.scripts import ScriptReport

__all__ = ["plan_of_file", "print_advice", "print_report"]


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
