"""Writing the PCA matrix: column chunk by column chunk, beside its target. The format: :mod:`boost_ext.pca_format`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from .files import replacing
from .pca_checkpoints import (
    Array,
    Checkpoint,
    Parameter,
    Parameters,
    checkpoint_list,
    fingerprint,
    parameter_layout,
)
from .pca_format import (
    FORMAT,
    HEADER,
    VERSION,
    extra_begin,
    extra_of,
    footer,
    npy_header,
    record_begin,
    scale_path,
    sidecar_path,
    storage_dtype,
)
from .projection_codes import PROJECTION_BLOCK, QuantizedMatrix, quantize_projection

BLOCK = 1 << 16  # columns read or written at a time
THREADS = min(8, os.cpu_count() or 1)  # hashing and writing release the GIL


def save_matrix(
    path: str | os.PathLike[str],
    matrix: Array | QuantizedMatrix,
    *,
    parameters: Parameters | None = None,
    checkpoints: Sequence[Checkpoint] | None = None,
) -> None:
    """Write `matrix` to `path`: a .npy that ends in a record with checksums; the old file or the new one is there.

    Args:
        path: target; an existing matrix is replaced. Its directory must exist.
        matrix: (k, n), float32, float16 or bfloat16 (`ml_dtypes`), or int8 codes with their scales.
        parameters: names and shapes behind the n columns, recorded in the file.
        checkpoints: what the matrix was made from, recorded as a fingerprint; needs `parameters`.

    Raises:
        ValueError: wrong rank or dtype, values not finite, or `parameters` that do not add up to n.
        OSError: the disk; what was at `path` before is still there then.
    """
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise ValueError(f"save_matrix: matrix must be 2-D and not empty, got {matrix.shape}")
    storage_dtype("save_matrix", matrix.dtype)
    values, scale = (matrix.codes, matrix.scale) if isinstance(matrix, QuantizedMatrix) else (matrix, None)
    if values.dtype == np.int8 and scale is None:
        raise ValueError("save_matrix: matrix must be a QuantizedMatrix to hold int8 codes, got an array alone")
    layout = None if parameters is None else parameter_layout("save_matrix", parameters)
    if layout is not None and sum(p.size for p in layout) != matrix.shape[1]:
        raise ValueError(
            f"save_matrix: parameters must add up to {matrix.shape[1]} elements, got {sum(p.size for p in layout)}"
        )
    source = source_record("save_matrix", layout, checkpoints)
    with MatrixWriter.open(Path(path), matrix.shape, matrix.dtype, source) as writer:
        for start in range(0, matrix.shape[1], BLOCK):
            # A copy, since the caller may change the matrix while the thread still writes.
            block = np.array(values[:, start : start + BLOCK], order="C")
            scales = None if scale is None else scale[:, scales_of(start, block.shape[1])]
            if not np.isfinite(block if scales is None else scales).all():
                raise ValueError("save_matrix: matrix must be finite, got nan or inf")
            writer.write(start, block, scales)


def as_stored(chunk: Array, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
    """Columns of a matrix in the dtype it is stored in, and of int8 their scales."""
    return quantize_projection(chunk) if dtype == np.int8 else (chunk.astype(dtype), None)


def scales_of(start: int, width: int) -> slice:
    """Return which scales of a row belong to `width` columns from `start`, the first one of a block."""
    return slice(start // PROJECTION_BLOCK, -(-(start + width) // PROJECTION_BLOCK))


def source_record(
    op: str, layout: Sequence[Parameter] | None, checkpoints: Sequence[Checkpoint] | None
) -> dict[str, Any]:
    """Return the part of a record that says what a matrix was made from."""
    record: dict[str, Any] = {}
    if layout is not None:
        record["parameters"] = [[p.name, list(p.shape)] for p in layout]
    if checkpoints is not None:
        if layout is None:
            raise ValueError(f"{op}: parameters must be given with checkpoints, got None")
        record["checkpoints"] = fingerprint(op, checkpoint_list(op, checkpoints), layout)
    return record


class MatrixWriter:
    """A matrix being written, column chunk by column chunk; visible only when all is well."""

    def __init__(self, file: Any, shape: tuple[int, int], dtype: np.dtype[Any], average: bool) -> None:
        self._file, self._shape, self._dtype = file, shape, dtype
        extra = extra_of(shape, dtype, average)
        self._extra_begin = extra_begin(shape, dtype)
        self.scale = np.zeros(extra, np.float32) if extra is not None and dtype == np.int8 else None
        self._hashes = [hashlib.blake2b(digest_size=16) for _ in range(shape[0])]
        self._average_hash = hashlib.blake2b(digest_size=16) if average else None
        self._pool = ThreadPoolExecutor(THREADS)
        self._pending: list[Future[Any]] = []
        self._header = npy_header(shape, dtype)
        file.write(self._header)

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, shape: tuple[int, int], dtype: np.dtype[Any], source: dict[str, Any], *, average: bool = False
    ) -> Iterator[MatrixWriter]:
        """Write beside `path`; without an exception, rename it there. `average`: a row of float32 comes along."""
        # Plain writes, not a memory map: a full disk is an OSError there, a SIGBUS in a map.
        with replacing(path) as part, open(part, "xb") as file:
            writer = cls(file, shape, dtype, average)
            with writer._pool:
                yield writer
                writer.wait()
            writer._finish(source)
            file.flush()
        for stale in (sidecar_path(path), scale_path(path)):  # of a matrix of version 1
            with suppress(OSError):
                stale.unlink()

    def _finish(self, source: dict[str, Any]) -> None:
        if self.scale is not None:
            for digest, row in zip(self._hashes, self.scale, strict=True):
                digest.update(row.view(np.uint8).data)
            self._file.seek(self._extra_begin)
            self._file.write(self.scale.data)
        checksums: dict[str, Any] = {
            "algorithm": "blake2b-128 of each row",
            "rows": [digest.hexdigest() for digest in self._hashes],
        }
        if self._average_hash is not None:
            checksums["average"] = self._average_hash.hexdigest()
        content = {
            "format": FORMAT,
            "version": VERSION,
            "shape": list(self._shape),
            "dtype": self._dtype.name,
            "checksum": checksums,
            **source,
        }
        record = json.dumps(content).encode()
        self._file.seek(record_begin(self._shape, self._dtype, self._average_hash is not None))
        self._file.write(record + footer(self._header, record))

    def write(self, start: int, chunk: Array, scale: Array | None = None, average: Array | None = None) -> None:
        """Put `chunk`, a C-ordered (k, w) array of the matrix's dtype, at columns start…

        `scale` are those of int8 codes, which begin where a block does. `average` (w,) float32, if one comes along.

        It is written in the background, so it must not change any more. Chunks come in order.
        """
        self.wait()
        if self.scale is not None and scale is not None:
            self.scale[:, scales_of(start, chunk.shape[1])] = scale
        rows = [row.view(np.uint8).data for row in chunk]
        if average is not None and self._average_hash is not None:
            more = np.ascontiguousarray(average).view(np.uint8).data
            self._pending = [self._pool.submit(self._put, start, rows, more)]
            self._pending.append(self._pool.submit(self._average_hash.update, more))
        else:
            self._pending = [self._pool.submit(self._put, start, rows)]
        for digest, row in zip(self._hashes, rows, strict=True):
            self._pending.append(self._pool.submit(digest.update, row))

    def wait(self) -> None:
        """Wait for the last chunk; raises what went wrong with it."""
        for future in self._pending:
            future.result()

    def _put(self, start: int, rows: Sequence[memoryview], average: memoryview | None = None) -> None:
        for index, row in enumerate(rows):
            offset = (index * self._shape[1] + start) * self._dtype.itemsize
            self._file.seek(HEADER + offset)
            self._file.write(row)
        if average is not None:
            self._file.seek(self._extra_begin + 4 * start)
            self._file.write(average)
