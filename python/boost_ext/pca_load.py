"""Loading the PCA matrix: everything in the file is checked before anyone trains with it."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .pca_checkpoints import Array, Checkpoint, Parameters, parameter_layout
from .pca_format import Stored, open_stored, storage_dtype, written_here
from .pca_save import BLOCK, THREADS, source_record
from .projection_codes import QuantizedMatrix

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

    A matrix of `save_matrix` or `pca_matrix` must match its checksums, before anything in it is parsed. A plain .npy of
    the user's is checked for shape, dtype and finite values. A file with more than `n_components` rows gives its
    first ones (components are sorted). A float64 or Fortran-ordered file, such as `mindspore.boost` writes, becomes a
    C-ordered array in memory, float64 as float32.

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
    found = load_stored(Path(path), n_components, n_elements, timeout, parameters, checkpoints, rows=rows, dtype=dtype)
    return found.matrix


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
                stored = open_stored("load_matrix", file)
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
        stored = open_stored(op, path)
        if stored.record is None:
            raise FileExistsError(
                f"{op}: path must be free or a matrix that boost_ext wrote, got {path}: "
                "a file of yours is not overwritten"
            )
        same = shape[0] in (None, stored.matrix.shape[0]) and stored.record["dtype"] == dtype.name
        if not same or _mismatch(path, stored.record, source) is not None:
            return None
        return _checked(path, stored, None, shape[1])
    except ValueError as error:
        if not written_here(path):
            raise FileExistsError(f"{op}: path must be free or a matrix that boost_ext wrote, got: {error}") from error
        return None  # damaged: build it again


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What tells the file from one that took its place; None if there is none."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


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
            raise ValueError(
                f"load_matrix: {path} must match the checksum of its average: the file is damaged, rebuild it"
            )
        return Stored(matrix[first:end], average, record)
    assert not isinstance(matrix, QuantizedMatrix), "which has a record"
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
