"""Construct an optimizer again: the same class, hyperparameters and state, over other parameters or groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from mindspore import Parameter, Tensor, nn

from boost_ext.ms.optim.grad_centralization import centralizing

__all__ = ["of_class", "parameter_groups", "rebuild", "require_rebuildable"]

Optimizer = TypeVar("Optimizer", bound=nn.Optimizer)


def parameter_groups(optimizer: nn.Optimizer) -> list[Any]:
    """The Parameters of an optimizer, or its groups with the current learning rates, for its constructor.

    Groups are the recorded ones of the constructor, or follow from the settings of the parameters. Parameters,
    schedules and weight decay cells are not copied.
    """
    if _is_around_another(optimizer):
        return parameter_groups(optimizer.opt)
    if not optimizer.is_group:
        return list(optimizer.parameters)
    recorded = getattr(optimizer, "init_params", {}).get("params")
    if not isinstance(recorded, (list, tuple)):
        return _groups_of_settings(optimizer)
    groups = []
    for group in recorded:
        group = {key: list(value) if key in ("params", "order_params") else value for key, value in group.items()}
        if "lr" in group:
            group["lr"] = _rate_of(optimizer, group["params"][0])
        groups.append(group)
    return groups


def _is_around_another(optimizer: nn.Optimizer) -> bool:
    """As LARS is."""
    return isinstance(getattr(optimizer, "opt", None), nn.Optimizer)


def _groups_of_settings(optimizer: nn.Optimizer) -> list[Any]:
    """For an optimizer that has not recorded its groups: parameters with the same settings are one group."""
    parameters = list(optimizer.parameters)
    groups: dict[Any, dict[str, Any]] = {}
    for i, p in enumerate(parameters):
        decay = _decay(optimizer, optimizer.group_weight_decay[i])
        centralized = optimizer.group_grad_centralization[i]
        rate = id(optimizer.learning_rate[i]) if optimizer.is_group_lr else None
        key = (rate, id(decay) if isinstance(decay, nn.Cell) else decay, centralized)
        if key not in groups:
            groups[key] = {"params": [], "weight_decay": decay, "grad_centralization": centralized}
            if optimizer.is_group_lr:
                groups[key]["lr"] = _rate_of(optimizer, p)
        groups[key]["params"].append(p)
    return [*groups.values(), {"order_params": parameters}]


def _rate_of(optimizer: nn.Optimizer, parameter: Parameter) -> Any:
    """The learning rate for a constructor: float, Tensor with one value a step, or schedule."""
    rate = optimizer.get_lr_parameter(parameter)
    if not isinstance(rate, Parameter):
        return rate
    return float(rate.asnumpy()) if rate.ndim == 0 else Tensor(rate.asnumpy().copy())


def _decay(optimizer: nn.Optimizer, decay: Any) -> Any:
    """The weight decay for a constructor. The optimizer holds it multiplied by its loss scale."""
    if isinstance(decay, nn.Cell):
        return decay.weight_decay
    return float(decay) / float(optimizer.loss_scale)


def _default_rate(optimizer: nn.Optimizer, groups: Sequence[Any]) -> Any:
    if getattr(optimizer, "relative_step", False):  # of AdaFactor, which then takes none
        return None
    if not optimizer.is_group_lr:
        return _rate_of(optimizer, optimizer.parameters[0])
    for group in parameter_groups(optimizer):
        if "lr" not in group and group.get("params"):
            return _rate_of(optimizer, group["params"][0])
    rate = getattr(optimizer, "init_learning_rate", None)
    if rate is not None:
        return rate
    _require(optimizer, groups, "lr")
    return 0.0


def _default_decay(optimizer: nn.Optimizer, groups: Sequence[Any]) -> Any:
    if not optimizer.is_group:
        return _decay(optimizer, optimizer.weight_decay)
    decays = [_decay(optimizer, decay) for decay in optimizer.group_weight_decay]
    if all(decay is decays[0] or decay == decays[0] for decay in decays):
        return decays[0]
    _require(optimizer, groups, "weight_decay")
    return 0.0


def _require(optimizer: nn.Optimizer, groups: Sequence[Any], key: str) -> None:
    """Refuse groups without a value of their own: the optimizer has not kept its default."""
    if not groups or any(key not in group for group in groups if "order_params" not in group):
        cls = type(optimizer).__name__
        raise ValueError(f"rebuild: every group must have {key}: those of the {cls} differ, and its default is unknown")


def _hyperparameters(optimizer: nn.Optimizer, groups: Sequence[Any]) -> dict[str, Any]:
    """The constructor's keyword arguments besides the parameters and the learning rate."""
    recorded = getattr(optimizer, "init_args", None)
    if recorded is not None:
        arguments = dict(recorded)
        extra = arguments.pop("kwargs", None)  # of nn.Adam
        return arguments | (extra or {})
    is_offloaded = _is_of_mindspore(optimizer, "AdamOffload")
    if not (is_offloaded or _is_of_mindspore(optimizer, "AdamWeightDecay")):
        cls = type(optimizer).__name__
        raise TypeError(
            f"rebuild: {cls} does not say what it was constructed with; let it define init_args, a dict of its "
            "constructor's keyword arguments besides params and learning_rate (the decorator opt_init_args_register of "
            "mindspore.nn.optim.optimizer does)"
        )
    arguments = {name: float(getattr(optimizer, name).asnumpy().item()) for name in ("beta1", "beta2", "eps")}
    arguments["weight_decay"] = _default_decay(optimizer, groups)
    if is_offloaded:
        arguments |= {name: optimizer.opt.attrs[name] for name in ("use_locking", "use_nesterov")}
        arguments["loss_scale"] = optimizer.loss_scale
    return arguments


def _is_of_mindspore(optimizer: nn.Optimizer, name: str) -> bool:
    """By name, since some will leave ``mindspore.nn``; a class that centralizes is a subclass."""
    cls = getattr(nn, name, None)
    return cls is not None and isinstance(optimizer, cls)


def require_rebuildable(optimizer: nn.Optimizer) -> None:
    """A TypeError for an optimizer that is never constructed again."""
    if hasattr(optimizer, "never_rebuilt"):
        raise TypeError(f"rebuild: optimizer must not be {optimizer.never_rebuilt}")


def rebuild(optimizer: Optimizer, params: Iterable[Any]) -> Optimizer:
    """Construct an optimizer of the same class and hyperparameters over other parameters or groups, with its state.

    Learning rates are the current ones; schedules are shared. Counters, and the state of the parameters that both have
    (the same objects), are copied, so a training continues after its network was rewritten. New parameters start with
    new state. The given optimizer does not change. LARS is constructed around the rebuilt optimizer.

    If a group has ``grad_centralization``, the class is a subclass that centralizes on the CPU, see
    :func:`boost_ext.ms.optim.grad_centralization.centralizing`.

    Args:
        optimizer (Optimizer): of ``mindspore.nn``, or of a class with ``init_args``.
        params (Iterable[Union[Parameter, dict]]): as the class takes them.

    Raises:
        TypeError: if `optimizer` is no Optimizer, or does not say what it was constructed with.
        ValueError: if a group has no learning rate or weight decay, and the one to take instead is not known.
    """
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(f"rebuild: optimizer must be an Optimizer, got {type(optimizer).__name__}")
    require_rebuildable(optimizer)
    if _is_around_another(optimizer):
        around: Optimizer = type(optimizer)(rebuild(optimizer.opt, params), **_hyperparameters(optimizer, ()))
        return around
    items = list(params)
    asked = any(item.get("grad_centralization", False) for item in items if isinstance(item, dict))
    new: Optimizer = of_class(centralizing(optimizer) if asked else type(optimizer), optimizer, items)
    return new


def of_class(
    cls: type[nn.Optimizer], optimizer: nn.Optimizer, params: Sequence[Any], without: Sequence[str] = ()
) -> nn.Optimizer:
    """An optimizer of this class with the hyperparameters of the given one, but for those that the class is `without`.
    It goes on from its state."""
    groups = [item for item in params if isinstance(item, dict)]
    arguments = {name: value for name, value in _hyperparameters(optimizer, groups).items() if name not in without}
    if "learning_rate" not in arguments:
        arguments["learning_rate"] = _default_rate(optimizer, groups)
    try:
        new = cls(params=params, **arguments)
    except TypeError as error:
        name = type(optimizer).__name__
        raise TypeError(
            f"rebuild: {name} cannot be constructed from params and {sorted(arguments)}: {error}"
        ) from error
    _continue(new, optimizer)
    return new


def _continue(new: nn.Optimizer, old: nn.Optimizer) -> None:
    """Copy the state over by name, as a checkpoint would, but for parameters that `old` does not have, whatever their
    names. Learning rates are no state."""
    before = {p.name: p for p in old.get_parameters()}
    known = {id(p) for p in old.parameters}
    longest_first = sorted(new.parameters, key=lambda p: -len(p.name))
    for state in new.get_parameters():
        source = before.get(state.name, state)
        owner = next((p for p in longest_first if state.name.endswith(p.name)), None)
        fresh = owner is not None and id(owner) not in known
        if source is not state and not fresh and not state.name.startswith("learning_rate"):
            state.set_data(source.copy())
