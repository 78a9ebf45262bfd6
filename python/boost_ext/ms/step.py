"""The training cells: one pipeline, in which each algorithm is one slot.

source (loss and gradients) -> guard (one flag) -> apply (gradients into weights) -> update of the loss scale
"""

from __future__ import annotations

import numbers
from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops

from boost_ext.config import DimReduceConfig
from boost_ext.ms import native
from boost_ext.ms.compiled import Gradients
from boost_ext.ms.dim_reduce import DimReduce, projection_matrix

__all__ = ["BoostTrainOneStepCell", "BoostTrainOneStepWithLossScaleCell"]

Compile = Literal["step", "network", "off"]


class _ApplyOptimizer(nn.Cell):
    """The apply slot: the optimizer, on gradients that the guard has unscaled."""

    unscales = False

    def __init__(self, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, *inputs: Tensor) -> Tensor:
        return ops.depend(loss, self.optimizer(grads))


class _ApplyDimReduce(nn.Cell):
    """The apply slot: a dimension-reduced step, which takes scaled gradients."""

    unscales = True

    def __init__(self, network: nn.Cell, optimizer: nn.Cell, config: DimReduceConfig, compile: Compile) -> None:
        super().__init__(auto_prefix=False)
        self.weights = ParameterTuple(optimizer.parameters)
        self.weights_clone = ParameterTuple(
            Parameter(w.value(), name=f"dim_reduce.weights_clone.{w.name}", requires_grad=False) for w in self.weights
        )
        self.dim_reduce = DimReduce(
            network,
            optimizer,
            self.weights,
            projection_matrix(self.weights, config),
            config.n_components,
            config.rho,
            config.gamma,
            config.alpha,
            config.sigma,
            0,
            1,
            compile=compile != "off",
        )

    def construct(self, loss: Tensor, grads: Any, scale: Tensor, *inputs: Tensor) -> Tensor:
        return self.dim_reduce(loss, grads, scale, self.weights, self.weights_clone, *inputs)


def _scale_parameter(value: float | Tensor) -> Parameter:
    return Parameter(Tensor(value, ms.float32), name="scale_sense", requires_grad=False)


def _ones(name: str) -> Parameter:
    return Parameter(Tensor(1.0, ms.float32), name=name, requires_grad=False)


class BoostTrainOneStepCell(nn.TrainOneStepCell):
    r"""A training step: forward, backward, check, update.

    Stands where ``mindspore.boost.BoostTrainOneStepCell`` stood. A step whose gradients hold inf or nan changes
    nothing: no weight, no optimizer state, no state of an algorithm; ``overflow`` says so.

    Args:
        network (Cell): the network with its loss; a single output.
        optimizer (Cell): updates the weights.
        sens (numbers.Number): what the gradient of the loss is multiplied with; the optimizer's ``loss_scale`` takes it
            out again. Default: 1.0.
        compile (str, optional): what PYNATIVE_MODE compiles; GRAPH_MODE compiles everything. ``"step"``: the whole
            step, one graph. ``"network"``: forward and backward; check and optimizer run eagerly, on the native ops by
            pointer. ``"off"``: nothing, for debugging or for a network that the graph compiler does not take.
            Default: ``"step"``, which is the fastest by far (docs/step.md has the numbers).
        dim_reduce (DimReduceConfig, optional): train with :class:`DimReduce`. Default: None.

    Inputs:
        - **\*inputs** (tuple[Tensor]) - the network's inputs.

    Outputs:
        Tuple of three Tensors.

        - **loss** - as the network returns it, unscaled.
        - **overflow** - scalar, bool.
        - **loss scale** - scalar, float32: the one that this step used.

    Raises:
        TypeError: if `sens` is not a number.
        ValueError: if `sens` is not finite and positive, or `compile` is none of the three.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        sens: float = 1.0,
        *,
        compile: Compile = "step",
        dim_reduce: DimReduceConfig | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(sens, bool) or not isinstance(sens, numbers.Real):
            raise TypeError(f"{name}: sens must be a number, got {type(sens).__name__}")
        if not 0 < float(sens) <= np.finfo(np.float32).max:
            raise ValueError(f"{name}: sens must be finite and > 0, got {sens}")
        self._assemble(network, optimizer, _scale_parameter(float(sens)), compile, dim_reduce, unscale=False)

    def _assemble(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        scale_sense: Parameter,
        compile: Compile,
        dim_reduce: DimReduceConfig | None,
        *,
        unscale: bool,
    ) -> None:
        """Put the slots together. ``unscale``: the optimizer gets gradients without the loss scale."""
        if compile not in ("step", "network", "off"):
            raise ValueError(f"{type(self).__name__}: compile must be 'step', 'network' or 'off', got {compile!r}")
        nn.TrainOneStepCell.__init__(self, network, optimizer)
        self.scale_sense = scale_sense
        # The guard divides gradients in place. The gradient of a term that is added to the loss is the scale itself,
        # the same memory; so the scale goes in as a product that no compiler can fold, and comes out as another one.
        self.one, self.unit = _ones("scale_in"), _ones("scale_out")
        reducer = self.grad_reducer if self.reducer_flag else None
        self.source = Gradients(network, self.weights, reducer, compile != "off")
        self.guard = native.UnscaleAndCheck()
        self.apply_slot = (
            _ApplyOptimizer(optimizer)
            if dim_reduce is None
            else _ApplyDimReduce(network, optimizer, dim_reduce, compile)
        )
        self.unscales_in_guard = unscale and not self.apply_slot.unscales
        self.unscaled = Tensor([1.0], ms.float32)
        self._compile_step = compile == "step"

    def __call__(self, *inputs: Any) -> Any:
        if self._compile_step and native.in_pynative_mode():
            return self.compile_and_run(*inputs)
        return super().__call__(*inputs)

    def construct(self, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scale = ops.reshape(self.scale_sense * self.unit, ())
        loss, grads = self.source(ops.reshape(self.scale_sense * self.one, ()), *inputs)
        found = self.guard(self.scale_sense if self.unscales_in_guard else self.unscaled, grads)
        grads = ops.depend(grads, found)
        overflow = ops.reshape(found, ())
        if not overflow:
            loss = self.apply_slot(loss, grads, self.scale_sense, *inputs)
        return loss, self.update_scale(overflow), scale

    def update_scale(self, overflow: Tensor) -> Tensor:
        """The last slot; the scale of this cell is constant."""
        return overflow

    def check_adasum_enable(self) -> bool:
        """Whether this cell trains with AdaSum: it takes more than one rank, which this release does not support."""
        return False

    def check_dim_reduce_enable(self) -> bool:
        """Whether this cell trains with dimension reduction."""
        return isinstance(self.apply_slot, _ApplyDimReduce)


class BoostTrainOneStepWithLossScaleCell(BoostTrainOneStepCell):
    r"""A training step with loss scaling.

    Stands where ``mindspore.boost.BoostTrainOneStepWithLossScaleCell`` stood, and runs on the CPU too. On overflow no
    weight, no optimizer state and no state of an algorithm changes; only the loss scale does.

    Args:
        network (Cell): the network with its loss; a single output.
        optimizer (Cell): updates the weights; its ``loss_scale`` must be 1, since the gradients it gets are unscaled.
        scale_sense (Union[Tensor, Cell]): a Cell updates the loss scale after each step: the ``get_update_cell()`` of a
            loss scale manager, or MindSpore's own. A Tensor of shape () or (1,) is the loss scale itself, which
            :meth:`set_sense_scale` changes.
        compile, dim_reduce: as in :class:`BoostTrainOneStepCell`.

    Inputs and Outputs: as in :class:`BoostTrainOneStepCell`.

    Raises:
        TypeError: if `scale_sense` is neither Cell nor Tensor.
        ValueError: if a Tensor `scale_sense` has another shape, or the optimizer has a loss scale of its own.
    """

    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        scale_sense: Tensor | nn.Cell,
        *,
        compile: Compile = "step",
        dim_reduce: DimReduceConfig | None = None,
    ) -> None:
        name = type(self).__name__
        manager = None
        if isinstance(scale_sense, nn.Cell):
            manager = scale_sense
            shared = getattr(manager, "scale_sense", None)  # ours hold the scale: one state for manager and cell
            scale = shared if isinstance(shared, Parameter) else _scale_parameter(manager.get_loss_scale())
        elif isinstance(scale_sense, Tensor):
            if tuple(scale_sense.shape) not in {(), (1,)}:
                raise ValueError(f"{name}: scale_sense must have shape () or (1,), got {tuple(scale_sense.shape)}")
            scale = _scale_parameter(scale_sense)
        else:
            raise TypeError(f"{name}: scale_sense must be a Cell or a Tensor, got {type(scale_sense).__name__}")
        if float(getattr(optimizer, "loss_scale", 1.0)) != 1.0:
            raise ValueError(
                f"{name}: optimizer.loss_scale must be 1, got {optimizer.loss_scale}; the cell unscales the gradients, "
                "and the optimizer would do it again"
            )
        self._assemble(network, optimizer, scale, compile, dim_reduce, unscale=True)
        self.loss_scaling_manager = manager

    def update_scale(self, overflow: Tensor) -> Tensor:
        if self.loss_scaling_manager is None:
            return overflow
        return self.loss_scaling_manager(self.scale_sense, overflow)

    def set_sense_scale(self, sens: Tensor) -> None:
        """Set the loss scale.

        Args:
            sens (Tensor): of shape () or (1,), like the one the cell was made with.

        Raises:
            TypeError: if it is not a Tensor.
            ValueError: if the shape differs.
        """
        if not isinstance(sens, Tensor):
            raise TypeError(f"set_sense_scale: sens must be a Tensor, got {type(sens).__name__}")
        if sens.size != 1 or tuple(sens.shape) != tuple(self.scale_sense.shape):
            raise ValueError(
                f"set_sense_scale: sens must have shape {tuple(self.scale_sense.shape)}, got {tuple(sens.shape)}"
            )
        ops.assign(self.scale_sense, sens.astype(ms.float32))
