"""Gradient freezing: at some steps only the last layers of a network are trained, and the backward pass ends there.

Brock et al., "FreezeOut: Accelerate training by progressively freezing layers", 2017: front to back, each layer for
good. The other schedules are those of mindspore.boost: a random or a cyclic choice at each step.
"""

from __future__ import annotations

import numbers
import re
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn, ops

from boost_ext.arguments import checked_keywords
from boost_ext.config import MAX_STEPS
from boost_ext.ms.core.compiled import Compile, Gradients, require_compile
from boost_ext.ms.freeze.freeze_optimizer import FreezeOpt
from boost_ext.ms.loss_scale.scale_sense import scale_barriers, scale_parameter
from boost_ext.ms.ranks.grad_reducer import reducer_of
from boost_ext.ms.ranks.ranks import rank_count
from boost_ext.ms.step.grad_accumulation import ApplyAccumulated, GradientAccumulation
from boost_ext.ms.step.options import attached_options
from boost_ext.ms.step.pipeline import Guard, Pipeline, apply_optimizer, step_counters

__all__ = ["GradientFreeze", "freeze_cell"]

CONTINUOUS, INTERVAL, FRONT_TO_BACK = 0, 1, 2
# Parameters that stay in the block of the weight before them: by their own name, and all of a layer named bn, bn1 or
# my_bn. What stands before that in the name (subnet, alphabeta) says nothing.
_FOLLOWERS = re.compile(r"(?:^|[_\d])(?:bn|bias|gamma|beta)(?:[_\d]|$)")
_BATCH_NORM = re.compile(r"(?:^|[_\d])bn(?:[_\d]|$)")
_BLOCK = 3


def _number(owner: str, name: str, value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{owner}: {name} must be a number, got {type(value).__name__}")
    number = float(value)
    if not low <= number <= high:  # nan is refused too
        raise ValueError(f"{owner}: {name} must be from {low:g} to {high:g}, got {value}")
    return number


def _count(owner: str, name: str, value: Any, high: int | None = None) -> int:
    whole = isinstance(value, int) or (isinstance(value, numbers.Real) and float(value).is_integer())
    if isinstance(value, bool) or not whole:
        raise TypeError(f"{owner}: {name} must be a whole number, got {value!r}")
    if value < 1 or (high is not None and value > high):
        raise ValueError(f"{owner}: {name} must be {'>= 1' if high is None else f'from 1 to {high}'}, got {value}")
    return int(value)


def _require_type(owner: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or value not in (CONTINUOUS, INTERVAL, FRONT_TO_BACK):
        raise ValueError(f"{owner}: {name} must be from 0 to 2, got {value!r}")


def _follows(name: str) -> bool:
    *_, layer, own = ("", *name.split("."))
    return bool(_FOLLOWERS.search(own) or _BATCH_NORM.search(layer))


class GradientFreeze:
    """Split the parameters into groups and draw which one each step trains.

    Group 0 is everything; group i leaves out the first i / `param_groups` of the network, with type 2 the first
    i / (`param_groups` - 1) of all but the last block, so that the last group is the head alone. A step that trains
    group i computes no gradient for the layers before it, so the backward pass ends at the first layer of group i.

    Args:
        param_groups (int): groups; at most the number of blocks in the network. :attr:`notes` reports a lower
            number.
        freeze_type (int): 0: a cycle ``0 … 0 1 2 … n-1``; 1: random, the steps spread evenly, few frozen layers more
            often than many; 2: front to back, each layer for good, as FreezeOut does: ``0 … 0 1 … 1 … n-1``.
        freeze_p (float): **the fraction of steps that freeze nothing**, from 0 to 1 (despite its name, as in
            mindspore.boost). For type 0 it is met up to the length of the cycle.
        total_steps (int): steps of the training, up to 10 000 000; the sequence has 1 % more, then starts again. For
            type 2 it must be right: layers freeze by the share of the training that is behind them.
        seed (int, optional): of the sequence of type 1; every rank must use the same. Default: 0.

    Raises:
        TypeError, ValueError: for arguments of another type or out of range.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.boost import GradientFreeze
        >>> net = nn.SequentialCell(nn.Dense(4, 3), nn.ReLU(), nn.Dense(3, 3), nn.ReLU(), nn.Dense(3, 1))
        >>> freeze = GradientFreeze(param_groups=2, freeze_type=2, freeze_p=0.7, total_steps=10)
        >>> network, optimizer = freeze.freeze_generate(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
        >>> print(optimizer.train_strategy)
        [0 0 0 0 0 0 0 1 1 1]
    """

    @checked_keywords
    def __init__(
        self, param_groups: int, freeze_type: int, freeze_p: float, total_steps: int, *, seed: int = 0
    ) -> None:
        owner = type(self).__name__
        _require_type(owner, "freeze_type", freeze_type)
        self._param_groups = _count(owner, "param_groups", param_groups)
        self._freeze_type = freeze_type
        self._freeze_p = _number(owner, "freeze_p", freeze_p, 0, 1)
        self._total_steps = _count(owner, "total_steps", total_steps, MAX_STEPS)
        self._seed = seed
        self.notes: tuple[str, ...] = ()

    def split_parameters_groups(self, net: nn.Cell, freeze_para_groups_number: int) -> list[list[Parameter]]:
        """Split the trainable parameters for freezing.

        Args:
            net (Cell): the network; its trainable parameters come in the order of its layers.
            freeze_para_groups_number (int): groups.

        Returns:
            list[list[Parameter]], group i without the first i parts of the blocks; with type 2 the last one is the last
            block. A block is a weight with the batch norms and biases after it, at least three parameters. As many
            groups as blocks at most. A batch norm is known by its parameters (gamma, beta) or the name of its layer
            (bn, bn1, my_bn).
        """
        wanted = _count(type(self).__name__, "freeze_para_groups_number", freeze_para_groups_number)
        blocks: list[list[Parameter]] = []
        block: list[Parameter] = []
        for parameter in net.trainable_params():
            if not _follows(parameter.name) and len(block) >= _BLOCK:
                blocks.append(block)
                block = []
            block.append(parameter)
        if block:
            blocks.append(block)
        count = max(1, min(wanted, len(blocks)))
        if self._freeze_type == FRONT_TO_BACK and count > 1:
            starts = [i * (len(blocks) - 1) // (count - 1) for i in range(count)]
        else:
            starts = [i * (len(blocks) // count) for i in range(count)]
        self.notes = ()
        if count < wanted:
            self.notes = (f"{wanted} groups were asked for, the network has {len(blocks)} blocks: {count} groups",)
        return [[p for b in blocks[start:] for p in b] for start in starts]

    def generate_freeze_index_sequence(
        self, parameter_groups_number: int, freeze_strategy: int, freeze_p: float, total_steps: int
    ) -> list[int]:
        """The group that each step trains.

        Args:
            parameter_groups_number (int): groups, n.
            freeze_strategy (int): 0, 1 or 2, see ``freeze_type`` of the class.
            freeze_p (float): fraction of steps with group 0.
            total_steps (int): steps.

        Returns:
            list[int], from 0 to n - 1, 1 % longer than `total_steps` at least.

        Raises:
            ValueError: for another strategy, a number or a fraction out of range.
        """
        owner = type(self).__name__
        groups = _count(owner, "parameter_groups_number", parameter_groups_number, MAX_STEPS)
        share = _number(owner, "freeze_p", freeze_p, 0, 1)
        length = int(_count(owner, "total_steps", total_steps, MAX_STEPS) * 1.01)
        _require_type(owner, "freeze_strategy", freeze_strategy)
        if groups == 1 or share == 1:
            return [0] * length
        if freeze_strategy == FRONT_TO_BACK:
            full = round(share * length)  # what remains is shared equally by the groups that freeze
            return [0] * full + [1 + i * (groups - 1) // (length - full) for i in range(length - full)]
        if freeze_strategy == CONTINUOUS:
            full = int(share * (groups - 1) // (1 - share) + 0.5)
            if full > MAX_STEPS:
                raise ValueError(f"{owner}: freeze_p must be 1 or freeze in {MAX_STEPS} steps once, got {freeze_p}")
            cycle = [0] * full + list(range(1, groups))
            return cycle * -(-length // len(cycle))
        return self._interval(groups, share, length)

    def _interval(self, groups: int, share: float, length: int) -> list[int]:
        # A step freezes if the share of those before it that did is less than wanted: after s steps the least number
        # that is not less, counted by the same division.
        steps, wanted = np.arange(1, length), 1 - share
        frozen = np.ceil(wanted * steps)
        frozen -= (frozen - 1) / steps >= wanted
        frozen += frozen / steps < wanted
        freezes = np.diff(frozen, prepend=0) > 0
        # Group i with a probability that falls with the number of layers that it freezes.
        weights = np.arange(groups - 1, 0, -1) / (groups * (groups - 1) / 2)
        random = np.random.default_rng(self._seed)
        drawn = np.zeros(len(steps), np.int64)
        drawn[freezes] = random.choice(np.arange(1, groups), size=np.count_nonzero(freezes), p=weights)
        return [0, *drawn.tolist()]

    def freeze_generate(self, network: nn.Cell, optimizer: nn.Optimizer) -> tuple[nn.Cell, FreezeOpt]:
        """The network, and the optimizer with groups and sequence.

        Args:
            network (Cell): the network, with or without its loss; it does not change.
            optimizer (Optimizer): of its parameters. A trainable parameter of the network that it does not have stays
                untrained; one of its parameters that the network does not have is trained at every step.

        Returns:
            tuple(Cell, FreezeOpt).
        """
        groups = self.split_parameters_groups(network, self._param_groups)
        known = {id(p) for p in optimizer.parameters}
        inside = {id(p) for p in network.trainable_params()}
        outside = [p for p in optimizer.parameters if id(p) not in inside]
        trained = [[p for p in group if id(p) in known] + outside for group in groups]
        trained = [group for group in trained if group]
        if not trained:
            raise ValueError("GradientFreeze: optimizer must have parameters, got none")
        sequence = self.generate_freeze_index_sequence(
            len(trained), self._freeze_type, self._freeze_p, self._total_steps
        )
        return network, FreezeOpt(optimizer, trained, sequence)


class _TrainFreezeCell(nn.Cell):
    """``cell(*inputs)``: one step that trains one group; returns the loss."""

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__(auto_prefix=False)
        self.pipeline = pipeline

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.pipeline(*inputs)[0]

    def __call__(self, *inputs: Any) -> Any:
        return self.pipeline(*inputs)[0]  # compiled on its own, in both modes

    def set_train(self, mode: bool = True) -> _TrainFreezeCell:
        super().set_train(mode)
        self.pipeline.set_train(mode)  # compiled again when its phase changes
        return self


def freeze_cell(
    reducer_flag: bool,
    network: nn.Cell,
    optimizer: nn.Cell,
    sens: float,
    grad: Any,
    use_grad_accumulation: bool,
    mean: bool | None = None,
    degree: int | None = None,
    max_accumulation_step: int = 1,
    *,
    compile: Compile = "step",
    fused_optimizer: bool | None = None,
) -> tuple[nn.Cell, ...]:
    """A training cell for each group of a FreezeOpt.

    Each is the step of :class:`BoostTrainOneStepCell` for one group: one forward and one backward pass, and gradients
    with inf or nan change nothing, neither weights nor accumulators nor the position of the optimizer.

    Args:
        reducer_flag (bool): whether gradients are averaged over ranks.
        network (Cell): the network with its loss.
        optimizer (Cell): a FreezeOpt; an Optimizer is taken as a FreezeOpt with one group.
        sens (numbers.Number): factor on the gradient of the loss.
        grad (GradOperation): with ``get_by_list`` and ``sens_param``. It is checked, and not called, since it would run
            the forward pass a second time.
        use_grad_accumulation (bool): accumulate gradients.
        mean (bool, optional): average, instead of adding up, over ranks. Default: None, as MindSpore's
            ``gradients_mean`` says.
        degree (int, optional): ranks. Default: None, all.
        max_accumulation_step (int, optional): micro-batches for each update. Default: 1.
        compile (str, optional): as in :class:`BoostTrainOneStepCell`. Default: ``"step"``.
        fused_optimizer (bool, optional): as in :class:`BoostTrainOneStepCell`. Default: None, that of the
            optimizer.

    Raises:
        TypeError: if `sens` is no number, or `grad` no GradOperation.
        ValueError: if `sens` is not finite and positive, `grad` is another kind of GradOperation, or `compile` is none
            of the three.

    Returns:
        tuple[Cell], cell i trains group i: ``loss = cells[i](*inputs)``. All share the optimizer's state and the
        accumulators. The caller takes them in the order it likes; the groups must not change within a window of
        accumulation.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext import boost
        >>> net = nn.WithLossCell(nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 1)), nn.MSELoss())
        >>> optimizer = nn.SGD(net.trainable_params(), 0.1)
        >>> optimizer = boost.FreezeOpt(optimizer, [net.trainable_params(), net.trainable_params()[2:]])
        >>> grad = ms.ops.GradOperation(get_by_list=True, sens_param=True)
        >>> steps = boost.freeze_cell(False, net, optimizer, 1.0, grad, False)
        >>> loss = steps[1](ms.ops.ones((2, 4)), ms.ops.ones((2, 1)))  # trains the head
    """
    owner = "freeze_cell"
    if not isinstance(grad, ops.GradOperation):
        raise TypeError(f"{owner}: grad must be a GradOperation, got {type(grad).__name__}")
    if grad.get_all or not (grad.get_by_list and grad.sens_param):
        raise ValueError(f"{owner}: grad must have get_by_list and sens_param, and not get_all")
    require_compile(owner, compile)
    frozen = optimizer if isinstance(optimizer, FreezeOpt) else FreezeOpt(optimizer)
    least, most = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
    scale = scale_parameter(_number(owner, "sens", sens, least, most))
    barriers, counters = scale_barriers(), step_counters()
    fused = attached_options(frozen).fused_optimizer if fused_optimizer is None else fused_optimizer

    def hold(opt: nn.Cell, share: GradientAccumulation | None = None) -> GradientAccumulation:
        return GradientAccumulation(max_accumulation_step, opt, share=share, fused_optimizer=fused)

    whole = hold(frozen.optimizer) if use_grad_accumulation else None
    cells = []
    for i, opt in enumerate(frozen.group_steps(fused)):
        reducer = reducer_of(mean, degree) if reducer_flag else None
        if whole is None:
            slot = apply_optimizer(opt, False, None, True, fused)
        else:
            slot = ApplyAccumulated(hold(opt, whole), unscale=False)
        pipeline = Pipeline(
            Gradients(network, opt.parameters, reducer, compile != "off"),
            Guard(scaled=False, divide=False),
            slot,
            None,
            scale,
            barriers,
            opt.parameters,
            name=f"guard.{i}",
            compile=compile == "step",
            counters=counters,
            number=i,
            ranks=rank_count() if reducer_flag else 1,
        )
        cells.append(_TrainFreezeCell(pipeline))
    return tuple(cells)
