"""What the ops hand out on a CUDA device, and who takes it."""

from __future__ import annotations

import ctypes
import gc
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from boost_ext import cuda, ops
from dtypes import assert_same_bits
from on_cuda import EMULATED, Exported, Interface, needs_cuda
from ops.producers import ManagedVersioned, Tensor

pytestmark = needs_cuda


@pytest.fixture
def x(rng):
    return rng.standard_normal((6, 20)).astype(np.float32)


def results(x: np.ndarray) -> dict[str, Any]:
    return {
        "float64": ops.global_norm(Interface(x)),
        "float32": ops.unscale_and_check(Interface(x), 0.5),
        "float16": ops.adasum_pair(Interface(x.astype(np.float16)), Interface(x.astype(np.float16))),
    }


def test_device_arrays(x):
    for dtype, array in results(x).items():
        assert isinstance(array, cuda.DeviceArray)
        assert array.dtype == dtype
        shape = (6, 20) if dtype == "float16" else (1,)
        assert array.shape == shape
        assert repr(array) == f"DeviceArray({dtype}, {shape}, CUDA device 0)"
        host = array.numpy()
        assert (host.shape, host.dtype) == (shape, np.dtype(dtype))
        assert array.__cuda_array_interface__["typestr"] == host.dtype.str
        assert array.__dlpack_device__() == (2, 0)
    norm, flag, many = results(x).values()
    assert float(norm) == norm.item() == norm.numpy()[0] == pytest.approx(np.linalg.norm(x.astype(np.float64)))
    assert not flag
    assert norm
    np.testing.assert_array_equal(many.numpy(), x.astype(np.float16))
    for read in (bool, float, lambda a: a.item()):
        with pytest.raises(ValueError, match="only an array of one element is a number, got 120 elements"):
            read(many)


def test_results_are_fed_back(x):
    bad = x.copy()
    bad[3, 4] = np.inf
    scale, counters = Interface(np.full(1, 8, np.float32)), Interface(np.array([1, 0, 0], np.int32))
    for grads in (bad, x):
        found = ops.unscale_and_check(Interface(grads), 1.0)
        ops.loss_scale_update(scale, counters, found)
    assert scale.read() == 4
    assert counters.read().tolist() == [3, 1, 0]
    for flag in (True, np.float32(0)):
        ops.loss_scale_update(scale, counters, bool(flag))
    assert (scale.read(), counters.read().tolist()) == (2, [5, 3, 0])
    total = ops.adasum_combine([Interface(x)], [Interface(x)], ops.adasum_dots(Interface(x), Interface(x)))
    assert float(ops.global_norm(total)) == pytest.approx(np.linalg.norm(x.astype(np.float64)))
    norm = ops.global_norm(total)
    assert ops.clip_by_global_norm(total, 0.25, scale=Interface(np.full(1, 2, np.float32)), out=norm) is norm
    assert float(ops.global_norm(total)) == pytest.approx(0.5, rel=1e-6)


def test_no_exception_at_the_1001st_overflow():
    scale, counters = Interface(np.full(1, 4, np.float32)), Interface(np.array([1, 0, 1000], np.int32))
    ops.loss_scale_update(scale, counters, True)
    assert counters.read().tolist() == [2, 1, 1001]


class Legacy(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)))


def consumed(array: Any, versioned: bool) -> tuple[Any, int]:
    """As a framework takes it over: the struct, and its address for the deleter."""
    name = b"dltensor_versioned" if versioned else b"dltensor"
    capsule = array.__dlpack__(stream=1, max_version=(1, 0)) if versioned else array.__dlpack__()
    api = ctypes.pythonapi
    api.PyCapsule_GetPointer.restype = ctypes.c_void_p
    api.PyCapsule_GetPointer.argtypes = api.PyCapsule_SetName.argtypes = (ctypes.py_object, ctypes.c_char_p)
    address = api.PyCapsule_GetPointer(capsule, name)
    USED.append(used := ctypes.c_char_p(b"used_" + name))
    api.PyCapsule_SetName(capsule, used)
    return (ManagedVersioned if versioned else Legacy).from_address(address), address


USED: list[Any] = []  # a capsule does not own its name


@pytest.mark.parametrize("versioned", [False, True])
def test_dlpack_export(x, versioned):
    norm = ops.global_norm(Interface(x))
    expected, place = float(norm), norm.__cuda_array_interface__["data"][0]
    struct, address = consumed(norm, versioned)
    del norm
    gc.collect()
    t = struct.tensor
    assert (t.device_type, t.device_id, t.ndim, t.shape[0], t.code, t.bits, t.lanes) == (2, 0, 1, 1, 2, 64, 1)
    assert (t.data, t.byte_offset) == (place, 0)
    if EMULATED:
        assert ctypes.c_double.from_address(t.data).value == expected  # it outlives its array
    deleter = struct.deleter if versioned else ctypes.cast(struct.deleter, ctypes.c_void_p).value
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(address)


def test_bfloat16(x):
    narrow = x.astype(ml_dtypes.bfloat16)
    there = Exported(narrow)
    total = ops.adasum_pair(there, there)
    assert (total.dtype, total.shape) == ("bfloat16", (6, 20))
    assert_same_bits(total.numpy(), narrow)
    struct, address = consumed(total, True)
    assert (struct.tensor.code, struct.tensor.bits, struct.tensor.ndim) == (4, 16, 2)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(struct.deleter)(address)
    assert float(ops.global_norm(total)) == float(ops.global_norm(there))


def test_numpy_takes_nothing_on_its_own(x):
    with pytest.raises(TypeError, match=r"DeviceArray: numpy\(\) brings it to the host"):
        np.asarray(ops.global_norm(Interface(x)))


def test_dlpack_export_that_is_refused(x):
    norm = ops.global_norm(Interface(x))
    for keywords, error, text in [
        ({"dl_device": (1, 0)}, BufferError, "dl_device must be where the array is"),
        ({"copy": True}, BufferError, "copy must be False or None, got True"),
        ({"stream": -2}, ValueError, "stream must be a CUDA stream, or -1, got -2"),
        ({"stream": "main"}, TypeError, "stream must be an integer or None, got str"),
        ({"max_version": 1}, TypeError, "max_version must be two integers, got 1"),
    ]:
        with pytest.raises(error, match=text):
            norm.__dlpack__(**keywords)
    for stream in (None, -1, 0, 1, 2):
        norm.__dlpack__(stream=stream, dl_device=(2, 0), copy=False, max_version=(2, 5))


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(not EMULATED, reason="looks at the host's memory")
def test_memory_is_given_back():
    """Of arrays that are dropped, of capsules that nobody takes, and of those that somebody does."""
    there = Interface(np.zeros(1 << 16, np.float32))

    def use(times: int) -> None:
        for i in range(times):
            total = ops.adasum_pair(there, there)  # 256 KB
            if i % 3 == 0:
                total.__dlpack__(max_version=(1, 0))
            elif i % 3 == 1:
                struct, address = consumed(total, True)
                ctypes.CFUNCTYPE(None, ctypes.c_void_p)(struct.deleter)(address)

    use(12)
    before = resident()
    use(45)
    assert resident() - before < 2 << 20  # of 11 MB
    for _ in range(1000):
        ops.global_norm(Interface(np.ones(8, np.float32))).__dlpack__()
    assert resident() - before < 2 << 20
