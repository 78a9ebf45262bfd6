"""Objects whose elements lie in the memory of a CUDA device, for tests/cuda."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import boost_ext
from device import memory_of
from ops.producers import Producer

CUDA = boost_ext.build_info()["cuda"]
EMULATED = CUDA is not None and CUDA["emulated"]
needs_cuda = pytest.mark.skipif(CUDA is None, reason="this build has no CUDA kernels")
MISSING = ...  # in the place of a value: without this key


class There:
    """A NumPy array's elements in the memory of a device."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = np.ascontiguousarray(array).reshape(array.shape)
        self.memory = memory_of("cuda")[0](np.frombuffer(self.array.tobytes() or bytes(8), np.uint8).copy())

    def read(self) -> np.ndarray:
        image = self.memory.read()[: self.array.nbytes]
        return np.frombuffer(image.tobytes(), self.array.dtype).reshape(self.array.shape)

    def __del__(self) -> None:
        self.memory.free()


class Interface(There):
    """By __cuda_array_interface__; the keywords are its items, and a value of None is one that is missing."""

    def __init__(self, array: np.ndarray, **changes: Any) -> None:
        super().__init__(array)
        items = {"shape": array.shape, "typestr": array.dtype.str, "data": (self.memory.address, False), "version": 3}
        self.items = {k: v for k, v in {**items, **changes}.items() if k not in changes or v is not MISSING}

    @property
    def __cuda_array_interface__(self) -> Any:
        return self.items


class Exported(There):
    """By DLPack; `asked` are the keywords of each request."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (2, 0), **keywords: Any) -> None:
        super().__init__(array)
        self.producer = Producer(self.array, data=self.memory.address, device=device, **keywords)
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.producer.__dlpack_device__()

    def __dlpack__(self, *, stream: Any = None, **keywords: Any) -> Any:
        self.asked.append({"stream": stream, **keywords})
        return self.producer.__dlpack__(**keywords)
