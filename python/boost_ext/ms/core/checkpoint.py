"""MindSpore checkpoints as NumPy arrays."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from mindspore.train.checkpoint_pb2 import Checkpoint

__all__ = ["read_checkpoint"]

_DTYPES = {name: np.dtype(name.lower()) for name in ("Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64")}
_DTYPES |= {name: np.dtype(name.lower()) for name in ("UInt64", "Float16", "Float32", "Float64", "Bool")}
_DTYPES |= {"BFloat16": np.dtype(np.uint16)}
_CRC = len(b"crc_num") + 10


def read_checkpoint(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The entries of a .ckpt file by name: what :mod:`boost_ext.pca` takes as its ``reader``.

    Floating point entries come as float32, since NumPy has no bfloat16; whole numbers stay what they are, so that they
    are told from weights. Text and map parameters are left out. ``mindspore.load_checkpoint`` would do, but for files
    that are damaged: it ends the process where the size of an entry is not that of its shape.

    Raises:
        ValueError: the file is no checkpoint, or damaged.
    """
    message, content = Checkpoint(), path.read_bytes()
    if content[-_CRC:].startswith(b"crc_num"):  # of save_checkpoint(..., crc_check=True), behind the message
        content = content[:-_CRC]
    try:
        message.ParseFromString(content)
    except Exception as error:  # of protobuf, which is MindSpore's dependency and not ours
        raise ValueError(f"read_checkpoint: {path} must be a MindSpore checkpoint, got: {error}") from error
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {}
    pieces: dict[str, list[bytes]] = {}
    for entry in message.value:  # a large one comes in several
        kind, shape = entry.tensor.tensor_type, tuple(entry.tensor.dims)
        if kind in _DTYPES:
            shapes[entry.tag] = kind, () if shape == (0,) else shape  # that is how MindSpore writes a scalar
            pieces.setdefault(entry.tag, []).append(entry.tensor.tensor_content)
    return {name: _array(path, name, *shapes[name], b"".join(pieces[name])) for name in shapes}


def _array(path: Path, name: str, kind: str, shape: tuple[int, ...], content: bytes) -> npt.NDArray[Any]:
    dtype = _DTYPES[kind]
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(content):
        raise ValueError(
            f"read_checkpoint: {path}: entry {name!r} must hold {kind} {shape}, got {len(content)} bytes: it is damaged"
        )
    values: npt.NDArray[Any] = np.frombuffer(content, dtype)
    if kind == "BFloat16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    return (values.astype(np.float32, copy=False) if values.dtype.kind == "f" else values).reshape(shape)
