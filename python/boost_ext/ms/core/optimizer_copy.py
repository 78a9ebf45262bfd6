"""Optimizers on the state of another one: of another class, or of some of its parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from mindspore import Parameter, nn

__all__ = ["attributes", "has_own_construct", "restrict", "twin"]

Optimizer = TypeVar("Optimizer", bound=nn.Optimizer)

# Attributes of mindspore.nn.Optimizer and its subclasses that hold one item for each parameter, but for their state.
_PER_PARAMETER = {
    "parameters",
    "_parameters",
    "params",
    "group_params",
    "group_lr",
    "group_weight_decay",
    "group_grad_centralization",
    "learning_rate",
    "origin_learning_rate",  # LARS
    "weight_decay",
    "decay_flags",
    "dynamic_decay_flags",
    "grad_centralization_flags",
    "lars_flag",
    "optim_filter",
    "param_rank",
    "param_names",
    "opt",  # SGD: a primitive for each parameter
}
# What may have as many items as there are parameters, and does not go by them.
_OTHERS = {"init_params", "init_learning_rate", "eps", "etas", "step_sizes", "betas"}


def attributes(optimizer: nn.Optimizer) -> dict[str, Any]:
    """What the optimizer's classes set: without the attributes of every Cell, with Parameters and cells."""
    cell = vars(nn.Cell(auto_prefix=False))
    own = {name: value for name, value in vars(optimizer).items() if name not in cell}
    # Last what Python's attribute lookup finds first: a Parameter named "learning_rate" may hide behind a tuple of it.
    found: dict[str, Any] = {**optimizer._cells, **optimizer._params, **own}
    return found


def twin(optimizer: nn.Optimizer, cls: type[Optimizer]) -> Optimizer:
    """An optimizer of class `cls` with the attributes of the given one, the same objects; nothing is constructed."""
    made: Optimizer = nn.Cell.__new__(cls)
    nn.Cell.__init__(made, auto_prefix=False)
    # Straight into the dictionaries: an assignment would rename Parameters and primitives of the given optimizer.
    base = set(vars(made))
    vars(made).update({name: value for name, value in vars(optimizer).items() if name not in base})
    vars(made)["training"] = optimizer.training
    made._primitives.update(optimizer._primitives)
    made._params.update(optimizer._params)
    made._cells.update(optimizer._cells)
    made._user_parameters = list(optimizer._user_parameters)
    return made


def has_own_construct(cell: Any) -> bool:
    """Whether a class outside of boost_ext overrides ``construct``: then that makes the step, and nothing else may."""
    return not type(cell).construct.__module__.startswith("boost_ext.")


def restrict(optimizer: Optimizer, parameters: Sequence[Parameter]) -> Optimizer:
    """An optimizer that updates only some of the parameters, on the state of the given one.

    The two share every Parameter: moments, powers of the betas, the step counter, learning rates. So whichever of them
    runs, the step counts once: learning-rate schedules and bias corrections continue, and a parameter that was left out
    for some steps finds its moments as they were. The given optimizer stays as it is.

    An optimizer with ``narrowed`` does it by itself, as those of boost_ext and native steps do. Of another one the
    attributes are narrowed that hold one item for each parameter: those of ``mindspore.nn.Optimizer``, state tuples
    that are named after the parameters, as ``ParameterTuple.clone`` names them, and ``per_parameter_attributes`` of its
    class.

    Args:
        optimizer (Optimizer): stays usable.
        parameters (Sequence[Parameter]): some of ``optimizer.parameters``, in the order in which gradients will come.

    Raises:
        TypeError: if the optimizer cannot be restricted, or has state that cannot be attributed to parameters.
    """
    if hasattr(optimizer, "never_restricted"):
        raise TypeError(f"restrict: optimizer must not be {optimizer.never_restricted}")
    if hasattr(optimizer, "narrowed"):
        if has_own_construct(optimizer):
            raise TypeError(f"restrict: optimizer must not have a construct of its own, got {type(optimizer).__name__}")
        narrowed: Optimizer = optimizer.narrowed(parameters)
        return narrowed
    lists = _by_parameter(optimizer)
    position = {id(p): i for i, p in enumerate(optimizer.parameters)}
    copy = twin(optimizer, type(optimizer))
    for name, value in lists.items():
        items = [value[position[id(p)]] for p in parameters]
        if isinstance(value, nn.CellList):
            copy._cells[name] = nn.CellList(items, auto_prefix=False)
        else:
            vars(copy)[name] = type(value)(items)
    vars(copy).update(param_length=len(parameters), init_params={"params": list(parameters)})
    for name, cell in optimizer._cells.items():
        if isinstance(cell, nn.Optimizer):
            copy._cells[name] = restrict(cell, parameters)
    left = {id(item) for name in lists for item in getattr(copy, name)}
    gone = {id(item) for value in lists.values() for item in value} - left
    for name in [name for name, p in copy._params.items() if id(p) in gone]:
        del copy._params[name]
    return copy


def _by_parameter(optimizer: nn.Optimizer) -> dict[str, Any]:
    """The attributes for which ``value[i]`` belongs to ``optimizer.parameters[i]``; TypeError if nobody can know."""
    cls, parameters = type(optimizer), optimizer.parameters
    declared = getattr(cls, "per_parameter_attributes", None)
    names = _PER_PARAMETER.union(declared or ())
    found = {}
    for name, value in attributes(optimizer).items():
        one_each = isinstance(value, (tuple, list, nn.CellList)) and len(value) == len(parameters)
        if one_each and (name in names or _are_states_of(value, parameters)):
            found[name] = value
        elif declared is None and name not in names | _OTHERS and (one_each or _holds_parameters(value)):
            raise TypeError(
                f"restrict: {cls.__name__}.{name} is a {type(value).__name__} of {len(value)} for {len(parameters)} "
                "parameters, and nobody says whether it holds one item for each parameter; let "
                f"{cls.__name__} define per_parameter_attributes, a tuple with the names of all its own attributes "
                "that do"
            )
    return found


def _are_states_of(value: Any, parameters: Sequence[Parameter]) -> bool:
    if not all(isinstance(item, Parameter) for item in value):
        return False
    same = all(item is value[0] for item in value)  # a placeholder, AdaFactor's without a first moment
    return same or all(s is p or s.name.endswith(p.name) for s, p in zip(value, parameters, strict=True))


def _holds_parameters(value: Any) -> bool:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return False
    return any(isinstance(item, Parameter) or _holds_parameters(item) for item in value)
