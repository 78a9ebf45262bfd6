"""Gradient accumulation: the hold slot. Several micro-batches make one update of the weights."""

from __future__ import annotations

from typing import Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.common.initializer import initializer

from boost_ext.ms import native
from boost_ext.ms.core.adaptive_clip import AdaptiveClipping
from boost_ext.ms.core.clipping import Clipping
from boost_ext.ms.core.state import hold_state, state
from boost_ext.ms.optim.adoption import native_step, whole_of
from boost_ext.ms.step.pipeline import ApplySlot

__all__ = ["ApplyAccumulated", "GradientAccumulation", "checked_steps", "gradient_accumulation_op", "gradient_clear_op"]

gradient_accumulation_op = ops.MultitypeFuncGraph("gradient_accumulation_op")
gradient_clear_op = ops.MultitypeFuncGraph("gradient_clear_op")


@gradient_accumulation_op.register("Int64", "Tensor", "Tensor")  # type: ignore[untyped-decorator]
def _add_mean(steps: int, accumulator: Parameter, grad: Tensor) -> Parameter:
    """``accumulator += grad / steps``, for a ``construct`` of a subclass."""
    ops.assign_add(accumulator, grad / steps)
    return accumulator


@gradient_clear_op.register("Tensor")  # type: ignore[untyped-decorator]
def _clear(accumulator: Parameter) -> Parameter:
    return ops.assign(accumulator, ops.zeros_like(accumulator))


def checked_steps(owner: str, name: str, value: Any) -> int:
    """``value``, which must be an int from 1 to 2**24 (the count reaches a graph as a float32 too)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{owner}: {name} must be an int, got {type(value).__name__}")
    if not 1 <= value <= 2**24:
        raise ValueError(f"{owner}: {name} must be from 1 to {2**24}, got {value}")
    return value


class GradientAccumulation(nn.Cell):
    r"""Hold gradients for several micro-batches, then update the weights with their mean.

    .. math::
        a \leftarrow a + g / N, \quad \text{and every N-th time } optimizer(a)

    The mean over N micro-batches of equal size is the gradient of the large batch, if the loss is a mean and no layer
    mixes the samples of a batch (batch norm does). The first micro-batch of a window overwrites the accumulators, so no
    pass clears them.

    The training cells call it only for gradients without inf or nan. A micro-batch that overflows is dropped, and the
    window waits for another one: an update is always the mean of exactly N micro-batches.

    Args:
        max_accumulation_step (int): N >= 1.
        optimizer (Cell): updates the weights; its ``parameters`` are those that the gradients belong to.
        share (GradientAccumulation, optional): use its accumulators and its count, for an optimizer of some of its
            parameters. Default: None.
        clipping (Clipping, optional): clips the mean before each update. Default: None.
        adaptive (AdaptiveClipping, optional): clips the units of the mean before each update. Default: None.
        fused_optimizer (bool): whether an optimizer of ``mindspore.nn`` steps as one native call on its own state.
            Default: True.

    Inputs:
        - **loss** (Tensor) - passed through.
        - **grads** (tuple[Tensor]) - one for each parameter, float32, float16 or bfloat16.
        - **scale** (Tensor, optional) - one float32 that the gradients are divided by. Default: none.

    Outputs:
        Tensor, `loss`.

    Raises:
        TypeError: if `max_accumulation_step` is no int.
        ValueError: if it is less than 1.

    Attributes:
        accumulators (ParameterTuple): the sums so far, float32, ``grad_accumulation.<name>``.
        count (Parameter): int32 scalar, ``accumulation_step``: micro-batches in the accumulators; 0 right after an
            update.
        hyper_map, weights, _max_accumulation_step, _grad_accumulation, _accumulation_step: the last three are N,
            `accumulators` and `count`; for subclasses written for ``mindspore.boost``, with a ``construct`` that uses
            them.

    Examples:
        >>> from mindspore import Parameter, Tensor, nn
        >>> from boost_ext.boost import GradientAccumulation
        >>> w = Parameter(Tensor([1.0, 1.0]), name="w")
        >>> hold = GradientAccumulation(2, nn.SGD([w], 0.5))
        >>> for grad in ([1.0, 0.0], [3.0, 2.0]):
        ...     _ = hold(Tensor(0.0), (Tensor(grad),))
        >>> print(w.asnumpy())
        [0.  0.5]
    """

    def __init__(
        self,
        max_accumulation_step: int,
        optimizer: nn.Cell,
        *,
        share: GradientAccumulation | None = None,
        clipping: Clipping | None = None,
        adaptive: AdaptiveClipping | None = None,
        fused_optimizer: bool = True,
    ) -> None:
        super().__init__(auto_prefix=False)
        steps = checked_steps(type(self).__name__, "max_accumulation_step", max_accumulation_step)
        self.max_accumulation_step = steps
        self.optimizer, self.step = optimizer, native_step(optimizer, fused_optimizer) or optimizer
        weights = optimizer.parameters
        if share is None:
            self.accumulators = ParameterTuple(
                Parameter(
                    initializer("zeros", w.shape, ms.float32), name=f"grad_accumulation.{w.name}", requires_grad=False
                )
                for w in weights
            )
            self.count = state("accumulation_step", 0, ms.int32)
        else:
            of_weight = {id(w): a for w, a in zip(share.optimizer.parameters, share.accumulators, strict=True)}
            self.accumulators = ParameterTuple(of_weight[id(w)] for w in weights)
            self.count = share.count
        self.clip = None if clipping is None else clipping.cell()
        self.clip_units = None if adaptive is None else adaptive.cell(weights)
        # A native step takes float32 gradients of half weights; float16 would lose what the loss scale has saved.
        native_takes = hasattr(self.step, "step_unless")
        self.dtypes = tuple(ms.float32 if native_takes else w.dtype for w in weights)
        self.accumulate = native.Accumulate()
        self.steps = Tensor([steps], ms.float32)
        self.no_scale = Tensor([1.0], ms.float32)
        self.zero = Tensor(0, ms.int32)
        self.hyper_map, self.weights = ops.HyperMap(), weights
        self._max_accumulation_step = steps
        self._grad_accumulation, self._accumulation_step = self.accumulators, self.count
        hold_state(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_accumulation_step" and isinstance(value, int):  # as in a graph; a Cell refuses it
            ops.assign(self.count, Tensor(value, ms.int32))
        else:
            super().__setattr__(name, value)

    def construct(self, loss: Tensor, grads: tuple[Tensor, ...], scale: Tensor | None = None) -> Tensor:
        divisor = ops.depend(self.no_scale if scale is None else scale, self.all_state)
        done = self.accumulate(divisor, self.steps, self.count, self.accumulators, grads)
        count = ops.depend(self.count, done) + 1
        if count >= self.max_accumulation_step:
            if self.clip is not None:
                done = ops.depend(done, self.clip(self.accumulators))
            mean = ops.depend(self._mean(), done)
            if self.clip_units is not None:
                mean = self.clip_units(mean)
            loss = ops.depend(loss, self.step(mean))
            ops.assign(self.count, self.zero)
        else:
            ops.assign(self.count, count)
        return loss

    def _mean(self) -> tuple[Tensor, ...]:
        mean: tuple[Tensor, ...] = ()
        for m in range(len(self.dtypes)):
            mean = (*mean, ops.cast(self.accumulators[m], self.dtypes[m]))
        return mean


class ApplyAccumulated(ApplySlot):
    """The hold slot and the apply slot: accumulates gradients, and updates the weights after enough micro-batches."""

    unscales = True
    refuses_rows = "with accumulation_steps"

    def __init__(self, accumulation: GradientAccumulation, unscale: bool) -> None:
        super().__init__(auto_prefix=False)
        self.accumulation = accumulation
        self.unscale = unscale

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, *inputs: Tensor) -> Tensor:
        if self.unscale:
            return self.accumulation(loss, grads, scale)
        return self.accumulation(loss, grads)

    @classmethod
    def of(cls, cell: Any, optimizer: nn.Cell) -> ApplyAccumulated:
        """That of a training cell."""
        return cls(cls.hold(cell, optimizer) if cell.freeze else cell.accumulation, cell.slots_unscale)

    @staticmethod
    def hold(cell: Any, group: nn.Cell | None = None) -> GradientAccumulation:
        """The accumulation of a training cell, or that of a group of its optimizer, on the same state."""
        return GradientAccumulation(
            cell.options.accumulation_steps,
            whole_of(cell.stepped) if group is None else group,
            share=None if group is None else cell.accumulation,
            clipping=cell.clipping,
            adaptive=cell.adaptive_clipping,
            fused_optimizer=cell.options.fused_optimizer,
        )
