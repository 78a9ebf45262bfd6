"""OptimizerProcess and ParameterProcess: parameter groups, and an optimizer constructed again over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mindspore import Parameter, nn

from boost_ext.ms.core.for_cells import for_cells, released
from boost_ext.ms.optim.grad_centralization import is_centralized
from boost_ext.ms.optim.rebuild import parameter_groups, rebuild

__all__ = ["OptimizerProcess", "ParameterProcess"]


def _checked(owner: str, parameters: Any) -> list[Any]:
    """A list of Parameters or of group dictionaries."""
    if not isinstance(parameters, Iterable) or isinstance(parameters, (str, dict)):
        raise TypeError(f"{owner} must be a list of Parameters or dicts, got {type(parameters).__name__}")
    items = list(parameters)
    if not items:
        raise ValueError(f"{owner} must not be empty")
    kind = Parameter if isinstance(items[0], Parameter) else dict
    for item in items:
        if not isinstance(item, kind):
            raise TypeError(f"{owner} must be a list of Parameters or dicts, got {type(item).__name__} in it")
    return items


def _parameters(groups: Sequence[dict[str, Any]]) -> list[Parameter]:
    """All parameters of the groups, in the order of the optimizer."""
    for group in groups:
        if "order_params" in group:
            return list(group["order_params"])
    return [p for group in groups for p in group["params"]]


def _is_decayed(parameter: Parameter) -> bool:
    """Whether an optimizer of MindSpore decays a parameter that is in no group."""
    return "beta" not in parameter.name and "gamma" not in parameter.name


def _as_groups(parameters: Sequence[Parameter], decayed: Sequence[bool]) -> list[dict[str, Any]]:
    """Groups for a plain list: the decayed parameters, and the others without weight decay."""
    if all(decayed):
        return [{"params": list(parameters)}]
    pairs = list(zip(parameters, decayed, strict=True))
    groups: list[dict[str, Any]] = [
        {"params": [p for p, yes in pairs if yes]},
        {"params": [p for p, yes in pairs if not yes], "weight_decay": 0.0},
    ]
    return [*(group for group in groups if group["params"]), {"order_params": list(parameters)}]


class OptimizerProcess:
    """Add gradient centralization to an optimizer, and construct it again over changed parameter groups.

    Replaces ``mindspore.boost.OptimizerProcess``. Works for every optimizer of ``mindspore.nn`` that runs on the CPU,
    for LARS around one of them, and for plain parameter lists. No Parameter is copied.

    Args:
        opt (Optimizer): not changed.

    Raises:
        TypeError: if `opt` is no Optimizer.

    Attributes:
        origin_params (list[Union[Parameter, dict]]): the parameters of :meth:`generate_new_optimizer`; at first those
            of `opt`.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.boost import OptimizerProcess
        >>> network = nn.SequentialCell(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Dense(1024, 10))
        >>> optimizer = nn.Momentum(network.trainable_params(), learning_rate=0.1, momentum=0.9)
        >>> process = OptimizerProcess(optimizer)
        >>> process.add_grad_centralization(network)
        >>> optimizer = process.generate_new_optimizer()
    """

    def __init__(self, opt: nn.Optimizer) -> None:
        if not isinstance(opt, nn.Optimizer):
            raise TypeError(f"OptimizerProcess: opt must be an Optimizer, got {type(opt).__name__}")
        self._options = getattr(opt, "boost_options", None)
        self._optimizer = released(opt)
        self.origin_params: Any = parameter_groups(self._optimizer)

    @staticmethod
    def build_params_dict(network: nn.Cell) -> dict[int, nn.Cell]:
        """The cell that each parameter belongs to.

        Args:
            network (Cell): the training network.

        Returns:
            dict: ``id(parameter)`` to Cell.
        """
        return {
            id(parameter): cell
            for _, cell in network.cells_and_names()
            for parameter in cell.get_parameters(expand=False)
        }

    @staticmethod
    def build_gc_params_group(
        params_dict: dict[int, nn.Cell], parameters: Sequence[dict[str, Any] | Parameter]
    ) -> list[dict[str, Any]]:
        """Split each group into a centralized group and the rest.

        :func:`boost_ext.ms.optim.grad_centralization.is_centralized` chooses the weights. Groups keep their other
        settings, and the parameters their order. A group with ``grad_centralization`` False is not split.

        Args:
            params_dict (dict): of :meth:`build_params_dict`.
            parameters (list): groups; a list of Parameters is taken as groups with the same weight decay.

        Returns:
            list[dict].
        """
        owner = "OptimizerProcess.build_gc_params_group: parameters"
        items = _checked(owner, parameters)
        groups = _as_groups(items, [_is_decayed(p) for p in items]) if isinstance(items[0], Parameter) else items
        result: list[dict[str, Any]] = []
        for group in groups:
            if "order_params" in group:
                continue
            params = list(group["params"])
            if group.get("grad_centralization", True) is False:
                chosen = []
            else:
                chosen = [p for p in params if is_centralized(p, params_dict.get(id(p)))]
            ids = {id(p) for p in chosen}
            rest = [p for p in params if id(p) not in ids]
            if chosen:
                result.append({**group, "params": chosen, "grad_centralization": True})
            if rest or not chosen:
                result.append({**group, "params": rest})
        order = _parameters(groups)
        if any("order_params" in group for group in groups) or [id(p) for p in _parameters(result)] != list(
            map(id, order)
        ):
            result.append({"order_params": order})
        return result

    def add_grad_centralization(self, network: nn.Cell) -> None:
        """Centralize the gradients of the network's convolutions and Dense in the new optimizer.

        Args:
            network (Cell): the training network, after all rewriting.

        Raises:
            ValueError: if none of the optimizer's parameters is in the network.
        """
        items = self.grouped()
        cells = self.build_params_dict(network)
        if not any(id(p) in cells for p in _parameters(items)):
            raise ValueError("OptimizerProcess: network must hold parameters of the optimizer, got one that holds none")
        self.origin_params = self.build_gc_params_group(cells, items)

    def grouped(self) -> list[dict[str, Any]]:
        """``origin_params`` as groups: of a plain list those that the optimizer decays, and the others."""
        items = _checked("OptimizerProcess: origin_params", self.origin_params)
        if not isinstance(items[0], Parameter):
            return items
        flags = {id(p): bool(yes) for p, yes in self._decay_flags()}
        return _as_groups(items, [flags.get(id(p), _is_decayed(p)) for p in items])

    def _decay_flags(self) -> Iterable[tuple[Parameter, bool]]:
        owner = self._optimizer
        if len(owner.decay_flags) != len(owner.parameters):  # our LARS leaves them to its optimizer
            owner = owner.opt
        return zip(owner.parameters, owner.decay_flags, strict=True)

    def generate_new_optimizer(self) -> nn.Optimizer:
        """An optimizer of the same class over ``origin_params``, with the hyperparameters, state and algorithms.

        See :func:`boost_ext.ms.optim.rebuild.rebuild`. With gradient centralization its class is a subclass.

        Raises:
            TypeError: if the optimizer has not recorded the arguments of its constructor.
        """
        new = rebuild(self._optimizer, _checked("OptimizerProcess: origin_params", self.origin_params))
        return new if self._options is None else for_cells(new, self._options)


class ParameterProcess:
    """Assign parameters to fusion groups of the all-reduce, and update parameter groups after a rewrite.

    Replaces ``mindspore.boost.ParameterProcess``.

    Examples:
        >>> from mindspore import nn
        >>> from boost_ext.boost import ParameterProcess
        >>> network = nn.SequentialCell(nn.Dense(16, 10), nn.Dense(10, 10))
        >>> parameters = ParameterProcess().assign_parameter_group(network.trainable_params(), 2)
        >>> group_params = ParameterProcess.generate_group_params(parameters[:2], network.trainable_params())
    """

    def __init__(self) -> None:
        self._fusion = 1

    def assign_parameter_group(self, parameters: Any, split_point: int | Sequence[int] | None = None) -> Any:
        """Set ``comm_fusion`` of the parameters: gradients with the same number share an all-reduce.

        A new number begins at each split point. The next call of the same object continues the numbers.

        Args:
            parameters (Union[list[Parameter], tuple[Parameter]]): in the order of the network.
            split_point (Union[int, list[int]], optional): indices >= 0; those beyond the end have no effect. Default:
                None, or empty: half of the parameters.

        Returns:
            `parameters`.

        Raises:
            TypeError: if `parameters` is no list or tuple of Parameters, or a split point is no int.
            ValueError: if a split point is negative.
        """
        owner = "ParameterProcess.assign_parameter_group"
        if not isinstance(parameters, (list, tuple)) or not all(isinstance(p, Parameter) for p in parameters):
            raise TypeError(
                f"{owner}: parameters must be a list or tuple of Parameters, got {type(parameters).__name__}"
            )
        points = [split_point] if isinstance(split_point, int) else list(split_point or [len(parameters) // 2])
        for point in points:
            if isinstance(point, bool) or not isinstance(point, int):
                raise TypeError(f"{owner}: split_point must be an int or a list of them, got {type(point).__name__}")
            if point < 0:
                raise ValueError(f"{owner}: split_point must be >= 0, got {point}")
        for i, parameter in enumerate(parameters):
            if i in points:
                self._fusion += 1
            parameter.comm_fusion = self._fusion
        return parameters

    @staticmethod
    def generate_group_params(parameters: Iterable[Parameter], origin_params: Iterable[Any]) -> list[dict[str, Any]]:
        """The groups of an optimizer for the current parameters of a network.

        Parameters are matched by name, since a rewritten network may hold another object of that name. Empty groups are
        dropped. Parameters that were in no group form a new one, with the settings of the first group with the most
        keys. A plain list becomes groups with the same weight decay: names with beta or gamma get none. Only the lists
        are new.

        Args:
            parameters (list[Parameter]): of the network.
            origin_params (list[Union[Parameter, dict]]): of the optimizer.

        Returns:
            list[dict].

        Raises:
            TypeError: if one of the two is no list of the above.
            ValueError: if one of the two is empty.
        """
        owner = "ParameterProcess.generate_group_params"
        now = _checked(f"{owner}: parameters", parameters)
        if not isinstance(now[0], Parameter):
            raise TypeError(f"{owner}: parameters must be a list of Parameters, got {type(now[0]).__name__} in it")
        origin = _checked(f"{owner}: origin_params", origin_params)
        if isinstance(origin[0], Parameter):
            return _as_groups(now, [_is_decayed(p) for p in now])
        groups = [group for group in origin if "order_params" not in group]
        left = {p.name: p for p in now}
        result = []
        for group in groups:
            params = [left.pop(p.name) for p in group["params"] if p.name in left]
            if params:
                result.append({**group, "params": params})
        if left:
            settings = max(groups, key=len) if groups else {}
            result.append({**settings, "params": list(left.values())})
        if len(groups) < len(origin):
            result.append({"order_params": now})
        return result
