"""Run a training script up to its first training step, and say what it has built."""

from __future__ import annotations

import contextlib
import dataclasses
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import nn

from boost_ext.ms.optim.adoption import FORMS
from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.training.auto import AutoBoost
from boost_ext.ms.training.first_step import Built, FirstStep, is_ours, watching
from boost_ext.plan import Plan
from boost_ext.scripts import CellReport, ScriptReport, mindspore_boost_uses

__all__ = ["run_script"]


def run_script(script: Path, arguments: Sequence[str] = ()) -> ScriptReport:
    """Run a script as ``python script arguments`` does, and stop it before its first training step.

    It stops at ``Model.train`` and ``Model.fit``; at the first call of an optimizer, a training cell or any other cell
    of boost_ext that is no layer, by Python or in a graph; at the first function of ``boost_ext.ops`` that writes its
    arguments; and, where the script has made no optimizer, at its first gradient in PYNATIVE_MODE.

    Args:
        script (Path): a Python file.
        arguments (Sequence[str]): its arguments. Default: ().

    Returns:
        ScriptReport.
    """
    built: Built = []
    stops: list[FirstStep] = []
    uses = list(mindspore_boost_uses(script))
    known, argv, path = set(sys.modules), sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    failed = False
    outcome = "ran to its end without a training step"
    try:
        with watching(built, stops):
            runpy.run_path(str(script), run_name="__main__")
    except FirstStep:
        pass
    except SystemExit as end:
        outcome, failed = f"exited with {end.code!r} before a training step", end.code not in (None, 0)
    except Exception as error:
        outcome, failed = f"failed before a training step\n{_traceback(error, script)}", True
    finally:
        sys.argv, sys.path[:] = argv, path
        for file in _modules_beside(script, set(sys.modules) - known):
            uses += mindspore_boost_uses(file)
    if not stops:
        return _report(script, outcome, built, uses, failed=failed)
    stop = stops[0]  # the script may have caught it, and gone on to the next one
    uses += _reference_boost(stop)
    report = _report(script, f"stopped before {stop.what}, at {stop.where}", built, uses, ours=stop.ours)
    if report.takes_part:
        return report
    return dataclasses.replace(report, would=_would(stop), changes=list(_changes(stop, built)))


def _report(
    script: Path, outcome: str, built: Built, uses: list[str], *, failed: bool = False, ours: bool = False
) -> ScriptReport:
    cells = [(thing, where) for thing, where in built if isinstance(thing, BoostTrainOneStepCell)]
    optimizers = [f"{type(o).__name__}, built at {at}" for o, at in built if isinstance(o, nn.Optimizer) and is_ours(o)]
    reports = [_cell_report(*cell) for cell in cells]
    return ScriptReport(str(script), outcome, reports, uses, failed, list(dict.fromkeys(optimizers)), ours)


def _would(stop: FirstStep) -> Plan:
    """What level O1 would do with what was going to be trained."""
    boost = AutoBoost("O1")
    network, optimizer = _network(stop), _optimizer(_trainer(stop))
    if network is not None and optimizer is not None:
        with contextlib.suppress(Exception):  # the plan without a network is less, and always there
            boost.network_auto_process_train(network, optimizer)
    return boost.plan


def _trainer(stop: FirstStep) -> Any:
    """What makes the step: of a Model without an optimizer, the training cell that is its network."""
    trainer = stop.trainer
    if isinstance(trainer, ms.Model) and _optimizer(trainer) is None:
        cells = [cell for _, cell in trainer._network.cells_and_names() if isinstance(cell, nn.TrainOneStepCell)]
        return next(iter(cells), trainer)
    return trainer


def _optimizer(trainer: Any) -> Any:
    if isinstance(trainer, nn.Optimizer):
        return trainer
    return getattr(trainer, "optimizer" if isinstance(trainer, nn.Cell) else "_optimizer", None)


def _network(stop: FirstStep) -> Any:
    """That of the model or the training cell; of an optimizer a cell with all of its parameters, in the script."""
    trainer = _trainer(stop)
    if not isinstance(trainer, nn.Optimizer):
        return getattr(trainer, "network" if isinstance(trainer, nn.Cell) else "_network", None)
    trained = {id(p) for p in trainer.parameters}
    frame = stop.frame
    while frame is not None:
        for thing in (*frame.f_locals.values(), *frame.f_globals.values()):
            trains = isinstance(thing, (nn.Optimizer, nn.TrainOneStepCell))
            if isinstance(thing, nn.Cell) and not trains and trained <= {id(p) for p in thing.trainable_params()}:
                return thing
        frame = frame.f_back
    return None


def _changes(stop: FirstStep, built: Built) -> Iterator[tuple[str, str]]:
    """Lines of the script, and what to write there."""
    trainer = _trainer(stop)
    base = next((cls for cls in _BASES if isinstance(trainer, cls)), None)
    if base is not None and not type(trainer).construct.__module__.startswith("mindspore."):
        # Another cell, or Model at a level, would leave out what the class adds.
        ours = f"boost_ext.nn.{base.__name__} instead of mindspore.nn.{base.__name__}"
        yield _where(trainer, built), f"{ours} as the base of {type(trainer).__name__}, whose construct stays"
    elif isinstance(trainer, ms.Model):
        yield _where(trainer, built), 'boost_ext.Model(..., boost_level="O1") instead of mindspore.Model(...)'
    elif isinstance(trainer, nn.TrainOneStepWithLossScaleCell):
        yield _where(trainer, built), f"boost_ext.boost.{BoostTrainOneStepWithLossScaleCell.__name__}(...), or {_BUILD}"
    elif isinstance(trainer, nn.TrainOneStepCell):
        yield _where(trainer, built), f"boost_ext.boost.{BoostTrainOneStepCell.__name__}(...), or {_BUILD}"
    else:
        yield stop.where, f"the step that begins with the gradient: step = {_BUILD}, and step(*inputs) in the loop"
    optimizer = _optimizer(trainer)
    name = type(optimizer).__name__
    if name in FORMS:
        yield _where(optimizer, built), f"boost_ext.optim.{name}(...) instead of mindspore.nn.{name}(...): optional"


_BASES = (nn.TrainOneStepWithLossScaleCell, nn.TrainOneStepCell)
_BUILD = 'boost_ext.amp.build_train_network(network, optimizer, loss_fn, boost_level="O1")'


def _where(thing: Any, built: Built) -> str:
    return next((where for other, where in built if other is thing), "unknown")


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


def _reference_boost(stop: FirstStep) -> Iterator[str]:
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
    if hasattr(optimizer, "frozen_shares"):
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
