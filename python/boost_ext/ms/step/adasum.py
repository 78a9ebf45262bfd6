"""AdaSum: a sum of weight deltas over ranks, in which orthogonal deltas add and parallel ones average."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.initializer import initializer
from mindspore.communication import GlobalComm, create_group, get_group_size

from boost_ext.adasum import Exchange, Schedule, padded, schedule
from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.ranks.ranks import rank_count

__all__ = ["AdaSum", "group_of"]

_FLOATS = (ms.float32, ms.float16, ms.bfloat16)


@functools.cache
def group_of(ranks: tuple[int, ...]) -> str:
    """The communication group of these ranks. The first call creates it; all of the ranks must call."""
    if len(ranks) == get_group_size():
        return str(GlobalComm.WORLD_COMM_GROUP)
    name = "-".join(map(str, ranks))
    if len(name) > 64:  # HCCL takes 127 characters
        name = f"{ranks[0]}.{len(ranks)}.{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    name = f"boost_ext.{name}"
    create_group(name, list(ranks))
    return name


class _Gather(nn.Cell):
    """``cell(x)``: the concatenation of the x of these ranks.

    MindSpore's CPU backend gathers over all ranks only, but sums over some of them too. A sum with zeros changes no
    number except -0 and subnormal ones.
    """

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        super().__init__(auto_prefix=False)
        self.alone, self.by_sum = len(ranks) == 1, False
        self.before, self.after = ranks.index(rank), len(ranks) - 1 - ranks.index(rank)
        if not self.alone:
            group = group_of(ranks)
            self.by_sum = len(ranks) < get_group_size() and ms.get_context("device_target") == "CPU"
            self.collective = ops.AllReduce("sum", group) if self.by_sum else ops.AllGather(group)

    def construct(self, x: Tensor) -> Tensor:
        if self.alone:
            return x
        if not self.by_sum:
            return self.collective(x)
        zeros = ops.zeros_like(x)
        slots: tuple[Tensor, ...] = ()
        for _ in range(self.before):
            slots = (*slots, zeros)
        slots = (*slots, x)
        for _ in range(self.after):
            slots = (*slots, zeros)
        return self.collective(ops.concat(slots))


class _Pair(nn.Cell):
    """``cell(a, b)``: the adaptive sum of two parts."""

    def __init__(self, rank: int, exchange: Exchange, holds_bf16: bool, index: int, sizes: Sequence[int]) -> None:
        super().__init__(auto_prefix=False)
        self.plan = _plan(holds_bf16, [index, *sizes])
        self.dots = native.AdasumPartDots()
        self.all_dots = _Gather(rank, exchange.holders)
        self.combine = native.AdasumPartCombine()

    def construct(self, a: Tensor, b: Tensor) -> Tensor:
        return self.combine(self.plan, a, b, self.all_dots(self.dots(self.plan, a, b)))


class _Fold(nn.Cell):
    """``cell(own)``: adds the share of the upper rank to that of the lower one."""

    def __init__(self, rank: int, exchange: Exchange, *pair: Any) -> None:
        super().__init__(auto_prefix=False)
        self.gives = rank == exchange.pair[1]
        self.sum = ops.AllReduce("sum", group_of(exchange.pair))  # of what one gives and zeros
        if not self.gives:
            self.pair = _Pair(rank, exchange, *pair)

    def construct(self, own: Tensor) -> Tensor:
        if self.gives:
            return self.sum(own)
        return self.pair(own, self.sum(ops.zeros_like(own)))


class _Halve(nn.Cell):
    """``cell(own)``: exchanges halves with the other rank, and sums the half that this rank keeps."""

    def __init__(self, rank: int, exchange: Exchange, half: int, *pair: Any) -> None:
        super().__init__(auto_prefix=False)
        self.lower = rank == exchange.pair[0]
        self.half = half
        self.exchange = _Gather(rank, exchange.pair)
        self.pair = _Pair(rank, exchange, *pair)

    def construct(self, own: Tensor) -> Tensor:
        low, high = own[: self.half], own[self.half :]
        if self.lower:
            return self.pair(low, self.exchange(high)[self.half :])
        return self.pair(self.exchange(low)[: self.half], high)


def _plan(holds_bf16: bool, numbers: Sequence[int]) -> Tensor:
    return Tensor(np.array([holds_bf16, *numbers], np.float64))


class _Vector(nn.Cell):
    """The deltas of one dtype as one vector, and its reduction over the ranks."""

    def __init__(
        self, plan: Schedule, parameters: Sequence[Parameter], name: str, half_members: Sequence[int] = ()
    ) -> None:
        super().__init__(auto_prefix=False)
        dtype = parameters[0].dtype
        # See native.adasum: on the CPU bfloat16 travels as float16.
        holds_bf16 = dtype == ms.bfloat16 and ms.get_context("device_target") == "CPU"
        sizes = [int(np.prod(p.shape, dtype=np.int64)) for p in parameters]
        size = padded(sum(sizes), plan.part_count)
        self.vector = Parameter(
            initializer("zeros", (size,), ms.float16 if holds_bf16 else dtype), name=name, requires_grad=False
        )
        self.stored = _plan(holds_bf16, [])
        self.apply_plan = _plan(holds_bf16, [len(plan.parts), *plan.parts, *half_members])
        self.pack = native.AdasumPartPack()
        self.pack_difference = native.AdasumPartPackDifference()
        self.to_weights = native.AdasumPartApply()

        share = size // plan.device_number
        index = plan.rank % plan.device_number
        self.whole = plan.device_number == 1
        self.begin, self.end = index * share, (index + 1) * share
        steps: list[nn.Cell] = []
        if plan.fold is not None:
            steps.append(_Fold(plan.rank, plan.fold, holds_bf16, index, sizes))
        for level in plan.levels:
            share //= 2
            index = 2 * index + (plan.rank == level.pair[1])
            steps.append(_Halve(plan.rank, level, share, holds_bf16, index, sizes))
        self.steps = nn.CellList(steps, auto_prefix=False)
        self.part = size // plan.part_count  # never read of a rank that has given its share away
        self.gives = plan.gives_away
        self.gather = _Gather(plan.rank, tuple(range(len(plan.parts))))

    def construct(self, packed: Tensor, parameters: Any, old: Any, halves: Any = ()) -> Tensor:
        """Write the sum of the packed deltas to the parameters, and rounded to the halves whose masters they are."""
        own = ops.depend(self.vector, packed)
        if not self.whole:
            own = own[self.begin : self.end]
        for step in self.steps:
            own = step(own)
        if self.gives:
            own = own[: self.part]
        return self.to_weights(self.apply_plan, self.gather(own), old, parameters, halves)


class AdaSum(nn.Cell):
    r"""Write the weights that the adaptive sum of all nodes' weight deltas gives: ``w = w_old - adasum(delta)``.

    Replaces ``mindspore.boost.AdaSum``, for any number of nodes, on the CPU too. docs/adasum.md has the
    definition, the cost and the measurements. All ranks must construct and call it, with the same arguments but
    `rank`; they end with the same bits.

    Args:
        rank (int): the rank of this process, from 0.
        device_number (int): devices of one node. Node k has the ranks from ``k * device_number`` on. They pass the same
            deltas, as they do if their gradients were averaged, and each works on its share of them.
        group_number (int): nodes; ``device_number * group_number`` is the number of ranks.
        parameter_tuple (tuple[Parameter]): float32, float16 or bfloat16; gives shapes and dtypes.
        half_members (tuple[int]): indices of the parameters that are masters of half-precision parameters, for
            :meth:`update`. All parameters are float32 then. Default: none.

    Inputs:
        - **delta_weights** (tuple[Tensor]) - old minus new weights, of the parameters' shapes and dtypes.
        - **parameters** (tuple[Parameter]) - written.
        - **old_parameters** (tuple[Union[Parameter, Tensor]]) - the weights before the step, the same on all ranks.

    Outputs:
        tuple[Parameter], `parameters`. GRAPH_MODE takes Parameters from the attributes of a calling cell only, not from
        Python's arguments.

    Raises:
        TypeError: if a number is no int, or `parameter_tuple` is no tuple or list of such Parameters.
        ValueError: if a number is out of range, `parameter_tuple` is empty, or the number of ranks is another one.

    Source: Maleki et al., "Scaling distributed training with adaptive summation", MLSys 2021, eq. 3 and section 4.

    Examples:
        >>> from mindspore import Parameter, Tensor, nn
        >>> from boost_ext.boost import AdaSum
        >>> weights = (Parameter(Tensor([1.0, 1.0]), name="w"),)
        >>> adasum = AdaSum(0, 1, 1, weights)  # of one rank: the delta itself
        >>> _ = adasum((Tensor([0.5, 0.0]),), weights, (Tensor([1.0, 1.0]),))
        >>> print(weights[0].asnumpy())
        [0.5 1. ]
    """

    @checked_keywords
    def __init__(
        self,
        rank: int,
        device_number: int,
        group_number: int,
        parameter_tuple: Sequence[Parameter],
        *,
        half_members: Sequence[int] = (),
    ) -> None:
        super().__init__(auto_prefix=False)
        plan = schedule(rank, device_number, group_number)
        if not isinstance(parameter_tuple, (tuple, list)):
            raise TypeError(f"AdaSum: parameter_tuple must be a tuple, got {type(parameter_tuple).__name__}")
        if not parameter_tuple:
            raise ValueError("AdaSum: parameter_tuple must not be empty")
        for p in parameter_tuple:
            if not isinstance(p, Parameter) or p.dtype not in _FLOATS:
                got = p.dtype if isinstance(p, Parameter) else type(p).__name__
                raise TypeError(f"AdaSum: parameter_tuple must hold float32, float16 or bfloat16 Parameters, got {got}")
        ranks = rank_count()
        if ranks != device_number * group_number:
            raise ValueError(
                f"AdaSum: device_number * group_number must be the number of ranks, {ranks}, got "
                f"{device_number} * {group_number}"
            )
        self.schedule = plan
        dtypes = list(dict.fromkeys(p.dtype for p in parameter_tuple))
        self.members = tuple(tuple(i for i, p in enumerate(parameter_tuple) if p.dtype == dtype) for dtype in dtypes)
        vectors = [
            _Vector(plan, [parameter_tuple[i] for i in members], f"adasum.vector.{k}", half_members)
            for k, members in enumerate(self.members)
        ]
        self.vectors = nn.CellList(vectors, auto_prefix=False)
        self.one = len(vectors) == 1

    def construct(self, delta_weights: Any, parameters: Any, old_parameters: Any) -> Any:
        done = None
        for k in range(len(self.members)):
            vector = self.vectors[k]
            deltas = self._of(k, delta_weights)
            weights = self._of(k, parameters)
            old = self._of(k, old_parameters)
            if done is not None:  # collectives in the same order on all ranks
                deltas = ops.depend(deltas, done)
            packed = vector.pack(vector.stored, vector.vector, deltas)
            done = vector(packed, weights, old)
        return ops.depend(parameters, done)

    def update(self, parameters: Any, old_parameters: Any, halves: Any = ()) -> Tensor:
        """A call with the deltas ``old_parameters - parameters``, which need no tensors of their own.

        `halves` are the parameters whose masters are `half_members`. They get the rounded masters.
        """
        done = None
        for k in range(len(self.members)):
            vector = self.vectors[k]
            weights, old = self._of(k, parameters), self._of(k, old_parameters)
            if done is not None:
                old = ops.depend(old, done)
            packed = vector.pack_difference(vector.stored, vector.vector, old, weights)
            done = vector(packed, weights, old, halves)
        return done

    def _of(self, k: int, tensors: Any) -> Any:
        """The tensors of the k-th dtype."""
        if self.one:
            return tensors
        chosen: tuple[Any, ...] = ()
        for i in self.members[k]:
            chosen = (*chosen, tensors[i])
        return chosen
