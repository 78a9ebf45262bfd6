"""One training step for one set of trained weights: source, guard, apply, update of the loss scale.

The training cells (:mod:`boost_ext.ms.step.cells`) own the state and assemble the slots. With gradient freezing each
group of parameters has a pipeline of its own, on the same state.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.nn.cell import _cell_graph_executor

from boost_ext.ms import native
from boost_ext.ms.core.compiled import Gradients
from boost_ext.ms.core.fast_calls import call_fast
from boost_ext.ms.core.sparse_gradients import Values
from boost_ext.ms.core.state import hold_state, state
from boost_ext.ms.optim.adoption import native_step
from boost_ext.ms.ranks.grad_reducer import Agreement

if TYPE_CHECKING:
    from boost_ext.ms.core.adaptive_clip import AdaptiveClipping
    from boost_ext.ms.core.clipping import Clipping

__all__ = [
    "NOT_RUN",
    "SLOTS",
    "ApplyFused",
    "ApplyOptimizer",
    "ApplySlot",
    "Choice",
    "Guard",
    "NoGuard",
    "Pipeline",
    "apply_optimizer",
    "refused_rows",
    "require_no_groups",
    "step_counters",
]

NOT_RUN = -1.0
"""A count of inf in the report which means that this pipeline has made no step since it was built."""
SLOTS = ("source", "guard", "apply", "update_scale")
"""The slots that are timed. The time of apply includes hold, which it calls."""


class ApplySlot(nn.Cell):
    """``cell(loss, grads, scale, *inputs)``: updates the weights and returns the loss.

    Attributes:
        unscales: it divides the gradients by the loss scale. The guard then only reads them.
        skips: it takes the overflow flag instead of the inputs, and makes no step if the flag is set.
        clipping: the settings of clipping that the guard fills in, or None.
        refuses_rows: the option that excludes RowTensors; "" if they are accepted.
    """

    unscales = False
    skips = False
    clipping: Clipping | None = None
    refuses_rows = ""


class ApplyOptimizer(ApplySlot):
    """The apply slot: the optimizer, on gradients that the guard has unscaled."""

    def __init__(self, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, *inputs: Tensor) -> Tensor:
        return ops.depend(loss, self.optimizer(grads))


class ApplyFused(ApplySlot):
    """The apply slot of an optimizer of boost_ext. It divides the gradients by the loss scale and heeds the flag; with
    ``clipping`` the guard gives the divisor.

    This saves a pass over the gradients, and a branch in the graph."""

    unscales = True
    skips = True

    def __init__(self, optimizer: nn.Optimizer, unscale: bool, clipping: Clipping | None) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.unscale = unscale
        self.clipping = clipping
        self.divisor = Tensor([1.0], ms.float32) if clipping is None else clipping.divisor

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, found: Tensor) -> Tensor:
        divisor = scale if self.unscale and self.clipping is None else ops.depend(self.divisor, found)
        return ops.depend(loss, self.optimizer.step_unless(found, divisor, grads))


class Clipped(ApplySlot):
    """Clips the gradients, then calls a slot.

    Args:
        clip: ``clip(grads)``, or with ``scaled`` ``clip(grads, scale)``: writes them, or returns others.
        option: the one that asks for it.
        scaled: whether the gradients hold the loss scale of the cell, which the slot takes out.
    """

    def __init__(self, slot: ApplySlot, clip: nn.Cell, option: str, scaled: bool = False) -> None:
        super().__init__(auto_prefix=False)
        self.slot, self.clip, self.scaled = slot, clip, scaled
        self.unscales, self.skips, self.refuses_rows = slot.unscales, slot.skips, f"with {option}"

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, *inputs: Tensor) -> Tensor:
        clipped = self.clip(grads, scale) if self.scaled else self.clip(grads)
        if self.clip.in_place:
            clipped = ops.depend(grads, clipped)
        return self.slot(loss, clipped, scale, *inputs)


def apply_optimizer(
    optimizer: nn.Cell,
    unscale: bool,
    clipping: Clipping | None,
    whole: bool,
    fused: bool = True,
    adaptive: AdaptiveClipping | None = None,
) -> ApplySlot:
    """The apply slot of an optimizer.

    Args:
        unscale: whether the slot has to divide the gradients by the loss scale.
        whole: whether all gradients have the same scale, so that the guard can find their global norm.
        fused: whether an optimizer of ``mindspore.nn`` may step as one native call.
        adaptive: clips units; without `clipping`.
    """
    slot: ApplySlot
    step = native_step(optimizer, fused)
    slot = ApplyOptimizer(optimizer) if step is None else ApplyFused(step, unscale, clipping if whole else None)
    if adaptive is not None:
        return Clipped(slot, adaptive.cell(optimizer.parameters), "adaptive_clip", unscale and slot.unscales)
    return slot if clipping is None or slot.clipping is not None else Clipped(slot, clipping.cell(), "clip_norm")


class NoGuard(nn.Cell):
    """A guard that reads nothing and never reports an overflow."""

    checks = False
    groups = None
    writes = False

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.not_found = Tensor([False])

    def construct(self, scale: Tensor, report: Parameter, grads: Any) -> Tensor:
        return self.not_found


class Guard(nn.Cell):
    """The guard slot: one overflow flag, and a report on each gradient.

    Args:
        scaled: whether the gradients hold the loss scale. The report never does.
        divide: whether to divide them by it, in place.
        clipping: filled in during the same read, or None.
    """

    checks = True

    def __init__(self, scaled: bool, divide: bool, clipping: Clipping | None = None) -> None:
        super().__init__(auto_prefix=False)
        self.groups = None
        self.scaled, self.writes = scaled, divide
        self.unit = Tensor([1.0], ms.float32)
        self.clips = clipping is not None
        if clipping is not None:
            self.clip_norm, self.own_scale = clipping.clip_norm, clipping.own_scale
            self.norm, self.divisor = clipping.norm, clipping.divisor
            self.check = native.CheckAndClip()
        else:
            self.check = native.UnscaleAndCheckReport(write=divide)

    def construct(self, scale: Tensor, report: Parameter, grads: Any) -> Tensor:
        divisor = scale if self.scaled else self.unit
        if self.clips:
            return self.check(divisor, self.clip_norm, self.own_scale, report, self.norm, self.divisor, grads)
        return self.check(grads, divisor, report)


def require_no_groups(owner: str, network: nn.Cell) -> None:
    """Refuse a network that scales gradients by group, in a cell that does not divide by these scales."""
    if any(getattr(cell, "loss_scale_number", 0) for _, cell in network.cells_and_names()):
        raise ValueError(
            f"{owner}: network calls a GroupLossScaleManager, so the scale_sense of a cell with loss scaling "
            "must be that manager: nothing else takes its scales out of the gradients"
        )


def refused_rows(
    owner: str, slot: ApplySlot, optimizer: nn.Cell, guard: nn.Cell, ranks: int, freeze: bool
) -> str | None:
    """The start of the error message for RowTensors; None if they are accepted. `optimizer` is the user's.

    Some rows may be listed twice. Norms and sums of what is listed are then not those of the gradient, so only an
    optimizer can take them.
    """
    if slot.clipping is not None or slot.refuses_rows:
        what = slot.refuses_rows or "with clip_norm"
    elif guard.groups is not None:
        what = "with a GroupLossScaleManager"
    elif ranks > 1:
        what = "with several ranks"
    elif freeze:
        what = "with a FreezeOpt"
    elif not getattr(optimizer, "takes_rows", False):
        what = f"for {'nn.' if type(optimizer).__module__.startswith('mindspore') else ''}{type(optimizer).__name__}"
    else:
        return None
    return f"{owner}: gradients must be Tensors {what}"


def step_counters() -> tuple[Parameter, Parameter]:
    """Shared by the pipelines of one cell: the number of steps made, and the number of the last pipeline.

    The step writes them, since a graph around the cell calls no Python. Checkpoints hold them."""
    return state("boost.steps", [0], ms.int32), state("boost.last", [0], ms.int32)


class Pipeline(nn.Cell):
    """``cell(*inputs)``: one step; returns loss, overflow and the loss scale that it used.

    Args:
        counters: of :func:`step_counters`.
        number: its place among the pipelines of the cell; None if it is the only one.
        average: ``average(found, loss)`` after the apply slot, or None.

    Attributes:
        report (Parameter): float64 (weights, 4), see :class:`boost_ext.ms.native.UnscaleAndCheckReport`.
        stamps (Parameter): float64 (5,), seconds before and after each of :data:`SLOTS`, if ``instrumented``.
    """

    def __init__(
        self,
        source: Gradients,
        guard: nn.Cell,
        apply_slot: ApplySlot,
        update_scale: nn.Cell | None,
        scale_sense: Parameter,
        barriers: tuple[Parameter, Parameter],
        weights: Sequence[Parameter],
        *,
        name: str,
        compile: bool,
        counters: tuple[Parameter, Parameter],
        number: int | None = None,
        ranks: int = 1,
        average: nn.Cell | None = None,
        instrumented: bool = False,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.steps, self.last = counters
        self.of_several = number is not None
        self.one_step, self.number = Tensor([1], ms.int32), Tensor([number or 0], ms.int32)
        self.as_scalar = ops.Squeeze()  # of shape (1,); the graph compiler takes three times as long for a reshape
        self.source = source
        self.guard = guard
        self.agreement = Agreement(guard.groups) if ranks > 1 and guard.checks else None
        self.apply_slot = apply_slot
        self.average = average
        self.update_scale = update_scale
        self.scale_sense = scale_sense
        # The gradient of a term that is added to the loss is the scale itself, in the same memory, and the guard
        # divides gradients in place. So the step works on products of the scale that no compiler can fold.
        self.one, self.unit = barriers
        self.names = tuple(w.name for w in weights)
        self.values_of = Values(self.names) if source.whole is None else None  # else the source has refused rows
        nothing_found = np.tile([NOT_RUN, 0.0, -1.0, 0.0], (len(self.names), 1))
        self.report = state(f"{name}.finiteness", nothing_found, ms.float64)
        self._compile, self._released = compile, False
        self.instrumented = instrumented
        if instrumented:
            self.stamps = state(f"{name}.stamps", np.zeros(len(SLOTS) + 1), ms.float64)
            self.timestamp = native.Timestamp()
            self.slots = tuple(Tensor([i], ms.int32) for i in range(len(SLOTS) + 1))
        hold_state(self)
        self.__dict__["_fixed"] = None

    @property
    def compile_phase(self) -> Any:
        """The name of the graph of the last call. MindSpore sets it on every cell of a step in each call. Only the
        graph compiler reads it, so it is passed on when it changes."""
        return self._compile_phase

    @compile_phase.setter
    def compile_phase(self, value: str) -> None:
        if value != self._compile_phase:
            nn.Cell.compile_phase.fset(self, value)

    def __call__(self, *inputs: Any) -> Any:
        # A compiled graph keeps the size and the storage that its Parameters had when it was compiled.
        if self._fixed is None:
            self._fix()
        native.require_same(self._fixed)
        is_eager = native.in_pynative_mode()
        try:
            if is_eager and not self._compile:
                return super().__call__(*inputs)
            return call_fast(self, self.compile_and_run if is_eager else super().__call__, *inputs)
        except RuntimeError as error:
            if self.source.whole is not None and "Undetermined" in str(error):
                # The compiler gave up before types were known. Compiled alone, the source names the refused gradient.
                self.source.compile(Tensor(1.0, ms.float32), *inputs)
            raise
        except (TypeError, ValueError, OSError) as error:
            self._require_source(error)
            raise

    def release(self) -> None:
        """Free the memory of the compiled graph, 100 MB and more on a ResNet. The next call compiles it again.

        Only the first call frees it: a pipeline that is used again after its end, in a loop that calls ``Model.train``
        for each epoch, is used often.
        """
        if self._released:
            return
        self._released = True
        _cell_graph_executor.del_net_res(self, self.compile_cache)
        self.compile_cache.clear()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's: freed blocks stay with the process otherwise
        if trim is not None:
            trim(0)

    def _require_source(self, error: Exception) -> None:
        """Raise a TypeError with advice if the network has no source for the graph compiler (exec(), a console)."""
        if native.in_pynative_mode() and not (self._compile or self.source.compiles):
            return
        for _, cell in self.source.network.cells_and_names():
            try:
                inspect.getsource(type(cell).construct)
            except (OSError, TypeError):
                raise TypeError(
                    f"training step: the source of {type(cell).__name__}.construct must be in a file, which the graph "
                    'compiler reads, got none; compile="off" trains it in PYNATIVE_MODE'
                ) from error

    def _fix(self) -> None:
        for _, cell in self.cells_and_names():
            if hasattr(cell, "require_halves"):
                cell.require_halves()
        for _, cell in self.source.network.cells_and_names():
            if hasattr(cell, "require_among"):
                cell.require_among(self.all_state)
        self.__dict__["_fixed"] = native.fixed_arrays(self.all_state, "training step")

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = ops.depend(self.as_scalar(self.scale_sense * self.unit), self.all_state)
        scale_in = self._stamp(0, self.as_scalar(self.scale_sense * self.one))
        loss, grads = self.source(scale_in, *inputs)
        values, divisor = grads, self.scale_sense
        if self.values_of is not None:
            values = self.values_of(grads)
        if self.instrumented:
            divisor = ops.depend(divisor, self.timestamp(self.stamps, self.slots[1], (loss, *values)))
        found = self.guard(divisor, self.report, values)
        if self.agreement is not None:
            found = self.agreement(found)
        found = self._stamp(2, found)
        if self.guard.writes or not self.apply_slot.skips:  # else the slot takes `found`; grads may be rows
            grads = ops.depend(grads, found)
        overflow = self.as_scalar(found)
        if self.apply_slot.skips:
            loss = self.apply_slot(loss, grads, self.scale_sense, found)
        elif not self.guard.checks or not overflow:
            loss = self.apply_slot(loss, grads, self.scale_sense, *inputs)
        if self.average is not None:
            loss = ops.depend(loss, self.average(found, loss))
        loss = self._stamp(3, loss)
        if self.update_scale is not None:
            overflow = self.update_scale(self.scale_sense, ops.depend(overflow, loss))
        # Last: a step that a rank did not finish does not count.
        counted = ops.assign_add(self.steps, ops.depend(self.one_step, (loss, overflow)))
        overflow = ops.depend(overflow, counted)
        if self.of_several:
            overflow = ops.depend(overflow, ops.assign(self.last, self.number))
        return loss, self._stamp(4, overflow), scale

    def _stamp(self, slot: int, value: Tensor) -> Tensor:
        if self.instrumented:
            return ops.depend(value, self.timestamp(self.stamps, self.slots[slot], (value,)))
        return value


class Choice(nn.Cell):
    """``cell(index, *inputs)``: the pipeline of this number, chosen inside a graph."""

    def __init__(self, pipelines: Sequence[nn.Cell], first: int = 0) -> None:
        super().__init__(auto_prefix=False)
        self.pipeline = pipelines[0]
        self.number = first
        self.others = Choice(pipelines[1:], first + 1) if len(pipelines) > 1 else None
        hold_state(self)

    def construct(self, index: Tensor, *inputs: Tensor) -> Any:
        if self.others is None:
            return self.pipeline(*inputs)
        if ops.depend(index, self.all_state) == self.number:
            return self.pipeline(*inputs)
        return self.others(index, *inputs)
