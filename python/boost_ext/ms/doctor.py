"""Run a training script up to its first training step, and say what it has built."""

from __future__ import annotations

import contextlib
import functools
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import mindspore as ms
from mindspore import nn

import boost_ext
from boost_ext.doctor import CellReport, ScriptReport, mindspore_boost_uses
from boost_ext.ms.freeze_optimizer import FreezeOpt
from boost_ext.ms.step import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell

__all__ = ["run_script"]

_LIBRARIES = tuple(str(Path(str(module.__file__)).parent) for module in (ms, boost_ext))


class _FirstStep(BaseException):
    """Stops the script. No Exception, so that the script does not catch it."""

    def __init__(self, trainer: Any, method: str) -> None:
        super().__init__()
        self.trainer = trainer
        self.method = method
        self.where = _caller()


def _caller() -> str:
    """The innermost line that is not the libraries' own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_LIBRARIES) or frame.f_code.co_filename.startswith("<")
    ):
        frame = frame.f_back
    return "unknown" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@contextlib.contextmanager
def _replaced(owner: type, name: str, value: Any) -> Iterator[None]:
    own = name in vars(owner)
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _stopper(method: str) -> Any:
    def stop(self: Any, *args: Any, **kwargs: Any) -> None:
        raise _FirstStep(self, method)

    return stop


@contextlib.contextmanager
def _watching(built: list[tuple[nn.Cell, str]]) -> Iterator[None]:
    """Record the training cells that are built; raise _FirstStep where a step would be made."""
    with contextlib.ExitStack() as stack:
        for cls in (BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell):
            stack.enter_context(_replaced(cls, "__init__", _recording(cls.__init__, built)))
        for cls in (BoostTrainOneStepCell, nn.TrainOneStepCell, nn.Optimizer):
            stack.enter_context(_replaced(cls, "__call__", _stopper("call")))
        for method in ("train", "fit"):
            stack.enter_context(_replaced(ms.Model, method, _stopper(method)))
        yield


def _recording(init: Any, built: list[tuple[nn.Cell, str]]) -> Any:
    @functools.wraps(init)
    def record(self: nn.Cell, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        built.append((self, _caller()))

    return record


def run_script(script: Path, arguments: Sequence[str] = ()) -> ScriptReport:
    """Run a script as ``python script arguments`` does, and stop it at its first training step.

    Stops at the first call of a training cell or an optimizer, and at ``Model.train`` and ``Model.fit``. In GRAPH_MODE
    a training step that the script has compiled itself, from none of these, is not recognized and runs.

    Args:
        script (Path): a Python file.
        arguments (Sequence[str]): its arguments. Default: ().

    Returns:
        ScriptReport.
    """
    built: list[tuple[nn.Cell, str]] = []
    uses = list(mindspore_boost_uses(script))
    known, argv, path = set(sys.modules), sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    failed = False
    try:
        with _watching(built):
            runpy.run_path(str(script), run_name="__main__")
        outcome = "ran to its end without a training step"
    except _FirstStep as stop:
        name = type(stop.trainer).__name__
        what = f"the first call of {name}" if stop.method == "call" else f"{name}.{stop.method}"
        outcome = f"stopped before {what}, at {stop.where}"
        uses += _reference_boost(stop)
    except SystemExit as stop:
        outcome, failed = f"exited with {stop.code!r} before a training step", stop.code not in (None, 0)
    except Exception as error:
        outcome, failed = f"failed before a training step\n{_traceback(error, script)}", True
    finally:
        sys.argv, sys.path[:] = argv, path
        for file in _modules_beside(script, set(sys.modules) - known):
            uses += mindspore_boost_uses(file)
    return ScriptReport(str(script), outcome, [_cell_report(cell, where) for cell, where in built], uses, failed)


def _traceback(error: Exception, script: Path) -> str:
    """From the script's own frame on."""
    frames = traceback.TracebackException.from_exception(error)
    start = next((i for i, f in enumerate(frames.stack) if f.filename.endswith(script.name)), 0)
    frames.stack = traceback.StackSummary.from_list(frames.stack[start:])
    return "".join(frames.format()).rstrip()


def _modules_beside(script: Path, names: set[str]) -> Iterator[Path]:
    folder = script.resolve().parent
    for name in sorted(names):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file and file.endswith(".py") and Path(file).is_relative_to(folder) and "site-packages" not in file:
            yield Path(file)


def _reference_boost(stop: _FirstStep) -> Iterator[str]:
    trainer = stop.trainer
    if type(trainer).__module__.startswith("mindspore.boost"):
        yield f"{stop.where}: {type(trainer).__name__} of mindspore.boost"
    level = getattr(trainer, "_boost_level", "O0")
    if isinstance(trainer, ms.Model) and type(trainer).__module__.startswith("mindspore") and level != "O0":
        yield f"{stop.where}: mindspore.Model with boost_level {level!r}"


def _cell_report(cell: BoostTrainOneStepCell, where: str) -> CellReport:
    weights = cell.weights
    facts = {"trains": f"{len(weights)} parameters of {sum(w.size for w in weights)} elements"}
    optimizer = cell.optimizer
    if isinstance(optimizer, FreezeOpt):
        facts["optimizer"] = f"{type(optimizer.optimizer).__name__}, with gradient freezing"
        shares = ", ".join(f"{i}: {share:.1%}" for i, share in enumerate(optimizer.frozen_shares))
        facts["frozen elements of each group"] = shares
    else:
        facts["optimizer"] = type(optimizer).__name__
    if cell.accumulation is not None:
        facts["micro-batches for each update"] = str(cell.accumulation.max_accumulation_step)
    facts["dimension reduction"] = "on" if cell.check_dim_reduce_enable() else "off"
    facts["loss scale"] = f"{float(cell.scale_sense.asnumpy().ravel()[0]):g}"
    return CellReport(type(cell).__name__, where, getattr(cell, "plan", None), facts)
