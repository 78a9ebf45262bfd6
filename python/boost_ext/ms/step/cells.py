"""The training cells: they own the state and assemble the slots of the pipeline.

source (loss and gradients) -> guard (one flag) -> hold (accumulation) -> apply (gradients into weights)
-> update of the loss scale

What fills them comes from the tables of :mod:`boost_ext.ms.step.algorithms`.
"""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core.compiled import Compile, Gradients, require_compile
from boost_ext.ms.core.fast_calls import call_fast
from boost_ext.ms.core.for_cells import released
from boost_ext.ms.core.optimizer_copy import has_own_construct
from boost_ext.ms.core.resume import load_state, state_of
from boost_ext.ms.core.state import hold_state
from boost_ext.ms.loss_scale.scale_sense import ScaleSense, scale_barriers, scale_parameter, scale_sense_of
from boost_ext.ms.optim.adoption import whole_of
from boost_ext.ms.ranks.grad_reducer import Agreement, GradReducer
from boost_ext.ms.ranks.ranks import Ranks
from boost_ext.ms.step.algorithms import APPLY, PARTS
from boost_ext.ms.step.gradient_statistics import GradientStatistics
from boost_ext.ms.step.observation import Observation, observation
from boost_ext.ms.step.options import (
    StepOptions,
    require_check,
    step_options,
    warn_of_unknown_parameters,
    what_trains,
)
from boost_ext.ms.step.pipeline import (
    ApplySlot,
    Choice,
    Guard,
    NoGuard,
    Pipeline,
    apply_optimizer,
    refused_rows,
    require_no_groups,
    step_counters,
)
from boost_ext.ms.step.rank_sync import RankSync

if TYPE_CHECKING:
    from boost_ext.config import DimReduceConfig
    from boost_ext.health import Statistics
    from boost_ext.ms.core.adaptive_clip import AdaptiveClip
    from boost_ext.ms.step.local_steps import LocalSteps
    from boost_ext.ms.subspace.moving_average import ExponentialMovingAverage
    from boost_ext.plan import Plan
    from boost_ext.report.log import Fault

__all__ = ["BoostTrainOneStepCell", "BoostTrainOneStepWithLossScaleCell"]


class BoostTrainOneStepCell(nn.TrainOneStepCell):
    r"""A training step: forward, backward, check, update.

    Replaces ``mindspore.boost.BoostTrainOneStepCell``. A step with inf or nan in its gradients changes nothing: no
    weight, no optimizer state, no state of an algorithm. ``overflow`` is then True.

    MindSpore runs the ``construct`` of a subclass as usual: docs/step.md lists the attributes for it.

    Args:
        network (Cell): the network with its loss; a single output.
        optimizer (Cell): updates the weights: an Optimizer, or a :class:`FreezeOpt` for gradient freezing. An optimizer
            from :class:`AutoBoost` carries its algorithms.
        sens (numbers.Number): factor on the gradient of the loss; the optimizer's ``loss_scale`` divides by it again.
            Default: 1.0.
        compile (str, optional): the compiled part in PYNATIVE_MODE; GRAPH_MODE compiles everything. ``"step"``: the
            whole step, one graph. ``"network"``: forward and backward; check and optimizer run eagerly, on the native
            ops by pointer. ``"off"``: nothing, for debugging or for a network that the graph compiler does not take.
            Default: ``"step"``, the fastest by far (docs/benchmarks.md has the numbers).
        dim_reduce (DimReduceConfig, optional): train with :class:`DimReduce`. Default: None, that of the optimizer.
        accumulation_steps (int, optional): micro-batches for each update of the weights, see
            :class:`GradientAccumulation`. Default: None, that of the optimizer, or 1.
        plan (Plan, optional): the plan of AutoBoost, for :attr:`plan`. The optimizer and the other arguments may add to
            it. Default: None.
        clip_norm (float, optional): the maximum global norm of the gradients, without loss scale. Gradients with a
            larger norm are scaled down to it (Pascanu et al. 2013); with accumulation, their mean is. Default: None,
            no limit.
        adaptive_clip (Union[float, AdaptiveClip], optional): the greatest ratio of a unit's gradient to its weights,
            in norms, without loss scale; an :class:`AdaptiveClip` has more settings (Brock et al. 2021). With
            accumulation, the mean is clipped. Default: None, no limit.
        fused_optimizer (bool, optional): step an optimizer of ``mindspore.nn`` by one native call on its own state:
            Momentum and SGD with the same bits, Adam and AdamWeightDecay up to rounding of the last bit. Default:
            None, the choice of AutoBoost, or True.
        check_overflow (bool, optional): look for inf and nan in the gradients. False saves a pass over them;
            inf and nan then reach the weights, as in ``mindspore.nn.TrainOneStepCell``, and ``overflow`` is always
            False. Default: None, the choice of AutoBoost, or True.
        weight_average (ExponentialMovingAverage, optional): averages the weights after each step that has moved them.
            Default: None.
        local_steps (LocalSteps, optional): the ranks train on their own, and exchange their weights once in some steps.
            Default: None.

    Inputs:
        - **\*inputs** (tuple[Tensor]) - the network's inputs.

    Outputs:
        Tuple of three Tensors.

        - **loss** - as the network returns it, unscaled.
        - **overflow** - scalar, bool.
        - **loss scale** - scalar, float32: the one that this step used.

    Raises:
        TypeError: if `sens` is not a number, `accumulation_steps` no int, or `weight_average` or `local_steps` of
            another type.
        ValueError: if `sens`, `clip_norm` or `adaptive_clip` is not finite and positive, `compile` is none of the
            three, `accumulation_steps` is less than 1, dimension reduction is asked for together with freezing,
            accumulation or clipping, `clip_norm` with `adaptive_clip`, or `local_steps` with what they do not go with
            (docs/local_steps.md).

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> net = nn.Dense(4, 1, weight_init="ones", has_bias=False)
        >>> optimizer = nn.SGD(net.trainable_params(), 0.1)
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, clip_norm=1.0)
        >>> loss, overflow, loss_scale = step(Tensor([[1.0, 1.0, 1.0, 1.0]]), Tensor([[3.0]]))
        >>> print(loss, overflow, loss_scale)
        1.0 False 1.0
    """

    @checked_keywords
    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        sens: float = 1.0,
        *,
        compile: Compile = "step",
        dim_reduce: DimReduceConfig | None = None,
        accumulation_steps: int | None = None,
        plan: Plan | None = None,
        clip_norm: float | None = None,
        adaptive_clip: float | AdaptiveClip | None = None,
        fused_optimizer: bool | None = None,
        check_overflow: bool | None = None,
        weight_average: ExponentialMovingAverage | None = None,
        local_steps: LocalSteps | None = None,
    ) -> None:
        name = type(self).__name__
        if isinstance(sens, bool) or not isinstance(sens, numbers.Real):
            raise TypeError(f"{name}: sens must be a number, got {type(sens).__name__}")
        if not 0 < float(sens) <= np.finfo(np.float32).max:
            raise ValueError(f"{name}: sens must be finite and > 0, got {sens}")
        options = step_options(
            name,
            optimizer,
            dim_reduce,
            accumulation_steps,
            clip_norm,
            fused_optimizer,
            check_overflow,
            adaptive_clip,
            weight_average,
            local_steps,
        )
        scale = ScaleSense(scale_parameter(float(sens)))
        self._assemble(network, optimizer, scale, compile, options, plan)
        self.sens, self.sense_flag = float(sens), True

    def _assemble(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        scale: ScaleSense,
        compile: Compile,
        options: StepOptions,
        plan: Plan | None,
        *,
        unscale: bool = False,
    ) -> None:
        """Assemble the slots. ``unscale``: the optimizer gets gradients without the loss scale."""
        name = type(self).__name__
        require_compile(name, compile)
        if unscale:
            require_check(name, options.check_overflow)
        if scale.guard is None:
            require_no_groups(name, network)
        optimizer = released(optimizer)
        nn.TrainOneStepCell.__init__(self, network, optimizer)
        warn_of_unknown_parameters(name, network, self.weights)
        self.ranks = Ranks.of(self)
        self.scale_sense, self.scale_groups = scale.parameter, scale.guard is not None
        self.barriers = scale_barriers()
        self.freeze = hasattr(optimizer, "group_steps")
        self.compile_option, self.options = compile, options
        self.slots_unscale = unscale and not self.scale_groups
        for part, (option, bring) in PARTS.items():
            setattr(self, part, bring(self) if options.ask_for(option) else None)
        self.plan = None if plan is None else what_trains(plan, optimizer, options, self)
        self.weight_average = options.weight_average
        own = (getattr(held, "require_own_weights", None) for held in (self.average, whole_of(self.stepped)))
        self.__dict__["_require_own_weights"] = tuple(require for require in own if require is not None)
        self.loss_scale_update = scale.manager
        if self.adasum_update is not None:
            reducer = self.adasum_update.node_reducer(self.ranks.mean)
        else:
            reducer = GradReducer(self.ranks.mean, self.ranks.size) if self.ranks.size > 1 else None
        self.slots: list[tuple[Any, nn.Cell, ApplySlot, Any]] = []
        for update in optimizer.group_steps(options.fused_optimizer) if self.freeze else (self.stepped,):
            slot = self._apply_slot(update)
            divide = self.slots_unscale and not slot.unscales
            guard: nn.Cell
            if scale.guard is not None:
                guard = scale.guard(update.parameters)
            elif options.checks:
                guard = Guard(self.slots_unscale, divide, slot.clipping)
            else:
                guard = NoGuard()
            refusal = refused_rows(name, slot, update, guard, self.ranks.size, self.freeze)
            source = Gradients(network, update.parameters, reducer, compile != "off", refusal)
            self.slots.append((source, guard, slot, update.parameters))
        self.steps, self.last = step_counters()
        self._rank_sync = RankSync()
        self._build()
        # For a construct of a subclass, by the names of mindspore.boost.
        self.hyper_map = ops.HyperMap()
        self.max_accumulation_step = options.accumulation_steps
        self.use_grad_accumulation = options.accumulation_steps > 1

    @cached_property
    def own_construct(self) -> bool:
        """Whether a subclass outside of boost_ext overrides ``construct``."""
        return has_own_construct(self)

    @property
    def stepped(self) -> nn.Cell:
        """What steps on gradients: the optimizer, or the update over nodes that calls it."""
        return self.optimizer if self.adasum_update is None else self.adasum_update

    def _apply_slot(self, update: nn.Cell) -> ApplySlot:
        for option, bring in APPLY.items():
            if self.options.ask_for(option):
                return bring(self, update)
        fused, whole = self.options.fused_optimizer, not self.scale_groups
        return apply_optimizer(update, self.slots_unscale, self.clipping, whole, fused, self.adaptive_clipping)

    def _build(self, instrumented: bool = False, watched: bool = False) -> None:
        pipelines, self._statistics = [], []
        for i, (source, guard, slot, weights) in enumerate(self.slots):
            name = "guard" if len(self.slots) == 1 else f"guard.{i}"
            if watched:
                self._statistics.append(GradientStatistics(weights, name, self.ranks))
                source = source.watched(self._statistics[-1])
            pipeline = Pipeline(
                source,
                guard,
                slot,
                self.loss_scale_update,
                self.scale_sense,
                self.barriers,
                weights,
                name=name,
                compile=self.compile_option == "step",
                counters=(self.steps, self.last),
                number=i if len(self.slots) > 1 else None,
                ranks=self.ranks.size,
                average=self.average,
                instrumented=instrumented,
            )
            pipelines.append(pipeline)
            if (inputs := self.get_inputs()) is not None:
                pipeline.set_inputs(*inputs)
        self.pipelines = nn.CellList(pipelines, auto_prefix=False)
        self.choice = Choice(pipelines)
        self._running: int | None = None  # the number of the pipeline of the last call

    @property
    def steps_made(self) -> int:
        """Steps so far, in calls and in graphs around this cell. Every checkpoint has it, as ``boost.steps``."""
        return int(self.steps.asnumpy()[0])

    @property
    def grad_norm(self) -> Parameter | None:
        """float32 (1,): the norm of the last gradients before clipping, without loss scale; None without clip_norm."""
        return None if self.clipping is None else self.clipping.norm

    @property
    def apply_slot(self) -> ApplySlot:
        """The apply slot of the first pipeline."""
        return self.slots[0][2]

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.own_construct:
            step = partial(super().__call__, **kwargs)
            with self._rank_sync.step(self):
                return step(*inputs) if native.in_pynative_mode() else call_fast(self, step, *inputs)
        for require in self._require_own_weights:
            require()
        # The host chooses the pipeline: each is a graph of its own, and is compiled at its first step.
        number = self.optimizer.current() if self.freeze else 0
        if number != self._running:
            if self._running is not None and self.optimizer.is_over(self._running):
                self.pipelines[self._running].release()
            self._running = number
        if self.local_steps is not None and not self.local_steps.started:
            self.local_steps.start()
        with self._rank_sync.step(self):
            outputs = self.pipelines[number](*inputs, **kwargs)
        if self.local_steps is not None:
            self.local_steps.step()
        return outputs

    def construct(self, *inputs: Tensor) -> Any:
        """The step inside another graph, such as that of a data sink."""
        if self.local_steps is not None:
            raise ValueError("training step: local_steps needs a call for each step, without a data sink")
        if self.freeze:
            return self.choice(self.optimizer.chosen(), *inputs)
        return self.choice.pipeline(*inputs)

    def set_train(self, mode: bool = True) -> BoostTrainOneStepCell:
        """Training or evaluation. See ``mindspore.nn.Cell.set_train``."""
        super().set_train(mode)
        for pipeline in self.pipelines:  # each is compiled on its own, and compiled again when its phase changes
            pipeline.set_train(mode)
        return self

    def set_inputs(self, *inputs: Any, **kwargs: Any) -> None:
        """Shapes and dtypes of the inputs; a dimension of None is dynamic. See ``mindspore.nn.Cell.set_inputs``."""
        super().set_inputs(*inputs, **kwargs)
        for pipeline in self.pipelines:
            pipeline.set_inputs(*inputs, **kwargs)

    def gradient_freeze_process(self, *inputs: Tensor) -> Tensor:
        """Train one step of gradient freezing on the network's inputs; returns the loss."""
        return self.choice(self.optimizer.chosen(), *inputs)[0]

    def gradient_accumulation_process(
        self, loss: Tensor, grads: tuple[Tensor, ...], sens: Tensor, *inputs: Tensor
    ) -> Tensor:
        """Accumulate gradients, and update the weights after enough micro-batches.

        Args:
            loss (Tensor): returned as it is.
            grads (tuple[Tensor]): of all parameters, with the scale that the optimizer expects.
            sens (Tensor): not used.
            inputs (tuple[Tensor]): the network's inputs; not used.

        Returns:
            Tensor, the loss.
        """
        return self.accumulation(loss, grads)

    def adasum_process(self, loss: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        """Step the optimizer, and sum its steps over the nodes by AdaSum.

        Args:
            loss (Tensor): returned as it is.
            grads (tuple[Tensor]): of all parameters, the mean over the devices of this node.

        Returns:
            Tensor, the loss.
        """
        return ops.depend(loss, self.adasum_update(grads))

    def check_adasum_enable(self) -> bool:
        """Whether this cell trains with AdaSum.

        It does if AutoBoost switched it on, the parallel mode is data_parallel or hybrid_parallel, and there are
        several nodes of ``common.device_number`` ranks. :attr:`plan` says what is missing.
        """
        return self.adasum_update is not None

    def check_dim_reduce_enable(self) -> bool:
        """Whether this cell trains with dimension reduction."""
        return self.options.dim_reduce is not None

    def instrument(self, on: bool = True) -> None:
        """Measure the time of each slot, in compiled steps too, for :meth:`observe`. Compiles the step again."""
        if on != self.pipelines[0].instrumented:
            self._build(on, bool(self._statistics))

    def watch(self, on: bool = True) -> None:
        """Take statistics of the gradients in each step, for :meth:`gradient_statistics`. Compiles the step again.

        With several ranks call it on all of them: each step has one more all-reduce.
        """
        if on != bool(self._statistics):
            self._build(self.pipelines[0].instrumented, on)

    def gradient_statistics(self) -> Statistics | None:
        """Those of the last step, of this rank's gradients from before their exchange; see
        :func:`boost_ext.ops.tensor_statistics`. None without :meth:`watch`, and before the first step with it."""
        return self._statistics[int(self.last.asnumpy()[0])].read() if self._statistics else None

    def gradient_faults(self) -> tuple[Fault, ...]:
        """The ranks on which the last step had a gradient with inf or nan, and which gradient. Empty without
        :meth:`watch`, and on a single rank."""
        if not self._statistics:
            return ()
        return self._statistics[int(self.last.asnumpy()[0])].faults_of_ranks(self.steps_made)

    def observe(self) -> Observation:
        """The last step; see :class:`boost_ext.ms.step.observation.Observation`. Reads state, changes nothing."""
        return observation(self, int(self.last.asnumpy()[0]), self.steps_made)

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of the whole training state, by name: weights, statistics, the state of the optimizer and of each
        algorithm, the loss scale with its counters, MindSpore's random state, the number of steps.

        See :func:`boost_ext.checkpoint.save_training_state` for a file.

        Raises:
            RuntimeError: while the network holds the averages of `weight_average`.
        """
        self._require_no_averages()
        return state_of(self)

    def _require_no_averages(self) -> None:
        if self.average is not None:
            self.average.require_own_weights()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from :meth:`state_dict`: the same steps give the same bits.

        Raises:
            TypeError: if `state` is no dict.
            ValueError: if it is that of a cell made with other arguments. Nothing has changed then.
            RuntimeError: while the network holds the averages of `weight_average`.
        """
        self._require_no_averages()
        load_state(self, state)
        self._rank_sync = RankSync()
        if self.local_steps is not None:
            self.local_steps.started = False


class BoostTrainOneStepWithLossScaleCell(BoostTrainOneStepCell):
    r"""A training step with loss scaling.

    Replaces ``mindspore.boost.BoostTrainOneStepWithLossScaleCell``, and runs on the CPU too. On overflow no
    weight, no optimizer state and no state of an algorithm changes; only the loss scale does.

    Args:
        network (Cell): the network with its loss; a single output.
        optimizer (Cell): updates the weights; its ``loss_scale`` must be 1, since the gradients it gets are unscaled.
        scale_sense (Union[Tensor, Cell]): a Cell updates the loss scale after each step: the ``get_update_cell()`` of a
            loss scale manager, or MindSpore's own. A Tensor of shape () or (1,) is the loss scale itself, which
            :meth:`set_sense_scale` changes. A :class:`GroupLossScaleManager` has a scale for each group of layers; the
            loss itself is not scaled then.
        compile, dim_reduce, accumulation_steps, plan, clip_norm, adaptive_clip, fused_optimizer, weight_average,
            local_steps: as in :class:`BoostTrainOneStepCell`.

    Inputs and Outputs: as in :class:`BoostTrainOneStepCell`.

    Raises:
        TypeError: if `scale_sense` is neither Cell nor Tensor.
        ValueError: if a Tensor `scale_sense` has another shape, or the optimizer has a loss scale of its own.

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext import amp, boost
        >>> net = nn.Dense(4, 1, weight_init="ones", has_bias=False)
        >>> optimizer, manager = nn.SGD(net.trainable_params(), 0.1), amp.DynamicLossScaleManager(2**16)
        >>> scale = manager.get_update_cell()
        >>> step = boost.BoostTrainOneStepWithLossScaleCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, scale)
        >>> loss, overflow, loss_scale = step(Tensor([[1.0, 1.0, 1.0, 1.0]]), Tensor([[float("inf")]]))
        >>> print(overflow, loss_scale, manager.get_loss_scale())
        True 65536.0 32768.0
    """

    @checked_keywords
    def __init__(
        self,
        network: nn.Cell,
        optimizer: nn.Cell,
        scale_sense: Tensor | nn.Cell,
        *,
        compile: Compile = "step",
        dim_reduce: DimReduceConfig | None = None,
        accumulation_steps: int | None = None,
        plan: Plan | None = None,
        clip_norm: float | None = None,
        adaptive_clip: float | AdaptiveClip | None = None,
        fused_optimizer: bool | None = None,
        weight_average: ExponentialMovingAverage | None = None,
        local_steps: LocalSteps | None = None,
    ) -> None:
        name = type(self).__name__
        scale = scale_sense_of(name, scale_sense, network)
        # A construct of a subclass unscales as it likes.
        if not self.own_construct and float(getattr(optimizer, "loss_scale", 1.0)) != 1.0:
            raise ValueError(
                f"{name}: optimizer.loss_scale must be 1, got {optimizer.loss_scale}; the cell unscales the gradients, "
                "and the optimizer would do it again"
            )
        options = step_options(
            name,
            optimizer,
            dim_reduce,
            accumulation_steps,
            clip_norm,
            fused_optimizer,
            adaptive_clip=adaptive_clip,
            weight_average=weight_average,
            local_steps=local_steps,
        )
        self._assemble(network, optimizer, scale, compile, options, plan, unscale=True)
        self.loss_scaling_manager = scale.manager
        self.all_finite = native.AllFinite()
        self.agreement = Agreement(None) if self.ranks.size > 1 else None
        hold_state(self)

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

    def start_overflow_check(self, pre_cond: Any, compute_input: Any) -> tuple[Any, Any]:
        """For a ``construct`` of a subclass: a status for :meth:`get_overflow_status`, and `compute_input` as it is."""
        return pre_cond, compute_input

    def get_overflow_status(self, status: Any, compute_output: Any) -> Tensor:
        """For a ``construct`` of a subclass: whether gradients hold inf or nan, in one native pass.

        Args:
            status (object): not used.
            compute_output (Union[Tensor, tuple[Tensor]]): the gradients; only read.

        Returns:
            Tensor, scalar, bool; the same on all ranks.
        """
        tensors = compute_output if isinstance(compute_output, (tuple, list)) else (compute_output,)
        # The root reads all state: see hold_state.
        found = ops.logical_not(self.all_finite(ops.depend(tensors, self.all_state)))
        return found if self.agreement is None else self.agreement(found)

    def process_loss_scale(self, overflow: Tensor) -> Tensor:
        """For a ``construct`` of a subclass: let the manager move the loss scale; returns `overflow`."""
        if self.loss_scaling_manager is not None:
            return self.loss_scaling_manager(self.scale_sense, overflow)
        return overflow

    # Their names in mindspore.boost.
    _start_overflow_check = start_overflow_check
    _get_overflow_status = get_overflow_status
    _process_loss_scale = process_loss_scale
