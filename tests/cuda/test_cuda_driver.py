"""What an old driver, a device without memory pools and the allocator of the arrays' framework make of a call, on the
emulator, which can pretend to be another machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import boost_ext
from boost_ext import cuda, ops
from on_cuda import EMULATED, needs_cuda
from ops.producers import Allocating, allocating_type

pytestmark = [
    needs_cuda,
    pytest.mark.skipif(not EMULATED, reason="only the emulator pretends"),
]

CALL = """
import ctypes, sys
import numpy as np
from boost_ext import _core, ops
from ops.producers import Producer
ctypes.CDLL(_core.__file__).boost_ext_cuda_pretend(*map(int, sys.argv[1:]), 1)
x = np.arange(9000, dtype=np.float32)
print(float(ops.global_norm([Producer(x, device=(2, 0))])), np.linalg.norm(x.astype(np.float64)))
"""


def norms(driver: int, memory_pools: int) -> subprocess.CompletedProcess[str]:
    folders = (Path(boost_ext.__file__).parents[1], Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", CALL, str(driver), str(memory_pools)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)


@pytest.mark.parametrize(("driver", "got"), [(0, "none"), (12090, "one for CUDA 12.9")])
def test_an_old_driver_is_named(driver, got):
    result = norms(driver, 1)
    assert result.returncode == 1
    needed = "boost_ext: its CUDA kernels must have a driver for CUDA 13.0 or newer (R580)"
    assert result.stderr.splitlines()[-1] == f"RuntimeError: {needed}, got {got}"


@pytest.mark.parametrize("driver", [13000, 13010])
@pytest.mark.parametrize("memory_pools", [0, 1])
def test_memory_pools_are_asked_for(driver, memory_pools):
    result = norms(driver, memory_pools)
    assert result.returncode == 0, result.stderr
    got, expected = map(float, result.stdout.split())
    assert got == pytest.approx(expected)


@pytest.fixture
def tensors(rng):
    Allocating.made.clear()
    Allocating.taken_back.clear()
    kind = allocating_type()
    return [kind(rng.standard_normal(n).astype(np.float32), device=(2, 0)) for n in (5, 40000)]  # one block and three


def norm(tensors):
    out = np.zeros(1)
    ops.global_norm(tensors, out=type(tensors[0])(out, device=(2, 0)))
    assert out[0] == pytest.approx(np.sqrt(sum((t.array.astype(np.float64) ** 2).sum() for t in tensors)))


def test_work_memory_is_that_of_the_framework_and_goes_back(tensors):
    norm(tensors)
    assert [device for device, _ in Allocating.made] == [(2, 0)] * 2  # the squares of blocks, and of tensors
    assert sorted(size for _, size in Allocating.made) == [8 * 2, 8 * (1 + 3)]
    assert len(Allocating.taken_back) == 2


def test_work_memory_is_ours_on_a_stream_that_is_not_the_framework_s(tensors):
    with cuda.stream(2):
        norm(tensors)
    assert Allocating.made == []


def test_what_the_allocator_says_is_passed_on(tensors):
    tensors[0].refuse_with("MemoryError", "the card is full")
    with pytest.raises(RuntimeError, match="the framework of the arrays has none: MemoryError: the card is full"):
        norm(tensors)
    tensors[0].refuse_with(None, None)
    norm(tensors)
