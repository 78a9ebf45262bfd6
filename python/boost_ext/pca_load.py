"""Loading the PCA matrix: everything in the file is checked before anyone trains with it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from .pca_checkpoints import Array, Checkpoint, Parameters, parameter_layout
from .pca_save import BLOCK, FORMAT, THREADS, VERSION, scale_path, sidecar_path, source_record, storage_dtype
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

    A matrix with a sidecar must match its checksums; a plain .npy of the user's is checked for
    shape, dtype and finite values. A file with more than `n_components` rows gives its first
    ones (components are sorted). A float64 or Fortran-ordered file, such as `mindspore.boost`
    writes, becomes a C-ordered array in memory, float64 as float32.

    Args:
        path: the .npy file.
        n_components: k, rows needed. n_elements: n, columns needed.
        timeout: seconds to wait for the file while another rank builds it; 0 does not wait.
        parameters, checkpoints: if given, the sidecar must name the same ones; a matrix left
            from other checkpoints is waited out, as one that is not there yet.
        rows: (first, last + 1) of the rows to read and check, for a rank that holds no others;
            they may be none. None: all.
        dtype: if given, the sidecar must name the same one, as with `parameters`. Nothing is converted.

    Returns:
        (n_components, n_elements) array, or as many rows as asked for, float32, float16 or bfloat16; of a file of int8
        codes a `QuantizedMatrix`.

    Raises:
        FileNotFoundError: no such file, and `timeout` is 0. TimeoutError: none in time.
        ValueError: the file is damaged, truncated, of another shape, dtype or origin.
    """
    file = Path(path)
    if n_components < 1:
        raise ValueError(f"load_matrix: n_components must be at least 1, got {n_components}")
    layout = None if parameters is None else parameter_layout("load_matrix", parameters)
    source = source_record("load_matrix", layout, checkpoints)
    if dtype is not None:
        source["dtype"] = storage_dtype("load_matrix", dtype).name
    deadline = time.monotonic() + timeout
    pause = _POLL[0]
    while True:
        # A writer removes an old matrix, then renames the sidecar, then the matrix: between two of
        # our looks all three can have happened, so what does not fit is only damage if both files
        # are still the ones that were there at the start.
        problem = None
        before = _identity(file)
        if file.exists():
            try:
                sidecar = _read_sidecar("load_matrix", file)
                problem = _mismatch(file, sidecar, source)
                if problem is None:
                    return _checked(file, sidecar, n_components, n_elements, rows)
            except (FileNotFoundError, ValueError):
                if _identity(file) == before:
                    raise
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
    op: str, path: Path, shape: tuple[int, int], dtype: np.dtype[Any], source: dict[str, Any]
) -> Array | QuantizedMatrix | None:
    """Return the valid matrix at `path` made from `source`, None if there is none to reuse."""
    if not path.exists():
        return None
    sidecar = _read_sidecar(op, path)
    if sidecar is None:
        raise FileExistsError(
            f"{op}: path must be free or a matrix with its sidecar, got {path} without one: "
            f"a file of yours is not overwritten"
        )
    same = sidecar["shape"] == list(shape) and sidecar["dtype"] == dtype.name
    if not same or _mismatch(path, sidecar, source) is not None:
        return None
    try:
        return _checked(path, sidecar, *shape)
    except ValueError:
        return None  # damaged: build it again


def _identity(path: Path) -> list[tuple[int, int, int] | None]:
    """What tells the matrix at `path` and its sidecar from ones that took their place."""

    def of(file: Path) -> tuple[int, int, int] | None:
        try:
            stat = file.stat()
        except FileNotFoundError:
            return None
        return stat.st_ino, stat.st_mtime_ns, stat.st_size

    return [of(path), of(sidecar_path(path)), of(scale_path(path))]


def open_matrix(path: Path) -> Array:
    """Map the .npy at `path` read-only; reads its header alone and has no way to unpickle."""
    mapped: Array = _npy.open_memmap(path, mode="r")
    return mapped


def open_stored(path: Path, dtype: np.dtype[Any]) -> Array | QuantizedMatrix:
    """Map the matrix that has just been written to `path`, unchecked."""
    matrix = open_matrix(path).view(dtype)
    return QuantizedMatrix(matrix, open_matrix(scale_path(path))) if dtype == np.int8 else matrix


def _read_sidecar(op: str, path: Path) -> dict[str, Any] | None:
    sidecar = sidecar_path(path)
    try:
        content = json.loads(sidecar.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{op}: {sidecar} must be JSON, got: {error}") from error
    got = (content.get("format"), content.get("version")) if isinstance(content, dict) else None
    if got != (FORMAT, VERSION):
        raise ValueError(f"{op}: {sidecar} must be {FORMAT!r} version {VERSION}, got {got}")
    shape, rows = content.get("shape"), content.get("checksum", {}).get("rows")
    if not shape or not rows or len(rows) != shape[0] or "dtype" not in content:
        raise ValueError(
            f"{op}: {sidecar} must hold shape, dtype and one checksum a row, "
            f"got shape {shape} and {len(rows or ())} checksums"
        )
    return dict(content)


def _mismatch(path: Path, sidecar: dict[str, Any] | None, source: dict[str, Any]) -> str | None:
    for key, expected in source.items():
        if sidecar is None:
            return f"{path} must have a sidecar to compare {key} with, got none"
        if sidecar.get(key) != expected:
            return f"{path} must be made from the given {key}, got other {key}"
    return None


def _checked(
    path: Path, sidecar: dict[str, Any] | None, n_components: int, n_elements: int, rows: tuple[int, int] | None = None
) -> Array | QuantizedMatrix:
    try:
        matrix = open_matrix(path)
    except FileNotFoundError:
        raise
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"load_matrix: {path} must be a complete .npy array, got: {error}") from error
    dtype = matrix.dtype
    if sidecar is not None:
        if sidecar["dtype"] == "bfloat16":  # a .npy header knows bfloat16 only as two raw bytes
            matrix = matrix.view(storage_dtype("load_matrix", "bfloat16"))
        expected = (sidecar["shape"], sidecar["dtype"])
        if expected != (got := (list(matrix.shape), matrix.dtype.name)):
            raise ValueError(f"load_matrix: {path} must be {expected} by its sidecar, got {got}")
    elif dtype.name not in ("float16", "float32", "float64"):
        raise ValueError(f"load_matrix: {path} must hold float16, float32 or float64, got {dtype}")
    if matrix.ndim != 2 or matrix.shape[0] < n_components or matrix.shape[1] != n_elements:
        raise ValueError(f"load_matrix: {path} must have shape ({n_components}, {n_elements}), got {matrix.shape}")
    first, end = rows or (0, n_components)
    if sidecar is not None:
        checked = slice(first, end) if rows else slice(0, len(matrix))
        scale = _scales(path, matrix.shape) if matrix.dtype == np.int8 else None
        _check_rows(
            path, matrix[checked], None if scale is None else scale[checked], sidecar["checksum"]["rows"], checked.start
        )
        return (matrix if scale is None else QuantizedMatrix(matrix, scale))[first:end]
    matrix = matrix[first:end]
    if dtype.name == "float64" or not matrix.flags.c_contiguous:
        with np.errstate(over="ignore"):  # what overflows to inf is refused just below
            half = dtype.name == "float16"
            matrix = np.ascontiguousarray(matrix, dtype=np.float16 if half else np.float32)
    for index, row in enumerate(matrix, first):
        for start in range(0, n_elements, BLOCK):
            if not np.isfinite(row[start : start + BLOCK]).all():
                raise ValueError(f"load_matrix: {path} must be finite in float32, got row {index}")
    return matrix


def _scales(path: Path, shape: tuple[int, ...]) -> Array:
    file = scale_path(path)
    try:
        scale = open_matrix(file)
    except FileNotFoundError as error:
        raise ValueError(f"load_matrix: {file} must hold the scales of {path}, got no such file") from error
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"load_matrix: {file} must be a complete .npy array, got: {error}") from error
    expected = shape[0], -(-shape[1] // PROJECTION_BLOCK)
    if scale.shape != expected or scale.dtype != np.float32:
        raise ValueError(f"load_matrix: {file} must hold float32 {expected}, got {scale.dtype} {scale.shape}")
    return scale


def _check_rows(path: Path, matrix: Array, scale: Array | None, expected: Sequence[str], first: int) -> None:
    def digest(index: int) -> str:
        digest = hashlib.blake2b(matrix[index].view(np.uint8).data, digest_size=16)
        if scale is not None:
            digest.update(scale[index].view(np.uint8).data)
        return digest.hexdigest()

    with ThreadPoolExecutor(THREADS) as pool:
        for index, got in enumerate(pool.map(digest, range(len(matrix))), first):
            if got != expected[index]:
                raise ValueError(
                    f"load_matrix: {path} must match the checksum {expected[index]} of row "
                    f"{index}, got {got}: the file is damaged, rebuild it"
                )
