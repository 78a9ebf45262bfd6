"""Training cells as public trainers write them: subclasses whose ``construct`` is their own.

Each function makes the class on a base: MindSpore's, which stands for the code as it was published, or ours.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

_unscaled = ops.MultitypeFuncGraph("unscaled")
_clipped = ops.MultitypeFuncGraph("clipped")
_averaged = ops.MultitypeFuncGraph("averaged")
_summed = ops.MultitypeFuncGraph("summed")


@_unscaled.register("Tensor", "Tensor")
def _unscaled_tensor(scale: Tensor, grad: Tensor) -> Tensor:
    return grad * ops.cast(ops.Reciprocal()(scale), ops.dtype(grad))


@_clipped.register("Number", "Tensor")
def _clipped_tensor(bound: float, grad: Tensor) -> Tensor:
    return nn.ClipByNorm()(grad, ops.cast(ops.tuple_to_array((bound,)), ops.dtype(grad)))


@_averaged.register("Tensor", "Tensor", "Tensor")
def _averaged_tensor(factor: Tensor, average: Tensor, weight: Tensor) -> Tensor:
    return ops.assign(average, average * factor + weight * (1 - factor))


@_summed.register("Tensor", "Tensor")
def _summed_tensor(total: Tensor, grad: Tensor) -> Tensor:
    return ops.assign_add(total, grad)


class MindSporesCell(nn.TrainOneStepWithLossScaleCell):
    """Runs on the CPU, where the operators of the base's check for overflow are missing."""

    def start_overflow_check(self, before: Any, computed: Any) -> Any:
        return Tensor([0] * 8, ms.int32), computed

    def get_overflow_status(self, status: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        finite = ops.isfinite(grads[0]).all()
        for grad in grads[1:]:
            finite = ops.logical_and(finite, ops.isfinite(grad).all())
        return ops.logical_not(finite)


def held(accumulation: type[nn.Cell], module: ModuleType) -> type[nn.Cell]:
    """An accumulation that reduces what it holds, and asks for the learning rate in every micro-batch."""
    accumulate, clear = module.gradient_accumulation_op, module.gradient_clear_op

    class Held(accumulation):
        def __init__(self, steps: int, optimizer: nn.Cell, reducer: Any) -> None:
            super().__init__(steps, optimizer)
            self.reducer = reducer

        def construct(self, loss: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
            add = ops.partial(accumulate, self._max_accumulation_step)
            loss = ops.depend(loss, self.hyper_map(add, self._grad_accumulation, grads))
            self._accumulation_step += 1
            if self._accumulation_step >= self._max_accumulation_step:
                loss = ops.depend(loss, self.optimizer(self.reducer(self._grad_accumulation)))
                loss = ops.depend(loss, self.hyper_map(ops.partial(clear), self._grad_accumulation))
                self._accumulation_step = 0
            else:
                loss = ops.depend(loss, self.optimizer.get_lr())
            return loss

    return Held


def image_trainer(base: type[nn.Cell], held_class: type[nn.Cell]) -> type[nn.Cell]:
    """Averaged weights, clipping by the global norm, accumulation; returns the loss alone."""

    class ImageTrainer(base):
        def __init__(self, network: nn.Cell, optimizer: nn.Cell, scale_sense: Any, accumulate: int = 1) -> None:
            super().__init__(network, optimizer, scale_sense)
            self.updates = Parameter(Tensor(0.0, ms.float32))
            self.weights_all = ParameterTuple(list(network.get_parameters()))
            self.ema_weight = self.weights_all.clone("ema", init="same")
            self.accumulate_grad = accumulate > 1
            if self.accumulate_grad:
                self.gradient_accumulation = held_class(accumulate, optimizer, self.grad_reducer)

        def ema_update(self) -> Any:
            self.updates += 1
            factor = 0.99 * (1 - ops.exp(-self.updates / 3))
            return self.hyper_map(ops.partial(_averaged, factor), self.ema_weight, self.weights_all)

        def construct(self, *inputs: Tensor) -> Tensor:
            weights = self.weights
            loss = self.network(*inputs)
            scale = self.scale_sense
            status, scale = self.start_overflow_check(loss, scale)
            sens = ops.ones_like(loss) * ops.cast(scale, ops.dtype(loss))
            grads = self.grad(self.network, weights)(*inputs, sens)
            grads = self.hyper_map(ops.partial(_unscaled, scale), grads)
            grads = ops.clip_by_global_norm(grads, clip_norm=0.5)
            if self.loss_scaling_manager:
                cond = self.get_overflow_status(status, grads)
                overflow = self.process_loss_scale(cond)
                if not overflow:
                    if self.accumulate_grad:
                        loss = self.gradient_accumulation(loss, grads)
                    else:
                        loss = ops.depend(loss, self.optimizer(self.grad_reducer(grads)))
                    loss = ops.depend(loss, self.ema_update())
            else:
                loss = ops.depend(loss, self.optimizer(self.grad_reducer(grads)))
            return loss

    return ImageTrainer


def language_trainer(base: type[nn.Cell]) -> type[nn.Cell]:
    """A loss scale of its own, which the manager moves; named inputs; each gradient clipped by its norm."""

    class LanguageTrainer(base):
        def __init__(self, network: nn.Cell, optimizer: nn.Cell, scale_update_cell: nn.Cell) -> None:
            super().__init__(network, optimizer, scale_update_cell)
            self.cast = ops.Cast()
            self.degree = 1
            self.loss_scaling_manager = scale_update_cell
            self.loss_scale = Parameter(Tensor(scale_update_cell.get_loss_scale(), ms.float32), name="loss_scale")
            self.enable_tuple_broaden = True

        def construct(self, ids: Tensor, labels: Tensor, sens: Tensor | None = None) -> Any:
            weights = self.weights
            loss = self.network(ids, labels)
            scale = self.loss_scale if sens is None else sens
            status, scale = self.start_overflow_check(loss, scale)
            grads = self.grad(self.network, weights)(ids, labels, self.cast(scale, ms.float32))
            grads = self.grad_reducer(grads)
            grads = self.hyper_map(ops.partial(_unscaled, self.cast(scale * self.degree, ms.float32)), grads)
            grads = self.hyper_map(ops.partial(_clipped, 0.5), grads)
            cond = self.get_overflow_status(status, grads)
            overflow = cond
            if sens is None:
                overflow = self.loss_scaling_manager(self.loss_scale, cond)
            if not overflow:
                self.optimizer(grads)
            return loss, cond, scale.value()

    return LanguageTrainer


def summing_trainer(base: type[nn.Cell]) -> type[nn.Cell]:
    """Sums of gradients under attributes of its own, one of which is also a name of mindspore.boost."""

    class SummingTrainer(base):
        def __init__(self, network: nn.Cell, optimizer: nn.Cell, scale_sense: Any, accumulation_step: int = 2) -> None:
            super().__init__(network, optimizer, scale_sense)
            self.accumulation_step = int(accumulation_step)
            self._grad_sum = optimizer.parameters.clone(prefix="grad_sum", init="zeros")
            self._zeros = optimizer.parameters.clone(prefix="zero", init="zeros")
            self.cur_step_num = Parameter(Tensor(0, ms.int64), requires_grad=False)

        def construct(self, *inputs: Tensor) -> Tensor:
            loss = self.network(*inputs)
            status, scale = self.start_overflow_check(loss, self.scale_sense)
            loss = loss / self.accumulation_step
            sens = ops.ones_like(loss) * ops.cast(scale, ops.dtype(loss))
            grads = self.grad(self.network, self.weights)(*inputs, sens)
            grads = self.grad_reducer(self.hyper_map(ops.partial(_unscaled, scale), grads))
            overflow = self.process_loss_scale(self.get_overflow_status(status, grads))
            if not overflow:
                self.hyper_map(ops.partial(_summed), self._grad_sum, grads)
                ops.assign_add(self.cur_step_num, 1)
                if self.cur_step_num % self.accumulation_step == 0:
                    loss = ops.depend(loss, self.optimizer(self._grad_sum))
                    self.hyper_map(ops.assign, self._grad_sum, self._zeros)
            return loss

    return SummingTrainer


def boost_trainer(base: type[nn.Cell]) -> type[nn.Cell]:
    """The construct of a cell of mindspore.boost, with a pass of its own over the gradients."""

    class BoostTrainer(base):
        def construct(self, *inputs: Tensor) -> Tensor:
            loss = self.network(*inputs)
            sens = ops.fill(loss.dtype, loss.shape, self.sens)
            grads = self.grad(self.network, self.weights)(*inputs, sens)
            grads = self.grad_reducer(self.hyper_map(ops.partial(_clipped, 1e3), grads))
            if self.use_grad_accumulation:
                loss = self.gradient_accumulation_process(loss, grads, sens, *inputs)
            else:
                loss = ops.depend(loss, self.optimizer(grads))
            return loss

    return BoostTrainer
