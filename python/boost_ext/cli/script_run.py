"""``boost-ext run``: execute a script as ``python script.py`` does, and report. Works without MindSpore."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.markup import escape

from boost_ext import convolutions, environment, set_float32_matmul_precision
from boost_ext._core import has_narrow_products
from boost_ext.files import write_text
from boost_ext.scripts import Record, Swap

__all__ = ["Child", "after_mindspore", "compare", "execute", "module_spec", "print_comparison", "set_precision"]


def _print_end(record: Record, seconds: float, outcome: str) -> None:
    """Print what was measured."""
    if record.variables_file:
        write_text(record.variables_file, json.dumps(record.variables))
    record.say(f"{record.script} {outcome} after {seconds:.1f} s, peak memory {peak_memory_mb()} MB")
    for swap in record.swaps:
        record.say(f"  {swap.where}: {swap.what}: {_measured(swap)}")
    if not record.swaps:
        record.say("  nothing swapped: no mindspore.Model with an optimizer, no training cell of mindspore.nn was made")
    for where, what, why in record.left:
        record.say(f"  {where}: {what} stayed MindSpore's: {why}")
    for name, value in record.variables.items():
        record.say(f"  {name}={value} was set: {_WITHOUT[name]}")
    if convolutions.limit() and convolutions.are_slow():
        record.say(f"  convolutions are slow on this CPU with {convolutions.VARIABLE}={convolutions.limit()}")
    if record.swaps or record.variables:
        record.say("  the plain run was not measured; --compare does both")


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


def set_precision(precision: str, record: Record) -> None:
    """Call :func:`boost_ext.set_float32_matmul_precision`, and say what "medium" does on this CPU."""
    set_float32_matmul_precision(precision)
    if precision == "medium":
        does = "factors of float32 products are rounded to bfloat16"
        record.say(does if has_narrow_products() else "no effect of --precision: this CPU does not multiply bfloat16")


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
        _print_end(record, time.perf_counter() - began, outcome)
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
        dict: the runs by name, "boost_ext" first and "plain" last. If the first has set environment variables, there is
        a plain run with them between the two, which separates their gain from that of the steps.
    """
    plain = [sys.executable, *script, *arguments]
    with TemporaryDirectory() as folder:
        file = Path(folder) / "variables.json"
        boosted = [sys.executable, "-m", "boost_ext", "run", *options, "--variables-file", str(file)]
        children = {"boost_ext": _timed([*boosted, *script, *arguments])}
        variables = json.loads(file.read_text()) if file.exists() else {}
    if variables:
        name = "plain, " + " ".join(f"{name}={value}" for name, value in variables.items())
        children[name] = _timed(plain, variables)
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
