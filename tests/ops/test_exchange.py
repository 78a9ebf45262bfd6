"""Arrays that DLPack hands out by the functions of their type, without a call of Python."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import boost_ext
from boost_ext import ops
from dtypes import DTYPES, assert_same_bits, normal

from .producers import FROM_OBJECT, ByFunctions, Exchanged, Producer, exchange, exchanged_type


@pytest.fixture(autouse=True)
def nothing_stays_lent():
    Exchanged.lent.clear()
    yield
    assert Exchanged.lent == []


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (2, 0, 3), (5000,)])
def test_written_in_place(rng, dtype, shape):
    arrays = [normal(rng, shape, dtype) for _ in range(3)]
    expected = [a.copy() for a in arrays]
    ops.unscale_and_check(expected, 0.5)
    assert not ops.unscale_and_check([ByFunctions(arrays[0]), arrays[1], Producer(arrays[2])], 0.5)
    for array, wanted in zip(arrays, expected, strict=True):
        assert_same_bits(array, wanted)


def test_nobody_asks_for_the_stream_of_a_cpu(rng):
    Exchanged.asked.clear()
    ops.global_norm([ByFunctions(normal(rng, 3)), ByFunctions(normal(rng, 3), device=(3, 0))])
    assert Exchanged.asked == []


def test_lent_during_the_call_alone(rng):
    """Of many, where one is refused too."""
    arrays = [ByFunctions(normal(rng, 3)) for _ in range(5)]
    ops.global_norm(arrays)
    assert Exchanged.lent == []
    with pytest.raises(ValueError, match=r"^centralize: grads\[5\] must be writable, got a read-only array$"):
        ops.centralize([*arrays, ByFunctions(normal(rng, (2, 3)), readonly=True)])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda a: ByFunctions(a[::2]), ValueError, "must be C-contiguous, got a strided array"),
        (lambda a: ByFunctions(a, major=2), ValueError, "must be DLPack version 1, got version 2"),
        (lambda a: ByFunctions(a.astype(np.float64)), TypeError, "must be float32, .* got float64"),
        (lambda a: ByFunctions(a, device=(8, 0)), ValueError, "must live on a CPU or CUDA device, got DLPack .* 8$"),
    ],
)
def test_what_cannot_be_used(rng, make, error, text):
    array = normal(rng, 20)
    before = array.copy()
    with pytest.raises(error, match=rf"^unscale_and_check: grads\[1\] {text}"):
        ops.unscale_and_check([array, make(array.copy())], 0.5)
    assert_same_bits(array, before)


@pytest.mark.skipif(boost_ext.build_info()["cuda"] is not None, reason="this build has CUDA kernels")
def test_on_a_gpu(rng):
    with pytest.raises(RuntimeError, match=r"^global_norm: got CUDA arrays, but this build has no CUDA kernels"):
        ops.global_norm(ByFunctions(normal(rng, 3), device=(2, 0)))


def refusing(function):
    return exchanged_type(exchange(function))


def test_a_function_that_raises(rng):
    class Busy(refusing(ctypes.pythonapi.PyObject_DelItemString)):  # int f(object, key): to it our `out` is a key, ""
        def __delitem__(self, key):
            raise BufferError("busy\nsince Monday")

    with pytest.raises(ValueError, match=r"^global_norm: tensors cannot be read through DLPack: BufferError: busy$"):
        ops.global_norm(Busy(normal(rng, 3)))


@pytest.mark.parametrize("status", [-1, 0])
def test_a_function_that_does_nothing(rng, status):
    nothing = FROM_OBJECT(lambda *_: status)
    text = "^global_norm: tensors cannot be read through DLPack: its type gives no reason$"
    with pytest.raises(ValueError, match=text):
        ops.global_norm(refusing(nothing)(normal(rng, 3)))


@pytest.mark.parametrize("previous", [None, 0, 1])
@pytest.mark.parametrize("name", [b"dlpack_exchange_api", b"something_else"])
def test_functions_of_another_version_are_left_alone(rng, previous, name):
    """Where there is nothing of version 1 either, __dlpack__ is what remains."""
    older = None if previous is None else exchange(major=previous)
    newer = exchanged_type(exchange(FROM_OBJECT(lambda *_: 1 / 0), major=2, previous=older), name)
    array, calls = normal(rng, 3), []

    class Array(newer):
        def __dlpack__(self, **keywords):
            calls.append(keywords)
            return Producer.__dlpack__(self, **keywords)

    assert ops.global_norm(Array(array)) == ops.global_norm(array)
    assert len(calls) == (0 if previous == 1 and name == b"dlpack_exchange_api" else 1)


def test_a_type_is_asked_for_its_functions_not_an_object(rng):
    array = Producer(normal(rng, 3))
    array.__dlpack_c_exchange_api__ = ByFunctions.__dlpack_c_exchange_api__  # type: ignore[attr-defined]
    assert ops.global_norm(array) == ops.global_norm(array.array)
