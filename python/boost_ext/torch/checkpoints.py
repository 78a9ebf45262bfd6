"""The entries of a checkpoint: as ``torch.optim`` has them, held as they are while it is loaded, and checked."""

from __future__ import annotations

from typing import Any

import torch

from boost_ext.ops.optimizer_state import STATE_BLOCK
from boost_ext.torch.storage import Held, is_distributed, local, wide_weight

__all__ = ["apart", "hold", "released", "require_key", "require_shape", "require_state"]


def apart(entry: dict[str, Any], p: Any) -> dict[str, Any]:
    """Each parameter counts its own steps, and has what it has."""
    result = {k: v.clone() if k == "step" else v for k, v in entry.items()}
    if "master" in result and p.dtype == torch.float32:  # since its last step
        del result["master"]
    if "master" in result and result["master"].dtype != torch.float32:
        result["master"] = wide_weight(p, result["master"])
    return result


def require_key(key: str, saved: dict[str, Any], who: str) -> None:
    """Refuse an entry without the key."""
    if key not in saved:
        raise ValueError(f"load_state_dict: state of {who} must hold {key}, got {', '.join(sorted(saved))}")


def require_state(p: Any, name: str, saved: dict[str, Any], shape: Any, who: str) -> None:
    """Refuse a state of another shape, and codes without their scales."""
    value = saved[name]
    require_shape(p, value, shape, f"{name} of {who}")
    if value.dtype == torch.uint8:
        scale = f"{name}_scale"
        require_key(scale, saved, who)
        blocks = -(-local(value).numel() // STATE_BLOCK)
        require_shape(None, saved[scale], (blocks,), f"{scale} of {who}")


def require_shape(p: Any, value: Any, shape: tuple[int, ...], what: str) -> None:
    """Of the part of this process, if `p` is a DTensor."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"load_state_dict: {what} must be a tensor, got {type(value).__name__}")
    if is_distributed(p):
        value, shape = local(value), tuple(local(p).shape)
    if tuple(value.shape) != shape:
        raise ValueError(f"load_state_dict: {what} must have shape {shape}, got {tuple(value.shape)}")


def released(entry: Any) -> Any:
    """An entry without the holders of :func:`hold`."""
    if not isinstance(entry, dict):
        return entry
    return {k: v.value if isinstance(v, Held) else v for k, v in entry.items()}


def hold(_: Any, state_dict: dict[str, Any]) -> dict[str, Any]:
    """A hook of ``load_state_dict``: a tensor that is held keeps its dtype."""

    def held(entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        return {k: Held(v) if isinstance(v, torch.Tensor) else v for k, v in entry.items()}

    return {**state_dict, "state": {k: held(v) for k, v in state_dict["state"].items()}}
