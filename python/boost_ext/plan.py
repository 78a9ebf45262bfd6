"""The plan: which algorithm a level and a configuration come down to, which not, and why. Data, without MindSpore."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from boost_ext.arguments import nearest
from boost_ext.config import EXCLUDES, LEVELS, BoostConfig
from boost_ext.terminal import Fitting

__all__ = ["CHECKED", "LESS_BN_PARTS", "UNCHECKED", "Decision", "Plan", "Status", "adasum_obstacle", "plan"]

Status = Literal["applied", "skipped", "refused"]
"""What a decision can be."""
_STYLES = {"applied": "green", "skipped": "dim", "refused": "red"}
LESS_BN_PARTS = {"less_bn": "bn_flag", "fn_head": "fn_flag", "grad_centralization": "gc_flag"}
"""The rows of the plan that section ``less_bn`` switches, and by which key."""
CHECKED = "a step with inf or nan in its gradients changes nothing"
"""The reason of ``check_overflow`` where it is applied."""
UNCHECKED = "check_overflow is False: inf and nan reach the weights"
"""The reason of ``check_overflow`` where it is skipped."""
_SECTIONS = ("less_bn", "grad_freeze", "grad_accumulation", "dim_reduce")


def _frozen(details: Mapping[str, Any]) -> Mapping[str, Any]:
    return types.MappingProxyType(dict(details))


@dataclass(frozen=True)
class Decision:
    """The decision on one feature.

    Attributes:
        status (str): "applied"; "skipped": not asked for, nothing to do, or off because of another one; "refused":
            asked for, and not possible here, so that training raises an error.
        reason (str): why, a sentence.
        details (dict): JSON-able data: settings, and, once a network was rewritten, the changes to it.
        ignored (tuple[str]): settings of this feature in the configuration that have no effect.

    Examples:
        >>> from boost_ext.config import BoostConfig
        >>> from boost_ext.plan import plan
        >>> plan("O0", BoostConfig())["adasum"]
        Decision(status='skipped', reason='level O0 does not have it', details=mappingproxy({}), ignored=())
    """

    status: Status
    reason: str
    details: Mapping[str, Any] = field(default_factory=lambda: _frozen({}))
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """The decision about every feature; printed as a table.

    Attributes:
        level (str): "O0", "O1" or "O2".
        mode (str): "auto", "manual", "enable_all" or "disable_all".
        features (dict): name to :class:`Decision`; ``plan["less_bn"]`` is short for ``plan.features["less_bn"]``.

    Examples:
        >>> from boost_ext.config import BoostConfig
        >>> from boost_ext.plan import plan
        >>> decided = plan("O1", BoostConfig())
        >>> decided.applies("grad_freeze"), decided["dim_reduce"].reason
        (True, 'level O1 does not have it')
    """

    level: str
    mode: str
    features: Mapping[str, Decision]

    def __getitem__(self, feature: str) -> Decision:
        if feature not in self.features:
            raise KeyError(f"{feature!r}, did you mean {nearest(feature, self.features)!r}?")
        return self.features[feature]

    def applies(self, feature: str) -> bool:
        """Whether the feature is on."""
        return self[feature].status == "applied"

    @property
    def refused(self) -> tuple[str, ...]:
        """The features that were asked for and cannot be had."""
        return tuple(name for name, decision in self.features.items() if decision.status == "refused")

    def with_result(
        self,
        feature: str,
        status: Status | None = None,
        reason: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Plan:
        """A new plan with more about a feature: absent arguments do not change, and details are added."""
        old = self[feature]
        new = replace(
            old,
            status=status or old.status,
            reason=reason or old.reason,
            details=_frozen({**old.details, **(details or {})}),
        )
        return replace(self, features=types.MappingProxyType({**self.features, feature: new}))

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON knows it."""
        features = {
            name: {"status": d.status, "reason": d.reason, "details": dict(d.details), "ignored": list(d.ignored)}
            for name, d in self.features.items()
        }
        return {"level": self.level, "mode": self.mode, "features": features}

    def __rich__(self) -> Fitting:
        table = Table(title=f"boost plan: level {self.level}, mode {self.mode}")
        for column in ("feature", "status", "why", "details"):
            table.add_column(column, overflow="fold", no_wrap=column in ("feature", "status"))
        for name, decision in self.features.items():
            style = _STYLES[decision.status]
            table.add_row(name, f"[{style}]{decision.status}[/]", *map(escape, _texts(decision)))
        return Fitting(table)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        rows = [(name, d.status, " | ".join(filter(None, _texts(d)))) for name, d in self.features.items()]
        width = max(len(name) for name, _, _ in rows)
        lines = [f"{name:<{width}}  {status:<7}  {text}" for name, status, text in rows]
        return "\n".join([f"boost plan: level {self.level}, mode {self.mode}", *lines])


def _texts(decision: Decision) -> tuple[str, str]:
    why = "; ".join([decision.reason, *decision.ignored])
    return why, ", ".join(f"{key}={json.dumps(value)}" for key, value in decision.details.items())


def plan(level: str, config: BoostConfig, *, rank_size: int = 1) -> Plan:
    """Decide about every feature, before a network is seen.

    Args:
        level (str): "O0", "O1" or "O2".
        config (BoostConfig): the mode (``boost.mode``) and the settings; absent keys take the values of the level.
        rank_size (int): processes that train together. Default: 1.

    Returns:
        Plan.

    Raises:
        TypeError: if `level` is no str.
        ValueError: for an unknown level; and if dim_reduce is on and neither ``dim_reduce.pca_mat_path`` nor
            ``dim_reduce.weight_load_dir`` says where its subspace comes from.

    Examples:
        >>> from boost_ext.config import BoostConfig
        >>> from boost_ext.plan import plan
        >>> decided = plan("O2", BoostConfig.load({"grad_freeze": {"total_steps": 5000}}))
        >>> [name for name, decision in decided.features.items() if decision.status == "applied"]
        ['less_bn', 'grad_centralization', 'grad_freeze', 'fused_optimizer', 'check_overflow']
    """
    if not isinstance(level, str):
        raise TypeError(f"AutoBoost: level must be a str, got {type(level).__name__}")
    if level not in LEVELS:
        raise ValueError(f"AutoBoost: level must be one of {list(LEVELS)}, got {level!r}")
    config = config.at_level(level)
    asked, why = _asked(level, config)
    off = _excluded(asked)
    _need_subspace(asked, config)

    decisions: dict[str, Decision] = {}
    for name in asked:
        ignored = tuple(_ignored_settings(level, name, config))
        if not asked[name]:
            decision = Decision("skipped", why[name], ignored=(*_ignored_switch(name, config, True), *ignored))
        elif name in off:
            reason = f"{off[name]} is on, and {name} cannot be combined with it"
            decision = Decision("skipped", reason, ignored=ignored)
        elif name == "adasum" and (obstacle := adasum_obstacle(rank_size, config.common.device_number)):
            decision = Decision(obstacle[0], obstacle[1], ignored=ignored)
        else:
            decision = _possible(level, name, why[name], config, rank_size)
        decisions[name] = decision
        if name == "less_bn":
            decisions.update(_parts(level, decision, config))
    decisions["fused_optimizer"] = _fused_optimizer(config, decisions["dim_reduce"].status == "applied")
    check = config.common.check_overflow
    decisions["check_overflow"] = Decision("applied", CHECKED) if check else Decision("skipped", UNCHECKED)
    return Plan(level, config.boost.mode, types.MappingProxyType(decisions))


def _fused_optimizer(config: BoostConfig, dim_reduce: bool) -> Decision:
    fused = config.common.fused_optimizer
    if fused and dim_reduce:
        return Decision("skipped", "dim_reduce is on, which moves the weights")
    return Decision("applied" if fused else "skipped", f"common.fused_optimizer is {fused}")


def adasum_obstacle(rank_size: int, device_number: int) -> tuple[Status, str] | None:
    """Why AdaSum cannot add up over the nodes of this run; None if it can.

    Examples:
        >>> from boost_ext.plan import adasum_obstacle
        >>> adasum_obstacle(rank_size=6, device_number=4)
        ('refused', 'common.device_number must divide the number of ranks, 6, got 4')
    """
    if rank_size == 1:
        return "skipped", "it needs more than one rank"
    if rank_size <= device_number:
        return "skipped", f"it adds up nodes, and {rank_size} ranks with common.device_number {device_number} are one"
    if rank_size % device_number:
        return "refused", f"common.device_number must divide the number of ranks, {rank_size}, got {device_number}"
    return None


def _asked(level: str, config: BoostConfig) -> tuple[dict[str, bool], dict[str, str]]:
    """For each feature whether it is requested, before exclusions, and by whom."""
    switches = config.boost
    asked, why = {}, {}
    for name in (n for n in type(switches).model_fields if n != "mode"):
        on = name in LEVELS[level]
        reason = f"level {level} has it" if on else f"level {level} does not have it"
        if switches.mode in ("enable_all", "disable_all"):
            on, reason = switches.mode == "enable_all", f"mode {switches.mode}"
        elif switches.mode == "manual" and name in switches.model_fields_set:
            on = getattr(switches, name)
            reason = f"boost.{name} is {on}"
        asked[name], why[name] = on, reason
    return asked, why


def _ignored_switch(name: str, config: BoostConfig, value: bool) -> tuple[str, ...]:
    """A boolean that was given, and is not read."""
    switches = config.boost
    if name not in switches.model_fields_set or getattr(switches, name) is not value or switches.mode == "manual":
        return ()
    return (f"boost.{name} is {value}, which mode {switches.mode} ignores (mode manual reads it)",)


def _ignored_settings(level: str, name: str, config: BoostConfig) -> Iterator[str]:
    """Settings other than the defaults at the level, of a feature that is off."""
    default = BoostConfig(boost=config.boost).at_level(level)
    if name in _SECTIONS and getattr(config, name) != getattr(default, name):
        yield f"section {name} has no effect"
    key = {"less_bn": "gradient_split_groups", "adasum": "device_number"}.get(name)
    if key is not None and getattr(config.common, key) != getattr(default.common, key):
        yield f"common.{key} has no effect"


def _excluded(asked: Mapping[str, bool]) -> dict[str, str]:
    """The features that are off because of another one: name to the other one."""
    off: dict[str, str] = {}
    for name, others in EXCLUDES.items():
        if asked[name] and name not in off:
            off |= {other: name for other in others if other not in off}
    return off


def _need_subspace(asked: Mapping[str, bool], config: BoostConfig) -> None:
    settings = config.dim_reduce
    if asked["dim_reduce"] and settings.pca_mat_path is None and settings.weight_load_dir is None:
        by = "boost.mode enable_all" if config.boost.mode == "enable_all" else "boost.dim_reduce"
        raise ValueError(
            f"AutoBoost: {by} needs a subspace to train in: set dim_reduce.weight_load_dir (a directory of "
            "checkpoints) or dim_reduce.pca_mat_path (the file of a matrix), got neither"
        )


def _possible(level: str, name: str, why: str, config: BoostConfig, rank_size: int) -> Decision:
    """A feature that is on, unless this run has no use for it or this release no support."""
    if name == "adasum":
        devices = config.common.device_number
        details = _frozen({"device_number": devices, "nodes": rank_size // devices})
        return Decision("applied", why, details, _ignored_switch(name, config, False))
    steps = config.grad_accumulation.grad_accumulation_step
    if name == "grad_accumulation" and steps == 1:
        return Decision("skipped", "grad_accumulation.grad_accumulation_step is 1: nothing to accumulate")
    if name == "loss_scale_group":
        why = f"{why}; loss_scale_manager must be a GroupLossScaleManager"
    if name == "grad_freeze":
        own = config.level_defaults(level).get(name, {})
        if own:
            keys = ", ".join(f"{key} {value}" for key, value in own.items())
            why = f"{why}; {keys} {'is the default' if len(own) == 1 else 'are the defaults'} of level {level}"
    settings = getattr(config, name).model_dump() if name in _SECTIONS and name != "less_bn" else {}
    return Decision("applied", why, _frozen(settings), _ignored_switch(name, config, False))


def _parts(level: str, less_bn: Decision, config: BoostConfig) -> dict[str, Decision]:
    """The removal of batch norms, the FN head and gradient centralization."""
    if less_bn.status != "applied":
        off = Decision("skipped", "it comes with less_bn, which is off")
        return dict.fromkeys(LESS_BN_PARTS, off) | {"less_bn": less_bn}
    own = config.level_defaults(level).get("less_bn", {})
    parts = {name: Decision("applied", f"less_bn.{key} is True") for name, key in LESS_BN_PARTS.items()}
    parts["less_bn"] = less_bn  # its row is that of the removal
    for name, key in LESS_BN_PARTS.items():
        if not getattr(config.less_bn, key):
            left_out = f"level {level} leaves it out (less_bn.{key} switches it on)"
            why = left_out if key in own else f"less_bn.{key} is False"
            parts[name] = replace(parts[name], status="skipped", reason=why)
    return parts
