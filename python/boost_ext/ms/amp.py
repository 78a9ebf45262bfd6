"""build_train_network: mixed precision, loss and loss scaling put together into a training cell.

Arguments, levels and defaults are those of ``mindspore.amp.build_train_network``, whose
``auto_mixed_precision`` does the rewriting. Here is what surrounds it: which conversion a set of
arguments asks for, the loss in float32, and a loss scale that reaches the right cell.
"""

from __future__ import annotations

import difflib
import json
import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Tensor, amp, nn, ops

from boost_ext.config import DimReduceConfig
from boost_ext.ms.loss_scale import DynamicLossScaleManager
from boost_ext.ms.loss_scale_update import check_scale
from boost_ext.ms.step import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell

__all__ = ["build_train_network"]

_OWNER = "build_train_network"
_LEVELS = ("O0", "O1", "O2", "O3", "auto")
# What "auto" is on each device. A CPU computes float16 no faster, so there it is float32.
_AUTO = {"Ascend": "O3", "GPU": "O2", "CPU": "O0"}
_KWARGS = ("cast_model_type", "keep_batchnorm_fp32", "loss_scale_manager", "boost_config_dict")
_ALGORITHMS = ("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce")
_SECTIONS = ("boost", "common", "less_bn", "grad_freeze", "grad_accumulation", "dim_reduce")


def build_train_network(
    network: nn.Cell,
    optimizer: nn.Cell,
    loss_fn: nn.Cell | None = None,
    level: str = "O0",
    boost_level: str = "O0",
    **kwargs: Any,
) -> nn.Cell:
    """Build the training cell for a network in mixed precision.

    Everything that can be checked is checked before the network is converted. The conversion
    works in place for O2, O3 and `cast_model_type`, as MindSpore's does; parameters stay float32.

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

        boost_level (str): "O0", "O1" or "O2"; this release has "O0" only. Default: "O0".
        cast_model_type (mindspore.dtype): float16 or float32: convert the whole network to it,
            whatever the level says about conversion.
        keep_batchnorm_fp32 (bool): in a float16 network, whether BatchNorm and LayerNorm stay in
            float32, whatever the level says.
        loss_scale_manager (LossScaleManager, optional): ours or one of ``mindspore.amp``, whatever
            the level says; None for no loss scale. O2 alone has a default, a new
            :class:`DynamicLossScaleManager` for each call.
        boost_config_dict (Union[dict, str]): configuration of the boost algorithms, or the path of
            a JSON file with it. This release has ``dim_reduce``, with mode ``manual``:
            ``{"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": {...}}``, keys as in
            :class:`boost_ext.config.DimReduceConfig`.

    Returns:
        A BoostTrainOneStepWithLossScaleCell if the manager has an update cell, otherwise a
        BoostTrainOneStepCell; in training mode. Both return (loss, overflow, loss scale).

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an unknown level, keyword or configuration key; for what this release
            cannot do; for a network that is converted already (use level "O0"); and if the
            optimizer's ``loss_scale`` is not what the manager makes of the gradients: the manager's
            scale if it is a FixedLossScaleManager without `drop_overflow_update`, else 1.
    """
    _check_cell("network", network)
    if loss_fn is not None:
        _check_cell("loss_fn", loss_fn)
    if not isinstance(optimizer, nn.Cell) or not hasattr(optimizer, "parameters"):
        got = type(optimizer).__name__
        raise TypeError(f"{_OWNER}: optimizer must be a mindspore.nn.Optimizer, got {got}")
    _check_choice("level", level, _LEVELS)
    _check_keys("argument", kwargs, _KWARGS)
    if ms.get_auto_parallel_context("pipeline_stages") > 1:
        raise ValueError(f"{_OWNER}: pipeline_stages must be 1, other values are not supported")
    options = _boost_options(boost_level, kwargs.get("boost_config_dict", "") or {})
    if level == "auto":
        level = _AUTO[ms.get_context("device_target")]
    conversion = _conversion(level, kwargs)
    before = _half_precision(network)
    if conversion != "O0" and before == "amp":
        raise ValueError(
            f"{_OWNER}: network must not be converted twice, it has been converted to mixed "
            "precision already; use level 'O0' without cast_model_type"
        )
    manager = kwargs.get("loss_scale_manager", DynamicLossScaleManager() if level == "O2" else None)
    update_cell, sens = _loss_scaling(manager, optimizer, own_scale="dim_reduce" in options)

    network = _convert(network, conversion)
    if loss_fn is not None:
        half = conversion != "O0" or before is not None
        network = (_WithLossInFloat32 if half else nn.WithLossCell)(network, loss_fn)
    if update_cell is None:
        return BoostTrainOneStepCell(network, optimizer, sens, **options).set_train()
    cell = BoostTrainOneStepWithLossScaleCell(network, optimizer, update_cell, **options)
    return cell.set_train()


def _check_cell(name: str, value: Any) -> None:
    if not isinstance(value, nn.Cell):
        raise TypeError(f"{_OWNER}: {name} must be a Cell, got {type(value).__name__}")


def _check_choice(name: str, value: Any, choices: Iterable[str]) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{_OWNER}: {name} must be a str, got {type(value).__name__}")
    if value not in choices:
        raise ValueError(f"{_OWNER}: {name} must be one of {list(choices)}, got {value!r}")


def _check_keys(what: str, got: Iterable[Any], known: Iterable[str]) -> None:
    for key in got:
        if key not in known:
            near = difflib.get_close_matches(str(key), known, n=1, cutoff=0.0)[0]
            raise ValueError(f"{_OWNER}: unknown {what} {key!r}, did you mean {near!r}? Known: {list(known)}")


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
    """Who made the network compute in half precision already: "amp", MindSpore's interfaces for
    mixed precision; "to_float", the user; None if nobody did."""
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
    """The update cell, and what the gradients are scaled with if there is none.

    ``own_scale``: the cell unscales the gradients itself, without an update cell too.
    """
    if manager is not None and not isinstance(manager, amp.LossScaleManager):
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


def _sections(config: Any) -> dict[str, dict[str, Any]]:
    if isinstance(config, str):
        config = json.loads(Path(config).read_text(encoding="utf-8"))
    if not isinstance(config, Mapping):
        got = type(config).__name__
        raise TypeError(f"{_OWNER}: boost_config_dict must be a dict or a path, got {got}")
    _check_keys("section of boost_config_dict", config, _SECTIONS)
    for name, section in config.items():
        if not isinstance(section, Mapping):
            got = type(section).__name__
            raise TypeError(f"{_OWNER}: {name} must be a dict, got {got}")
    return {"boost": {}, "dim_reduce": {}} | {k: dict(v) for k, v in config.items()}


def _boost_options(boost_level: str, config: Any) -> dict[str, Any]:
    """What the boost arguments ask of the training cell, as its keywords."""
    _check_choice("boost_level", boost_level, ("O0", "O1", "O2"))
    if boost_level != "O0":
        raise ValueError(
            f"{_OWNER}: boost_level {boost_level!r} is not supported by this release; 'O0' is, and "
            "boost_config_dict with dim_reduce"
        )
    sections = _sections(config)
    _check_keys("key of dim_reduce", sections["dim_reduce"], DimReduceConfig.model_fields)
    dim_reduce = DimReduceConfig(**sections["dim_reduce"])

    switches = sections["boost"]
    mode = switches.pop("mode", "auto")
    _check_keys("key of boost", switches, ("mode", *_ALGORITHMS))
    _check_choice("boost.mode", mode, ("auto", "manual", "enable_all", "disable_all"))
    for name, on in switches.items():
        if not isinstance(on, bool):
            raise TypeError(f"{_OWNER}: boost.{name} must be a bool, got {type(on).__name__}")
    on = {name for name, value in switches.items() if value}
    if mode == "disable_all":
        return {}
    if mode == "enable_all" or on - {"dim_reduce"} or set(sections) - {"boost", "dim_reduce"}:
        raise ValueError(
            f"{_OWNER}: boost_config_dict must ask for dim_reduce only in this release, "
            f"got mode {mode!r}, {sorted(on)} and the sections {sorted(sections)}"
        )
    if mode == "auto" and on:
        raise ValueError(f"{_OWNER}: boost.dim_reduce takes effect with boost.mode 'manual' only")
    return {"dim_reduce": dim_reduce} if on else {}
