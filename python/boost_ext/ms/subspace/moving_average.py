"""The exponential moving average of a network's weights, updated after each step.

Sources: Polyak & Juditsky, "Acceleration of stochastic approximation by averaging", SIAM J. Control Optim. 1992;
Tarvainen & Valpola, "Mean teachers are better role models", NeurIPS 2017, section 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
from mindspore import Callback, ParameterTuple, Tensor, nn, ops
from mindspore.nn.layer.normalization import _BatchNorm

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core import typed
from boost_ext.ms.core.resume import read, write
from boost_ext.ms.core.state import state
from boost_ext.ms.surgery.batch_norm_statistics import statistics_of
from boost_ext.ops.arguments import number

__all__ = ["AverageAfterStep", "ExponentialMovingAverage"]

_NAME = "ExponentialMovingAverage"
_FLOATS = (ms.float32, ms.float16, ms.bfloat16)


class ExponentialMovingAverage(typed.Cell):
    r"""Averages of the weights, which often evaluate better than the last weights.

    .. math:: a \leftarrow a + (1 - d_t) (w - a), \qquad d_t = \min(decay, t / (t + 9))

    after each step that has moved the weights, t = 0, 1, ...: the first average is a copy of the weights. All weights
    that are trained take part, and the moving statistics of batch norms. One native call a step; the averages are
    float32.

    Args:
        decay (float): from 0 to 1. About ``1 / (1 - decay)`` steps are averaged. Default: 0.999.
        warm_up (bool): whether early averages are those of fewer steps, as above. False: ``d_t = decay``, and the
            averages start at the weights that :meth:`attach` finds. Default: True.

    Inputs:
        - **skip** (Tensor, optional) - bool of one element: nothing changes if True. Default: None, False.

    Outputs:
        Tensor[bool] of shape (1,), True.

    Raises:
        TypeError: if `decay` is no number or `warm_up` no bool.
        ValueError: if `decay` is not from 0 to 1.

    Attributes:
        averages (ParameterTuple): float32, ``ema.<name>`` for each of ``weights``.
        weights (ParameterTuple): the network's own.
        updates (Parameter): int32 (1,), ``ema.updates``: t.
        swapped (bool): whether the network holds the averages now.

    Examples:
        >>> from mindspore import Tensor, nn
        >>> from boost_ext import boost
        >>> net = nn.Dense(1, 1, weight_init="ones", has_bias=False)
        >>> average = boost.ExponentialMovingAverage(0.5, warm_up=False)
        >>> average.attach(net)
        >>> _ = net.weight.set_data(Tensor([[3.0]]))
        >>> _ = average()  # a training cell with weight_average=average does this after each step
        >>> with average.swapped_in():
        ...     print(net.weight.asnumpy())
        [[2.]]
    """

    @checked_keywords
    def __init__(self, decay: float = 0.999, *, warm_up: bool = True) -> None:
        super().__init__(auto_prefix=False)
        decay = number(_NAME, "decay", decay)
        if not 0 <= decay <= 1:
            raise ValueError(f"{_NAME}: decay must be from 0 to 1, got {decay}")
        if not isinstance(warm_up, bool):
            raise TypeError(f"{_NAME}: warm_up must be a bool, got {type(warm_up).__name__}")
        self.warm_up, self.swapped = warm_up, False
        self.decay, self.whole = Tensor([decay], ms.float64), Tensor([1.0], ms.float64)
        self.updates = state("ema.updates", [0], ms.int32)
        self.weights: Any = ()
        self.averages: Any = ()
        self.update = native.EmaUpdate()

    def __repr__(self) -> str:
        return f"{_NAME}(decay={float(self.decay.asnumpy()[0])}, {len(self.weights)} weights)"

    def attach(self, network: nn.Cell) -> None:
        """Average the weights of this network. A training cell does it with what it trains.

        Raises:
            TypeError: if `network` is no Cell.
            ValueError: if there is a network already, or it has no weights of floating point that are trained.
        """
        if not isinstance(network, nn.Cell):
            raise TypeError(f"{_NAME}: network must be a Cell, got {type(network).__name__}")
        if self.weights:
            raise ValueError(f"{_NAME}: network must be attached once, each training has an average of its own")
        norms = [cell for _, cell in network.cells_and_names() if isinstance(cell, _BatchNorm)]
        statistics = {id(p) for p in statistics_of(norms)}
        weights = [
            p for p in network.get_parameters() if p.dtype in _FLOATS and (p.requires_grad or id(p) in statistics)
        ]
        if not any(p.requires_grad for p in weights):
            raise ValueError(f"{_NAME}: network must have floating point Parameters that are trained, got none")
        self.weights = ParameterTuple(weights)
        self.averages = ParameterTuple(state(f"ema.{p.name}", p.astype(ms.float32).asnumpy()) for p in weights)

    def construct(self, skip: Tensor | None = None) -> Tensor:
        decay = self.decay
        if self.warm_up:
            t = ops.cast(self.updates, ms.float64)
            decay = ops.minimum(decay, t / (t + 9.0))
        moved = self.whole
        if skip is not None:
            moved = ops.cast(ops.logical_not(ops.reshape(skip, (1,))), ms.float64)
            decay = self.whole - moved * (self.whole - decay)  # 1 where nothing is to change
        done = self.update(self.averages, self.weights, decay)
        counted = ops.assign_add(self.updates, ops.depend(ops.cast(moved, ms.int32), done))
        return ops.depend(done, counted)

    def swap_in(self) -> None:
        """Give the network the averages, rounded to its dtypes; :meth:`swap_out` gives it its weights back.

        Raises:
            RuntimeError: if it has them, or no network is attached.
        """
        if self.swapped or not self.weights:
            what = "swap_out() comes first" if self.swapped else "no network is attached"
            raise RuntimeError(f"{_NAME}: the averages cannot be swapped in: {what}")
        self.__dict__["_kept"] = [read(p) for p in self.weights]
        self.swapped = True
        for weight, average in zip(self.weights, self.averages, strict=True):
            write(weight, average.value().astype(weight.dtype))

    def swap_out(self) -> None:
        """Give the network its own weights back, bit for bit; nothing if it has them."""
        if self.swapped:
            for weight, kept in zip(self.weights, self.__dict__.pop("_kept"), strict=True):
                write(weight, kept)
            self.swapped = False

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """``with average.swapped_in():`` the network holds the averages inside."""
        self.swap_in()
        try:
            yield
        finally:
            self.swap_out()

    def during_evaluation(self) -> Callback:
        """A callback for ``Model.fit`` and ``Model.eval``: the averages are evaluated, the weights go on training."""
        return _DuringEvaluation(self)


class _DuringEvaluation(Callback):  # type: ignore[misc]
    def __init__(self, average: ExponentialMovingAverage) -> None:
        super().__init__()
        self.average = average

    def on_eval_begin(self, run_context: Any) -> None:
        self.average.swap_in()

    def on_eval_end(self, run_context: Any) -> None:
        self.average.swap_out()


class AverageAfterStep(nn.Cell):
    """``cell(found, loss)``: the average after a step of a training cell, except where `found`, or within a window of
    accumulation."""

    def __init__(self, cell: Any) -> None:
        super().__init__(auto_prefix=False)
        owner, average = type(cell).__name__, cell.options.weight_average
        other = ""
        if cell.options.dim_reduce is not None:
            other = "dim_reduce, which moves the weights in a subspace"
        elif cell.own_construct:
            other = "a construct of its own, which can call an average that it has attached"
        if other:
            raise ValueError(f"{owner}: weight_average must be None with {other}, got one")
        if not isinstance(average, ExponentialMovingAverage):
            raise TypeError(f"{owner}: weight_average must be an {_NAME}, got {type(average).__name__}")
        average.attach(cell.network)
        self.average = average
        self.count = None if cell.accumulation is None else cell.accumulation.count  # 0 after an update

    def require_own_weights(self) -> None:
        """Refuse to train the averages."""
        if self.average.swapped:
            raise RuntimeError(
                f"training step: the network must hold its own weights, got the averages of {_NAME}; call swap_out()"
            )

    def construct(self, found: Tensor, loss: Tensor) -> Tensor:
        skip = ops.depend(found, loss)
        if self.count is not None:
            skip = ops.logical_or(skip, ops.reshape(ops.depend(self.count, loss) != 0, (1,)))
        return self.average(skip)
