"""Stops a training script at its first training step, whoever would make it."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore.graph import _parse, api
from mindspore.graph._utils.pijit_context import PIJitCaptureContext

import boost_ext
from boost_ext.ms.core.common_head import CommonHeadLastFN
from boost_ext.ms.core.compiled import Forward
from boost_ext.ms.loss_scale.group_loss_scale import AnyPrecision
from boost_ext.ms.optim.thor_layers import Observed
from boost_ext.ms.surgery.less_bn import LessBN
from boost_ext.ms.surgery.residual import RemovedBatchNorm
from boost_ext.scripts import ARRAY_OPS, ARRAY_STEPS

__all__ = ["Built", "FirstStep", "caller", "family", "is_library", "is_ours", "watching"]

Built = list[tuple[Any, str]]
"""Objects, and the lines that built them."""

_LIBRARIES = tuple(f"{Path(str(module.__file__)).parent}{os.sep}" for module in (ms, boost_ext))
_OURS = _LIBRARIES[1]
_TRAINERS = (nn.Optimizer, nn.TrainOneStepCell)
# Parts of a network: calling it trains nothing.
_LAYERS = (AnyPrecision, CommonHeadLastFN, Forward, LessBN, Observed, RemovedBatchNorm, nn.WithLossCell)
_PARSES = ("get_class_instance_type", "get_obj_type", "get_parse_method_of_class")
"""The graph compiler asks them about each object that a graph uses."""


class FirstStep(BaseException):
    """Stops the script. No Exception, so that the script does not catch it."""

    def __init__(self, what: str, trainer: Any) -> None:
        super().__init__(what)
        self.what, self.trainer = what, trainer
        self.where, self.frame, entry = caller()
        if entry is not None and entry.f_code.co_filename.startswith(_OURS) and entry.f_code.co_filename != __file__:
            # Inside of a method or function of ours, which is what the script knows by name.
            self.trainer = entry.f_locals.get("self", trainer)
            names = (_name(self.trainer), entry.f_code.co_name) if "self" in entry.f_locals else (entry.f_code.co_name,)
            self.what = f"the first call of {'.'.join(names)}"
        self.ours = is_ours(self.trainer)


def is_library(file: str) -> bool:
    """Whether the code of this file is MindSpore's or ours, or made by neither the script nor a file."""
    return file.startswith(_LIBRARIES) or file.startswith("<")


def caller() -> tuple[str, FrameType | None, FrameType | None]:
    """The innermost line and frame that are not the libraries' own, and what that frame has called."""
    frame: FrameType | None = sys._getframe(1)
    entry = None
    while frame is not None and is_library(frame.f_code.co_filename):
        entry, frame = frame, frame.f_back
    where = "unknown" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
    return where, frame, entry


def is_ours(thing: Any) -> bool:
    """Whether it is a function or of a class of this package, or derived from one of its optimizers and cells."""
    kinds = (thing,) if isinstance(thing, FunctionType) else type(thing).__mro__
    return any(kind.__module__.startswith("boost_ext.") for kind in kinds)


def _trains(thing: Any) -> bool:
    return isinstance(thing, _TRAINERS) or (
        isinstance(thing, nn.Cell) and is_ours(thing) and not isinstance(thing, _LAYERS)
    )


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = name in vars(owner)
    before = vars(owner).get(name)  # not by getattr, which would bind a class method
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


@contextlib.contextmanager
def watching(built: Built, stops: list[FirstStep]) -> Iterator[None]:
    """Record models, optimizers and training cells that are built; raise FirstStep where a step would be made.

    Args:
        built: takes each of them.
        stops: takes what is raised, which the script or MindSpore may turn into something else.
    """

    def stop(what: str, trainer: Any) -> None:
        stops.append(FirstStep(what, trainer))
        raise stops[-1]

    def guarded(call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def guard(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _trains(self):
                stop(_called(self), self)
            return call(self, *args, **kwargs)

        return guard

    def compiled(compile: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile)
        def search(self: Any, *args: Any, **kwargs: Any) -> Any:
            root = self if isinstance(self, nn.Cell) else self.fn
            for trainer in _used(root, set()):
                stop(f"the first call of {type(trainer).__name__} in the graph of {_name(root)}", trainer)
            return compile(self, *args, **kwargs)

        return search

    def parsed(ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def search(thing: Any, *args: Any, **kwargs: Any) -> Any:
            if _trains(thing):
                stop(f"the first call of {type(thing).__name__} in a graph", thing)
            return ask(thing, *args, **kwargs)

        return search

    def training(method: str) -> Callable[..., Any]:
        return lambda self, *args, **kwargs: stop(f"{type(self).__name__}.{method}", self)

    def on_arrays(name: str) -> Callable[..., Any]:
        return lambda *args, **kwargs: stop(f"the first call of boost_ext.ops.{name}", getattr(ARRAY_OPS, name))

    def gradient(grad: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(grad)
        def first(*args: Any, **kwargs: Any) -> Any:
            if not any(isinstance(thing, nn.Optimizer) for thing, _ in built):
                stop("the first gradient, in a script without an optimizer", None)
            return grad(*args, **kwargs)

        return first

    with contextlib.ExitStack() as stack:

        def replace(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(_replaced(owner, name, value))

        def guard_class(cls: type) -> None:
            if "__call__" in vars(cls):
                replace(cls, "__call__", guarded(vars(cls)["__call__"]))

        for cls in family(nn.Cell):
            guard_class(cls)
        # Classes of the script, and of our modules that it imports.
        replace(nn.Cell, "__init_subclass__", classmethod(lambda cls, **kwargs: guard_class(cls)))
        for cls in (ms.Model, *_TRAINERS):
            replace(cls, "__init__", _recording(vars(cls)["__init__"], built))
        for method in ("train", "fit"):
            replace(ms.Model, method, training(method))
        replace(nn.Cell, "compile", compiled(nn.Cell.compile))
        replace(api._JitExecutor, "compile", compiled(api._JitExecutor.compile))
        # A function captured by its bytecode would be traced through what is replaced here: it runs as it is.
        replace(PIJitCaptureContext, "__call__", lambda self, function: function)
        for name in _PARSES:
            replace(_parse, name, parsed(getattr(_parse, name)))
        replace(api._PyNativeExecutor, "grad", gradient(api._PyNativeExecutor.grad))
        for name in ARRAY_STEPS:
            replace(ARRAY_OPS, name, on_arrays(name))
        try:
            yield
        finally:
            if stops:  # MindSpore cleans up after an Exception in a graph or a gradient, and FirstStep is none
                api._pynative_executor.clear_res()


def family(cls: type) -> set[type]:
    """The class and all that are derived from it."""
    return {cls}.union(*map(family, cls.__subclasses__()))


def _called(trainer: Any) -> str:
    return f"the first call of {_name(trainer)}"


def _name(thing: Any) -> str:
    return thing.__name__ if isinstance(thing, FunctionType) else type(thing).__name__.lstrip("_")


def _recording(init: Callable[..., None], built: Built) -> Callable[..., None]:
    @functools.wraps(init)
    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        built.append((self, caller()[0]))

    return record


def _used(root: Any, seen: set[int]) -> Iterator[Any]:
    """What trains, of all that a cell holds or that a function names, before the graph compiler looks at it.

    The compiler would find it too, and write its error and a file about it.
    """
    if id(root) in seen:
        return
    seen.add(id(root))
    if isinstance(root, nn.Cell):
        yield from (cell for _, cell in root.cells_and_names() if _trains(cell))
        root = getattr(type(root).construct, "__wrapped__", type(root).construct)
    if isinstance(root, FunctionType) and not root.__code__.co_filename.startswith(_LIBRARIES):
        named = [root.__globals__[name] for name in root.__code__.co_names if name in root.__globals__]
        for cell in root.__closure__ or ():
            with contextlib.suppress(ValueError):  # not bound yet
                named.append(cell.cell_contents)
        for thing in named:
            if isinstance(thing, (nn.Cell, FunctionType)):
                yield from _used(thing, seen)
