"""Shapes that no array has, from producers that lie: refused with the argument before anything is computed of them."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boost_ext import ops

from .producers import ByFunctions, Producer


def shaped(kind: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None, ndim: int | None = None) -> Any:
    """Of one float32, and says that it has this shape."""
    producer = kind(np.ones(1, np.float32))
    tensor = producer.struct.tensor
    extents = ctypes.c_int64 * len(shape)
    tensor.shape, tensor.ndim = extents(*shape), len(shape) if ndim is None else ndim
    tensor.strides = None if strides is None else extents(*strides)
    return producer


@pytest.mark.parametrize("kind", [Producer, ByFunctions], ids=["dlpack", "exchange"])
@pytest.mark.parametrize(
    ("shape", "text"),
    [
        ((-1,), "extents >= 0, got -1"),
        ((-1, -1), "extents >= 0, got -1"),
        ((0, -(2**63)), f"extents >= 0, got -{2**63}"),
        ((2**61,), rf"fewer than 2\*\*63 bytes, got an extent of {2**61} beside 1 elements"),
        ((2**32, 2**32), rf"fewer than 2\*\*63 bytes, got an extent of {2**32} beside {2**32} elements"),
        ((2**32, 0, 2**32), rf"fewer than 2\*\*63 bytes, got an extent of {2**32} beside {2**32} elements"),
        ((2**63 - 1, 2), rf"fewer than 2\*\*63 bytes, got an extent of {2**63 - 1} beside 1 elements"),
        ((1,) * 65, "0 to 64 axes, got 65"),
    ],
)
def test_shapes_that_no_array_has(kind, shape, text):
    for call in (ops.global_norm, ops.centralize, lambda x: ops.unscale_and_check(x, 0.5)):
        with pytest.raises(ValueError, match=rf"^\w+: (tensors|grads) must have {text}$"):
            call(shaped(kind, shape))


def test_axes_that_no_array_has():
    for ndim, text in ((-1, "must have 0 to 64 axes, got -1"), (2**31 - 1, f"must have 0 to 64 axes, got {2**31 - 1}")):
        with pytest.raises(ValueError, match=rf"^global_norm: tensors {text}$"):
            ops.global_norm(shaped(Producer, (1,), ndim=ndim))
    producer = shaped(Producer, (1,))
    producer.struct.tensor.shape = None
    with pytest.raises(ValueError, match=r"^global_norm: tensors must have a shape, got none$"):
        ops.global_norm(producer)


def test_memory_that_is_not_there():
    producer = shaped(Producer, (1,))
    producer.struct.tensor.data, producer.struct.tensor.byte_offset = None, 64
    with pytest.raises(ValueError, match=r"^global_norm: tensors must have its memory allocated, got an array without"):
        ops.global_norm(producer)


@pytest.mark.parametrize("strides", [(0, 0), (-2, 1), (2**62, 1), (1, 2**62), (-(2**63), -(2**63)), (2, 2)])
def test_strides_that_are_not_dense(strides):
    with pytest.raises(ValueError, match=r"^global_norm: tensors must be C-contiguous, got a strided array$"):
        ops.global_norm(shaped(Producer, (2, 2), strides))


def test_no_shape_ends_the_process_or_the_patience():
    """In a process of its own, every array of every op with shapes at random."""
    program = str(Path(__file__).with_name("odd_shapes.py"))
    paths = [str(Path(__file__).parents[1])]
    result = subprocess.run([sys.executable, program, *paths], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, f"exit status {result.returncode}: {result.stderr[-600:]}"
    calls, refused = map(int, result.stdout.split())
    assert calls / 2 < refused <= calls
