"""Sectors of memory that the kernels over lists touch, on the emulator, which counts them as a GPU counts sectors a
request: for lists that are aligned, and for views of a flat buffer, which are not."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from boost_ext import _core, ops
from dtypes import FLOATS, normal
from on_cuda import EMULATED
from ops.producers import Producer

pytestmark = pytest.mark.skipif(not EMULATED, reason="the emulator counts")

SECTOR = 32
MOST = 1.3  # of what must be touched: a line of 128 bytes that begins anywhere is in five sectors, not in four
MOST_OF_ODD = 1.55  # of what is not aligned to 4 bytes, codes, and rows: their ends are sectors more
SHAPES = ((96, 64), (4096,), (3, 2048), (20_001,), (64, 96))


class Memory:
    """Memory in which lists lie; `least[0]` sectors have to be read of those that were made, `least[1]` written."""

    def __init__(self, odd: int) -> None:
        memory = np.zeros(1 << 22, np.uint8)
        self._memory = memory[-memory.ctypes.data % 256 :]
        self._odd, self._next = odd, 256
        self.least = [0, 0]

    def one(self, dtype: Any, shape: Any, reads: int = 0, writes: int = 0, fill: Any = None) -> Any:
        """An array that a call reads and writes so often."""
        dtype = np.dtype(dtype)
        begin = self._next + self._odd * dtype.itemsize
        array = self._memory[begin : begin + int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        array[...] = normal(np.random.default_rng(1), shape) ** 2 + 0.1 if fill is None else fill
        end = begin + array.nbytes
        self._next = -(-end // 256) * 256
        sectors = -(-end // SECTOR) - begin // SECTOR
        self.least[0] += reads * sectors
        self.least[1] += writes * sectors
        return Producer(array, device=(2, 0))

    def many(self, dtype: Any, reads: int = 0, writes: int = 0, fill: Any = None, shapes: Any = SHAPES) -> list[Any]:
        return [self.one(dtype, shape, reads, writes, fill) for shape in shapes]

    def touched(self, call: Callable[[], Any]) -> tuple[int, int]:
        return touched(self._memory[: self._next], call)


def touched(memory: np.ndarray, call: Callable[[], Any]) -> tuple[int, int]:
    """Sectors that are read and written, of accesses that begin there."""
    library = ctypes.CDLL(_core.__file__)
    library.boost_ext_cuda_count_sectors(ctypes.c_void_p(memory.ctypes.data), ctypes.c_int64(memory.nbytes))
    try:
        call()
    finally:
        reads, writes = ctypes.c_int64(), ctypes.c_int64()
        library.boost_ext_cuda_sectors(ctypes.byref(reads), ctypes.byref(writes))
    return reads.value, writes.value


def there(array: Any) -> Any:
    """Beside the memory that is counted."""
    return Producer(np.array(array), device=(2, 0))


F32 = np.float32
NUMBER = (1,)


def unscale_and_check(m: Memory, dtype: Any) -> Callable[[], Any]:
    grads, found = m.many(dtype, 1, 1), there(np.zeros(NUMBER, F32))
    return lambda: ops.unscale_and_check(grads, 0.5, out=found)


def global_norm(m: Memory, dtype: Any) -> Callable[[], Any]:
    tensors, norm = m.many(dtype, 1), there(np.zeros(NUMBER))
    return lambda: ops.global_norm(tensors, out=norm)


def clip_by_global_norm(m: Memory, dtype: Any) -> Callable[[], Any]:
    grads, norm = m.many(dtype, 2, 1), there(np.zeros(NUMBER))
    return lambda: ops.clip_by_global_norm(grads, 0.5, out=norm)


def accumulate(m: Memory, dtype: Any) -> Callable[[], Any]:
    sums, grads = m.many(F32, 1, 1), m.many(dtype, 1)
    return lambda: ops.accumulate(sums, grads, 0.5)


def accumulate_first(m: Memory, dtype: Any) -> Callable[[], Any]:
    sums, grads = m.many(F32, 0, 1), m.many(dtype, 1)
    return lambda: ops.accumulate(sums, grads, 0.5, first=True)


def adasum_pair(m: Memory, dtype: Any) -> Callable[[], Any]:
    a, b, out = m.many(dtype, 2), m.many(dtype, 2), m.many(dtype, 0, 1)
    return lambda: ops.adasum_pair(a, b, out)


def centralize(m: Memory, dtype: Any) -> Callable[[], Any]:
    grads = m.many(dtype, 1, 1, shapes=[(60, 64), (3, 2048), (64, 512)])
    return lambda: ops.centralize(grads)


def centralize_long_rows(m: Memory, dtype: Any) -> Callable[[], Any]:
    grads = m.many(dtype, 2, 1, shapes=[(2, 16_384)])
    return lambda: ops.centralize(grads)


def centralize_vectors(m: Memory, dtype: Any) -> Callable[[], Any]:
    grads, out = m.many(dtype, 1, shapes=[(20_001,)]), m.many(dtype, 0, 1, shapes=[(20_001,)])
    return lambda: ops.centralize(grads, out)


def dropout(m: Memory, dtype: Any) -> Callable[[], Any]:
    x, out = m.one(dtype, 20_001, 1), m.one(dtype, 20_001, 0, 1)
    return lambda: ops.dropout(x, 0.5, 1, out=out)


def dim_reduce_apply(m: Memory, dtype: Any) -> Callable[[], Any]:
    momentum, grads, projected, dn, out = (
        m.many(F32, 1, 1),
        m.many(dtype, 1),
        m.many(F32, 1),
        m.many(F32, 1),
        m.many(F32, 0, 1),
    )
    return lambda: ops.dim_reduce_apply(momentum, grads, projected, dn, out, gamma=0.9, alpha=0.1, rho=0.5)


def dim_reduce_trial(m: Memory, dtype: Any) -> Callable[[], Any]:
    weights, saved, dn = m.many(dtype, 2, 1), m.many(dtype, 0, 1), m.many(F32, 1)
    return lambda: ops.dim_reduce_trial(weights, saved, dn, 0.5, save=True)


def precondition(m: Memory, dtype: Any) -> Callable[[], Any]:
    shape = [(20_001,)]
    grads, out = m.many(dtype, 1, shapes=shape), m.many(F32, 0, 1, shapes=shape)
    none = [there(np.empty(0, F32))]
    return lambda: ops.precondition(grads, none, none, out)


def adam(m: Memory, dtype: Any) -> Callable[[], Any]:
    arrays = m.many(dtype, 1, 1), m.many(dtype, 1), m.many(F32, 1, 1), m.many(F32, 1, 1)
    return lambda: ops.adam_step(*arrays, lr=0.1, step=1)


def adam_centralized(m: Memory, dtype: Any) -> Callable[[], Any]:
    shapes = [(4, 2048), (2, 4096)]
    arrays = [m.many(t, r, w, shapes=shapes) for t, r, w in ((dtype, 1, 1), (dtype, 2, 0), (F32, 1, 1), (F32, 1, 1))]
    return lambda: ops.adam_step(*arrays, lr=0.1, step=1, centralize=True)


def adam_16_bits(m: Memory, dtype: Any) -> Callable[[], Any]:
    arrays = [m.many(t, r, w) for t, r, w in ((dtype, 1, 1), (dtype, 1, 0), *2 * ((FLOATS["bfloat16"], 1, 1),))]
    return lambda: ops.adam_step(*arrays, lr=0.1, step=1)


def adam_8_bits(m: Memory, dtype: Any) -> Callable[[], Any]:
    arrays = m.many(dtype, 1, 1), m.many(dtype, 1), *(m.many(np.uint8, 1, 1, fill=3) for _ in range(2))
    scales = [[there(np.ones(-(-int(np.prod(s)) // 256), F32)) for s in SHAPES] for _ in range(2)]
    return lambda: ops.adam_step(*arrays, lr=0.1, step=1, scales=scales)


def momentum_masters(m: Memory, dtype: Any) -> Callable[[], Any]:
    params, grads, moments = m.many(FLOATS["bfloat16"], 1, 1), m.many(dtype, 1), m.many(F32, 1, 1)
    masters = m.many(F32, 1, 1)
    return lambda: ops.momentum_step(params, grads, moments, lr=0.1, masters=masters)


def lamb(m: Memory, dtype: Any) -> Callable[[], Any]:
    arrays = m.many(dtype, 2, 1), m.many(dtype, 1), m.many(F32, 2, 1), m.many(F32, 2, 1)
    return lambda: ops.lamb_step(*arrays, lr=0.1, step=1)


def adafactor_vectors(m: Memory, dtype: Any) -> Callable[[], Any]:
    shapes = [(20_001,), (4096,)]
    params, grads, squares = (m.many(t, 2, w, shapes=shapes) for t, w in ((dtype, 1), (dtype, 0), (F32, 1)))
    return lambda: ops.adafactor_step(params, grads, [None, None], [None, None], squares, step=2)


def adafactor_matrices(m: Memory, dtype: Any) -> Callable[[], Any]:
    """Gradients: their sums, their RMS, the update."""
    shape = (40, 512)
    params, grads = m.many(dtype, 2, 1, shapes=[shape]), m.many(dtype, 3, shapes=[shape])
    rows, columns = ([there(np.ones(n, F32))] for n in shape)
    return lambda: ops.adafactor_step(params, grads, rows, columns, [None], step=2)


def momentum_rows(m: Memory, dtype: Any) -> Callable[[], Any]:
    """All rows once, of which each but the first begins in the middle of a sector."""
    params, grads, moments = (m.one(t, (12, 4101), 1, w) for t, w in ((dtype, 1), (dtype, 0), (F32, 1)))
    index = there(np.arange(12, dtype=np.int32))
    return lambda: ops.momentum_step(params, grads, moments, lr=0.1, indices=index)


def pca_back_project_codes(m: Memory, dtype: Any) -> Callable[[], Any]:
    """What is written: tensors of P's columns that begin at any byte; codes are read in words that lanes share."""
    n = sum(int(np.prod(shape)) for shape in SHAPES)
    P, scale = there(np.ones((3, n), np.int8)), there(np.ones((3, -(-n // 256)), F32))
    vectors, out = [there(np.ones(3, F32)) for _ in range(2)], [m.many(dtype, 0, 1), m.many(F32, 0, 1)]
    return lambda: ops.pca_back_project(P, vectors, out, scale=scale)


CALLS = (
    unscale_and_check,
    global_norm,
    clip_by_global_norm,
    accumulate,
    accumulate_first,
    adasum_pair,
    centralize,
    centralize_long_rows,
    centralize_vectors,
    dropout,
    dim_reduce_apply,
    dim_reduce_trial,
    precondition,
    adam,
    adam_centralized,
    adam_16_bits,
    adam_8_bits,
    momentum_masters,
    lamb,
    adafactor_vectors,
    adafactor_matrices,
    momentum_rows,
    pca_back_project_codes,
)


@pytest.mark.parametrize("odd", [0, 1, 6, 7])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("op", CALLS, ids=lambda op: op.__name__)
def test_few_sectors_are_touched_in_vain(op, dtype, odd):
    memory = Memory(odd)
    call = op(memory, FLOATS[dtype])
    for what, least, got in zip(("read", "written"), memory.least, memory.touched(call), strict=True):
        in_words = op not in (adam_8_bits, momentum_rows, pca_back_project_codes) and (
            odd % 2 == 0 or (dtype == "float32" and op is not adam_16_bits)
        )
        most = MOST if in_words or odd == 0 else MOST_OF_ODD
        assert got <= most * least, f"{what}: {got} sectors, {got / least:.2f} times the least"
        assert got >= least  # it counts


@pytest.mark.parametrize("n", [8, 512, 4100, 6001])
@pytest.mark.parametrize("rows", [1, 2, 9])
def test_nothing_beside_codes_is_read(n, rows):
    """Though they are read in words of more than a byte, which begin before them and end behind them."""
    memory = np.ones(rows * n + 256, np.int8)
    scale, v, g = there(np.ones((rows, -(-n // 256)), F32)), there(np.ones(rows, F32)), there(np.ones(n, F32))
    for offset in range(64, 80):
        end = offset + rows * n
        P, out = Producer(memory[offset:end].reshape(rows, n), device=(2, 0)), there(np.zeros(rows, F32))
        for call in (
            lambda P=P, out=out: ops.pca_project(P, [g], out, scale=scale),
            lambda P=P: ops.pca_back_project(P, [v], [[g]], scale=scale),
        ):
            assert touched(memory[:offset], call) == (0, 0)
            assert touched(memory[end:], call) == (0, 0)
            assert touched(memory[offset:end], call)[0] > 0
