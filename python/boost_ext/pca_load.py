"""Loading the PCA matrix: everything in the file is checked before anyone trains with it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .files import parsed_json
from .pca_checkpoints import Array, Checkpoint, Parameters, parameter_layout
from .pca_save import (
    BLOCK,
    FOOTER,
    FORMAT,
    HEADER,
    MAGIC,
    THREADS,
    VERSION,
    extra_begin,
    extra_of,
    footer,
    npy_header,
    record_begin,
    scale_path,
    sidecar_path,
    source_record,
    storage_dtype,
)
from .projection_codes import PROJECTION_BLOCK, QuantizedMatrix

_npy: Any = np.lib.format  # NumPy 1.26 has no types for it

_POLL = 0.05, 1.0  # seconds between looks at a file that is awaited: first, and at most


def load_matrix(
    path: str | os.PathLike[str],
    *,
    n_components: int,
    n_elements: int,
    timeout: float = 0.0,
    parameters: Parameters | None = None,
    checkpoints: Sequence[Checkpoint] | None = None,
    rows: tuple[int, int] | None = None,
    dtype: object | None = None,
) -> Array | QuantizedMatrix:
    """Load a PCA matrix, mapped read-only from the file, after checking all of it.

    A matrix of `save_matrix` or `pca_matrix` must match its checksums, and nothing in it is parsed before; a plain .npy
    of the user's is checked for shape, dtype and finite values. A file with more than `n_components` rows gives its first
    ones (components are sorted). A float64 or Fortran-ordered file, such as `mindspore.boost`
    writes, becomes a C-ordered array in memory, float64 as float32.

    Args:
        path: the .npy file.
        n_components: k, rows needed. n_elements: n, columns needed.
        timeout: seconds to wait for the file while another rank builds it; 0 does not wait.
        parameters, checkpoints: if given, the file must name the same ones; a matrix left
            from other checkpoints is waited out, as one that is not there yet.
        rows: (first, last + 1) of the rows to read and check, for a rank that holds no others;
            they may be none. None: all.
        dtype: if given, the file must name the same one, as with `parameters`. Nothing is converted.

    Returns:
        (n_components, n_elements) array, or as many rows as asked for, float32, float16 or bfloat16; of a file of int8
        codes a `QuantizedMatrix`.

    Raises:
        FileNotFoundError: no such file, and `timeout` is 0. TimeoutError: none in time.
        ValueError: the file is damaged, truncated, of another shape, dtype, byte order or origin.
    """
    if n_components < 1:
        raise ValueError(f"load_matrix: n_components must be at least 1, got {n_components}")
    found = load_stored(
        Path(path), n_components, n_elements, timeout, parameters, checkpoints, rows=rows, dtype=dtype
    )
    return found.matrix


class Stored(NamedTuple):
    """What is in a file: `record` says what it is made of, None for a file of the user's."""

    matrix: Array | QuantizedMatrix
    average: Array | None
    record: dict[str, Any] | None


def load_stored(
    file: Path,
    n_components: int | None,
    n_elements: int,
    timeout: float,
    parameters: Parameters | None,
    checkpoints: Sequence[Checkpoint] | None,
    *,
    rows: tuple[int, int] | None = None,
    dtype: object | None = None,
) -> Stored:
    """`load_matrix`, with what else is in the file; `n_components` None for all rows."""
    layout = None if parameters is None else parameter_layout("load_matrix", parameters)
    source = source_record("load_matrix", layout, checkpoints)
    if dtype is not None:
        source["dtype"] = storage_dtype("load_matrix", dtype).name
    deadline = time.monotonic() + timeout
    pause = _POLL[0]
    while True:
        problem, before = None, _identity(file)
        if before is not None:
            try:
                stored = _open("load_matrix", file)
                problem = _mismatch(file, stored.record, source)
                if problem is None:
                    return _checked(file, stored, n_components, n_elements, rows)
            except (FileNotFoundError, ValueError):
                if _identity(file) == before:
                    raise
                # One of version 1 whose sidecar and scales went while they were read.
                problem = f"{file} must stay while it is read, got another one in its place"
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
        pause = min(2 * pause, _POLL[1])
    if timeout > 0:
        raise TimeoutError(f"load_matrix: {file} must appear within {timeout:g} s, got {problem or 'no file'}")
    if problem is not None:
        raise ValueError(f"load_matrix: {problem}")
    raise FileNotFoundError(f"load_matrix: path must be an existing .npy file, got {file}")


def stored_matrix(
    op: str, path: Path, shape: tuple[int | None, int], dtype: np.dtype[Any], source: dict[str, Any]
) -> Stored | None:
    """Return the valid matrix at `path` made from `source`, None if there is none to reuse. Rows None: any number."""
    if not path.exists():
        return None
    try:
        stored = _open(op, path)
        if stored.record is None:
            raise FileExistsError(
                f"{op}: path must be free or a matrix that boost_ext wrote, got {path}: a file of yours is not overwritten"
            )
        same = shape[0] in (None, stored.matrix.shape[0]) and stored.record["dtype"] == dtype.name
        if not same or _mismatch(path, stored.record, source) is not None:
            return None
        return _checked(path, stored, None, shape[1])
    except ValueError as error:
        if not _written_here(path):
            raise FileExistsError(f"{op}: path must be free or a matrix that boost_ext wrote, got: {error}") from error
        return None  # damaged: build it again


def open_stored(op: str, path: Path) -> Stored:
    """Map the matrix that has just been written to `path`; its rows are not checked."""
    return _open(op, path)


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells the file from one that took its place; None if there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


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


def _written_here(path: Path) -> bool:
    with open(path, "rb") as file:
        _, head, tail = _ends(file)
    return _has_record(head, tail) or sidecar_path(path).exists()


def _open(op: str, path: Path) -> Stored:
    """Map the file, after checking all of it but the rows."""
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
    return Stored(QuantizedMatrix(matrix, values), None, record) if dtype == np.int8 else Stored(matrix, values[0], record)


def _open_npy(op: str, path: Path) -> Array:
    """Map a .npy read-only; has no way to unpickle."""
    try:
        mapped: Array = _npy.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise
    except Exception as error:  # its header is evaluated as Python: TokenError, TypeError, RecursionError and others
        raise ValueError(
            f"{op}: {path} must be a complete .npy array, got {type(error).__name__}: {error}"
        ) from error
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


def _mismatch(path: Path, record: dict[str, Any] | None, source: dict[str, Any]) -> str | None:
    for key, expected in source.items():
        if record is None:
            return f"{path} must have a record to compare {key} with, got a plain .npy"
        if record.get(key) != expected:
            return f"{path} must be made from the given {key}, got other {key}"
    return None


def _checked(
    path: Path, stored: Stored, n_components: int | None, n_elements: int, rows: tuple[int, int] | None = None
) -> Stored:
    """The rows that are asked for, after checking them; of all rows if no range is asked for."""
    matrix, average, record = stored
    if record is None and (matrix.dtype.name not in ("float16", "float32", "float64") or not matrix.dtype.isnative):
        raise ValueError(f"load_matrix: {path} must hold float16, float32 or float64, got {matrix.dtype}")
    k = n_components or (matrix.shape[0] if len(matrix.shape) == 2 else 1)
    if len(matrix.shape) != 2 or matrix.shape[0] < k or matrix.shape[1] != n_elements:
        raise ValueError(f"load_matrix: {path} must have shape ({k}, {n_elements}), got {matrix.shape}")
    first, end = rows or (0, k)
    if record is not None:
        checked = slice(first, end) if rows else slice(0, matrix.shape[0])
        _check_rows(path, matrix[checked], record["checksum"]["rows"], checked.start)
        if average is not None and _digest(average) != record["checksum"]["average"]:
            raise ValueError(f"load_matrix: {path} must match the checksum of its average: the file is damaged, rebuild it")
        return Stored(matrix[first:end], average, record)
    plain: Array = matrix[first:end]
    if plain.dtype.name == "float64" or not matrix.flags.c_contiguous:
        with np.errstate(over="ignore"):  # what overflows to inf is refused just below
            half = plain.dtype.name == "float16"
            plain = np.ascontiguousarray(plain, dtype=np.float16 if half else np.float32)
    for index, row in enumerate(plain, first):
        for start in range(0, n_elements, BLOCK):
            if not np.isfinite(row[start : start + BLOCK]).all():
                raise ValueError(f"load_matrix: {path} must be finite in float32, got row {index}")
    return Stored(plain, None, None)


def _digest(row: Array, scale: Array | None = None) -> str:
    digest = hashlib.blake2b(row.view(np.uint8).data, digest_size=16)
    if scale is not None:
        digest.update(scale.view(np.uint8).data)
    return digest.hexdigest()


def _check_rows(path: Path, matrix: Array | QuantizedMatrix, expected: Sequence[str], first: int) -> None:
    def digest(index: int) -> str:
        if isinstance(matrix, QuantizedMatrix):
            return _digest(matrix.codes[index], matrix.scale[index])
        return _digest(matrix[index])

    with ThreadPoolExecutor(THREADS) as pool:
        for index, got in enumerate(pool.map(digest, range(matrix.shape[0])), first):
            if got != expected[index]:
                raise ValueError(
                    f"load_matrix: {path} must match the checksum {expected[index]} of row "
                    f"{index}, got {got}: the file is damaged, rebuild it"
                )
