"""Masters of half-precision parameters: float32, or split into the parameter itself and the residual that it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from boost_ext.ms.core.resume import write
from boost_ext.ms.core.state import filled

__all__ = ["HALVES", "is_split", "new_masters", "next_master", "require_master", "set_master", "split_master"]

HALVES = (ms.float16, ms.bfloat16)
MASTERS = {"float32": ms.float32, "split16": ms.int16, "split8": ms.uint8}
"""Dtypes of ``masters``. uint8 has the bits of int8, which MindSpore casts to int16 when it loads a checkpoint."""
Array = np.ndarray[Any, Any]


def require_master(owner: str, kind: Any, parameters: Sequence[Parameter]) -> None:
    """Refuse another word, and split masters of float16 parameters."""
    if not isinstance(kind, str):
        raise TypeError(f"{owner}: master must be a str, got {type(kind).__name__}")
    if kind not in MASTERS:
        raise ValueError(f"{owner}: master must be one of {', '.join(MASTERS)}, got {kind!r}")
    if kind != "float32" and any(p.dtype == ms.float16 for p in parameters):
        raise TypeError(f"{owner}: master must be 'float32' for float16 parameters, got {kind!r}")


def new_masters(parameters: Sequence[Parameter], kind: str) -> list[Parameter]:
    """For each half parameter a float32 copy, or a residual of 0; and the other parameters themselves."""

    def made(p: Parameter) -> Tensor:
        if kind == "float32":
            return Tensor(p.asnumpy().astype(np.float32))
        return filled(tuple(p.shape), 0, MASTERS[kind])

    return [
        Parameter(made(p), name=f"master.{p.name}", requires_grad=False) if p.dtype in HALVES else p for p in parameters
    ]


def is_split(master: Tensor) -> bool:
    """Whether it is the residual of a split master."""
    return master.dtype in (ms.int16, ms.uint8)


def next_master(parameter: Tensor, master: Tensor) -> Array:
    """What the next step begins with, float32: a split master put together, and a float32 one, or the half parameter
    that was set from outside."""
    if is_split(master):
        residual = master.asnumpy().reshape(-1)
        signed = residual.view(np.int8) if residual.dtype == np.uint8 else residual
        return _merged(parameter.asnumpy().reshape(-1), signed).reshape(master.shape)
    wide: Array = master.asnumpy()
    if parameter is master:
        return wide
    stored, rounded = (t.astype(ms.float32).asnumpy() for t in (parameter, Tensor(wide).astype(parameter.dtype)))
    return np.where(stored == rounded, wide, stored)


def set_master(parameter: Parameter, master: Parameter, value: Array) -> None:
    """The master becomes `value`, and the parameter what it rounds to."""
    half, kept = split_master(value, parameter.dtype, master.dtype)
    write(master, kept)
    if parameter is not master:
        write(parameter, half)


def split_master(value: Array, dtype: Any, kept: Any) -> tuple[Tensor, Tensor]:
    """A float32 master as a parameter of `dtype` and what is kept beside it: float32, or the residual of a dtype."""
    value = np.ascontiguousarray(value, np.float32).reshape(value.shape)
    if kept == ms.float32:
        return Tensor(value).astype(dtype), Tensor(value)
    weight, residual = _split(value.reshape(-1), 8 if kept == ms.uint8 else 16)
    return Tensor(weight.reshape(value.shape)).astype(dtype), Tensor(residual.reshape(value.shape))


# As csrc/ops/optimizer_step.h has them.
def _merged(weight: Array, residual: Array) -> Array:
    bits = weight.view(np.int16).astype(np.int32)
    magnitude = ((bits & 0x7FFF) << 16) + (residual.astype(np.int32) << 16 - 8 * residual.itemsize)
    merged: Array = (np.maximum(magnitude, 0) | (bits & ~0x7FFF) << 16).view(np.float32)
    return merged


def _split(master: Array, size: int) -> tuple[Array, Array]:
    """The parameter, as float32, and the bits of its residual."""
    nan, shift = np.isnan(master), 16 - size
    bits = np.where(nan, 0, master.view(np.uint32))
    bits = ((bits + (1 << shift >> 1)) >> shift << shift).astype(np.uint32)
    upper = (bits + np.uint32(0x8000)) >> 16 << 16
    residual = ((bits - upper).view(np.int32) >> shift).astype(np.int16 if size == 16 else np.int8)
    weight = np.where(nan, np.float32(np.nan), upper.view(np.float32))
    return weight, residual if size == 16 else residual.view(np.uint8)
