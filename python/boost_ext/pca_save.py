"""The PCA matrix on disk: a plain .npy beside a JSON sidecar that says what it is made of.

The sidecar `<path>.json` holds format and version, shape, dtype, one BLAKE2b checksum a row
(rows are written in column chunks, so each row hashes as it streams by), the parameters' names
and shapes, and the fingerprint of the checkpoints. Of int8 codes the scales are a second .npy,
`<path>.scale.npy`, and the checksum of a row covers its codes and then its scales. All files are
written beside their target, synced and renamed: the matrix last, so a matrix that is there is
complete.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from .pca_checkpoints import (
    Array,
    Checkpoint,
    Parameter,
    Parameters,
    checkpoint_list,
    fingerprint,
    parameter_layout,
)
from .projection_codes import PROJECTION_BLOCK, QuantizedMatrix, quantize_projection

_npy: Any = np.lib.format  # NumPy 1.26 has no types for it

FORMAT = "boost_ext.pca_matrix"
VERSION = 1
BLOCK = 1 << 16  # columns read or written at a time
THREADS = min(8, os.cpu_count() or 1)  # hashing and writing release the GIL


def save_matrix(
    path: str | os.PathLike[str],
    matrix: Array | QuantizedMatrix,
    *,
    parameters: Parameters | None = None,
    checkpoints: Sequence[Checkpoint] | None = None,
) -> None:
    """Write `matrix` to `path` (.npy) and its sidecar to `<path>.json`, atomically.

    Args:
        path: target; an existing matrix is replaced. Its directory must exist.
        matrix: (k, n), float32, float16 or bfloat16 (`ml_dtypes`), or int8 codes with their scales.
        parameters: names and shapes behind the n columns, recorded in the sidecar.
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


def storage_dtype(op: str, dtype: object) -> np.dtype[Any]:
    """Turn "float32", "float16", "bfloat16", "int8" or such a dtype into a dtype, or raise ValueError."""
    if str(dtype) == "bfloat16":
        try:
            half: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ImportError as error:
            raise ValueError(f"{op}: dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from error
        return half
    if str(dtype) not in ("float32", "float16", "int8"):
        raise ValueError(f"{op}: dtype must be float32, float16, bfloat16 or int8, got {dtype}")
    return np.dtype(str(dtype))


def as_stored(chunk: Array, dtype: np.dtype[Any]) -> tuple[Array, Array | None]:
    """Columns of a matrix in the dtype it is stored in, and of int8 their scales."""
    return quantize_projection(chunk) if dtype == np.int8 else (chunk.astype(dtype), None)


def scales_of(start: int, width: int) -> slice:
    """Return which scales of a row belong to `width` columns from `start`, the first one of a block."""
    return slice(start // PROJECTION_BLOCK, -(-(start + width) // PROJECTION_BLOCK))


def source_record(
    op: str, layout: Sequence[Parameter] | None, checkpoints: Sequence[Checkpoint] | None
) -> dict[str, Any]:
    """Return the part of a sidecar that says what a matrix was made from."""
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

    def __init__(self, file: Any, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._file = file
        self._columns = shape[1]
        self._itemsize = dtype.itemsize
        header = {
            "descr": _npy.dtype_to_descr(dtype),
            "fortran_order": False,
            "shape": tuple(shape),
        }
        _npy.write_array_header_1_0(file, header)
        self._begin = file.tell()
        blocks = -(-shape[1] // PROJECTION_BLOCK)
        self.scale = np.zeros((shape[0], blocks), np.float32) if dtype == np.int8 else None
        self._hashes = [hashlib.blake2b(digest_size=16) for _ in range(shape[0])]
        self._pool = ThreadPoolExecutor(THREADS)
        self._pending: list[Future[Any]] = []

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, shape: Sequence[int], dtype: np.dtype[Any], source: dict[str, Any]
    ) -> Iterator[MatrixWriter]:
        """Write through a temporary file beside `path`; without an exception, rename it there."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
        note, scales = temporary.with_suffix(".json"), temporary.with_suffix(".scale.npy")
        try:
            # Plain writes, not a memory map: a full disk is an OSError there, a SIGBUS in a map.
            with open(temporary, "xb") as file:
                writer = cls(file, shape, dtype)
                with writer._pool:
                    yield writer
                    writer.wait()
                _sync(file)
            if writer.scale is not None:
                for digest, row in zip(writer._hashes, writer.scale, strict=True):
                    digest.update(row.view(np.uint8).data)
                with open(scales, "xb") as file:
                    np.save(file, writer.scale, allow_pickle=False)
                    _sync(file)
            with open(note, "x", encoding="utf-8") as text:
                json.dump(
                    {
                        "format": FORMAT,
                        "version": VERSION,
                        "shape": list(shape),
                        "dtype": dtype.name,
                        "checksum": {
                            "algorithm": "blake2b-128 of each row",
                            "rows": [digest.hexdigest() for digest in writer._hashes],
                        },
                        **source,
                    },
                    text,
                    indent=1,
                )
                _sync(text)
            # An older matrix goes first, lest it stand beside the new sidecar for a moment.
            path.unlink(missing_ok=True)
            scale_path(path).unlink(missing_ok=True)
            os.replace(note, sidecar_path(path))
            if writer.scale is not None:
                os.replace(scales, scale_path(path))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
            note.unlink(missing_ok=True)
            scales.unlink(missing_ok=True)

    def write(self, start: int, chunk: Array, scale: Array | None = None) -> None:
        """Put `chunk`, a C-ordered (k, w) array of the matrix's dtype, at columns start…

        `scale` are those of int8 codes, which begin where a block does.

        It is written in the background, so it must not change any more. Chunks come in order.
        """
        self.wait()
        if self.scale is not None and scale is not None:
            self.scale[:, scales_of(start, chunk.shape[1])] = scale
        rows = [row.view(np.uint8).data for row in chunk]
        self._pending = [self._pool.submit(self._put, start, rows)]
        for digest, row in zip(self._hashes, rows, strict=True):
            self._pending.append(self._pool.submit(digest.update, row))

    def wait(self) -> None:
        """Wait for the last chunk; raises what went wrong with it."""
        for future in self._pending:
            future.result()

    def _put(self, start: int, rows: Sequence[memoryview]) -> None:
        for index, row in enumerate(rows):
            offset = (index * self._columns + start) * self._itemsize
            self._file.seek(self._begin + offset)
            self._file.write(row)


def _sync(file: Any) -> None:
    file.flush()
    os.fsync(file.fileno())


def sidecar_path(path: Path) -> Path:
    """Return where the sidecar of the matrix at `path` is."""
    return path.with_name(path.name + ".json")


def scale_path(path: Path) -> Path:
    """Return where the scales of the matrix at `path` are, if it holds int8 codes."""
    return path.with_name(path.name + ".scale.npy")
