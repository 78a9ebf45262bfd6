"""Objects that hand out arrays through DLPack, right and wrong ones. The capsules are put together by hand, since NumPy
exports neither bfloat16 nor anything that is wrong. https://dmlc.github.io/dlpack/latest/c_api.html"""

from __future__ import annotations

import ctypes
from typing import Any, ClassVar

import numpy as np

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
BFLOAT = 4


class Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class Managed(ctypes.Structure):
    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class ManagedVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


def capsule(struct: ctypes.Structure, name: bytes) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return new(ctypes.addressof(struct), name, None)


class Producer:
    """`array` through DLPack; the keywords say what is to be odd about it. The memory lives as long as this does; with
    `data` it is somewhere else, where `device` can reach it, and somebody else's."""

    def __init__(
        self,
        array: np.ndarray,
        *,
        legacy: bool = False,
        major: int = 1,
        readonly: bool = False,
        lanes: int = 1,
        offset: int = 0,
        strides: bool = True,
        name: bytes | None = None,
        code: int | None = None,
        data: int | None = None,
        device: tuple[int, int] = (1, 0),
    ) -> None:
        self.array, self.legacy, self.device = array, legacy, device
        self.shape = array.shape
        self.name = name or (b"dltensor" if legacy else b"dltensor_versioned")
        extents = ctypes.c_int64 * array.ndim
        tensor = Tensor(
            data=(array.ctypes.data if data is None else data) - offset,
            device_type=device[0],
            device_id=device[1],
            ndim=array.ndim,
            code=code if code is not None else CODES.get(array.dtype.kind, BFLOAT),
            bits=array.itemsize * 8,
            lanes=lanes,
            shape=extents(*array.shape),
            byte_offset=offset,
        )
        if strides:
            tensor.strides = extents(*(s // array.itemsize for s in array.strides))
        flags = int(readonly or not array.flags.writeable)
        self.struct = Managed(tensor) if legacy else ManagedVersioned(major, 0, flags=flags, tensor=tensor)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, **keywords: Any) -> Any:
        if self.legacy and keywords:
            raise TypeError(f"__dlpack__() got an unexpected keyword argument {next(iter(keywords))!r}")
        return capsule(self.struct, self.name)


FROM_OBJECT = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
WORK_STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
DELETER = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Exchange(ctypes.Structure):
    """DLPack's functions of a type, from version 1.3 on."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("managed_to_object", ctypes.c_void_p),
        ("tensor_from_object", ctypes.c_void_p),
        ("current_work_stream", ctypes.c_void_p),
    )


class Exchanged(Producer):
    """By the functions of its type instead of methods. `lent` are the tensors that nobody has given back yet."""

    lent: ClassVar[list[int]] = []
    asked: ClassVar[list[tuple[int, int]]] = []  # for the current stream of this device
    stream: ClassVar[int] = 0

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("the functions of the type are there")

    def lend(self, out: Any) -> int:
        self.struct.deleter = ctypes.cast(TAKE_BACK, ctypes.c_void_p)
        out[0] = ctypes.addressof(self.struct)
        self.lent.append(out[0])
        return 0


def current_work_stream(kind: int, number: int, out: Any) -> int:
    Exchanged.asked.append((kind, number))
    out[0] = Exchanged.stream
    return 0


LEND = FROM_OBJECT(lambda object, out: ctypes.cast(object, ctypes.py_object).value.lend(out))
TAKE_BACK = DELETER(Exchanged.lent.remove)
STREAM = WORK_STREAM(current_work_stream)


def exchange(managed_from_object: Any = LEND, major: int = 1, previous: Exchange | None = None) -> Exchange:
    functions = (ctypes.cast(f, ctypes.c_void_p).value for f in (managed_from_object, STREAM))
    made, stream = functions
    older = previous and ctypes.addressof(previous)
    return Exchange(major, 3, older, None, made, None, None, stream)


def exchanged_type(exchange: Exchange, name: bytes = b"dlpack_exchange_api") -> Any:
    """A type of such arrays. The functions live as long as it does."""
    api = capsule(exchange, name)
    return type("Array", (Exchanged,), {"__dlpack_c_exchange_api__": api, "exchange": exchange})


ByFunctions = exchanged_type(exchange())


class FromNumPy:
    """Only NumPy's own two methods."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **keywords: Any) -> Any:
        return self.array.__dlpack__(**keywords)


class OnDevice:
    """Says where it is, and must not be asked for more."""

    def __init__(self, kind: int) -> None:
        self.kind = kind

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.kind, 0

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("nobody should read these data")


class OnlyCudaInterface:
    __cuda_array_interface__: ClassVar = {"shape": (3,), "typestr": "<f4", "data": (1 << 40, False), "version": 3}


class TorchTensor(exchanged_type(exchange())):  # type: ignore[misc]
    """As PyTorch's are seen from outside."""

    __module__ = "torch"
    requires_grad = False


class OldTorchTensor(Producer):
    """From before PyTorch had functions of its type. It hands nothing out that may require a gradient."""

    __module__ = "torch"
    requires_grad = False

    def detach(self) -> Detached:
        return Detached(self.array)

    def __dlpack__(self, **_: Any) -> Any:
        raise AssertionError("Can't export tensors that require gradient, use tensor.detach()")


class Detached(Producer):
    """What shares the memory of a tensor of PyTorch."""


class DTensor(TorchTensor):
    """A tensor that is spread over processes."""

    __module__ = "torch.distributed.tensor"

    def to_local(self) -> Any:
        raise AssertionError("nobody but the caller knows whether a part will do")


class JaxArray(Producer):
    __module__ = "jaxlib._jax"


SET_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, SET_ERROR
)
DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # without the GIL


class Allocating(Exchanged):
    """A type that also makes tensors for others: `made` are devices and sizes, `taken_back` those that came back."""

    made: ClassVar[list[tuple[tuple[int, int], int]]] = []
    taken_back: ClassVar[list[int]] = []
    alive: ClassVar[dict[int, Any]] = {}
    refusal: ClassVar[list[bytes]] = []

    @classmethod
    def refuse_with(cls, kind: str | None, message: str | None) -> None:
        cls.refusal[:] = [text.encode() for text in (kind, message) if text is not None]


def allocate(prototype: Any, out: Any, error: int, set_error: Any) -> int:
    if Allocating.refusal:
        set_error(error, *Allocating.refusal)
        return -1
    like = prototype[0]
    assert (like.code, like.bits, like.lanes, like.ndim) == (CODES["u"], 8, 1, 1)
    memory = np.full(like.shape[0] + 256, 0xFF, np.uint8)
    memory = memory[-memory.ctypes.data % 256 :][: like.shape[0]]
    made = Producer(memory, device=(like.device_type, like.device_id))
    made.struct.deleter = ctypes.cast(TAKE_BACK_MADE, ctypes.c_void_p)
    out[0] = ctypes.addressof(made.struct)
    Allocating.alive[out[0]] = made
    Allocating.made.append((made.device, memory.size))
    return 0


def take_back_made(managed: int) -> None:
    Allocating.taken_back.append(managed)
    del Allocating.alive[managed]


MAKE = ALLOCATE(allocate)
TAKE_BACK_MADE = DELETE(take_back_made)


def allocating_type() -> Any:
    api = exchange()
    api.allocate = ctypes.cast(MAKE, ctypes.c_void_p).value
    made = capsule(api, b"dlpack_exchange_api")
    return type("Array", (Allocating,), {"__dlpack_c_exchange_api__": made, "exchange": api})
