"""What the ops take as an array: NumPy's, and whatever speaks DLPack, in place and without a copy."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest

import boost_ext
from boost_ext import ops
from dtypes import DTYPES, FLOATS, assert_same_bits, normal

from .producers import FromNumPy, OnDevice, OnlyCudaInterface, Producer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("legacy", [False, True], ids=["versioned", "legacy"])
@pytest.mark.parametrize("shape", [(), (1,), (5, 7), (2, 0, 3), (5000,)])
def test_dlpack_is_written_in_place(rng, dtype, legacy, shape):
    array = normal(rng, shape, dtype)
    expected = np.copy(array)
    ops.unscale_and_check(expected, 0.5)
    assert not ops.unscale_and_check([Producer(array, legacy=legacy)], 0.5)
    assert_same_bits(array, expected)


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_dlpack_as_numpy_makes_it(rng, kind):
    array = normal(rng, (3, 40), FLOATS[kind])
    expected = array.copy()
    ops.centralize(expected)
    ops.centralize(FromNumPy(array))
    assert_same_bits(array, expected)


def test_ops_take_a_mixture(rng):
    P, grads = normal(rng, (3, 30)), [normal(rng, 10), normal(rng, (2, 5)), normal(rng, 10)]
    expected = ops.pca_project(P, grads)
    out = np.empty(3, np.float32)
    ops.pca_project(FromNumPy(P), [Producer(grads[0]), grads[1], Producer(grads[2], legacy=True)], Producer(out))
    assert_same_bits(out, expected)


def test_new_result_for_a_matrix_without_a_shape(rng):
    """DLPack says nothing of a `shape` attribute."""
    P, grad = normal(rng, (3, 10)), normal(rng, 10)
    assert_same_bits(ops.pca_project(Producer(P), Producer(grad)), ops.pca_project(P, grad))


def test_dlpack_shape_and_offset(rng):
    array = normal(rng, (6, 8))
    expected = array.copy()
    ops.centralize(expected[2:])
    ops.centralize(Producer(array[2:], offset=64, strides=False))
    assert_same_bits(array, expected)


def test_dlpack_strides_of_extents_of_one_do_not_matter(rng):
    array = normal(rng, (9, 1, 4))
    view = np.lib.stride_tricks.as_strided(array, (1, 9, 1, 4), (12345 * 4, 16, 4, 4))
    assert ops.global_norm(Producer(view)) == ops.global_norm(array)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda a: Producer(a[::2]), ValueError, "must be C-contiguous, got a strided array"),
        (lambda a: Producer(a, major=2), ValueError, "must be DLPack version 1, got version 2"),
        (lambda a: Producer(a, name=b"used_dltensor"), ValueError, "must return a DLPack capsule from __dlpack__"),
        (lambda a: Producer(a, lanes=4), TypeError, "must be float32, float16 or bfloat16, got "),
        (lambda a: Producer(a.astype(np.int64)), TypeError, "must be float32, .* got .*(int64|0 with 64 bits)"),
        (lambda a: Producer(a.astype(np.float64)), TypeError, "must be float32, .* got float64"),
        (lambda a: Producer(a.astype(np.complex64)), TypeError, "must be float32, .* got complex64"),
        (lambda a: OnDevice(4), ValueError, "must live on a CPU or CUDA device, got DLPack device type 4"),
        (lambda a: OnDevice(8), ValueError, "must live on a CPU or CUDA device, got DLPack device type 8"),
    ],
)
def test_dlpack_that_cannot_be_used(rng, make, error, text):
    array = normal(rng, 20)
    before = array.copy()
    with pytest.raises(error, match=rf"^unscale_and_check: grads\[1\] {text}"):
        ops.unscale_and_check([array, make(array.copy())], 0.5)
    assert_same_bits(array, before)


def test_dlpack_must_be_aligned(rng):
    memory = np.zeros(81, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match=r"^global_norm: tensors must be aligned to its element size"):
        ops.global_norm(Producer(memory))


def test_read_only_dlpack(rng):
    array = normal(rng, 20)
    producer = Producer(array, readonly=True)
    assert ops.global_norm(producer) == ops.global_norm(array)
    with pytest.raises(ValueError, match=r"^centralize: grads\[0\] must be writable, got a read-only array$"):
        ops.centralize(producer)


def test_producer_that_refuses(rng):
    class Busy(FromNumPy):
        def __dlpack__(self, **_):
            raise BufferError("busy")

    with pytest.raises(
        ValueError, match=r"^global_norm: tensors\[1\] cannot be read through DLPack: BufferError: busy"
    ):
        ops.global_norm([normal(rng, 3), Busy(normal(rng, 3))])


@pytest.mark.parametrize("device", [None, 1, (1,), ("cpu", 0), (2**70, 0)], ids=repr)
def test_producer_that_lives_nowhere(device):
    class Lost:
        def __dlpack_device__(self):
            return device

        def __dlpack__(self, **_):
            raise AssertionError("nobody should read these data")

    with pytest.raises((TypeError, ValueError), match=r"^global_norm: tensors "):
        ops.global_norm(Lost())


without_cuda = pytest.mark.skipif(
    boost_ext.build_info()["cuda"] is not None, reason="this build has CUDA kernels: tests/cuda/test_cuda_arrays.py"
)


@without_cuda
@pytest.mark.parametrize(
    "array", [OnDevice(2), OnDevice(13), OnlyCudaInterface()], ids=["cuda", "managed", "interface"]
)
def test_arrays_on_a_gpu_need_kernels_for_it(array):
    text = r"^global_norm: got CUDA arrays, but this build has no CUDA kernels \(see boost_ext.build_info\(\)\)$"
    with pytest.raises(RuntimeError, match=text):
        ops.global_norm(array)


@without_cuda
def test_arrays_on_two_devices(rng):
    with pytest.raises(ValueError, match=r"^global_norm: all arguments must live on one device, got CPU and CUDA$"):
        ops.global_norm([normal(rng, 3), OnDevice(2)])


def test_capsules_are_given_back(rng):
    array = normal(rng, 20)
    gone = weakref.ref(array)
    ops.global_norm([FromNumPy(array)])
    del array
    gc.collect()
    assert gone() is None


def test_capsules_are_given_back_after_an_error(rng):
    arrays = [normal(rng, 20) for _ in range(3)]
    before = [sys.getrefcount(a) for a in arrays]
    for _ in range(10):
        with pytest.raises(TypeError):
            ops.global_norm([FromNumPy(arrays[0]), FromNumPy(arrays[1]), None])
    gc.collect()
    assert [sys.getrefcount(a) for a in arrays] == before


def test_subclasses_of_ndarray(rng, tmp_path):
    array = normal(rng, 20)
    file = np.memmap(tmp_path / "array", np.float32, "w+", shape=20)
    file[:] = array
    assert ops.global_norm(file) == ops.global_norm(array)
    ops.unscale_and_check(file, 0.5)
    np.testing.assert_array_equal(file, array * 0.5)
    frozen = np.memmap(tmp_path / "array", np.float32, "r", shape=20)
    with pytest.raises(ValueError, match="must be writable, got a read-only array"):
        ops.unscale_and_check(frozen, 0.5)


EMPTIED_LIST = """
import numpy as np
from boost_ext import ops

class Thief:
    def __init__(self, victims):
        self.victims, self.own = victims, np.ones(4, np.float32)
    def __dlpack_device__(self):
        return 1, 0
    def __dlpack__(self, **keywords):
        del self.victims[0]  # the only reference to 64 MiB, which go back to the system
        return self.own.__dlpack__()

tensors = [np.ones(1 << 24, np.float32)]
tensors += [np.zeros(1, np.float32), Thief(tensors), np.zeros(1, np.float32)]
try:
    print(ops.global_norm(tensors))
except (IndexError, ValueError, RuntimeError) as error:
    print(type(error).__name__)
"""


def test_a_list_that_changes_during_the_call():
    """Another thread can do this at any time, since the GIL is released: the arrays must be kept alive."""
    result = subprocess.run([sys.executable, "-c", EMPTIED_LIST], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, f"exit status {result.returncode}: {result.stderr[-300:]}"


def test_numbers_of_a_step_in_arrays(rng):
    """By DLPack or NumPy, they mean what numbers mean, and are checked as these are."""
    start = [[normal(rng, n) for n in (5, 70)] for _ in range(3)]
    start.append([abs(x) for x in start[2]])
    known, there = ([[x.copy() for x in tensors] for tensors in start] for _ in range(2))
    given = {"lr": [0.5, 0.25], "weight_decay": 0.125, "ratio": [1.0, 2.0], "inv_scale": 0.5}
    ops.adam_step(*known, step=3, **given)
    arrays = {key: Producer(np.atleast_1d(np.asarray(value, np.float32))) for key, value in given.items()}
    step = Producer(np.array([3], np.int32))
    ops.adam_step(*there, step=step, **arrays, skip=np.zeros(1, np.float32))
    for one, two in zip(known, there, strict=True):
        for a, b in zip(one, two, strict=True):
            assert_same_bits(a, b)
    ops.adam_step(*there, **{**arrays, "lr": Producer(np.float32([np.nan]))}, step=step, skip=np.ones(1, np.float32))
    for change, error, text in (
        ({"lr": np.float32([-1])}, ValueError, "lr must be finite and >= 0, got -1"),
        ({"lr": np.ones(3, np.float32)}, ValueError, "lr must hold one value, or one for each of the 2 .*, got 3"),
        ({"ratio": np.float32([np.inf])}, ValueError, "ratio must be finite, got inf"),
        ({"weight_decay": np.ones(2)}, TypeError, "weight_decay must be float32, got float64"),
        ({"inv_scale": np.float32([1, 2])}, ValueError, "inv_scale must have 1 elements, got 2"),
        ({"inv_scale": np.float32([np.nan])}, ValueError, "inv_scale must be finite, got nan"),
        ({"step": np.int32([0])}, ValueError, "step must be >= 1, got 0"),
        ({"step": np.float32([1])}, TypeError, "step must be int32, got float32"),
        ({"skip": np.int32([1])}, TypeError, "skip must be float32, got int32"),
        ({"skip": 1.0}, TypeError, "skip must be an array .*, got float"),
        ({"skip": known[0][0][:1]}, ValueError, "params.0. is written and must not overlap other .* overlaps skip"),
    ):
        changed = {k: v if k == "skip" else Producer(v) for k, v in change.items()}
        with pytest.raises(error, match=f"^adam_step: {text}"):
            ops.adam_step(*known, **{"step": 3, **arrays, **changed})
