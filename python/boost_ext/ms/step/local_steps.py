"""Local steps over ranks: each trains on its own, and they exchange their progress once in H steps.

The rule, its equations and its sources are in :mod:`boost_ext.local_steps`. The exchange runs on the host, between two
steps, so that it is the same for a training cell, for ``Model`` and for a loop, in both modes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Callback, Parameter, Tensor, nn, ops
from mindspore.communication import get_rank
from mindspore.nn.layer.normalization import _BatchNorm

from boost_ext.arguments import checked_keywords
from boost_ext.local_steps import Compress, Outer, are_finite, flatten, outer_rule
from boost_ext.ms.core import typed
from boost_ext.ms.core.resume import write
from boost_ext.ms.core.state import state
from boost_ext.ms.optim.adoption import whole_of
from boost_ext.ms.ranks.ranks import ALONE, Ranks, answered, rank_count, require_alike
from boost_ext.ms.surgery.batch_norm_statistics import statistics_of

__all__ = ["LocalSteps", "local_steps_of"]

_NAME = "LocalSteps"


class LocalSteps(typed.Cell):
    r"""Train each rank on its own, and exchange the progress once in `every` steps: for slow networks.

    Data parallel training sends all gradients in each step. Here a rank makes `every` steps with its own optimizer, on
    its own part of the data. Then the ranks exchange the differences of their weights to the last common ones, and all
    go on from the same weights. docs/local_steps.md says when it helps; :mod:`boost_ext.local_steps` has the equations
    and a simulator of any number of ranks.

    Give it to a training cell or a ``Model`` as `local_steps`. In a loop of your own, on any training cell, call
    :meth:`attach` before the first step and :meth:`step` after each; ``mindspore.Model`` takes :meth:`callback`. The
    parallel mode must be stand_alone: in data_parallel mode the gradients would be exchanged as well.

    All trained weights take part, which must be float32. Moving statistics of batch norms are averaged. The state of
    the optimizer and the loss scale stay each rank's own.

    Args:
        every (int): local steps between two exchanges, >= 1. Micro-batches count too.
        outer (str): "nesterov" (DiLoCo), "mean", "adasum" or "adacons". Default: "nesterov".
        compress (str, optional): what is sent: "int8", a byte an element, or "topk", the largest elements alone, both
            with error feedback. Default: None, float32.
        learning_rate (float, optional): of the outer step. Default: None, 0.7 for "nesterov" and 1.0 for the others.
        momentum (float, optional): of "nesterov". Default: None, 0.9.
        density (float, optional): the share of elements that "topk" sends. Default: None, 1/32.
        error_decay (float, optional): what is kept of the last error, with `compress`. Default: None, 1.0.

    Raises:
        TypeError: if `every` is no int, or another number none.
        ValueError: if an argument is out of range, or belongs to another `outer` or `compress`.

    Attributes:
        rule (OuterRule): the arguments, checked.
        steps (int): steps so far.
        sent_bytes (int): the bytes that a rank contributes to an exchange.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext.boost import BoostTrainOneStepCell
        >>> from boost_ext.distributed import LocalSteps
        >>> net = nn.Dense(4, 1)
        >>> optimizer, local = nn.SGD(net.trainable_params(), 0.1), LocalSteps(every=20, compress="int8")
        >>> step = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer, local_steps=local)
        >>> loss, overflow, loss_scale = step(ms.ops.ones((2, 4)), ms.ops.ones((2, 1)))
        >>> local.steps
        1
    """

    @checked_keywords
    def __init__(
        self,
        every: int,
        outer: Outer = "nesterov",
        compress: Compress | None = None,
        *,
        learning_rate: float | None = None,
        momentum: float | None = None,
        density: float | None = None,
        error_decay: float | None = None,
    ) -> None:
        super().__init__(auto_prefix=False)
        self.rule = outer_rule(_NAME, every, outer, compress, learning_rate, momentum, density, error_decay)
        self.count = state("local_steps.count", [0], ms.int32)
        self.ranks = ALONE
        # Not as Parameters of this cell: they are the network's.
        self.__dict__.update(weights=(), statistics=(), sizes=(), slots={}, started=False)

    def __repr__(self) -> str:
        return f"{_NAME}({self.rule}, {len(self.weights)} weights)"

    @property
    def steps(self) -> int:
        """Steps so far."""
        return int(self.count.asnumpy()[0])

    @property
    def sent_bytes(self) -> int:
        """The bytes that a rank contributes to an exchange, 0 before :meth:`attach`."""
        return self.rule.sent_bytes(sum(self.sizes)) if self.weights else 0

    def attach(self, network: nn.Cell, *, start: bool = True) -> None:
        """Exchange the weights of this network. A training cell does it with what it trains.

        Args:
            network (Cell): with its loss or without.
            start (bool): also :meth:`start`. Default: True.

        Raises:
            TypeError: if `network` is no Cell, or a weight that is trained is not float32.
            ValueError: if there is a network already, or it has no weights that are trained; if the parallel mode is
                another one than stand_alone.
        """
        if not isinstance(network, nn.Cell):
            raise TypeError(f"{_NAME}: network must be a Cell, got {type(network).__name__}")
        if self.weights:
            raise ValueError(f"{_NAME}: network must be attached once, each training has local steps of its own")
        mode = ms.get_auto_parallel_context("parallel_mode")
        if mode != "stand_alone":
            raise ValueError(
                f"{_NAME}: parallel_mode must be stand_alone, since ranks exchange no gradients, got {mode}"
            )
        weights = [p for p in network.get_parameters() if p.requires_grad]
        for p in weights:
            if p.dtype != ms.float32:
                raise TypeError(f"{_NAME}: weights must be float32, got {p.dtype} for {p.name}")
        if not weights:
            raise ValueError(f"{_NAME}: network must have Parameters that are trained, got none")
        norms = [cell for _, cell in network.cells_and_names() if isinstance(cell, _BatchNorm)]
        sizes = [int(p.size) for p in weights]
        length = self.rule.length(sum(sizes))
        for name in self.rule.slots:
            setattr(self, name, state(f"local_steps.{name}", np.zeros(length, np.float32)))
        slots = {name: getattr(self, name) for name in self.rule.slots}
        self.__dict__.update(weights=tuple(weights), statistics=tuple(statistics_of(norms)), sizes=sizes, slots=slots)
        if rank_count() > 1:
            self.ranks = Ranks(get_rank(), rank_count(), True)
            self.gather, self.sum = ops.AllGather(), ops.AllReduce()  # called eagerly in both modes
        if start:
            self.start()

    def start(self) -> None:
        """Begin, or go on after :meth:`load_state_dict`: all ranks must call it, with the same weights.

        Raises:
            ValueError: if ranks differ, in the arguments, the weights or the state, on all of them; or if no network is
                attached.
        """
        self._require_attached()
        if self.steps % self.rule.every == 0:
            with self._written("anchor") as (anchor,):
                flatten([p.asnumpy() for p in self.weights], anchor)
        if self.ranks.size > 1:
            self._require_alike()
        self.started = True

    def _require_attached(self) -> None:
        if not self.weights:
            raise ValueError(f"{_NAME}: network must be attached first, got none")

    def _require_alike(self) -> None:
        layout = {f"the parameter {p.name}": str(tuple(p.shape)) for p in (*self.weights, *self.statistics)}
        anchor = np.split(self.slots["anchor"].asnumpy(), np.cumsum(self.sizes))
        common = {name: p.asnumpy() for name, p in self.slots.items() if name == "momentum"}
        facts: dict[str, dict[str, Any]] = {
            "the network": layout,
            "the settings": {name: str(value) for name, value in asdict(self.rule).items()},
            "the weights": {p.name: part for p, part in zip(self.weights, anchor, strict=False)},
            "the state": {"count": self.count.asnumpy(), **common},
        }
        with answered(_NAME, self.ranks, lambda: self.steps):
            require_alike(_NAME, self.ranks, facts)

    def step(self) -> bool:
        """Count a step, and exchange after the last of `every`; all ranks must call it equally often.

        Returns:
            bool, whether it has exchanged: all ranks hold the same weights then.

        Raises:
            ValueError: if no network is attached.
            FloatingPointError: on all ranks, if the weights of one are not finite. Nothing has changed then.
            RuntimeError: if another rank does not answer.
        """
        if not self.started:
            self._require_attached()
            raise ValueError(f"{_NAME}: start() must be called before the first step")
        made = self.steps + 1
        exchanges = made % self.rule.every == 0
        if exchanges:
            with answered(_NAME, self.ranks, lambda: self.steps):
                self._exchange()
        write(self.count, Tensor([made], ms.int32))
        return exchanges

    def _exchange(self) -> None:
        rule, own = self.rule, [p.asnumpy() for p in self.weights]
        statistics = self._agreed(are_finite(own))
        with self._written(*rule.slots) as views:
            held = dict(zip(rule.slots, views, strict=True))
            sent = rule.encode(held["anchor"], own, held.get("error"))
            if rule.compress is None and rule.outer in ("mean", "nesterov") and self.ranks.size > 2:
                total = self._summed(sent[0])  # fewer bytes than all differences on each rank
                total /= np.float32(self.ranks.size)
                rule.move(held, total)
            else:
                rule.combine(held, [self._of_all(array) for array in sent], self.sizes)
            _set(self.weights, held["anchor"])
        _set(self.statistics, statistics)

    def _agreed(self, finite: bool) -> np.ndarray[Any, Any]:
        """The means of the statistics, if all ranks are well."""
        mine = np.concatenate([[np.float32(finite)], *[p.asnumpy().reshape(-1) for p in self.statistics]])
        all_of_them = self._of_all(mine.astype(np.float32))
        bad = np.flatnonzero(all_of_them[:, 0] == 0)
        if len(bad):
            raise FloatingPointError(f"{_NAME}: weights must be finite at an exchange, got others on rank {bad[0]}")
        return np.asarray(all_of_them[:, 1:].mean(axis=0, dtype=np.float64), np.float32)

    def _of_all(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The arrays of all ranks, stacked. Their bytes travel as int32, which every backend gathers."""
        if self.ranks.size == 1:
            return np.asarray(array[None])
        words = np.ascontiguousarray(array).view(np.int32)
        gathered = self.gather(Tensor.from_numpy(words)).asnumpy()
        return np.asarray(np.asarray(gathered).view(array.dtype).reshape(self.ranks.size, -1))

    def _summed(self, vector: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.array(self.sum(Tensor.from_numpy(vector)).asnumpy())

    def _written(self, *names: str) -> _Written:
        return _Written([self.slots[name] for name in names])

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all that an exchange reads, but for the weights: for :meth:`load_state_dict`.

        A training cell has it in its own ``state_dict()``.
        """
        return {p.name: p.value().copy() for p in (self.count, *self.slots.values())}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from :meth:`state_dict`, with the weights of that time in the network; then call :meth:`start`.

        Raises:
            ValueError: if it is of local steps with other arguments. Nothing has changed then.
        """
        own = {p.name: p for p in (self.count, *self.slots.values())}
        if set(state) != set(own) or any(tuple(state[k].shape) != tuple(p.shape) for k, p in own.items()):
            raise ValueError(
                f"{_NAME}: state must be of local steps with the same arguments and network, got {sorted(state)}"
            )
        for name, parameter in own.items():
            write(parameter, state[name])
        self.started = False

    def callback(self) -> Callback:
        """A callback for ``mindspore.Model`` without a training cell of boost_ext."""
        return _AfterStep(self)


def local_steps_of(cell: Any) -> LocalSteps:
    """Those of a training cell, attached to its network."""
    owner, local = type(cell).__name__, cell.options.local_steps
    if not isinstance(local, LocalSteps):
        raise TypeError(f"{owner}: local_steps must be a LocalSteps, got {type(local).__name__}")
    other = getattr(whole_of(cell.optimizer), "never_exchanged", None)
    if cell.options.moves:
        other = "dim_reduce or adasum, which move the weights too"
    if cell.average is not None:
        other = "weight_average, which would be of each rank's own weights"
    if cell.own_construct:
        other = "a construct of its own; attach them, and call step() in the loop"
    if other:
        raise ValueError(f"{owner}: local_steps must be None with {other}, got some")
    local.attach(cell.network, start=False)
    return local


class _Written:
    """Views of Parameters that no graph knows; what is written into them is the Parameters' then."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        self.parameters = parameters

    def __enter__(self) -> list[np.ndarray[Any, Any]]:
        self.views = [p.asnumpy() for p in self.parameters]
        return self.views

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None and ms.get_context("device_target") != "CPU":  # where a view is a copy
            for parameter, view in zip(self.parameters, self.views, strict=True):
                write(parameter, Tensor(view))


def _set(parameters: Sequence[Parameter], vector: np.ndarray[Any, Any]) -> None:
    begin = 0
    for p in parameters:
        write(p, Tensor.from_numpy(vector[begin : begin + p.size].reshape(p.shape)))
        begin += p.size


class _AfterStep(Callback):  # type: ignore[misc]
    def __init__(self, local: LocalSteps) -> None:
        super().__init__()
        self.local = local

    def on_train_begin(self, run_context: Any) -> None:
        params = run_context.original_args()
        if params.dataset_sink_mode:
            raise ValueError(f"{_NAME}: dataset_sink_mode must be False: it makes many steps in one call, got True")
        if not self.local.weights:
            self.local.attach(getattr(params.train_network, "network", params.train_network))

    def on_train_step_end(self, run_context: Any) -> None:
        self.local.step()
