"""``boost-ext run``: execute a script as ``python script.py`` does, and report what took part. Without MindSpore."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import statistics
import subprocess
import sys
import time
import types
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from boost_ext import convolutions
from boost_ext.plan import Plan

__all__ = ["Child", "Record", "Swap", "after_mindspore", "compare", "execute", "print_comparison"]


@dataclass
class Swap:
    """Something that trains, made by the script, with boost_ext in it.

    Attributes:
        where (str): the line of the script.
        what (str): what the script wrote there.
        plan (Plan): of the training.
        notes (list[str]): what else is known of it.
        counter (Callable): the number of steps that the cell of boost_ext has made, inside of other graphs too.
        first (float): seconds of the first step, compilation included; 0 before it.
        between (array): seconds from the end of each step to the end of the next one.
        calls (int): steps made from Python.
        gave_way (str): why MindSpore's own cell trains now; "" if it does not.
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
    """What a run knows: written while the script runs, printed to ``file``.

    Attributes:
        script (str): its path.
        swaps (list[Swap]): what trains with boost_ext.
        left (list[tuple[str, str, str]]): line, what, and why it stays MindSpore's.
        limited (bool): whether the run set ``ONEDNN_MAX_CPU_ISA``.
        file (TextIO): Default: stderr, so that the output of the script stays its own.
    """

    script: str
    limited: bool = False
    swaps: list[Swap] = field(default_factory=list)
    left: list[tuple[str, str, str]] = field(default_factory=list)
    file: TextIO | None = None

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
        """Keep a swap, and print its plan: whole above level O0, where it is what is applied."""
        self.swaps.append(swap)
        self.say(f"{swap.where}: {swap.what} trains with boost_ext, level {swap.plan.level}")
        text = str(swap.plan)
        if self._speaks and swap.plan.level != "O0" and text not in self._shown:
            self._shown.add(text)
            self._console.print(swap.plan if self._console.is_terminal else escape(text))
        elif swap.plan.level == "O0":
            for decision in swap.plan.features.values():
                if decision.status == "applied":
                    self.say(f"  {decision.reason}")
        for note in swap.notes:
            self.say(f"  {note}")
        return swap

    def leave(self, where: str, what: str, why: str) -> None:
        """Keep what stays as it is, once a line, and print it."""
        if (where, what, why) not in self.left:
            self.left.append((where, what, why))
            self.say(f"{where}: {what} stays MindSpore's: {why}")

    def print_end(self, seconds: float, outcome: str) -> None:
        """Print what was measured."""
        self.say(f"{self.script} {outcome} after {seconds:.1f} s, peak memory {peak_memory_mb()} MB")
        for swap in self.swaps:
            self.say(f"  {swap.where}: {swap.what}: {_measured(swap)}")
        if not self.swaps:
            self.say(
                "  nothing swapped: no mindspore.Model with an optimizer, no training cell of mindspore.nn was made"
            )
        for where, what, why in self.left:
            self.say(f"  {where}: {what} stayed MindSpore's: {why}")
        if self.limited:
            self.say(f"  {convolutions.VARIABLE}={convolutions.FAST} was set: without it this CPU convolves slowly")
        elif convolutions.are_slow():
            self.say(f"  convolutions are slow on this CPU with {convolutions.VARIABLE}={convolutions.limit()}")
        if self.swaps or self.limited:
            self.say("  the plain run was not measured; --compare does both")


def _measured(swap: Swap) -> str:
    steps = max(swap.calls, swap.counter())
    if not steps:
        return "made no step"
    parts = [f"{steps} steps" if steps != 1 else "1 step"]
    if swap.first:
        parts.append(f"the first {swap.first:.2f} s, compilation included")
    if swap.between:
        parts.append(f"then {statistics.median(swap.between) * 1e3:.2f} ms from step to step (median)")
    if swap.gave_way:
        parts.append(f"MindSpore's own cell made the last ones: {swap.gave_way}")
    return ", ".join(parts)


def peak_memory_mb() -> int:
    """The greatest resident memory of this process so far."""
    import resource

    return _megabytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _megabytes(maxrss: int) -> int:
    return maxrss // (2**20 if sys.platform == "darwin" else 2**10)


class _AfterMindSpore(importlib.abc.MetaPathFinder):
    """Calls ``then`` once, as soon as MindSpore is imported.

    The run does not import it before: a script may set environment variables that MindSpore reads when it is imported.
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self.then = then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "mindspore":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_swap(module: types.ModuleType) -> None:
                load(module)
                self.then()

            spec.loader.exec_module = load_and_swap  # type: ignore[method-assign]
        return spec


def after_mindspore(then: Callable[[], None]) -> None:
    """Call ``then`` when the script has imported MindSpore; at once if it is imported already."""
    if "mindspore" in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _AfterMindSpore(then))


def execute(script: Path, arguments: Sequence[str], record: Record) -> int:
    """Execute a script in this process as ``python script arguments`` does, then print the report.

    Args:
        script (Path): a Python file.
        arguments (Sequence[str]): ``sys.argv[1:]`` of the script.
        record (Record): gets printed.

    Returns:
        int, the exit code: 1 after an exception, whose traceback is printed as Python prints it.

    Raises:
        SystemExit: the script's own.
    """
    path = os.path.abspath(script)
    module = types.ModuleType("__main__")
    module.__file__, module.__builtins__ = path, sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
    # It stays: pickle, multiprocessing and the graph compiler look classes and sources up there, at the exit too.
    sys.modules["__main__"] = module
    sys.argv = [str(script), *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(script))
    began, outcome = time.perf_counter(), "ended"
    try:
        exec(compile(script.read_bytes(), path, "exec", dont_inherit=True), module.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            outcome = f"exited with {end.code!r}"
        raise
    except BaseException as error:
        outcome = f"failed with {type(error).__name__}"
        error.__traceback__ = _from_the_script(error.__traceback__, path)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        sys.stdout.flush()
        record.print_end(time.perf_counter() - began, outcome)
    return 0


def _from_the_script(trace: types.TracebackType | None, path: str) -> types.TracebackType | None:
    """Without the frames of this command; None for a script that Python cannot read."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


class Child(NamedTuple):
    """A process that has ended: exit code, seconds, and its peak memory."""

    code: int
    seconds: float
    megabytes: int


def compare(script: Path, arguments: Sequence[str], options: Sequence[str]) -> dict[str, Child]:
    """Run a script with boost_ext and then plainly, one process each. The first finds the caches cold.

    Args:
        script (Path): a Python file.
        arguments (Sequence[str]): of the script.
        options (Sequence[str]): of ``boost-ext run``.

    Returns:
        dict: "boost_ext" and "plain".
    """
    plain = [sys.executable, str(script), *arguments]
    boosted = [sys.executable, "-m", "boost_ext", "run", *options, str(script), *arguments]
    return {"boost_ext": _timed(boosted), "plain": _timed(plain)}


def _timed(command: Sequence[str]) -> Child:
    began = time.perf_counter()
    process = subprocess.Popen(command)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Child(process.returncode, time.perf_counter() - began, _megabytes(usage.ru_maxrss))


def print_comparison(children: dict[str, Child], console: Console) -> None:
    """Print both runs; the ratios only if both ended well."""
    table = Table(title="the whole script")
    for column in ("", "wall time", "peak memory", "exit code"):
        table.add_column(column)
    for name, child in children.items():
        table.add_row(name, f"{child.seconds:.1f} s", f"{child.megabytes} MB", str(child.code))
    console.print(table)
    ours, plain = children["boost_ext"], children["plain"]
    if ours.code == plain.code == 0:
        faster, memory = plain.seconds / ours.seconds, ours.megabytes / plain.megabytes
        text = f"With boost_ext {faster:.2f} times as fast, in {memory:.2f} of the memory; one run each."
        console.print(text, highlight=False)
