"""Replacements of MindSpore's training classes, in a script that ``boost-ext run`` executes.

The classes stay the same objects, but ``nn.TrainOneStepCell(...)`` and ``mindspore.Model(...)`` make instances of
subclasses. So ``isinstance`` is still true, names may be imported from anywhere, and classes that the script derives do
not change.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from types import CodeType, FunctionType
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.train import amp as _reference

from boost_ext import convolutions
from boost_ext.ms.native import in_pynative_mode
from boost_ext.ms.training import model, training_cells
from boost_ext.ms.training.amp import assemble
from boost_ext.ms.training.auto import AutoBoost
from boost_ext.ms.training.first_step import caller, is_library
from boost_ext.scripts import Record, Swap

__all__ = ["swap_in"]

_SHAPES = 8
"""The number of input shapes for which PYNATIVE_MODE compiles a step; more would cost more than they save."""
_GIVEN = ("sens", "return_grad", "scale_sense")
"""Keywords of MindSpore's cells."""
_SWAPPED = (ms.Model, nn.TrainOneStepCell, nn.TrainOneStepWithLossScaleCell)
_HOOKS = ("_lazy_forward_pre_hook", "_lazy_forward_hook", "_lazy_backward_pre_hook", "_lazy_backward_hook")


@dataclass
class _Run:
    """The state of a run. There is one in a process."""

    record: Record
    level: str
    eager: bool = False
    where: str = ""
    """The line of the script that is creating something, and the name that it uses."""
    what: str = ""
    off: bool = False


_run: _Run


def _limit_with(primitive: type, record: Record) -> None:
    """Limit oneDNN once the script makes a convolution larger than 1 × 1, and not before: products of matrices lose by
    it. oneDNN reads the variable at its first operation, and networks are made before that."""
    made = primitive.__init__  # type: ignore[misc]

    @wraps(made)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        if np.max(self.kernel_size) > 1 and convolutions.make_fast():
            record.variables[convolutions.VARIABLE] = convolutions.FAST

    primitive.__init__ = init  # type: ignore[misc]


def swap_in(record: Record, level: str, *, eager: bool = False) -> None:
    """Replace MindSpore's training by that of boost_ext in this process.

    ``nn.TrainOneStepCell``, ``nn.TrainOneStepWithLossScaleCell``, ``Model`` and ``amp.build_train_network`` keep their
    arguments and outputs. A training that cannot be replaced runs in MindSpore.

    Args:
        record (Record): records each replacement.
        level (str): "O0", "O1" or "O2", see :class:`AutoBoost`.
        eager (bool): whether PYNATIVE_MODE runs forward and backward without compiling them. Default: False.
    """
    global _run
    _run = _Run(record, level, eager)
    if convolutions.needs_limit():
        for primitive in (ops.Conv2D, ops.Conv2DBackpropInput, ops.Conv3D, ops.Conv3DTranspose):
            _limit_with(primitive, record)
    _swap_class(ms.Model, "mindspore.Model", _model)
    _swap_class(nn.TrainOneStepCell, "nn.TrainOneStepCell", TrainOneStepCell)
    _swap_class(nn.TrainOneStepWithLossScaleCell, "nn.TrainOneStepWithLossScaleCell", TrainOneStepWithLossScaleCell)
    build = _reference.build_train_network

    def build_train_network(*args: Any, **kwargs: Any) -> nn.Cell:
        made = _made("amp.build_train_network", _built, args, kwargs)
        return build(*args, **kwargs) if made is None else made

    swapped = inspect.unwrap(build)
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mindspore" and vars(module).get("build_train_network") is swapped:
            module.build_train_network = build_train_network  # type: ignore[attr-defined]


def _swap_class(cls: type, what: str, make: Callable[..., Any]) -> None:
    before: Any = cls.__new__  # type: ignore[call-overload]

    def new(asked: type, *args: Any, **kwargs: Any) -> Any:
        made = _made(what, make, args, kwargs) if asked is cls else None
        if made is not None:
            return made
        if next(base for base in asked.__mro__ if base in _SWAPPED) is cls:
            _note_derived(asked, what, (*args, *kwargs.values()))
        return before(asked) if before is object.__new__ else before(asked, *args, **kwargs)

    cls.__new__ = staticmethod(new)  # type: ignore[assignment]


def _note_derived(asked: type, what: str, arguments: Sequence[Any]) -> None:
    """Record a training step of the script's own: a toolkit's is easily taken for one that was replaced."""
    kinds = [base.__module__ for base in asked.__mro__]
    foreign = kinds[0].startswith("mindspore.") or any(kind.startswith("boost_ext.") for kind in kinds)
    evaluates = what == "mindspore.Model" and not any(isinstance(thing, nn.Optimizer) for thing in arguments)
    if not (foreign or evaluates or _run.off):
        _run.record.leave(caller()[0], asked.__name__, f"a class derived from {what} runs its own code")


def _made(what: str, make: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The replacement, made from these arguments; None if MindSpore has to make it."""
    if _run.off:
        return None
    inner = bool(_run.where)  # part of something else that is being made
    if not inner:
        _run.where, _run.what = caller()[0], what
    networks = [thing for thing in (*args, *kwargs.values()) if isinstance(thing, nn.Cell)]
    before = _structure(networks)
    try:
        reason, made = _unsupported(), None
        if not reason:
            try:
                made = make(*args, **kwargs)
            except Exception as error:
                if _structure(networks) != before:  # then MindSpore would train another network
                    raise
                reason = _summary(error)
        if reason:
            _run.record.leave(_run.where, what, reason)
        return made
    finally:
        if not inner:
            _run.where = ""


def _structure(networks: Sequence[nn.Cell]) -> list[tuple[str, type]]:
    return [(name, type(cell)) for network in networks for name, cell in network.cells_and_names()]


def _unsupported() -> str:
    mode = ms.get_auto_parallel_context("parallel_mode")
    if mode not in ("stand_alone", "data_parallel"):
        return f"parallel mode {mode}"
    return "pipeline_stages is greater than 1" if ms.get_auto_parallel_context("pipeline_stages") > 1 else ""


def _summary(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    text = next((line for line in lines if line and not line.startswith("-")), "")  # without MindSpore's headings
    return f"{type(error).__name__}: {text[:160]}"


class _Once:
    """Runs ``__init__`` once: Python calls it again on the object that ``__new__`` returns."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "_made" not in self.__dict__:
            super().__init__(*args, **kwargs)
            self.__dict__["_made"] = True


class _Measured:
    """A training cell that measures its steps, and can hand over to MindSpore's own cell.

    At level O0 that cell trains the same Parameters with the same optimizer. It takes over if the step cannot be built
    for this network, and if PYNATIVE_MODE would compile it too often.
    """

    def __init__(self, network: nn.Cell, optimizer: nn.Cell, *args: Any, **kwargs: Any) -> None:
        notes, given = [], {key: value for key, value in kwargs.items() if key in _GIVEN}
        if in_pynative_mode():
            why = "--eager" if _run.eager else _python_of(network)
            notes = [f"forward and backward run eagerly: {why}" if why else "PYNATIVE_MODE: the step is one graph"]
            kwargs["compile"] = "off" if why else "step"
        if "plan" not in kwargs:
            kwargs["boost_level"] = _run.level
        super().__init__(network, optimizer, *args, **kwargs)  # type: ignore[call-arg]
        cell: Any = self
        swap = Swap(_run.where, _run.what, cell.plan, lambda: int(cell.steps_made), notes)
        plain = partial(_plain, cell, network, optimizer, *args, **given)
        # Not as attributes, which would make children of cells, with parameters of this one.
        self.__dict__.update(_swap=_run.record.swapped(swap), _make_plain=plain, _plain=None, _shapes=set())

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        state, began = self.__dict__, time.perf_counter()
        swap: Swap = state["_swap"]
        outputs, done = None, False
        if state["_plain"] is None and not self._varies(inputs):
            try:
                outputs, done = super().__call__(*inputs, **kwargs), True  # type: ignore[misc]
            except Exception as error:
                if swap.calls or swap.counter() or not self._give_way(_summary(error)):  # or a step was made
                    raise
        if not done:
            outputs = state["_plain"](*inputs, **kwargs)
        swap.stepped(began, time.perf_counter())
        return outputs

    def _varies(self, inputs: tuple[Any, ...]) -> bool:
        cell: Any = self
        if cell.compile_option != "step" or cell.ranks.size > 1 or not in_pynative_mode():
            return False  # all ranks would have to change cells together
        shapes = self.__dict__["_shapes"]
        shapes.add(tuple(tuple(x.shape) if isinstance(x, Tensor) else None for x in inputs))
        return len(shapes) > _SHAPES and self._give_way(
            f"PYNATIVE_MODE would compile the step for each of more than {_SHAPES} shapes of the inputs"
        )

    def _give_way(self, why: str) -> bool:
        """Hand over to MindSpore's cell; False above level O0, where it would train something else."""
        swap: Swap = self.__dict__["_swap"]
        if swap.plan.level != "O0":
            return False
        self.__dict__["_plain"] = self.__dict__["_make_plain"]()
        swap.gave_way = why
        _run.record.say(f"{swap.where}: MindSpore's own cell trains from here on: {why}")
        return True


def _plain(cell: Any, *args: Any, **kwargs: Any) -> nn.Cell:
    with_scale = isinstance(cell, nn.TrainOneStepWithLossScaleCell)
    _run.off = True
    try:
        made = (nn.TrainOneStepWithLossScaleCell if with_scale else nn.TrainOneStepCell)(*args, **kwargs)
    finally:
        _run.off = False
    return made.set_train(cell.training)


# Named like MindSpore's: that is what print() shows.
class TrainOneStepCell(_Once, _Measured, training_cells.TrainOneStepCell):
    """In the place of ``nn.TrainOneStepCell``."""


class TrainOneStepWithLossScaleCell(_Once, _Measured, training_cells.TrainOneStepWithLossScaleCell):
    """In the place of ``nn.TrainOneStepWithLossScaleCell``."""


class Model(_Once, model.Model):
    """In the place of ``mindspore.Model``."""

    _cells = (TrainOneStepCell, TrainOneStepWithLossScaleCell)


def _level(asked: Any) -> str:
    """The level of the run, which replaces the boost level of a call."""
    if asked in ("O1", "O2") and _run.level == "O0":
        raise ValueError(f"boost_level {asked!r} is that of mindspore.boost; --level {asked} trains with boost_ext's")
    return _run.level


_MODEL, _BUILD = inspect.signature(ms.Model.__init__), inspect.signature(_reference.build_train_network)


def _arguments(signature: inspect.Signature, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments by name, with the level of the run."""
    given = signature.bind(*args, **kwargs).arguments
    given |= given.pop("kwargs", {})
    given["boost_level"] = _level(given.get("boost_level"))
    return given


def _model(*args: Any, **kwargs: Any) -> Any:
    given = _arguments(_MODEL, None, *args, **kwargs)
    given.pop("self")
    return Model(**given)


def _built(*args: Any, **kwargs: Any) -> nn.Cell:
    given = _arguments(_BUILD, *args, **kwargs)
    boost = AutoBoost(given.pop("boost_level"))
    network, optimizer, loss_fn = (given.pop(name, None) for name in ("network", "optimizer", "loss_fn"))
    level = given.pop("level", "O0")
    return assemble(network, optimizer, loss_fn, level, boost, given, Model._cells).cell


def _python_of(network: nn.Cell) -> str:
    """A Python side effect in the network's code, which a compiled graph would run only once; "" without one."""
    seen: set[CodeType] = set()
    for _, cell in network.cells_and_names():
        if any(getattr(cell, name, None) for name in _HOOKS):
            return f"{type(cell).__name__} has hooks"
        if why := _python_in(inspect.unwrap(type(cell).construct), type(cell), seen):
            return why
    return ""


def _python_in(function: Any, owner: type, seen: set[CodeType]) -> str:
    code = getattr(function, "__code__", None)
    if code is None or code in seen or is_library(code.co_filename):
        return ""
    seen.add(code)
    name = function.__qualname__.rpartition("<locals>.")[2]
    for part in _codes(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname == "STORE_ATTR":
                return f"{name} sets {instruction.argval}"
        for used in part.co_names:
            value = function.__globals__.get(used, getattr(builtins, used, None))
            if value in (print, random, time) or used == "asnumpy" or (value is np and "random" in part.co_names):
                return f"{name} uses {used}"
            for called in (value, getattr(owner, used, None)):
                if isinstance(called, FunctionType) and (why := _python_in(called, owner, seen)):
                    return why
    return ""


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)
