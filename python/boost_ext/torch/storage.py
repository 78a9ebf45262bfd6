"""State of a parameter: float32, bfloat16, or codes of one byte with scales; and float32 masters of half weights."""

from __future__ import annotations

from typing import Any

import torch

from boost_ext.ops.optimizer_state import STATE_BLOCK, dequantize_state, quantize_state

__all__ = ["STATE_DTYPES", "Held", "converted", "empty_state", "is_distributed", "local", "master_of"]

STATE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": torch.uint8}
SMALL = 4096
"""Elements below which state is float32, as in :mod:`boost_ext.optim`."""


class Held:
    """A tensor that ``torch.optim.Optimizer.load_state_dict`` hands through as it is."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def is_distributed(tensor: Any) -> bool:
    """Whether it is a DTensor. A plain parameter is told at once: there are hundreds."""
    return type(tensor) is not torch.nn.Parameter and hasattr(tensor, "to_local")


def local(tensor: Any) -> Any:
    """The part of this process of a DTensor; another tensor as it is."""
    return tensor.to_local() if is_distributed(tensor) else tensor


def _dtype(p: Any, state_dtype: str) -> torch.dtype:
    return STATE_DTYPES[state_dtype] if p.numel() >= SMALL else torch.float32


def empty_state(p: Any, name: str, state_dtype: str) -> dict[str, Any]:
    """State of zeros, like `p` in shape, strides, device and, for a DTensor, placement."""
    made = torch.zeros_like(p, dtype=_dtype(p, state_dtype))
    if made.dtype != torch.uint8:
        return {name: made}
    part = local(made)
    blocks = -(-part.numel() // STATE_BLOCK)
    return {name: made, f"{name}_scale": torch.zeros(blocks, dtype=torch.float32, device=part.device)}


def converted(p: Any, name: str, saved: dict[str, Any], state_dtype: str, non_negative: bool) -> dict[str, Any]:
    """A state from a checkpoint, in the storage that `p` has here."""
    dtype = _dtype(p, state_dtype)
    if not is_distributed(p):
        return _converted(p, name, saved, dtype, non_negative)
    parts = {k: local(v) for k, v in saved.items()}
    made = _converted(local(p), name, parts, dtype, non_negative)
    made[name] = type(p).from_local(made[name], p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
    return made


def _converted(p: Any, name: str, saved: dict[str, Any], dtype: Any, non_negative: bool) -> dict[str, Any]:
    value, scale_name = saved[name], f"{name}_scale"
    coded = value.dtype == torch.uint8
    if coded and scale_name not in saved:
        raise ValueError(f"load_state_dict: state_dict must hold {scale_name} with {name}")
    if value.dtype == dtype and value.stride() == p.stride():
        return {k: saved[k].to(p.device, copy=True) for k in ([name, scale_name] if coded else [name])}
    if coded:
        codes = dequantize_state(_in_memory(value), saved[scale_name].cpu().numpy(), non_negative=non_negative)
        value = _from_memory(codes, torch.empty_like(value, dtype=torch.float32, device="cpu"))
    made = torch.empty_like(p, dtype=torch.float32 if dtype == torch.uint8 else dtype).copy_(value)
    if dtype != torch.uint8:
        return {name: made}
    codes, scales = quantize_state(_in_memory(made), non_negative=non_negative)
    result = _from_memory(codes, torch.empty_like(p, dtype=torch.uint8))
    return {name: result, scale_name: torch.from_numpy(scales).to(p.device)}


def _from_memory(values: Any, dense: Any) -> Any:
    dense.as_strided((dense.numel(),), (1,)).copy_(torch.from_numpy(values))
    return dense


def _in_memory(dense: Any) -> Any:
    """The elements in the order of the memory, which is that of the blocks that share a scale."""
    return dense.as_strided((dense.numel(),), (1,)).cpu().numpy()


def master_of(p: Any, saved: Any = None) -> dict[str, Any]:
    """The float32 copy of a half weight, or of what was saved of it; nothing for other weights."""
    if p.dtype not in (torch.float16, torch.bfloat16):
        return {}
    return {"master": torch.empty_like(p, dtype=torch.float32).copy_(p if saved is None else saved)}
