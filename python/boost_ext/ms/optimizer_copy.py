"""A second optimizer over some of the parameters of a first one, with one state for both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from mindspore import Parameter, nn

from boost_ext.ms.optim.fused import FusedOptimizer
from boost_ext.ms.optim.lars import LARS
from boost_ext.ms.optim.thor import Thor
from boost_ext.ms.weight_averaging import TrainableWeightAveraging

__all__ = ["attributes", "per_parameter_state", "restrict", "twin"]

Optimizer = TypeVar("Optimizer", bound=nn.Optimizer)

# Attributes of mindspore.nn.Optimizer and its subclasses that hold one item for each parameter.
_PER_PARAMETER = frozenset(
    {
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
)
# Hyperparameters that are tuples, and may have as many items as there are parameters.
_HYPERPARAMETERS = frozenset({"init_learning_rate", "eps", "etas", "step_sizes", "betas"})
_LENGTHS = frozenset({"param_length", "lens"})


def attributes(optimizer: nn.Optimizer) -> dict[str, Any]:
    """What the optimizer's classes set: without the attributes of every Cell, with Parameters and cells."""
    cell = vars(nn.Cell(auto_prefix=False))
    own = {name: value for name, value in vars(optimizer).items() if name not in cell}
    # Last what Python's attribute lookup finds first: a Parameter named "learning_rate" may hide behind a tuple of it.
    found: dict[str, Any] = {**optimizer._cells, **optimizer._params, **own}
    return found


def _is_state_of(state: Parameter, parameter: Parameter) -> bool:
    return state is parameter or state.name.endswith(parameter.name)


def _holds_parameters(value: Any) -> bool:
    if isinstance(value, Parameter):
        return True
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, (list, tuple, set, frozenset)):
        return False
    return any(_holds_parameters(item) for item in value)


def _is_per_parameter(optimizer: nn.Optimizer, name: str, value: Any, parameters: Sequence[Parameter]) -> bool:
    """Whether ``value[i]`` belongs to parameter i; TypeError if nobody can know."""
    declared = getattr(type(optimizer), "per_parameter_attributes", None)
    is_sequence = isinstance(value, (tuple, list, nn.CellList))
    count = len(parameters)
    if not is_sequence or name in _HYPERPARAMETERS:
        if isinstance(value, (dict, set, frozenset)) and name != "init_params" and _holds_parameters(value):
            raise _unknown(optimizer, name, value, count)
        return False
    if declared is not None and name in declared:
        if len(value) != count:
            raise _unknown(optimizer, name, value, count)
        return True
    if name in _PER_PARAMETER:
        return len(value) == count and not (isinstance(optimizer, (nn.LARS, LARS)) and name == "_parameters")
    if declared is not None:
        return False
    if _holds_parameters(value):
        flat = all(isinstance(item, Parameter) for item in value)
        if flat and len(value) == count:
            pairs = zip(value, parameters, strict=True)
            if all(item is value[0] for item in value) or all(_is_state_of(s, p) for s, p in pairs):
                return True
        raise _unknown(optimizer, name, value, count)
    if len(value) == count and count > 0:
        if isinstance(value, nn.CellList):
            return True
        raise _unknown(optimizer, name, value, count)
    return False


def _unknown(optimizer: nn.Optimizer, name: str, value: Any, count: int) -> TypeError:
    cls = type(optimizer).__name__
    return TypeError(
        f"restrict: {cls}.{name} is a {type(value).__name__} of {len(value)} for {count} parameters, and nobody says "
        f"whether it holds one item for each parameter; let {cls} define per_parameter_attributes, a tuple with the "
        "names of all its own attributes that do"
    )


def per_parameter_state(optimizer: nn.Optimizer) -> Iterator[tuple[str, Any]]:
    """``(name, value)`` of the attributes for which ``value[i]`` belongs to ``optimizer.parameters[i]``.

    Raises:
        TypeError: if an attribute holds state that cannot be attributed to parameters.
    """
    parameters = optimizer.parameters  # LARS keeps a dummy in _parameters
    for name, value in attributes(optimizer).items():
        if _is_per_parameter(optimizer, name, value, parameters):
            yield name, value


def _take(value: Any, indices: Sequence[int]) -> Any:
    items = [value[i] for i in indices]
    if isinstance(value, nn.CellList):
        return nn.CellList(items, auto_prefix=False)
    return type(value)(items)


def _kept_groups(recorded: Any, kept: Sequence[Parameter]) -> list[Any]:
    """The constructor's ``params``, narrowed: for whoever constructs from them again."""
    if not (isinstance(recorded, (list, tuple)) and isinstance(recorded[0], dict)):
        return list(kept)
    ids = {id(p) for p in kept}
    groups = [
        {**group, "params": [p for p in group["params"] if id(p) in ids]} for group in recorded if "params" in group
    ]
    return [*(group for group in groups if group["params"]), {"order_params": list(kept)}]


def _indices(parameters: Sequence[Parameter], kept: Sequence[Any]) -> list[int]:
    position = {id(p): i for i, p in enumerate(parameters)}
    if not kept:
        raise ValueError("restrict: parameters must not be empty")
    for p in kept:
        if not isinstance(p, Parameter):
            raise TypeError(f"restrict: parameters must be Parameters, got {type(p).__name__}")
        if id(p) not in position:
            raise ValueError(f"restrict: parameters must be among those of the optimizer, got {p.name}")
    if len({id(p) for p in kept}) != len(kept):
        raise ValueError("restrict: parameters must not repeat")
    return [position[id(p)] for p in kept]


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


def restrict(
    optimizer: Optimizer, parameters: Iterable[Parameter], *, cls: type[nn.Optimizer] | None = None
) -> Optimizer:
    """An optimizer that updates only some of the parameters, on the state of the given one.

    The two share every Parameter: moments, powers of the betas, the step counter, learning rates. So whichever of them
    runs, the step counts once: learning-rate schedules and bias corrections go on, and a parameter that was left out
    for some steps finds its moments as they were. Nothing is constructed or copied, and the given optimizer stays as it
    is. What is assigned to a plain attribute of one of them later does not reach the other.

    Works for the optimizers of ``mindspore.nn`` (LARS: with the optimizer inside), and for others whose state tuples
    hold one Parameter for each parameter, named after it as ``ParameterTuple.clone`` does. Any other optimizer may name
    its attributes that hold one item for each parameter in a class attribute ``per_parameter_attributes``.

    Args:
        optimizer (Optimizer): stays usable.
        parameters (Iterable[Parameter]): some of ``optimizer.parameters``, or all, in the order in which the gradients
            will come.
        cls (type, optional): of the result, with the same attributes. Default: None, that of the optimizer.

    Returns:
        Optimizer, of the same class; its ``parameters`` are the given ones.

    Raises:
        TypeError: if `optimizer` is no Optimizer, has state that cannot be attributed to parameters, or an element of
            `parameters` is no Parameter.
        ValueError: if `parameters` is empty, repeats one, or holds one that the optimizer does not have.
    """
    if not isinstance(optimizer, nn.Optimizer):
        raise TypeError(f"restrict: optimizer must be an Optimizer, got {type(optimizer).__name__}")
    if isinstance(optimizer, Thor):
        raise TypeError("restrict: optimizer must not be thor: its matrices are gathered by whole backward passes")
    if isinstance(optimizer, TrainableWeightAveraging):
        raise TypeError(
            "restrict: optimizer must not be TrainableWeightAveraging, whose coordinates are those of all parameters; "
            "for accumulation, give accumulation_steps to the training cell"
        )
    kept = list(parameters)
    own = tuple(optimizer.parameters)
    indices = _indices(own, kept)
    state = dict(per_parameter_state(optimizer))
    narrowed = {name: _take(value, indices) for name, value in state.items()}

    gone = {id(item) for value in state.values() for item in _parameters_in(value)}
    gone -= {id(item) for value in narrowed.values() for item in _parameters_in(value)}
    gone |= {id(p) for p in own} - {id(p) for p in kept}

    copy: Optimizer = twin(optimizer, cls or type(optimizer))
    for name in [name for name, p in copy._params.items() if id(p) in gone]:
        del copy._params[name]
    names = {p.name for p in own} - {p.name for p in kept}
    copy._user_parameters = [name for name in optimizer._user_parameters if name not in names]

    for name, value in narrowed.items():
        (copy._cells if name in copy._cells else vars(copy))[name] = value
    for name in _LENGTHS & set(vars(copy)):
        if vars(copy)[name] == len(own):
            vars(copy)[name] = len(kept)
    if "init_params" in vars(copy):
        vars(copy)["init_params"] = {"params": _kept_groups(optimizer.init_params["params"], kept)}
    for name, cell in optimizer._cells.items():
        if isinstance(cell, nn.Optimizer):
            copy._cells[name] = restrict(cell, kept)
    if isinstance(copy, (FusedOptimizer, LARS)):
        copy.arrange()
    return copy


def _parameters_in(value: Any) -> Iterator[Parameter]:
    for item in value:
        if isinstance(item, Parameter):
            yield item
