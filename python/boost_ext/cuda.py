"""CUDA arrays: the stream that ops work on, and what they return.

The ops of :mod:`boost_ext.ops` take CUDA arrays of PyTorch, CuPy, JAX (to read) and others with DLPack or
``__cuda_array_interface__``, in a build with CUDA kernels (``boost_ext.build_info()["cuda"]``). They only enqueue: on
the current stream of PyTorch or CuPy, on the stream that the array names, or else on the legacy default stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from boost_ext import _core
from boost_ext._core import DeviceArray
from boost_ext.ops.finiteness import DeviceReport

__all__ = ["DeviceArray", "DeviceReport", "stream"]


@contextmanager
def stream(pointer: int) -> Iterator[None]:
    """Ops of this thread enqueue on another stream than their arrays' framework is on.

    Args:
        pointer: a ``cudaStream_t`` as an integer; 1 is the legacy default stream, 2 that of the thread.

    Examples:
        >>> from boost_ext import cuda
        >>> with cuda.stream(2):  # the default stream of this thread
        ...     pass  # ops on CUDA arrays
    """
    before = _core.set_stream(pointer)
    try:
        yield
    finally:
        _core.set_stream(before)
