"""One loss scale for each group of layers.

Names, arguments and the rule are those of ``mindspore.boost.GroupLossScaleManager``. The idea is that of Zhao et al.,
"Adaptive loss scaling for mixed precision training", 2019 (arXiv:1910.12385): gradients differ in size from layer to
layer, so that one scale for all of them lets some underflow before the others overflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore._c_expression import MixedPrecisionType

from boost_ext.arguments import checked_keywords
from boost_ext.ms import native
from boost_ext.ms.core.state import state
from boost_ext.ms.loss_scale.loss_scale_update import check_int, check_scale

__all__ = ["GroupLossScaleManager", "GroupLossScaleUpdateCell", "GroupUnscaleAndCheck"]

Groups = Sequence[Sequence[Any]]


class AnyPrecision(nn.Cell):
    """Stays out of the mixed precision of the network around it: scales beyond float16 must not be cast to it."""

    @checked_keywords
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.mixed_precision_type = MixedPrecisionType.NOTSET  # PyNative: not that of the caller

    def add_flags(self, **flags: Any) -> nn.Cell:
        return super().add_flags(**{k: v for k, v in flags.items() if k not in ("fp16", "bf16", "fp32")})


class _Boundary(AnyPrecision):
    """``cell(x, ratio)``: x; on the way back the gradient is multiplied by ``ratio``, in float32 at least."""

    def construct(self, x: Tensor, ratio: Tensor) -> Tensor:
        return x

    def bprop(self, x: Tensor, ratio: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor, Tensor]:
        wide = dout if dout.dtype == ms.float64 else ops.cast(dout, ms.float32)
        return ops.cast(wide * ratio, dout.dtype), ops.zeros_like(ratio)


class GroupLossScaleManager(AnyPrecision):
    r"""A loss scale for each group of layers, as a cell at the boundaries of the groups.

    The network calls it wherever a tensor goes from one group to the next: it hands the tensor on as it is, and
    multiplies the gradient that comes back by ``scale[layer1] / scale[layer2]``. Groups count from 1 in the order of
    `loss_scale_groups`; 0 stands for the network's input and the number of groups + 1 for its output, both of
    scale 1. So the gradients of group i arrive multiplied by scale[i], and the loss itself is not scaled.

    After each step a group that overflowed shrinks its scale by :math:`1/\sqrt 2` (not below 1), the others grow theirs
    by :math:`2^{1/1000}` (not above `max_loss_scale`). Any overflow skips the update of the weights.

    The scales are Parameters, ``loss_scale.group.0``, ``loss_scale.group.1`` ..., part of the network's checkpoint.

    Args:
        init_loss_scale (Number): of every group at first; >= 1 and <= `max_loss_scale`.
        loss_scale_groups (list): for each group the list of its parameters, or of their names. It may be empty at
            first and be assigned to ``manager.loss_scale_groups`` before the training cell is made, when the network
            with its parameters is there. Until then the cell is the identity in both directions.
        max_loss_scale (float, optional): finite and >= 1. Default: 2.0**64.

    Inputs:
        - **x** (Tensor) - of any float dtype.
        - **layer1** (int) - the group that `x` comes from; 0 for the network's input.
        - **layer2** (int) - the group that `x` goes to; the number of groups + 1 for the network's output.

    Outputs:
        Tensor, `x`.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for a scale that is nan, inf or out of range; for an empty group, or a parameter in two places; for
            a layer that is out of range.
        RuntimeError: if other groups are assigned when a training cell works with these.

    Examples:
        >>> from mindspore import nn, ops
        >>> from boost_ext import boost
        >>> class Net(nn.Cell):
        ...     def __init__(self, enhanced_amp):
        ...         super().__init__()
        ...         self.conv = nn.Conv2d(1, 6, 5, pad_mode="valid")
        ...         self.head = nn.Dense(6 * 24 * 24, 10)
        ...         self.flatten = nn.Flatten()
        ...         self.enhanced_amp = enhanced_amp
        ...
        ...     def construct(self, x):
        ...         x = self.enhanced_amp(x, 0, 1)
        ...         x = self.flatten(ops.relu(self.conv(x)))
        ...         x = self.enhanced_amp(x, 1, 2)
        ...         x = self.head(x)
        ...         return self.enhanced_amp(x, 2, 3)
        >>> manager = boost.GroupLossScaleManager(4096, [])
        >>> net = Net(manager)
        >>> manager.loss_scale_groups = [net.conv.trainable_params(), net.head.trainable_params()]
    """

    def __init__(self, init_loss_scale: float, loss_scale_groups: Groups, *, max_loss_scale: float = 2.0**64) -> None:
        super().__init__()
        name = type(self).__name__
        self.max_loss_scale = check_scale(name, "max_loss_scale", max_loss_scale)
        self._loss_scale = init_loss_scale
        check_scale(name, "init_loss_scale", init_loss_scale, self.max_loss_scale)
        self.loss_scale_number = 0
        self.loss_scales: Any = ()
        self._groups: tuple[tuple[Any, ...], ...] = ()
        self._in_use = False
        self._boundary = _Boundary()
        self._unscaled = Tensor(1.0, ms.float32)
        self.loss_scale_groups = loss_scale_groups

    @property
    def loss_scale_groups(self) -> list[list[Any]]:
        """The parameters of each group, or their names. Assigning new ones sets all scales to the initial one."""
        return [list(group) for group in self._groups]

    @loss_scale_groups.setter
    def loss_scale_groups(self, groups: Groups) -> None:
        checked = _check_groups(f"{type(self).__name__}: loss_scale_groups", groups)
        if self._in_use:
            raise RuntimeError(
                f"{type(self).__name__}: loss_scale_groups must be assigned before the training cell is made"
            )
        self._groups = checked
        if checked:
            self.set_loss_scale_status(len(checked), self._loss_scale)

    def set_loss_scale_status(self, loss_scale_number: int, init_loss_scale: float | Sequence[float]) -> None:
        """Set the number of groups and their scales.

        Args:
            loss_scale_number (int): how many; as many as there are groups, once they are assigned.
            init_loss_scale (Union[float, list[float]]): of all groups, or of each.

        Raises:
            TypeError: for an argument of another type.
            ValueError: for a number that is not that of the groups, or a scale that the constructor refuses.
            RuntimeError: for another number than before, when a training cell works with that.
        """
        owner = "set_loss_scale_status"
        number = check_int(owner, "loss_scale_number", loss_scale_number, 1)
        if self._groups and number != len(self._groups):
            raise ValueError(f"{owner}: loss_scale_number must be {len(self._groups)}, the groups, got {number}")
        each = init_loss_scale if isinstance(init_loss_scale, (list, tuple)) else [init_loss_scale] * number
        if len(each) != number:
            raise ValueError(f"{owner}: init_loss_scale must hold {number} scales, got {len(each)}")
        scales = [check_scale(owner, "init_loss_scale", scale, self.max_loss_scale) for scale in each]
        if number == self.loss_scale_number:
            for parameter, scale in zip(self.loss_scales, scales, strict=True):
                ops.assign(parameter, Tensor(scale, ms.float32))
            return
        if self._in_use:
            raise RuntimeError(f"{owner}: loss_scale_number must stay {self.loss_scale_number}, got {number}")
        self.loss_scales = ParameterTuple(
            state(f"loss_scale.group.{i}", np.float32(scale)) for i, scale in enumerate(scales)
        )
        self.found = state("loss_scale.found", np.full(number, -1, np.int32))
        self.overflows = state("loss_scale.overflows", np.zeros(1, np.int32))
        self.loss_scale_number = number

    def update_loss_scale_status(self, layer: int, update_ratio: float | Tensor) -> Tensor:
        """Multiply the scale of one group, between 1 and `max_loss_scale`.

        Args:
            layer (int): the group, counted from 0.
            update_ratio (Union[float, Tensor]): the factor.

        Returns:
            Tensor, the new scale.

        Raises:
            ValueError: for a group that is not there.
        """
        if layer < 0 or layer >= self.loss_scale_number:
            raise ValueError(
                f"update_loss_scale_status: layer must be from 0 to {self.loss_scale_number - 1}, got {layer}"
            )
        scale = self.loss_scales[layer]
        new = ops.clamp(scale * update_ratio, 1.0, self.max_loss_scale)
        return ops.depend(new, ops.assign(scale, new))

    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Nothing: the state has its names, whether it is there before the network is made or comes after."""

    def get_loss_scale(self) -> float:
        """The initial loss scale, as in mindspore.boost. The live ones are the Parameters ``manager.loss_scales``."""
        return self._loss_scale

    def get_update_cell(self) -> nn.Cell:
        """The manager itself, as in mindspore.boost."""
        return self

    def construct(self, x: Tensor, layer1: int, layer2: int) -> Tensor:
        if self.loss_scale_number == 0:
            return x
        return self._boundary(x, self._scale(layer1) / self._scale(layer2))

    def _scale(self, layer: int) -> Tensor:
        if layer < 0 or layer > self.loss_scale_number + 1:
            raise ValueError(
                f"GroupLossScaleManager: a layer must be from 0 to {self.loss_scale_number + 1}, got {layer}"
            )
        if layer == 0 or layer == self.loss_scale_number + 1:
            return self._unscaled
        return self.loss_scales[layer - 1]

    def require_in(self, network: nn.Cell) -> None:
        """Check that the network's boundaries multiply by these scales.

        Raises:
            ValueError: if there is no boundary, or one with other scales: of another manager, or of a copy from before
                the groups were assigned, which a conversion to mixed precision of level O1 has made.
        """
        mine = [id(scale) for scale in self.loss_scales]
        # By method: the classes of a rewritten network may come from a second import of this module.
        found = [cell for _, cell in network.cells_and_names() if hasattr(cell, "set_loss_scale_status")]
        if not found or any([id(scale) for scale in cell.loss_scales] != mine for cell in found):
            raise ValueError(
                f"{type(self).__name__}: network must call this manager between its groups, and no other, got one with "
                f"{'other scales' if found else 'none'}; assign loss_scale_groups before the network is converted"
            )

    def assign_groups(self, parameters: Sequence[Parameter]) -> list[int]:
        """The group of each trained parameter, counted from 0. From then on the groups are in use, and stay.

        Args:
            parameters (Sequence[Parameter]): those that a training cell trains.

        Raises:
            ValueError: if there are no groups yet, or a parameter is in none.
        """
        owner = type(self).__name__
        _require_groups(self)
        group_of = {_name(p): i for i, group in enumerate(self._groups) for p in group}
        missing = [p.name for p in parameters if p.name not in group_of]
        if missing:
            raise ValueError(f"{owner}: loss_scale_groups must hold every trained parameter, {missing} are in none")
        self._in_use = True
        return [group_of[p.name] for p in parameters]


class GroupUnscaleAndCheck(nn.Cell):
    """The guard slot of a training cell: the scale of its group out of each gradient, in place and in one native call.

    Args:
        manager (GroupLossScaleManager): its groups hold all `parameters`.
        parameters (Sequence[Parameter]): the trained ones, in the order of the gradients.

    Inputs:
        - **scale_sense** (Parameter) - the scale of the loss itself, not read: it is 1.
        - **report** (Parameter) - float64 (len(parameters), 4), written; see
          :class:`boost_ext.ms.native.UnscaleAndCheckReport`.
        - **grads** (tuple[Tensor]) - written.

    Outputs:
        Tensor of shape (1,), bool: whether some gradient holds inf or nan. Which groups do is in ``manager.found``.

    Raises:
        ValueError: if a parameter is in no group.
    """

    checks = writes = True

    def __init__(self, manager: GroupLossScaleManager, parameters: Sequence[Parameter]) -> None:
        super().__init__(auto_prefix=False)
        self.group_of = Tensor(np.asarray(manager.assign_groups(parameters), np.int32))
        self.groups = manager.found
        self.scales = manager.loss_scales
        self.check = native.GroupUnscaleAndCheck()

    def construct(self, scale_sense: Parameter, report: Parameter, grads: tuple[Tensor, ...]) -> Tensor:
        return self.check(self.group_of, self.groups, report, self.scales, grads)


class GroupLossScaleUpdateCell(nn.Cell):
    """The last slot of a training cell: ``cell(scale_sense, overflow)``.

    It updates the scales of all groups by the result of the guard, and returns ``overflow``. ``scale_sense``, the scale
    of the loss itself, is not read: it is 1.

    Args:
        manager (GroupLossScaleManager): with its groups assigned.
    """

    def __init__(self, manager: GroupLossScaleManager) -> None:
        super().__init__(auto_prefix=False)
        _require_groups(manager)
        self.maximum = Tensor([manager.max_loss_scale], ms.float32)
        self.overflows = manager.overflows
        self.found = manager.found
        self.scales = manager.loss_scales
        self.step = native.GroupLossScaleUpdate()

    def move(self) -> Tensor:
        return self.step(self.maximum, self.overflows, self.found, self.scales)

    def construct(self, scale_sense: Tensor, overflow: Tensor) -> Tensor:
        return ops.depend(overflow, self.move())


def _require_groups(manager: GroupLossScaleManager) -> None:
    if not manager.loss_scale_groups:
        raise ValueError(
            f"{type(manager).__name__}: loss_scale_groups must be assigned before the training cell is made, got none"
        )


def _name(parameter: Any) -> str:
    return str(parameter.name if isinstance(parameter, Parameter) else parameter)


def _check_groups(argument: str, groups: Any) -> tuple[tuple[Any, ...], ...]:
    if not isinstance(groups, (list, tuple)):
        raise TypeError(f"{argument} must be a list of lists of parameters, got {type(groups).__name__}")
    places: dict[str, str] = {}
    for i, group in enumerate(groups):
        if not isinstance(group, (list, tuple)):
            raise TypeError(f"{argument}[{i}] must be a list of parameters, got {type(group).__name__}")
        if not group:
            raise ValueError(f"{argument}[{i}] must hold at least one parameter, got an empty list")
        for j, parameter in enumerate(group):
            place = f"{argument}[{i}][{j}]"
            if not isinstance(parameter, (Parameter, str)):
                raise TypeError(f"{place} must be a Parameter or its name, got {type(parameter).__name__}")
            name = _name(parameter)
            if name in places:
                raise ValueError(f"{place} must not be {name!r}, which {places[name]} is already")
            places[name] = f"loss_scale_groups[{i}][{j}]"
    return tuple(tuple(group) for group in groups)
