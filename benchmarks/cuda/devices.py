"""Where the tensors of a case lie: on a card, as PyTorch's, or in the memory of the host for a dry run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from boost_ext.bench.data import uniform
from boost_ext.bench.frameworks import torch_or_none
from boost_ext.bench.harness import Means

from .clock import Clock

Tensor = Any


class Card:
    """The current CUDA device of PyTorch."""

    emulated = False

    def __init__(self) -> None:
        torch = torch_or_none()
        if torch is None or not torch.cuda.is_available():
            raise RuntimeError("benchmarks.cuda needs PyTorch and a GPU that it can use, or --dry-run; got neither")
        self.torch: ModuleType = torch
        self.clock = Clock(torch)
        self.means = Means(self.clock.device_seconds, self._float64)
        self.calls = Means(self.clock.call_seconds, self._float64)
        torch.backends.cuda.matmul.allow_tf32 = False

    @property
    def free(self) -> int:
        """Bytes that nothing has been put into."""
        self.torch.cuda.empty_cache()
        return int(self.torch.cuda.mem_get_info()[0])

    def lost(self) -> bool:
        """Whether it has seen an error after which nothing works in this process."""
        try:
            self.torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, name)

    def uniform(self, n: int, seed: int, dtype: str = "float32") -> Tensor:
        """n elements between -1 and 1."""
        generator = self.torch.Generator("cuda").manual_seed(seed)
        values = self.torch.rand(n, generator=generator, device="cuda")
        return values.mul_(2).sub_(1).to(self.dtype(dtype))

    def full(self, shape: Sequence[int], value: float, dtype: str = "float32") -> Tensor:
        return self.torch.full(tuple(shape), value, dtype=self.dtype(dtype), device="cuda")

    def array(self, values: Any) -> Tensor:
        return self.torch.from_numpy(np.ascontiguousarray(values)).cuda()

    def split(self, flat: Tensor, places: Sequence[tuple[int, int]]) -> list[Tensor]:
        return [flat[begin:end] for begin, end in places]

    def reshape(self, tensor: Tensor, *shape: int) -> Tensor:
        return tensor.view(*shape)

    def part(self, tensor: Tensor, index: int) -> Tensor:
        return tensor[index]

    def repeated(self, rows: Tensor, times: int, columns: int) -> Tensor:
        """Each column `times` times, `columns` in all."""
        return rows.repeat_interleave(times, dim=1)[:, :columns]

    def clone(self, tensor: Tensor) -> Tensor:
        return tensor.clone()

    def copy(self, to: Tensor, source: Tensor) -> None:
        to.copy_(source)

    def wide(self, tensor: Tensor) -> Any:
        """A copy in float64, which takes the operators of Python."""
        return tensor.double()

    def clipping(self, norm: Tensor, bound: float, factor: Tensor, found: Tensor) -> Callable[[], None]:
        """A call that makes of a norm, all on the device, ``factor = bound / max(norm, bound)`` and whether it is inf
        or nan."""
        torch, limit = self.torch, self.full((1,), bound, "float64")
        other = self.torch.empty_like(norm)

        def call() -> None:
            torch.clamp(norm, min=bound, out=other)
            torch.div(limit, other, out=factor)
            torch.sub(norm, norm, out=other)
            torch.ne(other, 0, out=found)

        return call

    def tensor(self, tensor: Tensor) -> Any:
        """As PyTorch's, on the same memory."""
        return tensor

    def _float64(self, answer: Any, view: Callable[[Any], Any]) -> Any:
        if not isinstance(answer, self.torch.Tensor):
            answer = self.torch.from_dlpack(answer) if hasattr(answer, "__dlpack__") else self.torch.tensor(answer)
        return view(answer).to("cuda", self.torch.float64, copy=True)


class Emulator:
    """Memory of the host. PyTorch's tensors, where it is installed, are on the same memory."""

    emulated = True
    free = 1 << 40

    def __init__(self) -> None:
        sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
        from ops.producers import Producer  # its arrays have every dtype

        self._producer = Producer
        self.torch = torch_or_none()
        self.means = self.calls = Means(self._once, self._float64)

    @staticmethod
    def _once(call: Callable[[], Any], repeat: int) -> float:
        """One call more, and a number that nobody reads, so high that there is no other call."""
        call()
        return 60.0

    def _on_device(self, array: Any) -> Tensor:
        return self._producer(array, device=(2, 0))

    def dtype(self, name: str) -> Any:
        if name != "bfloat16":
            return np.dtype(name)
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)

    def uniform(self, n: int, seed: int, dtype: str = "float32") -> Tensor:
        return self._on_device(uniform(n, seed).astype(self.dtype(dtype)))

    def full(self, shape: Sequence[int], value: float, dtype: str = "float32") -> Tensor:
        return self._on_device(np.full(tuple(shape), value, self.dtype(dtype)))

    def array(self, values: Any) -> Tensor:
        return self._on_device(np.array(values, order="C"))

    def split(self, flat: Tensor, places: Sequence[tuple[int, int]]) -> list[Tensor]:
        return [self._on_device(flat.array[begin:end]) for begin, end in places]

    def reshape(self, tensor: Tensor, *shape: int) -> Tensor:
        return self._on_device(tensor.array.reshape(shape))

    def part(self, tensor: Tensor, index: int) -> Tensor:
        return self._on_device(tensor.array[index])

    def repeated(self, rows: Tensor, times: int, columns: int) -> Tensor:
        return self._on_device(np.repeat(rows.array, times, axis=1)[:, :columns])

    def clone(self, tensor: Tensor) -> Tensor:
        return self._on_device(tensor.array.copy())

    def copy(self, to: Tensor, source: Tensor) -> None:
        to.array[...] = source.array

    def wide(self, tensor: Tensor) -> Any:
        return tensor.array.astype(np.float64)

    def clipping(self, norm: Tensor, bound: float, factor: Tensor, found: Tensor) -> Callable[[], None]:
        def call() -> None:
            factor.array[...] = bound / np.maximum(norm.array, bound)
            found.array[...] = ~np.isfinite(norm.array)

        return call

    def tensor(self, tensor: Tensor) -> Any:
        assert self.torch is not None
        array = tensor.array
        if array.dtype.name == "bfloat16":
            return self.torch.from_numpy(array.view(np.int16)).view(self.torch.bfloat16)
        return self.torch.from_numpy(array)

    def _float64(self, answer: Any, view: Callable[[Any], Any]) -> Any:
        if isinstance(answer, self._producer):
            answer = answer.array
        elif hasattr(answer, "detach"):
            answer = answer.detach().double().numpy()
        elif hasattr(answer, "numpy"):
            answer = answer.numpy()
        return np.array(view(np.asarray(answer)), np.float64)


Device = Card | Emulator
