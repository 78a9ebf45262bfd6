"""The base of the optimizers: what their constructors share. One native call steps all parameters."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn

from boost_ext.ms import native
from boost_ext.ms.optim.arguments import one_line
from boost_ext.ms.optim.grad_centralization import CentralizingOptimizer
from boost_ext.ms.optim.masters import new_masters, require_master
from boost_ext.ms.optim.native_step import NativeStep, Shared, members_of
from boost_ext.ms.optim.storage import StateStorage, state_like

__all__ = ["FusedOptimizer", "state_like"]

_DECOUPLED = ("adafactor", "muon", "apollo", "galore")
"""The rules without a row in the table of rules. They decouple their weight decay."""


class FusedOptimizer(NativeStep, CentralizingOptimizer):
    """The base of the optimizers. A subclass sets `rule`, and passes its state to :meth:`fuse`.

    Args:
        learning_rate (Union[float, int, Tensor, Iterable, LearningRateSchedule]): one value, one for each step, or a
            schedule; >= 0.
        parameters (Union[list[Parameter], list[dict]]): parameters, or groups of them: dicts with ``params`` and
            optionally ``lr``, ``weight_decay``, ``grad_centralization`` (of weights of two axes and more; gradients of
            others stay as they are), and one dict with ``order_params`` alone.
        weight_decay (Union[float, int, Cell]): L2 penalty, >= 0. Without groups it does not reach parameters with
            "beta" or "gamma" in their names. Default: 0.0.
        loss_scale (float): gradients are divided by it, > 0. Default: 1.0.
        master (str): how the master weight of a half-precision parameter is stored. "float32": 4 bytes an element.
            "split16", "split8": beside a bfloat16 parameter only the residual, which the parameter lacks of its master.
            "split16" takes 2 bytes and has the bits of "float32". "split8" takes 1 byte, and each step rounds the
            master to within 2^-16 of its value. Not of ``AdaFactor``, ``Muon``, ``Apollo``, ``GaLore`` and ``thor``.
            Default: "float32".

    Inputs:
        gradients (tuple[Tensor]), of the parameters' shapes.

    Outputs:
        Tensor[bool] of shape (1,), True.

    Raises:
        TypeError: if an argument has a type other than the ones given, or a parameter is float16 and `master` is not
            "float32".
        ValueError: if a value is out of range, also one of a list of learning rates, or a learning rate has more than
            one axis; in a call, if a gradient has another shape than its parameter, or there are more or fewer.

    float16 and bfloat16 parameters have float32 master weights in ``masters``, on which the arithmetic runs. A
    parameter that is set from outside, by a checkpoint for example, updates its master at the next step. Of a split
    master, ``masters`` has the residual: int16, or uint8 with the bits of int8. It stays when its parameter is set, and
    is within half the parameter's spacing; set it to 0 too for an exact value (FlashOptim, arXiv 2602.23349; the
    equations are in csrc/ops/optimizer_step.h). State is float32, or what `state_dtype` says where a class has it.

    Where a class has `cautious`, it leaves out the update of an element, but not its weight decay, where the sign is
    not that of the gradient (Liang et al. 2024, *Cautious optimizers*). The others are not scaled up, as they are in
    the paper.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext import optim
        >>> net = nn.SequentialCell(nn.Dense(4, 3), nn.Dense(3, 2))
        >>> first, second = net[0].trainable_params(), net[1].trainable_params()
        >>> optimizer = optim.SGD([{"params": first, "lr": 0.01}, {"params": second, "weight_decay": 0.1}], 0.1)
        >>> isinstance(optimizer, optim.FusedOptimizer), optimizer
        (True, SGD(4 parameters))
    """

    rule: str
    takes_rows = False  # whether a gradient may be a RowTensor
    lars_refusal: ClassVar[str] = ""  # why LARS cannot go around it

    def __init__(
        self,
        learning_rate: Any,
        parameters: Any,
        weight_decay: Any = 0.0,
        loss_scale: float = 1.0,
        *,
        master: str = "float32",
    ) -> None:
        CentralizingOptimizer.__init__(self, learning_rate, parameters, weight_decay, loss_scale)
        require_master(type(self).__name__, master, self.parameters)
        self.master = master

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "get_lr" in vars(cls) and not cls.__module__.startswith("boost_ext."):
            warnings.warn(
                f"{cls.__name__}: get_lr is for reports here, and no step calls it; give learning_rate a "
                "LearningRateSchedule instead",
                stacklevel=2,
            )
        rule = cls.__dict__.get("rule")  # decouples: it decays the weights, and not the gradient that LARS scales
        if rule in _DECOUPLED or (rule is not None and native.rule_facts(rule)["decoupled"]):
            cls.lars_refusal = f"{cls.__name__} decouples its weight decay; LARS needs it in the gradient"

    def __repr__(self) -> str:
        return one_line(self)

    def _preprocess_single_lr(self, learning_rate: Any) -> Any:
        """A checked learning rate, of a group or of all. The base class checks single numbers only."""
        rate = super()._preprocess_single_lr(learning_rate)
        if isinstance(rate, Tensor):
            values = rate.asnumpy().reshape(-1)
            for i in np.flatnonzero(~(values >= 0))[:1]:
                place = f"learning_rate[{i}]" if rate.ndim else "learning_rate"
                raise ValueError(f"{type(self).__name__}: {place} must be >= 0, got {values[i]:g}")
        return rate

    def fuse(
        self,
        hyper: Sequence[float],
        states: Sequence[ParameterTuple],
        *,
        powers: Sequence[Parameter] = (),
        first: Sequence[Parameter] = (),
        storage: StateStorage | None = None,
        lists: Sequence[Sequence[Any]] | None = None,
        **own: Any,
    ) -> None:
        """Prepare the native call; a constructor ends with it.

        `hyper` and `states` are in the order of the rule, see csrc/ops/optimizer_step.h. A call reads or writes
        `powers` and `first` beside them, see csrc/doors/step_layout.h. `lists` and `own` are for :func:`members_of`;
        the lists are by default the states, the scales in the storage, and `first`.
        """
        self.masters = ParameterTuple(new_masters(self.parameters, self.master))
        self.number_of_states = len(states)
        for i, state in enumerate(states):
            setattr(self, f"states{i}", ParameterTuple(state))
        scales = [] if storage is None else storage.scales
        for i, of_state in enumerate(scales):
            setattr(self, f"scales{i}", of_state)
        if first:
            self.first = ParameterTuple(first)
        shared = Shared(
            owner=type(self).__name__,
            takes_rows=self.takes_rows,
            rule=self.rule,
            hyper=(*hyper, self.loss_scale),
            global_step=self.global_step,
            powers=tuple(powers),
            number_of_states=len(states),
            has_first=bool(first),
            seed=0 if storage is None else storage.seed,
        )
        if lists is None:
            coded = zip(scales, states, strict=False)
            own_scales = [[c if c is not s else () for c, s in zip(*pair, strict=True)] for pair in coded]
            lists = [*states, *own_scales, *([first] if first else [])]
        self.arrange(shared, members_of(self, lists, masters=self.masters, **own))

    def require_options(self, owner: str, options: Any) -> None:
        """A ValueError for AdaSum over split masters: it adds up the steps of masters, as float32."""
        if options.adasum_devices is not None and self.master != "float32":
            raise ValueError(
                f"{owner}: {type(self).__name__} must have master='float32' with adasum, which adds up the steps of "
                f"the masters, got {self.master!r}"
            )

    @nn.Optimizer.target.setter  # type: ignore[untyped-decorator]
    def target(self, value: str) -> None:
        """Where the parameters are updated, see :class:`mindspore.nn.Optimizer`."""
        self._set_base_target(value)
