"""State of a parameter: float32, bfloat16, or codes of one byte with scales; and masters of half weights."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from boost_ext.ops.optimizer_state import STATE_BLOCK, dequantize_state, quantize_state

__all__ = [
    "MASTERS",
    "STATE_DTYPES",
    "Held",
    "converted",
    "empty_state",
    "has_no_data",
    "is_distributed",
    "loaded_master",
    "local",
    "new_master",
    "set_master",
    "wide_weight",
]

STATE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": torch.uint8}
MASTERS = {False: None, True: torch.float32, "split16": torch.int16, "split8": torch.int8}
"""What is kept beside a half weight: nothing, its master, or the residual of a split one."""
SMALL = 4096
"""Elements below which state is float32, as in :mod:`boost_ext.optim`."""


class Held:
    """A tensor that ``torch.optim.Optimizer.load_state_dict`` hands through as it is."""

    def __init__(self, value: torch.Tensor) -> None:
        self.value = value


def is_distributed(tensor: Any) -> bool:
    """Whether it is a DTensor. A plain parameter is told at once: there are hundreds."""
    return type(tensor) is not torch.nn.Parameter and hasattr(tensor, "to_local")


def has_no_data(tensor: Any) -> bool:
    """Whether it is only a shape, on the meta device or in a ``FakeTensorMode``."""
    return tensor.is_meta or (type(tensor) is not torch.nn.Parameter and isinstance(local(tensor), FakeTensor))


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
    made[name] = _distributed_like(p, made[name])
    return made


def _distributed_like(p: Any, part: torch.Tensor) -> Any:
    """The DTensor of which this process has `part`, if `p` is one."""
    if not is_distributed(p):
        return part
    return type(p).from_local(part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def _converted(p: Any, name: str, saved: dict[str, Any], dtype: Any, non_negative: bool) -> dict[str, Any]:
    value, scale_name = saved[name], f"{name}_scale"
    coded = value.dtype == torch.uint8
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


def new_master(p: Any, kind: Any) -> dict[str, Any]:
    """What is kept of `p` before its first step; nothing beside float32 weights."""
    if p.dtype not in (torch.float16, torch.bfloat16):
        return {}
    if MASTERS[kind] == torch.float32:
        return {"master": torch.empty_like(p, dtype=torch.float32).copy_(p)}
    return {"master": torch.zeros_like(p, dtype=MASTERS[kind])}


def wide_weight(p: Any, master: Any) -> Any:
    """The weight that the next step begins with, in float32 if it has a master; a float32 one follows its weight."""
    if master is None or p.dtype == torch.float32:  # it has become wide
        return p
    if master.dtype == torch.float32:
        return torch.where(master.to(p.dtype) == p, master, p.float())
    return _distributed_like(p, _joined(local(p), local(master)))


def set_master(p: Any, master: Any, value: Any) -> None:
    """The master becomes `value`, and the weight what it rounds to."""
    wide = torch.empty_like(p, dtype=torch.float32).copy_(value)  # rounded twice, as a step does
    if master.dtype == torch.float32:
        master.copy_(wide)
        p.copy_(wide)
        return
    weight, residual = _parted(local(wide), master.dtype)
    local(p).copy_(weight)
    local(master).copy_(residual)


def loaded_master(p: Any, kind: Any, saved: Any = None) -> dict[str, Any]:
    """What is kept of `p` and of the float32 master `saved` with it.

    Halfway between two weights a split master rounds away from 0, and float32 to an even one. A weight that is either
    becomes what this storage rounds `saved` to. Another weight stays: it may be loaded after this.
    """
    made = new_master(p, kind)
    if saved is None or not made:
        return made
    wide = torch.empty_like(p, dtype=torch.float32).copy_(saved)
    is_split = MASTERS[kind] != torch.float32
    if p.dtype == torch.bfloat16:
        weight, to_even = local(p), local(wide).to(p.dtype)
        away, residual = _parted(local(wide), MASTERS[kind] if is_split else torch.int16)
        own, other = (away, to_even) if is_split else (to_even, away)
        weight.copy_(torch.where(weight == other, own, weight))
        if is_split:
            local(made["master"]).copy_(residual)
            return made
    return {"master": wide}


# As csrc/ops/optimizer_step.h has them.
def _joined(weight: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    bits, unit = weight.detach().view(torch.int16).to(torch.int32), 1 << (16 - 8 * residual.itemsize)
    magnitude = ((bits & 0x7FFF) << 16) + residual.to(torch.int32) * unit
    return (magnitude.clamp_(min=0) | (bits & ~0x7FFF) << 16).view(torch.float32)


def _parted(master: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    bits, nan, shift = master.view(torch.int32), master.isnan(), 16 - 8 * dtype.itemsize
    bits = torch.where(nan, 0, bits)
    bits = (bits + (1 << shift >> 1)) >> shift << shift
    weight = ((bits + 0x8000) >> 16).to(torch.int16).view(torch.bfloat16)
    return torch.where(nan, torch.nan, weight), (bits << 16 >> (16 + shift)).to(dtype)
