"""Loss scale managers that share their state with the training cell.

Names, arguments and defaults are those of ``mindspore.amp``; the rule is that of Micikevicius et
al., "Mixed precision training", ICLR 2018, section 3.2. A manager holds its update cell
(:mod:`boost_ext.ms.loss_scale.loss_scale_update`) and reads and writes the Parameters in there.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, amp, nn, ops

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.loss_scale.loss_scale_update import (
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
    Rule,
    check_int,
    check_scale,
)

__all__ = ["DynamicLossScaleManager", "FixedLossScaleManager", "LossScaleManager"]


class LossScaleManager(amp.LossScaleManager, ABC):  # type: ignore[misc]
    """Base of the managers: the loss scale of a training cell, and its updates.

    ``mindspore.amp`` and ``mindspore.Model`` accept it, since it is a
    ``mindspore.amp.LossScaleManager``. A subclass implements the three methods; without one of
    them it cannot be instantiated (TypeError).

    Examples:
        >>> from boost_ext import amp
        >>> class Halved(amp.LossScaleManager):
        ...     def __init__(self):
        ...         self.scale = 1024.0
        ...
        ...     def get_loss_scale(self):
        ...         return self.scale
        ...
        ...     def update_loss_scale(self, overflow):
        ...         self.scale /= 2 if overflow else 1
        ...
        ...     def get_update_cell(self):
        ...         return None  # the optimizer unscales
        >>> Halved().get_loss_scale()
        1024.0
    """

    @abstractmethod
    def get_loss_scale(self) -> float:
        """The factor on the loss of the next step."""

    @abstractmethod
    def update_loss_scale(self, overflow: bool) -> None:
        """Take note of a step.

        Args:
            overflow (bool): whether its gradients held inf or nan.
        """

    @abstractmethod
    def get_update_cell(self) -> nn.Cell | None:
        """The Cell that a training cell calls after each step, the same one each time, or None."""


class FixedLossScaleManager(LossScaleManager):
    """A loss scale that stays.

    Args:
        loss_scale (float): finite and >= 1. Default: 128.0.
        drop_overflow_update (bool): if True, the training cell unscales the gradients and skips
            the optimizer on overflow; the optimizer's ``loss_scale`` stays 1. If False, there is no
            update cell and the optimizer unscales: its ``loss_scale`` must equal `loss_scale`.
            Default: True.

    Raises:
        TypeError: for an argument of another type; a bool is no number.
        ValueError: for a scale that is nan, inf, below 1 or beyond float32.

    Examples:
        >>> from boost_ext import amp
        >>> amp.FixedLossScaleManager(1024.0).get_loss_scale()
        1024.0
    """

    @checked_keywords
    def __init__(self, loss_scale: float = 128.0, drop_overflow_update: bool = True) -> None:
        owner = type(self).__name__
        if not isinstance(drop_overflow_update, bool):
            got = type(drop_overflow_update).__name__
            raise TypeError(f"{owner}: drop_overflow_update must be a bool, got {got}")
        scale = check_scale(owner, "loss_scale", loss_scale)
        self._cell = FixedLossScaleUpdateCell(scale) if drop_overflow_update else None
        self._loss_scale = float(loss_scale)  # unrounded: the optimizer's is a Python float too

    def get_loss_scale(self) -> float:
        """The loss scale."""
        return self._loss_scale if self._cell is None else self._cell.get_loss_scale()

    def get_drop_overflow_update(self) -> bool:
        """Whether a step that overflows leaves the weights alone."""
        return self._cell is not None

    def update_loss_scale(self, overflow: bool) -> None:
        """Nothing: the scale is fixed."""

    def get_update_cell(self) -> FixedLossScaleUpdateCell | None:
        """The cell that holds the scale; None without ``drop_overflow_update``."""
        return self._cell

    def __repr__(self) -> str:
        return f"FixedLossScaleManager({self.get_loss_scale():g}, drop_overflow_update={self._cell is not None})"

    def state_dict(self) -> dict[str, Any]:
        """``{"loss_scale": float}``."""
        return {"loss_scale": self.get_loss_scale()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`.

        Raises:
            TypeError: if it is no dict, or the scale is no number.
            ValueError: for other keys, for a scale that the constructor refuses, and, without
                ``drop_overflow_update``, for another scale than the one that the optimizer was
                made with.
        """
        owner = f"{type(self).__name__}.load_state_dict"
        _check_keys(owner, state, {"loss_scale"})
        scale = check_scale(owner, "loss_scale", state["loss_scale"])
        if self._cell is not None:
            ops.assign(self._cell.scale_sense, Tensor(scale, ms.float32))
        elif state["loss_scale"] != self._loss_scale:
            raise ValueError(
                f"{owner}: loss_scale must be {self._loss_scale}, which the optimizer unscales "
                f"with, got {state['loss_scale']}"
            )


class DynamicLossScaleManager(LossScaleManager):
    """A loss scale that follows the gradients.

    On overflow the scale is divided by ``scale_factor``, not below 1. After each ``scale_window``
    steps since the last change it is multiplied with it, not above ``max_loss_scale``. Manager and
    update cell have one state, in float32: whichever of them takes a step, both have taken it.

    Args:
        init_loss_scale (float): >= 1 and <= `max_loss_scale`. Default: 2**24.
        scale_factor (float): finite and > 1. Default: 2.
        scale_window (int): from 1 to 2**24. Default: 2000.
        max_loss_scale (float): finite and >= 1. Default: 2.0**64.

    Raises:
        TypeError: for an argument of another type; a bool is no number.
        ValueError: for nan, inf and values out of these ranges.

    Examples:
        >>> from boost_ext import amp
        >>> manager = amp.DynamicLossScaleManager(init_loss_scale=1024, scale_factor=2, scale_window=2000)
        >>> manager.update_loss_scale(overflow=True)
        >>> manager.get_loss_scale()
        512.0
    """

    @checked_keywords
    def __init__(
        self,
        init_loss_scale: float = 2**24,
        scale_factor: float = 2,
        scale_window: int = 2000,
        *,
        max_loss_scale: float = 2.0**64,
    ) -> None:
        owner = type(self).__name__
        rule = Rule.checked(owner, scale_factor, scale_window, max_loss_scale)
        scale = check_scale(owner, "init_loss_scale", init_loss_scale, rule.maximum)
        self._cell = DynamicLossScaleUpdateCell(scale, rule.factor, rule.window, max_loss_scale=rule.maximum)

    def __repr__(self) -> str:
        rule = self._cell.rule
        return f"DynamicLossScaleManager({self.get_loss_scale():g}, factor={rule.factor:g}, window={rule.window})"

    def get_loss_scale(self) -> float:
        """The loss scale of the next step."""
        return self._cell.get_loss_scale()

    def get_drop_overflow_update(self) -> bool:
        """True: a step that overflows leaves the weights alone."""
        return True

    def update_loss_scale(self, overflow: bool) -> None:
        """Take note of a step that a training loop made.

        ``mindspore.Model`` reports each step here after its training cell has counted it through
        the update cell, and a step must not count twice. So a report after steps of the update
        cell acknowledges them and changes nothing else; any other report moves the state.

        Args:
            overflow (bool): whether the step's gradients held inf or nan; a bool Tensor of one
                element will do.

        Raises:
            TypeError: if `overflow` is no bool.
            RuntimeError: at the 1001st overflow in a row.
        """
        flag = _flag(f"{type(self).__name__}.update_loss_scale", overflow)
        cell = self._cell
        counters = cell.counters.asnumpy().copy()
        if counters[0] != cell.reported.asnumpy():
            ops.assign(cell.reported, Tensor(counters[0], ms.int32))
            return
        # On copies, by the host: the Parameters may live on a device.
        scale = cell.scale_sense.asnumpy().reshape(1).copy()
        factor, window, maximum = cell.rule
        try:
            native.update_loss_scale(scale, counters, flag, factor=factor, window=window, max_scale=maximum)
        finally:  # in the cell too the 1001st overflow is counted before it raises
            self._write(scale[0], counters, counters[0])

    def get_update_cell(self) -> DynamicLossScaleUpdateCell:
        """The cell that holds the state, the same one each time."""
        return self._cell

    def state_dict(self) -> dict[str, Any]:
        """All that changes, as Python numbers.

        ``loss_scale``, ``iteration``, ``last_change``, ``overflows_in_a_row`` and ``reported``: see
        :class:`DynamicLossScaleUpdateCell`. The rule is no state, it belongs to the constructor.
        """
        iteration, last_change, overflows = (int(c) for c in self._cell.counters.asnumpy())
        return {
            "loss_scale": self.get_loss_scale(),
            "iteration": iteration,
            "last_change": last_change,
            "overflows_in_a_row": overflows,
            "reported": int(self._cell.reported.asnumpy()),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`, for existing training cells too.

        Raises:
            TypeError: if it is no dict, or a value has another type.
            ValueError: for missing or unknown keys, a scale above ``max_loss_scale``, or counters
                that no training reaches. Then nothing has changed.
        """
        owner = f"{type(self).__name__}.load_state_dict"
        _check_keys(owner, state, set(self.state_dict()))
        scale = check_scale(owner, "loss_scale", state["loss_scale"], self._cell.rule.maximum)
        iteration = check_int(owner, "iteration", state["iteration"], 1)
        counters = [
            iteration,
            check_int(owner, "last_change", state["last_change"], 0, iteration - 1),
            check_int(owner, "overflows_in_a_row", state["overflows_in_a_row"], 0, iteration - 1),
        ]
        reported = check_int(owner, "reported", state["reported"], 1, iteration)
        self._write(scale, counters, reported)

    def _write(self, scale: float, counters: Any, reported: int) -> None:
        # Not set_data: it moves the storage, and a graph that ms.jit has compiled in PYNATIVE_MODE
        # goes on writing to the old one.
        ops.assign(self._cell.scale_sense, Tensor(scale, ms.float32))
        ops.assign(self._cell.counters, Tensor(counters, ms.int32))
        ops.assign(self._cell.reported, Tensor(reported, ms.int32))


def _check_keys(owner: str, state: Any, expected: set[str]) -> None:
    if not isinstance(state, Mapping):
        raise TypeError(f"{owner}: state must be a dict, got {type(state).__name__}")
    missing, unknown = sorted(expected - set(state)), sorted(map(str, set(state) - expected))
    if missing or unknown:
        raise ValueError(
            f"{owner}: state must have the keys {sorted(expected)}, got {unknown} too many and {missing} missing"
        )


def _flag(owner: str, overflow: Any) -> bool:
    if isinstance(overflow, (bool, np.bool_)):
        return bool(overflow)
    if isinstance(overflow, Tensor) and overflow.dtype == ms.bool_ and overflow.size == 1:
        return bool(overflow.item())
    raise TypeError(f"{owner}: overflow must be a bool, got {overflow!r}")
