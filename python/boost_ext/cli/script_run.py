"""``boost-ext run``: execute a script as ``python script.py`` does, and report. Works without MindSpore."""

from __future__ import annotations

import contextlib
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from rich.console import Console
from rich.markup import escape

from boost_ext import convolutions, environment
from boost_ext.plan import Plan

__all__ = ["Child", "Record", "Swap", "after_mindspore", "compare", "execute", "module_spec", "print_comparison"]


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
        variables (Mapping[str, str]): the environment variables that the run has set.
        file (TextIO): Default: stderr, so that the output of the script stays its own.
    """

    script: str
    variables: Mapping[str, str] = field(default_factory=dict)
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

    def print_end(self, seconds: float, outcome: str) -> None:
        """Print the measurements."""
        self.say(f"{self.script} {outcome} after {seconds:.1f} s, peak memory {peak_memory_mb()} MB")
        for swap in self.swaps:
            self.say(f"  {swap.where}: {swap.what}: {_measured(swap)}")
        if not self.swaps:
            self.say(
                "  nothing swapped: no mindspore.Model with an optimizer, no training cell of mindspore.nn was made"
            )
        for where, what, why in self.left:
            self.say(f"  {where}: {what} stayed MindSpore's: {why}")
        for name, value in self.variables.items():
            self.say(f"  {name}={value} was set: {_WITHOUT[name]}")
        if convolutions.are_slow():
            self.say(f"  convolutions are slow on this CPU with {convolutions.VARIABLE}={convolutions.limit()}")
        if self.swaps or self.variables:
            self.say("  the plain run was not measured; --compare does both")


_WITHOUT = {
    convolutions.VARIABLE: "without it this CPU convolves slowly",
    environment.DISPATCH: "without it MindSpore's threads wait for one another on so few cores",
}


def _measured(swap: Swap) -> str:
    steps = max(swap.calls, swap.counter())
    if not steps:
        return "made no step"
    parts = [f"{steps} steps" if steps != 1 else "1 step"]
    if swap.first:
        parts[0] += f" in {swap.first + sum(swap.between):.1f} s"
        parts.append(f"the first took {swap.first:.2f} s, compilation included")
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
    """Calls ``then`` once, after the import of MindSpore.

    The run does not import it itself: a script may set environment variables that MindSpore reads at import.
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


def module_spec(name: str) -> importlib.machinery.ModuleSpec:
    """The module that ``python -m name`` executes: ``name.__main__`` of a package.

    Raises:
        ValueError: if there is none.
    """
    sys.path[0] = os.getcwd()
    with contextlib.suppress(ImportError, ValueError):
        for candidate in (name, f"{name}.__main__"):
            spec = importlib.util.find_spec(candidate)
            if spec is not None and spec.origin and spec.submodule_search_locations is None:
                return spec
    raise ValueError(f"run: script must be the name of a module with -m, got {name}")


def execute(
    script: Path, arguments: Sequence[str], record: Record, spec: importlib.machinery.ModuleSpec | None = None
) -> int:
    """Execute a script in this process as ``python script arguments`` does, then print the report.

    Args:
        script (Path): a Python file.
        arguments (Sequence[str]): ``sys.argv[1:]`` of the script.
        record (Record): gets printed.
        spec (ModuleSpec, optional): of a script that is run as a module. Default: None.

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
    if spec is not None:
        module.__spec__, module.__package__ = spec, spec.parent
        sys.path[0] = os.getcwd()
    elif not getattr(sys.flags, "safe_path", False):
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
    """The traceback without the frames of this command; None for a script that does not compile."""
    while trace is not None and trace.tb_frame.f_code.co_filename != path:
        trace = trace.tb_next
    return trace


class Child(NamedTuple):
    """A process that has ended: exit code, seconds of wall and of CPU time, and its peak memory."""

    code: int
    seconds: float
    cpu_seconds: float
    megabytes: int


def compare(script: Sequence[str], arguments: Sequence[str], options: Sequence[str]) -> dict[str, Child]:
    """Run a script with boost_ext and then plainly, one process each. The first one finds the caches cold.

    Args:
        script (Sequence[str]): a Python file, or ``-m`` and a module.
        arguments (Sequence[str]): of the script.
        options (Sequence[str]): of ``boost-ext run``.

    Returns:
        dict: the runs by name, "boost_ext" first and "plain" last. On a machine that needs environment variables there
        is a plain run with them between the two, which separates their gain from that of the steps.
    """
    plain = [sys.executable, *script, *arguments]
    boosted = [sys.executable, "-m", "boost_ext", "run", *options, *script, *arguments]
    children = {"boost_ext": _timed(boosted)}
    if missing := environment.missing():
        children["plain, " + " ".join(f"{name}={value}" for name, value in missing.items())] = _timed(plain, missing)
    return {**children, "plain": _timed(plain)}


def _timed(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Child:
    began = time.perf_counter()
    process = subprocess.Popen(command, env={**os.environ, **(environment or {})})
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall, cpu = time.perf_counter() - began, usage.ru_utime + usage.ru_stime
    return Child(process.returncode, wall, cpu, _megabytes(usage.ru_maxrss))


def print_comparison(children: Mapping[str, Child], console: Console) -> None:
    """Print each run, and its ratio to the run with boost_ext if both have succeeded."""
    ours = children["boost_ext"]
    for name, child in children.items():
        text = f"{name}: {child.seconds:.1f} s, {child.cpu_seconds:.1f} CPU s, peak memory {child.megabytes} MB"
        if child.code:
            text += f", exit code {child.code}"
        elif child is not ours and not ours.code:
            faster, memory = child.seconds / ours.seconds, ours.megabytes / child.megabytes
            text += f"; boost_ext {faster:.2f} times as fast, in {memory:.2f} of the memory"
        console.print(f"[bold]boost-ext run:[/] {escape(text)}", soft_wrap=True, highlight=False)
