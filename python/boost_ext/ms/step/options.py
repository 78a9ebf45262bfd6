"""The options of a training step. AutoBoost attaches them to the optimizer that it returns."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mindspore import Parameter, nn

from boost_ext.config import DimReduceConfig
from boost_ext.ms.core.adaptive_clip import AdaptiveClip, checked_adaptive_clip
from boost_ext.ms.core.clipping import checked_clip_norm
from boost_ext.ms.optim.adoption import decision, whole_of
from boost_ext.ms.step.adasum_step import obstacle_of
from boost_ext.ms.step.grad_accumulation import checked_steps
from boost_ext.plan import CHECKED, UNCHECKED, Decision, Plan

if TYPE_CHECKING:
    from boost_ext.ms.step.local_steps import LocalSteps
    from boost_ext.ms.subspace.moving_average import ExponentialMovingAverage

__all__ = [
    "StepOptions",
    "attached_options",
    "require_check",
    "step_options",
    "warn_of_unknown_parameters",
    "what_trains",
]


@dataclass(frozen=True)
class StepOptions:
    """Options of one training step.

    Attributes:
        accumulation_steps: micro-batches for each update of the weights.
        dim_reduce: configuration of dimension-reduced training, or None.
        clip_norm: greatest norm of all gradients together, or None.
        adaptive_clip: settings of adaptive gradient clipping, or None.
        adasum_devices: devices of a node if AdaSum adds up over nodes, or None.
        fused_optimizer: whether an optimizer of ``mindspore.nn`` may step as one native call on its own state.
        check_overflow: whether to look for inf and nan in the gradients.
        weight_average: averages the weights, or None.
        local_steps: exchange the weights over ranks once in some steps, or None.
    """

    accumulation_steps: int = 1
    dim_reduce: DimReduceConfig | None = None
    clip_norm: float | None = None
    adasum_devices: int | None = None
    fused_optimizer: bool = True
    check_overflow: bool = True
    adaptive_clip: AdaptiveClip | None = None
    weight_average: ExponentialMovingAverage | None = None
    local_steps: LocalSteps | None = None

    def ask_for(self, name: str) -> bool:
        """Whether an option has another value than by default."""
        return bool(getattr(self, name) != getattr(type(self), name))

    @property
    def moves(self) -> bool:
        """Whether another algorithm than the optimizer moves the weights."""
        return self.dim_reduce is not None or self.adasum_devices is not None

    @property
    def alone(self) -> bool:
        """Whether the optimizer gets the gradients of each step as they are, and moves the weights."""
        return not self.moves and not any(map(self.ask_for, ("accumulation_steps", "clip_norm", "adaptive_clip")))

    @property
    def checks(self) -> bool:
        """Whether a guard reads the gradients: clipping needs their norm, and then the check is free."""
        return self.check_overflow or self.clip_norm is not None


def require_check(owner: str, check_overflow: bool) -> None:
    """Refuse a cell with a loss scale that does not look for inf and nan."""
    if not check_overflow:
        raise ValueError(f"{owner}: check_overflow must be True with a loss scale that it moves, got False")


def attached_options(optimizer: nn.Cell) -> StepOptions:
    """The options that AutoBoost has attached to an optimizer, or the defaults."""
    options = getattr(optimizer, "boost_options", None)
    return options if isinstance(options, StepOptions) else StepOptions()


def what_trains(plan: Plan, optimizer: nn.Cell, options: StepOptions, cell: Any = None) -> Plan:
    """The plan, completed by the algorithms that the optimizer carries and by the arguments of the training cell.

    ``cell``: the training cell, which knows its loss scales and ranks; None: not made yet.
    """
    attached, dim_reduce = attached_options(optimizer), options.dim_reduce
    steps, devices = options.accumulation_steps, options.adasum_devices
    freezes = getattr(optimizer, "freezes", False)
    reduction = {} if dim_reduce is None else dim_reduce.model_dump()
    found: dict[str, tuple[bool, bool, dict[str, Any]]] = {
        "grad_freeze": (freezes, True, {"groups": optimizer.groups_num} if freezes else {}),
        "grad_accumulation": (steps > 1, steps == attached.accumulation_steps, {"grad_accumulation_step": steps}),
        "dim_reduce": (dim_reduce is not None, dim_reduce == attached.dim_reduce, reduction),
        "adasum": (devices is not None, True, {} if devices is None else {"device_number": devices}),
    }
    if cell is not None:
        found["loss_scale_group"] = (cell.scale_groups, False, {})
    for name, (on, by_optimizer, details) in found.items():
        known = plan[name]
        if on and known.status != "applied":
            reason = "brought by the optimizer" if by_optimizer else "an argument of the training cell"
            plan = plan.with_result(name, "applied", reason, details)
        elif on and any(known.details.get(key) != value for key, value in details.items()):
            plan = plan.with_result(name, details=details)
        elif not on and known.status == "applied":
            plan = plan.with_result(name, "skipped", "neither the optimizer nor the training cell has it")
    if devices is not None and cell is not None and (obstacle := obstacle_of(cell)):
        plan = plan.with_result("adasum", "skipped", obstacle)
    fused = decision(whole_of(optimizer), options.fused_optimizer)
    if fused.status == "applied" and options.moves:
        fused = Decision("skipped", "another algorithm moves the weights")
    plan = plan.with_result("fused_optimizer", fused.status, fused.reason)
    if options.check_overflow:
        return plan.with_result("check_overflow", "applied", CHECKED)
    if options.checks:
        return plan.with_result("check_overflow", "applied", "clip_norm reads the gradients anyway")
    return plan.with_result("check_overflow", "skipped", UNCHECKED)


def step_options(
    owner: str,
    optimizer: nn.Cell,
    dim_reduce: DimReduceConfig | None,
    accumulation_steps: int | None,
    clip_norm: float | None,
    fused_optimizer: bool | None = None,
    check_overflow: bool | None = None,
    adaptive_clip: float | AdaptiveClip | None = None,
    weight_average: ExponentialMovingAverage | None = None,
    local_steps: LocalSteps | None = None,
) -> StepOptions:
    """The ``boost_options`` of the optimizer, overridden by the keywords of a training cell."""
    attached = attached_options(optimizer)
    steps = attached.accumulation_steps if accumulation_steps is None else accumulation_steps
    if check_overflow is not None and not isinstance(check_overflow, bool):
        raise TypeError(f"{owner}: check_overflow must be a bool, got {type(check_overflow).__name__}")
    options = StepOptions(
        checked_steps(owner, "accumulation_steps", steps),
        attached.dim_reduce if dim_reduce is None else dim_reduce,
        checked_clip_norm(owner, clip_norm),
        attached.adasum_devices,
        attached.fused_optimizer if fused_optimizer is None else fused_optimizer,
        attached.check_overflow if check_overflow is None else check_overflow,
        checked_adaptive_clip(owner, adaptive_clip),
        weight_average,
        local_steps,
    )
    if options.dim_reduce is not None and options.accumulation_steps > 1:
        raise ValueError(f"{owner}: dim_reduce must be the only algorithm, got freezing or accumulation with it")
    for clip in ("clip_norm", "adaptive_clip"):
        if options.dim_reduce is not None and options.ask_for(clip):
            raise ValueError(f"{owner}: {clip} must be None with dim_reduce, which searches the length of its step")
    if options.adaptive_clip is not None and options.clip_norm is not None:
        raise ValueError(f"{owner}: adaptive_clip must be None with clip_norm, got both")
    if hasattr(optimizer, "require_options"):
        optimizer.require_options(owner, options)
    return options


def warn_of_unknown_parameters(owner: str, network: nn.Cell, weights: Sequence[Parameter]) -> None:
    """Warn of parameters of the optimizer that the network does not have: it was made before a rewrite."""
    inside = {id(p) for p in network.get_parameters()}
    names = [w.name for w in weights if id(w) not in inside]
    if names:
        listed = f"{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"
        warnings.warn(
            f"{owner}: optimizer has {len(names)} parameters that network does not have, whose gradients are 0: "
            f"{listed}; make the optimizer after the network was rewritten (LessBN), or let AutoBoost do both",
            stacklevel=5,
        )
