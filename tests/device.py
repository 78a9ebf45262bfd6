"""The tests of the ops on another device: what `pytest --device` does.

Every function of boost_ext.ops becomes one that lays the NumPy arrays among its arguments into the memory of a device,
hands them to the real function through DLPack, and brings back what it has written. So the tests need not know where
they run. Arrays that overlap on the host, or are parts of one array, do and are so on the device.

A kernel that writes where it should not is noticed: around and between the arrays lie guards, and a call that is
refused must have written nothing at all."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import inspect
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import boost_ext
from boost_ext import _core, ops
from boost_ext.ops.arguments import empty_like
from boost_ext.ops.optimizer_steps import StepOptions
from ops.producers import CODES, ByFunctions, Producer

DEVICES = ("cpu", "host-dlpack", "cuda")
CPU, CUDA = 1, 2  # DLPack's types of devices

# What cannot run on a device: modules, or tests of one, and the reason.
OF_THE_HOST = {
    "test_arrays": "about objects that hand out arrays, which the proxy would have to know",
    "test_exchange": "the same",
    "test_frameworks": "the same",
    "test_shapes": "the same",
    "test_torch": "the same",
    "test_packed": "about calls of MindSpore's cells, which are on the host",
    **dict.fromkeys(
        ("test_batch_norm", "test_conv2d", "test_layers", "test_max_pool"),
        "about layers of MindSpore's cells, which are on the host",
    ),
    "test_large": "gigabytes that are never written, of which the proxy would make copies",
}
ONLY: dict[str, dict[str, str]] = {
    "host-dlpack": {},
    "cuda": {
        "test_adasum_part": "an op of the CPU alone",
        "test_determinism": "about threads of the host; tests/cuda/test_cuda_determinism.py is about a device's",
        "test_group_loss_scale": "an op of the CPU alone",
        "test_optimizer_step_rows::test_indices_out_of_range": "nobody reads the indices on the host; they are ignored",
        "test_orthogonalize::test_a_large_matrix_is_shared_by_threads": "about threads of the host",
        "test_apollo_step::test_same_bits_for_any_number_of_threads": "about threads of the host",
        "test_muon_step::test_same_bits_for_any_number_of_threads": "about threads of the host",
        "test_muon_step::test_same_bits_on_any_instruction_set": "about instruction sets of the host",
        "test_adafactor_step::test_same_bits_for_any_number_of_threads": "about threads of the host",
        "test_adafactor_step::test_same_bits_on_any_instruction_set": "about instruction sets of the host",
        "test_damped_inverse::test_a_large_matrix_is_shared_by_threads": "about threads of the host",
        "test_optimizer_step_calls::test_same_bits_for_threads_and_instruction_sets": "about the host alone",
        "test_optimizer_step_state::test_same_bits_for_threads_and_instruction_sets": "about the host alone",
        "test_split_masters::test_same_bits_for_threads_and_instruction_sets": "about the host alone",
        "test_split_masters::test_a_thousand_steps": "minutes on an emulator; another test has a few steps of it",
        "test_split_masters::test_every_float32": "hours on an emulator; another test has 1.9 million of them",
        "test_muon_step::test_large_matrices": "minutes on an emulator; other tests have several tiles and blocks",
        "test_galore_step": "an op of the CPU alone",
        "test_timestamp": "an op of the CPU alone",
        "test_loss_scale_update::test_the_1001st_overflow_in_a_row_raises": "nobody waits for the device to be told",
        "test_layouts::test_new_results_share_the_order": "what is made on a device is in C order; it asks for `out`",
        "test_arguments::test_dtypes_nobody_takes": "most of them DLPack has no word for, and they stay on the host",
    },
}

# NumPy alone.
NOT_ON_DEVICES = {f"{verb}_{what}" for verb in ("quantize", "dequantize") for what in ("state", "projection")}
OF_THE_CPU = {"galore_step"}  # whose arrays stay on the host on CUDA, for which it has no kernel
INTERNAL = ["call", "lars"]  # what tests call of _core themselves, and no function of boost_ext.ops does
NEW_LIKE_A = {"adasum_combine", "adasum_pair"}  # `out`, where it is left out
RESULTS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("bfgs_update", "damped_inverse", "unscale_and_check"), bool),
    **dict.fromkeys(("clip_by_global_norm", "dim_reduce_direction", "global_norm"), float),
}  # of those that answer with a number; the others' are arrays

LOST = range(700, 721)  # cudaErrorIllegalAddress, cudaErrorLaunchFailure and the like
ALIGNMENT = 256
GUARD = np.frombuffer(b"\xfe\xff\xff\xff" * (ALIGNMENT // 4), np.uint8)  # nan in every floating dtype
DEEPEST = 3  # lists in lists: `out` of pca_back_project, and one more that is refused


class HostMemory:
    """Memory of the host in the place of a device's: for the CPU backend, and for an emulator."""

    def __init__(self, image: np.ndarray) -> None:
        memory = np.empty(image.size + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        self._memory = memory[start : start + image.size]
        self._memory[...] = image
        self.address = self._memory.ctypes.data

    def read(self) -> np.ndarray:
        return self._memory

    def free(self) -> None:
        pass


class CudaMemory:
    def __init__(self, image: np.ndarray) -> None:
        self._size = image.size
        pointer = ctypes.c_void_p()
        cuda("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(image.size))
        self.address = pointer.value or 0
        cuda("cudaMemcpy", pointer, ctypes.c_void_p(image.ctypes.data), ctypes.c_size_t(image.size), 1)
        cuda("cudaDeviceSynchronize")  # the kernels' stream does not wait for this copy

    def read(self) -> np.ndarray:
        cuda("cudaDeviceSynchronize")
        image = np.empty(self._size, np.uint8)
        size = ctypes.c_size_t(self._size)
        cuda("cudaMemcpy", ctypes.c_void_p(image.ctypes.data), ctypes.c_void_p(self.address), size, 2)
        return image

    def free(self) -> None:
        cuda("cudaFree", ctypes.c_void_p(self.address))


@functools.cache
def cudart() -> ctypes.CDLL:
    folders = ["", "/usr/local/cuda/lib64/"]
    names = [f"{f}libcudart.so{version}" for version in ("", ".13", ".12") for f in folders]
    for name in filter(None, [ctypes.util.find_library("cudart"), *names]):
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise pytest.UsageError("--device cuda: the CUDA runtime is not where the linker looks: set LD_LIBRARY_PATH")


def cuda(function: str, *arguments: Any) -> None:
    status = getattr(cudart(), function)(*arguments)
    assert status == 0, f"{function}: CUDA error {status}"


def is_lost() -> bool:
    """Whether the GPU has failed in this process, so that every later call in it fails, too."""
    return cudart.cache_info().currsize > 0 and cudart().cudaDeviceSynchronize() in LOST


def memory_of(device: str) -> tuple[Callable[[np.ndarray], Any], int]:
    """How to get memory, and DLPack's type of the device."""
    if device == "host-dlpack":
        return HostMemory, CPU
    build = boost_ext.build_info().get("cuda")
    if build is None:
        raise pytest.UsageError("--device cuda: this build has no CUDA kernels")
    return (HostMemory if build["emulated"] else CudaMemory), CUDA


def describable(array: np.ndarray) -> bool:
    """Whether DLPack has a word for its dtype."""
    known = array.dtype.kind in CODES or array.dtype.name == "bfloat16"
    return known and array.dtype.isnative


def arrays_in(value: Any, depth: int = DEEPEST) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        if describable(value):
            yield value
    elif type(value) in (list, tuple, dict) and depth > 0:
        for item in value.values() if isinstance(value, dict) else value:
            yield from arrays_in(item, depth - 1)


def root(array: np.ndarray) -> Any:
    owner: Any = array
    while isinstance(owner, np.ndarray) and owner.base is not None:
        owner = owner.base
    return owner


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


byte_bounds = np.lib.array_utils.byte_bounds if hasattr(np.lib, "array_utils") else np.byte_bounds  # noqa: NPY201


class Image:
    """The memory of some arrays as it is to be on the device, at the addresses of the host modulo 256."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self.arrays = {id(a): a for a in arrays}
        self._places: dict[int, int] = {}  # of the arrays, in the image
        spans = merged([a for a in self.arrays.values() if a.size])
        at, starts = 0, []
        for begin, end in spans:
            starts.append(at := round_up(at + ALIGNMENT) + begin % ALIGNMENT)
            at += end - begin
        begins = [begin for begin, _ in spans]
        for key, array in self.arrays.items():
            if array.size:
                i = bisect_right(begins, byte_bounds(array)[0]) - 1
                self._places[key] = starts[i] + address(array) - begins[i]
            else:
                self._places[key] = at = round_up(at + ALIGNMENT) + address(array) % ALIGNMENT
        self.bytes = np.tile(GUARD, round_up(at + ALIGNMENT) // ALIGNMENT)
        for (begin, end), start in zip(spans, starts, strict=True):
            ctypes.memmove(self.bytes.ctypes.data + start, begin, end - begin)

    def place(self, array: np.ndarray) -> int:
        return self._places[id(array)]

    def of(self, array: np.ndarray, image: np.ndarray) -> np.ndarray:
        return np.ndarray(array.shape, array.dtype, image, self.place(array), array.strides)

    def distance(self, array: np.ndarray, byte: int) -> int:
        start = self.place(array)
        return max(start - byte, byte - start - array.nbytes + 1, 0)

    def require_same(self, after: np.ndarray, what: str) -> None:
        if not np.array_equal(self.bytes.view(np.uint64), after.view(np.uint64)):
            wrong = int(np.flatnonzero(self.bytes != after)[0])
            near = min(self.arrays.values(), key=lambda a: self.distance(a, wrong))
            raise AssertionError(
                f"{what}: byte {wrong - self.place(near)} of an array {near.shape} of {near.dtype}, {near.nbytes} bytes"
            )

    def bring_back(self, after: np.ndarray, op: str) -> None:
        """To the arrays what was written to them, if nothing else was."""
        written = [a for a in self.arrays.values() if a.flags.writeable and a.size]
        for array in written:
            self.of(array, self.bytes)[...] = self.of(array, after)
        self.require_same(after, f"{op} has written beside its arrays, or to one that is read-only")
        for array in written:
            np.asarray(array)[...] = self.of(array, after)


def round_up(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def merged(arrays: list[np.ndarray]) -> list[tuple[int, int]]:
    """The memory of all arrays, as ranges: one for those that overlap or have a common owner."""
    ranges: dict[int, tuple[int, int]] = {}
    for array in arrays:
        begin, end = byte_bounds(array)
        owner = id(root(array))
        known = ranges.get(owner, (begin, end))
        ranges[owner] = min(begin, known[0]), max(end, known[1])
    spans: list[tuple[int, int]] = []
    for begin, end in sorted(ranges.values()):
        if spans and begin < spans[-1][1]:
            spans[-1] = spans[-1][0], max(end, spans[-1][1])
        else:
            spans.append((begin, end))
    return spans


class Exchange:
    """Device objects for arrays, also in lists, and back: who returns one of them returns the caller's own object.
    Every other one goes by the functions of its type."""

    def __init__(self, image: Image, start: int, device: tuple[int, int]) -> None:
        self._new: dict[int, Any] = {
            key: (Producer, ByFunctions)[i % 2](a, data=start + image.place(a), device=device)
            for i, (key, a) in enumerate(image.arrays.items())
        }
        self._own: dict[int, Any] = {id(new): image.arrays[key] for key, new in self._new.items()}
        self._alive: list[Any] = []

    def there(self, value: Any, depth: int = DEEPEST) -> Any:
        if id(value) in self._new or depth == 0:
            return self._new.get(id(value), value)
        if type(value) in (list, tuple):
            new: Any = type(value)(self.there(item, depth - 1) for item in value)
        elif type(value) is dict:
            new = {key: self.there(item, depth - 1) for key, item in value.items()}
        else:
            return value
        self._new[id(value)], self._own[id(new)] = new, value
        self._alive += [value, new]
        return new

    def back(self, value: Any, op: str) -> Any:
        if id(value) in self._own:
            return self._own[id(value)]
        if type(value) in (list, tuple):
            return type(value)(self.back(item, op) for item in value)
        if hasattr(value, "fetch"):
            return value.fetch()
        kind = getattr(_core, "DeviceArray", None)
        if kind is not None and isinstance(value, kind):
            return RESULTS.get(op, lambda array: array.numpy())(value)
        return value


def array_arguments(function: Callable[..., Any]) -> tuple[list[str], set[str]] | None:
    """The names of all arguments, and of those that may be arrays. Nothing if the function does not say: all may."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return None
    hints = {name: str(p.annotation) for name, p in parameters.items()}
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        hints |= {name: str(hint) for name, hint in StepOptions.__annotations__.items()}
    return list(parameters), {n for n, hint in hints.items() if "Array" in hint or "Tensor" in hint}


def on_device(function: Callable[..., Any], memory: Callable[[np.ndarray], Any], kind: int) -> Callable[..., Any]:
    """`function`, which takes arrays of a device, for arrays of NumPy."""
    op = function.__name__
    known = array_arguments(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        names: list[Any] = [*range(len(args)), *kwargs]
        if known is not None:
            moved = {n for n, name in zip(names, [*known[0][: len(args)], *kwargs], strict=False) if name in known[1]}
        else:
            moved = set(names)
        values = dict(zip(names, [*args, *kwargs.values()], strict=True))
        image = Image([a for n in moved for a in arrays_in(values[n])])
        on = memory(image.bytes)
        try:
            exchange = Exchange(image, on.address, (kind, 0))
            values = {n: exchange.there(v) if n in moved else v for n, v in values.items()}
            try:
                result = function(*[values[i] for i in range(len(args))], **{n: values[n] for n in kwargs})
            except (TypeError, ValueError):
                image.require_same(on.read(), f"{op} was refused and has written")
                raise
            except Exception:  # it went wrong on the way
                image.bring_back(on.read(), op)
                raise
            image.bring_back(on.read(), op)
            return exchange.back(result, op)
        finally:
            on.free()

    return call


def with_out(function: Callable[..., Any]) -> Callable[..., Any]:
    """The CPU backend makes new results for NumPy arrays alone; a device makes them by itself."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = signature.bind(*args, **kwargs).arguments
        if arguments.get("out") is None:
            arguments["out"] = empty_like(function.__name__, arguments["a"])
        return function(**arguments)

    return call


def install(device: str) -> None:
    """From now on the ops run on `device`."""
    if device == "cpu":
        return
    memory, kind = memory_of(device)
    for name in ops.__all__:
        function = getattr(ops, name)
        stays = name in NOT_ON_DEVICES or (kind == CUDA and name in OF_THE_CPU)
        if inspect.isfunction(function) and not stays:
            moved = on_device(function, memory, kind)
            setattr(ops, name, with_out(moved) if kind == CPU and name in NEW_LIKE_A else moved)
    for name in INTERNAL:
        setattr(_core, name, on_device(getattr(_core, name), memory, kind))


def left_out(device: str, module: str, test: str) -> str | None:
    """Why a test does not run on this device."""
    reasons = {**OF_THE_HOST, **ONLY[device]}
    return reasons.get(module) or reasons.get(f"{module}::{test}")
