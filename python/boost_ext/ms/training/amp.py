"""build_train_network: mixed precision, loss and loss scaling put together into a training cell.

Arguments, levels and defaults are those of ``mindspore.amp.build_train_network``, whose
``auto_mixed_precision`` does the rewriting. This module adds the choice of the
conversion, the loss in float32, and the loss scale of the right cell.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import mindspore as ms
from mindspore import Tensor, amp, nn, ops

from boost_ext.arguments import names_of, unknown_argument
from boost_ext.ms.core.adaptive_clip import AdaptiveClip
from boost_ext.ms.core.compiled import Compile, require_compile
from boost_ext.ms.loss_scale.group_loss_scale import GroupLossScaleManager
from boost_ext.ms.loss_scale.loss_scale_update import check_scale
from boost_ext.ms.loss_scale.managers import DynamicLossScaleManager
from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from boost_ext.ms.step.options import require_check, step_options
from boost_ext.ms.step.pipeline import require_no_groups
from boost_ext.ms.training.auto import AutoBoost

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from boost_ext.ms.step.local_steps import LocalSteps
    from boost_ext.ms.subspace.moving_average import ExponentialMovingAverage

__all__ = ["Cells", "Training", "TrainingOptions", "assemble", "build_train_network"]

Cells = tuple[type[BoostTrainOneStepCell], type[BoostTrainOneStepWithLossScaleCell]]

_OWNER = "build_train_network"
_LEVELS = ("O0", "O1", "O2", "O3", "auto")
# What "auto" is on each device. A CPU computes float16 no faster, so there it is float32.
_AUTO = {"Ascend": "O3", "GPU": "O2", "CPU": "O0"}


class TrainingOptions(TypedDict, total=False):
    """The keywords of :class:`boost_ext.Model` that :func:`build_train_network` has too, and documents."""

    loss_scale_manager: Any
    keep_batchnorm_fp32: bool
    boost_config_dict: Mapping[str, Any] | str
    clip_norm: float | None
    adaptive_clip: float | AdaptiveClip | None
    weight_average: ExponentialMovingAverage | None
    local_steps: LocalSteps | None
    compile: Compile


class Options(TrainingOptions, total=False):
    """The keywords of :func:`build_train_network`."""

    cast_model_type: Any


_KWARGS = ("cast_model_type", *TrainingOptions.__annotations__)


def build_train_network(
    network: nn.Cell,
    optimizer: nn.Cell,
    loss_fn: nn.Cell | None = None,
    level: str = "O0",
    boost_level: str = "O0",
    **kwargs: Unpack[Options],
) -> BoostTrainOneStepCell:
    """Build the training cell for a network in mixed precision, with the boost algorithms.

    All arguments are checked before the network changes, but for what excludes `weight_average` and `local_steps`, what
    does not fit the parameters of a rewritten network, and the matrix of dimension reduction. Boost rewrites the
    network first, in place. The conversion works in place too for O2, O3 and `cast_model_type`, as MindSpore's does.
    Parameters stay float32.

    Args:
        network (Cell): the network; without `loss_fn` its output is the loss.
        optimizer (Optimizer): updates the weights.
        loss_fn (Cell, optional): called with the output and the label, in float32 whenever the
            network computes in half precision. Default: None.
        level (str): Default: "O0".

            - "O0": no conversion.
            - "O1": the cells and operators of ``get_white_list()`` in float16, the rest in float32.
            - "O2": float16, except BatchNorm, LayerNorm and `loss_fn`; dynamic loss scale.
            - "O3": float16, BatchNorm too; no loss scale.
            - "auto": "O3" on Ascend, "O2" on GPU, "O0" on CPU.

        boost_level (str): "O0", "O1" or "O2", see :class:`boost_ext.boost.AutoBoost`. Default: "O0".
        cast_model_type (mindspore.dtype): float16 or float32: convert the whole network to it,
            instead of the level's conversion.
        keep_batchnorm_fp32 (bool): in a float16 network, keep BatchNorm and LayerNorm in
            float32; overrides the level.
        loss_scale_manager (LossScaleManager, optional): ours, one of ``mindspore.amp``, or a
            :class:`boost_ext.boost.GroupLossScaleManager`; overrides the level. None for no loss scale.
            Only O2 has a default, a new :class:`DynamicLossScaleManager` for each call.
        boost_config_dict (Union[dict, str]): configuration of the boost algorithms, or the path of
            a JSON file with it; docs/autoboost.md has all keys.
        clip_norm (float): the greatest norm of all gradients together, see :class:`BoostTrainOneStepCell`.
        adaptive_clip (Union[float, AdaptiveClip]): the greatest ratio of a unit's gradient to its weights, see
            :class:`BoostTrainOneStepCell`.
        weight_average (ExponentialMovingAverage): averages the weights, see :class:`BoostTrainOneStepCell`.
        local_steps (LocalSteps): the ranks train on their own, see :class:`BoostTrainOneStepCell`.
        compile (str): the compiled part in PYNATIVE_MODE, see :class:`BoostTrainOneStepCell`. Default: "step".

    Returns:
        A BoostTrainOneStepWithLossScaleCell if the manager has an update cell, otherwise a
        BoostTrainOneStepCell; in training mode. Both return (loss, overflow, loss scale), and have the
        ``plan`` of boost.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an unknown level, keyword or configuration key; for a boost algorithm that
            is not possible here; for a network that is converted already (use level "O0"); and if the
            optimizer's ``loss_scale`` differs from the factor on its gradients: the manager's
            scale if it is a FixedLossScaleManager without `drop_overflow_update`, else 1.

    Examples:
        >>> import mindspore as ms
        >>> from mindspore import nn
        >>> from boost_ext import amp
        >>> net, loss_fn = nn.Dense(4, 3), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        >>> optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        >>> step = amp.build_train_network(net, optimizer, loss_fn, level="O2", clip_norm=1.0)
        >>> loss, overflow, loss_scale = step(ms.ops.ones((8, 4)), ms.ops.zeros((8,), ms.int32))
        >>> print(loss_scale)
        16777216.0
    """
    boost = AutoBoost(boost_level, kwargs.get("boost_config_dict", ""))
    return assemble(network, optimizer, loss_fn, level, boost, kwargs).cell


class Training(NamedTuple):
    """A training cell and its parts: the rewritten network without its loss, and the optimizer."""

    cell: BoostTrainOneStepCell
    network: nn.Cell
    optimizer: nn.Cell


def assemble(
    network: nn.Cell,
    optimizer: nn.Cell,
    loss_fn: nn.Cell | None,
    level: str,
    boost: AutoBoost,
    options: Mapping[str, Any],
    cells: Cells = (BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell),
) -> Training:
    """:func:`build_train_network`, for a caller that has the AutoBoost; ``options`` are its keywords.

    ``cells``: the classes of the training cell without and with an update of the loss scale.
    """
    _check_cell("network", network)
    if loss_fn is not None:
        _check_cell("loss_fn", loss_fn)
    if not isinstance(optimizer, nn.Cell) or not hasattr(optimizer, "parameters"):
        got = type(optimizer).__name__
        raise TypeError(f"{_OWNER}: optimizer must be a mindspore.nn.Optimizer, got {got}")
    _check_level(level)
    _check_keys(options)
    compiled: Compile = options.get("compile", "step")
    require_compile(_OWNER, compiled)
    if ms.get_auto_parallel_context("pipeline_stages") > 1:
        raise ValueError(f"{_OWNER}: pipeline_stages must be 1, other values are not supported")
    if level == "auto":
        level = _AUTO[ms.get_context("device_target")]
    conversion = _conversion(level, options)
    before = _half_precision(network)
    if conversion != "O0" and before == "amp":
        raise ValueError(
            f"{_OWNER}: network must not be converted twice, it has been converted to mixed "
            "precision already; use level 'O0' without cast_model_type"
        )
    manager = options.get("loss_scale_manager", DynamicLossScaleManager() if level == "O2" else None)
    given: dict[str, Any] = {
        name: options.get(name) for name in ("clip_norm", "adaptive_clip", "weight_average", "local_steps")
    }
    brought = boost.step_settings()
    step = step_options(_OWNER, optimizer, brought.get("dim_reduce"), brought.get("accumulation_steps"), **given)
    boost.take_loss_scale(manager)
    update_cell, sens = _loss_scaling(manager, optimizer, own_scale=step.dim_reduce is not None)
    if isinstance(manager, GroupLossScaleManager):
        manager.require_in(network)
    else:
        require_no_groups(_OWNER, network)
    if update_cell is not None:
        require_check(_OWNER, step.check_overflow and boost.config.common.check_overflow)

    # First: it looks for the types of cells that the conversion wraps.
    network, optimizer = boost.network_auto_process_train(network, optimizer)
    with_loss = _convert(network, conversion)
    if loss_fn is not None:
        half = conversion != "O0" or before is not None
        with_loss = (_WithLossInFloat32 if half else nn.WithLossCell)(with_loss, loss_fn)
    if update_cell is None:
        cell = cells[0](with_loss, optimizer, sens, plan=boost.plan, compile=compiled, **given)
    else:
        cell = cells[1](with_loss, optimizer, update_cell, plan=boost.plan, compile=compiled, **given)
    boost.plan = cell.plan or boost.plan  # which knows what the optimizer brought
    return Training(cell.set_train(), network, cell.optimizer)


def _check_cell(name: str, value: Any) -> None:
    if not isinstance(value, nn.Cell):
        raise TypeError(f"{_OWNER}: {name} must be a Cell, got {type(value).__name__}")


def _check_level(level: Any) -> None:
    if not isinstance(level, str):
        raise TypeError(f"{_OWNER}: level must be a str, got {type(level).__name__}")
    if level not in _LEVELS:
        raise ValueError(f"{_OWNER}: level must be one of {list(_LEVELS)}, got {level!r}")


def _check_keys(got: Iterable[str]) -> None:
    for key in got:
        if key not in _KWARGS:
            raise ValueError(unknown_argument(_OWNER, key, (*names_of(build_train_network), *_KWARGS)))


def _conversion(level: str, kwargs: Mapping[str, Any]) -> str:
    """The level of ``auto_mixed_precision`` that the arguments come down to, or "float32"."""
    keep = kwargs.get("keep_batchnorm_fp32", level == "O2")
    if not isinstance(keep, bool):
        got = type(keep).__name__
        raise TypeError(f"{_OWNER}: keep_batchnorm_fp32 must be a bool, got {got}")
    if "cast_model_type" not in kwargs:
        half = level in ("O2", "O3")
    elif kwargs["cast_model_type"] in (ms.float16, ms.float32):
        half, level = kwargs["cast_model_type"] == ms.float16, "float32"
    else:
        raise TypeError(
            f"{_OWNER}: cast_model_type must be mindspore.float16 or mindspore.float32, got {kwargs['cast_model_type']}"
        )
    if half:
        return "O2" if keep else "O3"
    return level


def _half_precision(network: nn.Cell) -> str | None:
    """The origin of half precision in the network: "amp", MindSpore's interfaces for mixed precision;
    "to_float", the user; None without half precision."""
    for _, cell in network.cells_and_names():
        # The wrappers are what custom_mixed_precision and level O2 leave behind.
        wrapper = type(cell).__name__ in ("_OutputTo16", "_OutputTo32")
        if wrapper or getattr(cell, "_amp_level", "") not in ("", "O0"):
            return "amp"
    flags = network.get_flags()
    return "to_float" if flags.get("fp16") or flags.get("bf16") else None


def _convert(network: nn.Cell, conversion: str) -> nn.Cell:
    if conversion == "float32":
        return network.to_float(ms.float32)
    return amp.auto_mixed_precision(network, conversion)


class _WithLossInFloat32(nn.WithLossCell):  # type: ignore[misc]
    """``cell(data, label)``: the loss, computed in float32 from half precision outputs."""

    def construct(self, data: Tensor, label: Tensor) -> Tensor:
        return self._loss_fn(_to_float32(self._backbone(data)), _to_float32(label))


def _to_float32(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple([_to_float32(v) for v in value])
    if isinstance(value, Tensor) and value.dtype in (ms.float16, ms.bfloat16):
        return ops.cast(value, ms.float32)
    return value


def _loss_scaling(manager: Any, optimizer: nn.Cell, *, own_scale: bool) -> tuple[nn.Cell | None, float]:
    """The update cell, and the scale of the gradients if there is none.

    ``own_scale``: the cell unscales the gradients itself, without an update cell too.
    """
    if manager is not None and not isinstance(manager, (amp.LossScaleManager, GroupLossScaleManager)):
        got = type(manager).__name__
        raise TypeError(f"{_OWNER}: loss_scale_manager must be a LossScaleManager, got {got}")
    update_cell, scale = None, 1.0
    if manager is not None:
        update_cell, scale = manager.get_update_cell(), manager.get_loss_scale()
        check_scale(_OWNER, "loss_scale_manager.get_loss_scale()", scale)
    expected = 1.0 if own_scale or update_cell is not None else float(scale)
    actual = _unscales_with(optimizer)
    if not math.isclose(actual, expected, rel_tol=1e-6):
        factor, change = max(expected / actual, actual / expected), "large"
        if expected < actual:
            change = "small"
        message = (
            f"{_OWNER}: optimizer.loss_scale must be {expected:g}, what its gradients are scaled "
            f"with under this loss_scale_manager, got {actual:g}; updates would be {factor:g} times "
            f"too {change}"
        )
        if manager is not None:
            raise ValueError(message)
        # A network may scale its loss itself.
        warnings.warn(message, stacklevel=3)
    return update_cell, float(scale)


def _unscales_with(optimizer: nn.Cell) -> float:
    scale = getattr(optimizer, "loss_scale", 1.0)
    if isinstance(scale, Tensor):  # nn.thor keeps 1 / scale**2 there
        return 1.0 / float(optimizer.reciprocal_scale)
    return float(scale)
