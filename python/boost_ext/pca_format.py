"""The PCA matrix on disk: one file, a .npy that ends in a record of what it is made of.

    .npy header, padded to 4096 bytes
    values, (k, n)
    float32 values: of int8 codes the scales, (k, blocks); of a span the average, (1, n); else none
    record, JSON: format and version, shape, dtype, one BLAKE2b checksum a row (rows are written in column chunks, so
        each row hashes as it streams by; scales follow the codes of their row), the parameters' names and shapes, and
        the fingerprint of the checkpoints
    length of the record, 8 bytes; BLAKE2b checksum of header, record and length, 16 bytes; `MAGIC`

NumPy reads the header and the values and leaves the rest. Since there is one file and one rename, a reader finds the
old matrix or the new one. Version 1 kept the record in `<path>.json` and the scales in `<path>.scale.npy`.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .files import parsed_json
from .pca_checkpoints import Array
from .projection_codes import PROJECTION_BLOCK, QuantizedMatrix

_npy: Any = np.lib.format  # NumPy 1.26 has no types for it

FORMAT = "boost_ext.pca_matrix"
VERSION = 2
MAGIC = b"\nboost_ext.pca2\n"
HEADER = 4096  # bytes of the .npy header: no other writer makes it so long, so a file that was cut is known by it
FOOTER = 8 + 16 + len(MAGIC)
ALIGNED = 64


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


def npy_header(shape: tuple[int, int], dtype: np.dtype[Any]) -> bytes:
    """Return the first `HEADER` bytes of a .npy file."""
    text = repr({"descr": _npy.dtype_to_descr(dtype), "fortran_order": False, "shape": tuple(shape)})
    start = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")
    return start + text.encode("latin1").ljust(HEADER - 11) + b"\n"


def extra_of(shape: tuple[int, int], dtype: np.dtype[Any], average: bool) -> tuple[int, int] | None:
    """Return the shape of the float32 values that follow a matrix, None if none do."""
    if dtype == np.int8:
        return shape[0], -(-shape[1] // PROJECTION_BLOCK)
    return (1, shape[1]) if average else None


def extra_begin(shape: tuple[int, int], dtype: np.dtype[Any]) -> int:
    """Return where these values begin; the bytes before are 0."""
    end = HEADER + shape[0] * shape[1] * dtype.itemsize
    return -(-end // ALIGNED) * ALIGNED


def record_begin(shape: tuple[int, int], dtype: np.dtype[Any], average: bool) -> int:
    """Return where the record begins, right after all values."""
    extra = extra_of(shape, dtype, average)
    return extra_begin(shape, dtype) + (4 * extra[0] * extra[1] if extra else 0)


def footer(header: bytes, record: bytes) -> bytes:
    """Return what ends the file."""
    length = len(record).to_bytes(8, "little")
    return length + hashlib.blake2b(header + record + length, digest_size=16).digest() + MAGIC


def sidecar_path(path: Path) -> Path:
    """Return where the record of a matrix of version 1 is."""
    return path.with_name(path.name + ".json")


def scale_path(path: Path) -> Path:
    """Return where the scales of a matrix of version 1 are, if it holds int8 codes."""
    return path.with_name(path.name + ".scale.npy")


class Stored(NamedTuple):
    """What is in a file: `record` says what it is made of, None for a file of the user's."""

    matrix: Array | QuantizedMatrix
    average: Array | None
    record: dict[str, Any] | None


def _ends(file: Any) -> tuple[int, bytes, bytes]:
    """The size of an open file, its first `HEADER` bytes and its last `FOOTER` ones."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(HEADER)
    file.seek(max(size - FOOTER, 0))
    return size, head, file.read(FOOTER)


def _has_record(head: bytes, tail: bytes) -> bool:
    """Whether it is or was a file of version 2: either end tells, so that one that was cut is not taken for a .npy."""
    return head[8:10] == (HEADER - 10).to_bytes(2, "little") or tail.endswith(MAGIC)


def written_here(path: Path) -> bool:
    """Whether this project wrote the file, damaged or not."""
    with open(path, "rb") as file:
        _, head, tail = _ends(file)
    return _has_record(head, tail) or sidecar_path(path).exists()


def open_stored(op: str, path: Path) -> Stored:
    """Map the file read-only, after checking all of it but the rows.

    Raises:
        FileNotFoundError: there is none. ValueError: it is no matrix, or damaged.
    """
    try:
        with open(path, "rb") as file:
            size, head, tail = _ends(file)
            if _has_record(head, tail):
                return _sealed(op, path, file, size, head, tail)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{op}: {path} must be a readable file, got: {error}") from error
    matrix = _open_npy(op, path)
    record = _sidecar(op, path)
    if record is None:
        return Stored(matrix, None, None)
    if record["dtype"] == "bfloat16" and matrix.dtype.str == "|V2":  # a .npy header has no name for bfloat16
        matrix = matrix.view(storage_dtype(op, "bfloat16"))
    expected = (record["shape"], record["dtype"])
    if expected != (got := (list(matrix.shape), matrix.dtype.name)):
        raise ValueError(f"{op}: {path} must be {expected} by its sidecar, got {got}")
    if not (matrix.dtype.isnative and matrix.flags.c_contiguous):
        raise ValueError(f"{op}: {path} must be in C order and this machine's byte order, got {matrix.dtype.str}")
    if matrix.dtype != np.int8:
        return Stored(matrix, None, record)
    shape = extra_of((matrix.shape[0], matrix.shape[1]), matrix.dtype, False)
    try:
        scale = _open_npy(op, scale_path(path))
    except FileNotFoundError as error:
        raise ValueError(f"{op}: {scale_path(path)} must hold the scales of {path}, got no such file") from error
    if scale.shape != shape or scale.dtype != np.float32 or not scale.flags.c_contiguous:
        raise ValueError(f"{op}: {scale_path(path)} must hold float32 {shape}, got {scale.dtype} {scale.shape}")
    return Stored(QuantizedMatrix(matrix, scale), None, record)


def _sealed(op: str, path: Path, file: Any, size: int, head: bytes, tail: bytes) -> Stored:
    """A file of version 2: its record and header by their checksum, then what they say by the size of the file."""
    damaged = f"{op}: {path} must be whole, got one that is damaged or cut short, rebuild it"
    length = int.from_bytes(tail[:8], "little")
    begin = size - FOOTER - length
    if len(tail) != FOOTER or begin < HEADER:
        raise ValueError(damaged)
    file.seek(begin)
    content = file.read(length)
    if footer(head, content) != tail:
        raise ValueError(damaged)
    record = _record(f"{op}: the record of {path}", content, VERSION)
    shape, dtype = (record["shape"][0], record["shape"][1]), storage_dtype(op, record["dtype"])
    average = "average" in record["checksum"]
    if begin != record_begin(shape, dtype, average) or head != npy_header(shape, dtype):
        raise ValueError(damaged)
    end = HEADER + shape[0] * shape[1] * dtype.itemsize
    file.seek(end)
    if any(file.read(extra_begin(shape, dtype) - end)):
        raise ValueError(damaged)
    matrix: Array = np.memmap(file, dtype, "r", HEADER, shape)
    if (extra := extra_of(shape, dtype, average)) is None:
        return Stored(matrix, None, record)
    values: Array = np.memmap(file, np.float32, "r", extra_begin(shape, dtype), extra)
    if dtype == np.int8:
        return Stored(QuantizedMatrix(matrix, values), None, record)
    return Stored(matrix, values[0], record)


def _open_npy(op: str, path: Path) -> Array:
    """Map a .npy read-only; has no way to unpickle."""
    try:
        mapped: Array = _npy.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise
    except Exception as error:  # its header is evaluated as Python: TokenError, TypeError, RecursionError and others
        raise ValueError(f"{op}: {path} must be a complete .npy array, got {type(error).__name__}: {error}") from error
    return mapped


def _sidecar(op: str, path: Path) -> dict[str, Any] | None:
    sidecar = sidecar_path(path)
    try:
        content = sidecar.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{op}: {sidecar} must be a readable file, got: {error}") from error
    return _record(f"{op}: {sidecar}", content, 1)


def _record(owner: str, text: bytes, version: int) -> dict[str, Any]:
    content = parsed_json(owner, text)
    got = (content.get("format"), content.get("version")) if isinstance(content, dict) else None
    if got != (FORMAT, version):
        raise ValueError(f"{owner} must be {FORMAT!r} version {version}, got {got}")
    shape, dtype, checksum = content.get("shape"), content.get("dtype"), content.get("checksum")
    rows = checksum.get("rows") if isinstance(checksum, dict) else None
    fits = isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size > 0 for size in shape)
    fits = fits and isinstance(rows, list) and len(rows) == shape[0] and all(isinstance(row, str) for row in rows)
    if not fits or dtype not in ("float32", "float16", "bfloat16", "int8"):
        raise ValueError(
            f"{owner} must hold shape, dtype and one checksum a row, got shape {shape!r:.99}, dtype {dtype!r:.99} and "
            f"{len(rows) if isinstance(rows, list) else 0} checksums"
        )
    return dict(content)
