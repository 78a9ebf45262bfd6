"""tests/device.py, on functions that do wrong what a kernel could do wrong."""

from __future__ import annotations

import ctypes
import functools
import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import boost_ext
import device
from boost_ext import _core, ops
from device import CPU, CudaMemory, HostMemory, on_device, with_out
from ops.producers import CODES

Array = Any


def data(array: Any) -> int:
    """Where an object of the proxy says that its data lie."""
    tensor = array.struct.tensor
    return tensor.data + tensor.byte_offset


def poke(array: Any, offset: int, value: int) -> None:
    ctypes.c_uint8.from_address(data(array) + offset).value = value


def proxied(function: Callable[..., Any]) -> Callable[..., Any]:
    return on_device(function, HostMemory, CPU)


@pytest.mark.parametrize("offset", [-1, -256, 40, 295])
def test_a_write_beside_an_array_is_noticed(offset):
    def op(x: Array) -> None:
        poke(x, offset, 0)

    x = np.ones(10, np.float32)
    with pytest.raises(
        AssertionError, match=rf"^op has written beside its arrays.*: byte {offset} of an array \(10,\)"
    ):
        proxied(op)(x)
    assert (x == 1).all()


def test_a_write_between_parts_of_one_array_is_noticed():
    def op(x: Array, y: Array) -> None:
        assert data(y) - data(x) == 24  # as on the host
        poke(x, 16, 7)

    memory = np.zeros(10, np.float32)
    with pytest.raises(AssertionError, match="byte 16 of an array"):
        proxied(op)(memory[:4], memory[6:])


@pytest.mark.parametrize("how", ["an array", "a stride"])
def test_a_write_to_what_is_read_only_is_noticed(how):
    def op(x: Array) -> None:
        poke(x, 4, 1)

    x = np.zeros(8, np.float32)
    if how == "an array":
        x.flags.writeable = False
    with pytest.raises(AssertionError, match="byte 4 of an array"):
        proxied(op)(x if how == "an array" else x[::2])


def test_a_refused_call_that_has_written_is_noticed():
    def op(x: Array, *, fail: bool) -> None:
        poke(x, 5, 1)
        if fail:
            raise ValueError("op: x must be something else")

    x = np.zeros(8, np.uint8)
    with pytest.raises(AssertionError, match=r"^op was refused and has written: byte 5 of an array \(8,\) of uint8"):
        proxied(op)(x, fail=True)
    assert not x.any()
    proxied(op)(x, fail=False)
    assert x.tolist() == [0, 0, 0, 0, 0, 1, 0, 0]


def test_what_went_wrong_on_the_way_is_brought_back():
    def op(x: Array) -> None:
        poke(x, 0, 1)
        raise RuntimeError("op: too many")

    x = np.zeros(1, np.int32)
    with pytest.raises(RuntimeError, match="too many"):
        proxied(op)(x)
    assert x[0] == 1


def test_arrays_are_described_as_they_lie(rng):
    flat = rng.standard_normal((6, 8)).astype(np.float32)
    arrays = [flat, flat[1:4, ::2], flat.T, flat[::-1, ::-1], flat[:0], np.array(3, np.int32), np.full(3, True)]
    arrays += [np.full(2, 7, kind) for kind in (np.uint8, np.float64, np.float16, np.int64)]

    def op(given: Array) -> None:
        for array, new in zip(arrays, given, strict=True):
            tensor, size = new.struct.tensor, array.itemsize
            assert data(new) != array.ctypes.data
            assert data(new) % 256 == array.ctypes.data % 256
            assert new.__dlpack_device__() == (tensor.device_type, tensor.device_id) == (1, 0)
            assert (tensor.code, tensor.bits, tensor.lanes) == (CODES[array.dtype.kind], 8 * size, 1)
            assert tuple(tensor.shape[: tensor.ndim]) == new.shape == array.shape
            strides = tensor.strides[: tensor.ndim]
            for index in np.ndindex(array.shape):
                at = data(new) + size * sum(i * s for i, s in zip(index, strides, strict=True))
                assert ctypes.string_at(at, size) == array[index].tobytes()

    proxied(op)(arrays)


def test_arrays_that_overlap_do_so_there():
    def op(x: Array, y: Array, z: Array) -> None:
        assert data(y) == data(x) + 4
        assert data(z) == data(x)
        assert z is x
        poke(x, 4, 9)

    memory = np.zeros(8, np.uint8)
    other = np.frombuffer(memory.data, np.uint8)[4:]  # of which nobody can tell whose it is
    proxied(op)(memory, other, memory)
    assert memory[4] == other[0] == 9


def test_who_returns_an_argument_returns_the_callers():
    def op(x: Array, y: Array) -> Any:
        return x, y

    x, y = np.zeros(3), [np.zeros(2), (np.ones(1),)]
    one, two = proxied(op)(x, y)
    assert one is x
    assert two is y


def test_only_arrays_are_moved():
    def op(x: Array, lr: float, **rest: Any) -> None:
        assert isinstance(lr, np.ndarray)
        assert isinstance(x[1], np.ndarray)  # no word for it
        assert x[0].struct.tensor.code == 4  # bfloat16
        assert isinstance(rest["centralize"], np.ndarray)
        assert not isinstance(rest["masters"], np.ndarray)

    endless: list[Any] = []
    endless.append(endless)
    x = [np.zeros(3, ml_dtypes.bfloat16), np.zeros(3, ">f4"), endless]
    proxied(op)(x, lr=np.ones(2), centralize=np.ones(2), masters=np.ones(2))


def test_results_become_what_the_cpu_returns(monkeypatch):
    class DeviceArray:
        def numpy(self) -> np.ndarray:
            return np.ones(3)

        def __float__(self) -> float:
            return 2.5

        def __bool__(self) -> bool:
            return True

    class Report:
        def fetch(self) -> str:
            return "fetched"

    monkeypatch.setattr(_core, "DeviceArray", DeviceArray, raising=False)
    for name, expected in (("global_norm", 2.5), ("bfgs_update", True)):
        op = lambda x: DeviceArray()  # noqa: E731
        op.__name__ = name
        assert proxied(op)(np.zeros(1)) is expected or expected == 2.5
    assert proxied(lambda x: [DeviceArray()])(np.zeros(1))[0].tolist() == [1, 1, 1]
    assert proxied(lambda x: Report())(np.zeros(1)) == "fetched"


def test_the_ops_themselves(rng):
    pair, norm, step = (inspect.unwrap(f) for f in (ops.adasum_pair, ops.global_norm, ops.sgd_step))
    a, b = [rng.standard_normal(70).astype(np.float32) for _ in range(2)]
    np.testing.assert_array_equal(with_out(proxied(pair))(a, b), pair(a, b))
    assert proxied(norm)([a, b]) == norm([a, b])
    half = a.copy()
    proxied(step)(half, b, lr=0.5)
    np.testing.assert_array_equal(half, a - np.float32(0.5) * b)


@pytest.mark.parametrize(("build", "kind"), [({"emulated": True}, HostMemory), ({"emulated": False}, CudaMemory)])
def test_the_memory_of_cuda(monkeypatch, build, kind):
    monkeypatch.setattr(boost_ext, "build_info", lambda: {"cuda": build})
    assert device.memory_of("cuda") == (kind, 2)
    monkeypatch.setattr(boost_ext, "build_info", lambda: {})
    with pytest.raises(pytest.UsageError, match="no CUDA kernels"):
        device.memory_of("cuda")


class Runtime:
    """The functions of libcudart, on memory of the host."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.memory: dict[int, Any] = {}

    def cudaMalloc(self, pointer: Any, size: Any) -> int:
        self.calls.append("malloc")
        memory = np.empty(size.value + 256, np.uint8)
        pointer._obj.value = memory.ctypes.data + -memory.ctypes.data % 256
        self.memory[pointer._obj.value] = memory
        return 0

    def cudaMemcpy(self, to: Any, source: Any, size: Any, direction: int) -> int:
        assert (to if direction == 1 else source).value in self.memory
        self.calls.append({1: "to", 2: "from"}[direction])
        ctypes.memmove(to, source, size.value)
        return 0

    def cudaDeviceSynchronize(self) -> int:
        self.calls.append("wait")
        return 0

    def cudaFree(self, pointer: Any) -> int:
        return 0 if self.memory.pop(pointer.value, None) is not None else 1


def test_memory_by_the_cuda_runtime(monkeypatch):
    def op(x: Array) -> None:
        runtime.calls.append("op")
        assert x.__dlpack_device__() == (2, 0)
        poke(x, 2, 5)

    runtime = Runtime()
    monkeypatch.setattr(device, "cudart", functools.cache(lambda: runtime))
    assert not device.is_lost()
    assert runtime.calls == []  # nobody has used it
    x = np.zeros(4, np.uint8)
    on_device(op, CudaMemory, 2)(x)
    assert x.tolist() == [0, 0, 5, 0]
    assert runtime.calls == ["malloc", "to", "wait", "op", "wait", "from"]
    assert not runtime.memory
    runtime.cudaDeviceSynchronize = lambda: 700
    with pytest.raises(AssertionError, match="cudaDeviceSynchronize: CUDA error 700"):
        on_device(op, CudaMemory, 2)(x)
    assert device.is_lost()
    runtime.cudaDeviceSynchronize = lambda: 1  # of a call, not of the card
    assert not device.is_lost()


def test_what_is_left_out_exists(request):
    folder = request.config.rootpath / "tests" / "ops"
    for key in [*device.OF_THE_HOST, *(k for only in device.ONLY.values() for k in only)]:
        module, _, test = key.partition("::")
        assert f"def {test}" in (folder / f"{module}.py").read_text()
