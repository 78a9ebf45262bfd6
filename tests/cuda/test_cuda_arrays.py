"""What the ops take as an array on a CUDA device, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from boost_ext import _core, cuda, ops
from on_cuda import EMULATED, MISSING, Exported, Interface, There, needs_cuda
from ops.producers import ByFunctions, Exchanged

pytestmark = needs_cuda

# CUDA looks behind a stream's handle, whatever it is.
emulated = pytest.mark.skipif(not EMULATED, reason="only the emulator survives a wrong stream")


@pytest.fixture
def x(rng):
    return rng.standard_normal((6, 20)).astype(np.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"version": 2},
        {"stream": 1},
        {"stream": 2},
        {"stream": None},
        {"strides": (80, 4)},
        {"strides": None},
        {"mask": None},
        {"descr": [("", "<f4")]},
    ],
    ids=repr,
)
def test_cuda_array_interface_is_written_in_place(x, changes):
    array = Interface(x, **changes)
    assert ops.centralize(array) is array
    np.testing.assert_array_equal(array.read(), centralized(x))


def centralized(x: np.ndarray) -> np.ndarray:
    return (x - x.astype(np.float64).mean(axis=1, keepdims=True).astype(np.float32)).astype(x.dtype)


def test_strides_of_extents_of_one_do_not_matter(x):
    array = Interface(x.reshape(1, 6, 1, 20), strides=(7, 80, 12345, 4))
    assert float(ops.global_norm(array)) == pytest.approx(np.linalg.norm(x.astype(np.float64)))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shape": MISSING}, TypeError, "must have a valid __cuda_array_interface__, got none without shape"),
        ({"typestr": MISSING}, TypeError, "must have a valid __cuda_array_interface__, got none without typestr"),
        ({"data": MISSING}, TypeError, "must have a valid __cuda_array_interface__, got none without data"),
        ({"version": MISSING}, TypeError, "must have a valid __cuda_array_interface__, got none without version"),
        ({"shape": [6, 20]}, TypeError, "must have a valid .*, got a shape that is no tuple"),
        ({"shape": (6, "20")}, TypeError, "must have a valid .*, got a shape of other things than integers"),
        ({"shape": (6, -20)}, ValueError, "must have extents >= 0, got -20$"),
        ({"typestr": 4}, TypeError, "must have a valid .*, got a typestr that is no string"),
        ({"data": None}, TypeError, "must have a valid .*, got data that are no address and a bool"),
        ({"data": (1,)}, TypeError, "must have a valid .*, got data that are no address and a bool"),
        ({"data": ("here", False)}, TypeError, "must have a valid .*, got data that are no address and a bool"),
        ({"data": (-8, False)}, TypeError, "must have a valid .*, got data that are no address and a bool"),
        ({"strides": 4}, TypeError, "must have a valid .*, got a strides that is no tuple"),
        ({"strides": (4,)}, TypeError, "must have a valid .*, got strides of another length than its shape"),
        ({"stream": "main"}, TypeError, "must have a valid .*, got a stream that is no integer"),
        ({"mask": 1}, ValueError, "must have no mask, got one"),
        ({"typestr": ">f4"}, ValueError, "must be in native byte order, got >f4"),
        ({"strides": (160, 8)}, ValueError, "must be C-contiguous, got a strided array"),
        ({"strides": (4, 32)}, ValueError, "must be C-contiguous, got a strided array"),
        ({"typestr": "<i8"}, TypeError, "must be float32, float16 or bfloat16, got <i8"),
        ({"typestr": "<c8", "strides": (160, 8)}, TypeError, "must be float32, float16 or bfloat16, got <c8"),
        ({"typestr": ""}, TypeError, "must be float32, float16 or bfloat16, got "),
        ({"data": (0, False)}, ValueError, "must have its memory allocated, got an array without"),
    ],
    ids=repr,
)
def test_cuda_array_interface_that_cannot_be_used(x, changes, error, message):
    first, array = Interface(x), Interface(x, **changes)
    with pytest.raises(error, match=rf"^unscale_and_check: grads\[1\] {message}"):
        ops.unscale_and_check([first, array], 0.5)
    np.testing.assert_array_equal(first.read(), x)


def test_cuda_array_interface_that_is_no_dict(x):
    array = Interface(x)
    array.items = [1, 2]
    with pytest.raises(TypeError, match="got something else than a dict"):
        ops.global_norm(array)


def test_unaligned_and_read_only(x):
    array = Interface(x)
    array.items["data"] = (array.memory.address + 1, False)
    with pytest.raises(ValueError, match="must be aligned to its element size, got an unaligned array"):
        ops.global_norm(array)
    array.items["data"] = (array.memory.address, True)
    assert float(ops.global_norm(array)) > 0
    with pytest.raises(ValueError, match=r"^centralize: grads\[0\] must be writable, got a read-only array$"):
        ops.centralize(array)


def test_arrays_without_elements_lie_anywhere(x):
    empty = Interface(np.empty((0, 3), np.float32), data=(0, False))
    for arrays in ([empty, Interface(x)], [Interface(x), empty], [np.empty(0, np.float32), Interface(x)]):
        assert float(ops.global_norm(arrays)) == pytest.approx(np.linalg.norm(x.astype(np.float64)))
    assert float(ops.global_norm(empty)) == 0
    assert [a.shape for a in ops.adasum_pair([np.empty((4, 0), np.float32), empty], [empty, empty])] == [(4, 0), (0, 3)]


@emulated
def test_a_stream_that_is_named_is_waited_for(x):
    with pytest.raises(RuntimeError, match=r"^CUDA: "):
        ops.global_norm([Interface(x, stream=1), Interface(x, stream=3)])
    assert float(ops.global_norm(Interface(x, stream=1))) > 0  # and the failure is forgotten


@emulated
def test_a_failed_call_does_not_fail_the_next_one(x):
    with cuda.stream(12345), pytest.raises(RuntimeError, match=r"^CUDA: "):
        ops.global_norm(Interface(x))
    ops.centralize(Interface(x))


@pytest.mark.parametrize("kind", [2, 13])
@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(("chosen", "asked"), [(None, 1), (0, 1), (1, 1), (2, 2)])
def test_dlpack_is_asked_for_our_stream(x, kind, legacy, chosen, asked):
    array = Exported(x, (kind, 0), legacy=legacy)
    if chosen is None:
        ops.centralize(array)
    else:
        with cuda.stream(chosen):
            ops.centralize(array)
    np.testing.assert_array_equal(array.read(), centralized(x))
    assert array.asked[0] == {"stream": asked, "max_version": (1, 0)}
    assert array.asked[1:] == ([{"stream": asked}] if legacy else [])


class Lent(There, ByFunctions):
    """By the functions of its type, without a call of Python."""

    def __init__(self, array, kind=2):
        There.__init__(self, array)
        ByFunctions.__init__(self, self.array, data=self.memory.address, device=(kind, 0))


@pytest.fixture
def work_stream(monkeypatch):
    def set_to(stream):
        monkeypatch.setattr(Exchanged, "stream", stream)
        Exchanged.asked.clear()

    set_to(0)
    return set_to


@pytest.mark.parametrize("kind", [2, 13])
@pytest.mark.parametrize("working", [0, 2])
@pytest.mark.parametrize("chosen", [None, 1, 2])
def test_functions_of_a_type_are_asked_for_the_stream(x, work_stream, kind, working, chosen):
    work_stream(working)
    arrays = [Lent(x, kind), Lent(x, kind)]
    if chosen is None:
        ops.centralize(arrays)
    else:
        with cuda.stream(chosen):
            ops.centralize(arrays)
    for array in arrays:
        np.testing.assert_array_equal(array.read(), centralized(x))
    assert Exchanged.asked == [(kind, 0)] * 2
    assert Exchanged.lent == []


@emulated
def test_work_is_on_the_stream_of_the_type(x, work_stream):
    """And where it is on another one, it comes after what is on that one. The emulator knows no stream 3."""
    work_stream(3)
    with pytest.raises(RuntimeError, match=r"^CUDA: "):
        ops.centralize(Lent(x))
    with cuda.stream(1), pytest.raises(RuntimeError, match=r"^CUDA: "):
        ops.centralize(Lent(x))


def test_a_chosen_stream_must_be_a_number():
    with pytest.raises(TypeError, match=r"^cuda.stream: pointer must be an integer, got str$"), cuda.stream("main"):  # type: ignore[arg-type]
        pass
    with pytest.raises(OverflowError), cuda.stream(-1):
        pass
    assert _core.set_stream(None) is None


def test_arrays_live_on_one_device(x):
    text = r"^global_norm: all arguments must live on one device, got CUDA device 0 and CUDA device 1$"
    with pytest.raises(ValueError, match=text):
        ops.global_norm([Exported(x), Exported(x, (2, 1))])
    with pytest.raises(ValueError, match="must live on one device, got CUDA and CPU"):
        ops.global_norm([Exported(x), x])
    with pytest.raises(ValueError, match="must live on one device, got CPU and CUDA"):
        ops.global_norm([x, Interface(x)])
    with pytest.raises(ValueError, match="must live on one device, got CUDA and CPU"):
        ops.global_norm(Exported(x), out=np.empty(1))
    with pytest.raises(ValueError, match="must live on one device, got CPU and CUDA"):
        ops.loss_scale_update(np.ones(1, np.float32), np.ones(3, np.int32), Interface(np.ones(1, np.float32)))
