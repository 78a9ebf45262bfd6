"""The PCA matrix on disk: one safetensors file, or a plain .npy of the user's. The first bytes decide, not the suffix.

    length of the header, 8 bytes; header, JSON: dtype, shape and place of each tensor; the record as metadata
    header_digest, 16 bytes: BLAKE2b of all bytes before it
    float32 scale (k, blocks) and int8 codes (k, n); or matrix (k, n), after the average (1, n) if it is a span

The record holds version, shape, dtype and the BLAKE2b digest of each row, and of a built matrix the parameters and a
fingerprint of the checkpoints.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np

from boost_ext.files import parsed_json, replacing
from boost_ext.ops.projection_codes import PROJECTION_BLOCK, QuantizedMatrix, quantize_projection
from boost_ext.subspace.checkpoints import (
    MATRIX_NAME,
    Array,
    Checkpoint,
    Parameter,
    Parameters,
    checkpoint_list,
    fingerprint,
    is_matrix,
    parameter_layout,
)

__all__ = [
    "Stored",
    "build_matrix",
    "columns_of",
    "load_matrix",
    "load_stored",
    "open_stored",
    "reusable",
    "save_matrix",
    "source_record",
    "storage_dtype",
]

_VERSION = 1
_LARGEST_HEADER = 100_000_000  # bytes, as in safetensors
_ALIGNED = 64
_DIGEST = 16  # bytes
_DTYPES = ("float32", "float16", "bfloat16", "int8")
_CODES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8"}
_BLOCK = 1 << 16  # columns read or written at a time
_THREADS = min(8, os.cpu_count() or 1)  # hashing and writing release the GIL
_POLL = 0.05, 1.0  # seconds between looks at a file that is awaited: first, and at most

_npy: Any = np.lib.format  # NumPy 1.26 has no types for it

Tensors: TypeAlias = dict[str, tuple[np.dtype[Any], tuple[int, int]]]
Columns: TypeAlias = Mapping[str, tuple[int, Array]]


class Stored(NamedTuple):
    """What is in a file: `record` says what it is made of, None for a file of the user's."""

    tensors: dict[str, Array]
    record: dict[str, Any] | None

    @property
    def matrix(self) -> Array | QuantizedMatrix:
        """(k, n)"""
        codes = self.tensors.get("codes")
        return self.tensors["matrix"] if codes is None else QuantizedMatrix(codes, self.tensors["scale"])

    @property
    def average(self) -> Array | None:
        """(n,) float32, of a span"""
        return self.tensors["average"][0] if "average" in self.tensors else None

    def rows(self, first: int, end: int) -> Stored:
        """With some rows of the matrix, on the same memory."""
        chosen = {name: tensor if name == "average" else tensor[first:end] for name, tensor in self.tensors.items()}
        return Stored(chosen, self.record)


def storage_dtype(op: str, dtype: object) -> np.dtype[Any]:
    """Turn "float32", "float16", "bfloat16", "int8" or such a dtype into a dtype, or raise ValueError."""
    if str(dtype) == "bfloat16":
        try:
            half: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
        except ImportError as error:
            raise ValueError(f"{op}: dtype bfloat16 needs the package ml_dtypes: pip install ml_dtypes") from error
        return half
    if str(dtype) not in _DTYPES:
        raise ValueError(f"{op}: dtype must be float32, float16, bfloat16 or int8, got {dtype}")
    return np.dtype(str(dtype))


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


def _tensors(shape: Sequence[int], dtype: np.dtype[Any], average: bool) -> Tensors:
    """The tensors of a matrix in the file's order: what is float32 comes first, for its alignment."""
    k, n = shape
    if dtype == np.int8:
        return {"scale": (np.dtype(np.float32), (k, -(-n // PROJECTION_BLOCK))), "codes": (dtype, (k, n))}
    first: Tensors = {"average": (np.dtype(np.float32), (1, n))} if average else {}
    return {**first, "matrix": (dtype, (k, n))}


def _size(dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    return dtype.itemsize * math.prod(shape)


def _header(record: str, tensors: Tensors) -> bytes:
    """The only header that a file with this record may have, with its length."""
    content: dict[str, Any] = {"__metadata__": {MATRIX_NAME: record}}
    begin = 0
    digest = {"header_digest": (np.dtype(np.uint8), (_DIGEST,))}
    for name, (dtype, shape) in (digest | tensors).items():
        end = begin + _size(dtype, shape)
        content[name] = {"dtype": _CODES[dtype.name], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(content).encode()
    text += b" " * (-(8 + len(text) + _DIGEST) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _digest(content: Any) -> str:
    return hashlib.blake2b(content, digest_size=_DIGEST).hexdigest()


def columns_of(start: int, chunk: Array, dtype: np.dtype[Any], average: Array | None = None) -> Columns:
    """Columns of a matrix as they are stored: by tensor, the first column there and the values.

    Args:
        start, chunk: the first column, and the columns (k, w). For int8 `start` is the first of a block.
        dtype: of the stored matrix.
        average: (w,), of a span.
    """
    if dtype == np.int8:
        codes, scale = quantize_projection(chunk)
        return {"scale": (start // PROJECTION_BLOCK, scale), "codes": (start, codes)}
    more = {} if average is None else {"average": (start, average[None].astype(np.float32))}
    return {"matrix": (start, chunk.astype(dtype)), **more}


def build_matrix(
    op: str,
    path: Path | None,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    source: Mapping[str, Any],
    columns: Iterable[Columns],
    *,
    average: bool = False,
) -> Stored:
    """Put together a matrix whose columns come in order: in memory, or in a file, from which it is mapped read-only."""
    if path is not None:
        _write(path, shape, dtype, source, columns, average)
        return open_stored(op, path)
    arrays = {name: np.empty(size, kind) for name, (kind, size) in _tensors(shape, dtype, average).items()}
    for part in columns:
        for name, (start, values) in part.items():
            arrays[name][:, start : start + values.shape[1]] = values
    return Stored(arrays, None)


def _write(
    path: Path,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    source: Mapping[str, Any],
    columns: Iterable[Columns],
    average: bool,
) -> None:
    """Columns are written and hashed in the background, so they must not change any more."""
    tensors = _tensors(shape, dtype, average)
    hashes = {name: [hashlib.blake2b(digest_size=_DIGEST) for _ in range(s[0])] for name, (_, s) in tensors.items()}

    def header() -> bytes:
        digests = {name: [row.hexdigest() for row in rows] for name, rows in hashes.items()}
        record = {"version": _VERSION, "shape": list(shape), "dtype": dtype.name, "digests": digests, **source}
        return _header(json.dumps(record), tensors)

    begins, begin = {}, len(header()) + _DIGEST
    for name, tensor in tensors.items():
        begins[name] = begin
        begin += _size(*tensor)
    pending: list[Future[Any]] = []
    # Plain writes, not a memory map: a full disk is an OSError there, a SIGBUS in a map.
    with replacing(path) as target, open(target, "xb") as file:
        with ThreadPoolExecutor(_THREADS) as pool:
            for part in columns:
                _wait(pending)
                places = []
                for name, (start, values) in part.items():
                    kind, (_, width) = tensors[name]
                    for index, row in enumerate(values):
                        content = row.view(np.uint8).data
                        places.append((begins[name] + (index * width + start) * kind.itemsize, content))
                        pending.append(pool.submit(hashes[name][index].update, content))
                pending.append(pool.submit(_put, file, places))
            _wait(pending)
        whole = header()
        _put(file, [(0, whole + bytes.fromhex(_digest(whole)))])


def _put(file: IO[bytes], places: Iterable[tuple[int, Any]]) -> None:
    for offset, content in places:
        file.seek(offset)
        file.write(content)


def _wait(pending: list[Future[Any]]) -> None:
    """Raises what went wrong."""
    for future in pending:
        future.result()
    pending.clear()


def save_matrix(
    path: str | os.PathLike[str],
    matrix: Array | QuantizedMatrix,
    *,
    parameters: Parameters | None = None,
    checkpoints: Sequence[Checkpoint] | None = None,
) -> None:
    """Write `matrix` to `path`, a safetensors file with checksums. The old file or the new one is there, at any time.

    Args:
        path: target; an existing matrix is replaced. Its directory must exist.
        matrix: (k, n), float32, float16 or bfloat16 (`ml_dtypes`), or int8 codes with their scales.
        parameters: names and shapes behind the n columns, recorded in the file.
        checkpoints: what the matrix was made from, recorded as a fingerprint; needs `parameters`.

    Raises:
        ValueError: wrong rank or dtype, values not finite, or `parameters` that do not add up to n.
        OSError: the disk; what was at `path` before is still there then.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import pca
        >>> pca.save_matrix("P.safetensors", np.eye(2, 6, dtype=np.float32), parameters={"weight": (2, 3)})
    """
    if len(matrix.shape) != 2 or 0 in matrix.shape:
        raise ValueError(f"save_matrix: matrix must be 2-D and not empty, got {matrix.shape}")
    dtype = storage_dtype("save_matrix", matrix.dtype)
    if dtype == np.int8 and not isinstance(matrix, QuantizedMatrix):
        raise ValueError("save_matrix: matrix must be a QuantizedMatrix to hold int8 codes, got an array alone")
    k, n = matrix.shape
    layout = None if parameters is None else parameter_layout("save_matrix", parameters)
    if layout is not None and sum(p.size for p in layout) != n:
        raise ValueError(f"save_matrix: parameters must add up to {n} elements, got {sum(p.size for p in layout)}")
    source = source_record("save_matrix", layout, checkpoints)

    def columns() -> Iterator[Columns]:
        if isinstance(matrix, QuantizedMatrix):
            tensors = {"scale": matrix.scale, "codes": matrix.codes}
        else:
            tensors = {"matrix": matrix}
        for name, values in tensors.items():
            for start in range(0, values.shape[1], _BLOCK):
                part = np.array(values[:, start : start + _BLOCK], order="C")
                if not np.isfinite(part).all():
                    raise ValueError("save_matrix: matrix must be finite, got nan or inf")
                yield {name: (start, part)}

    _write(Path(path), (k, n), dtype, source, columns(), average=False)


def open_stored(op: str, path: Path) -> Stored:
    """Map the file read-only, after checking all of it but the rows.

    Raises:
        FileNotFoundError: there is none. ValueError: it is no matrix, or damaged.
    """
    try:
        if is_matrix(path):
            with open(path, "rb") as file:
                return _sealed(op, path, file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{op}: {path} must be a readable file, got: {error}") from error
    try:
        return Stored({"matrix": _npy.open_memmap(path, mode="r")}, None)  # has no way to unpickle
    except FileNotFoundError:
        raise
    except Exception as error:  # its header is evaluated as Python: TokenError, TypeError, RecursionError and others
        raise ValueError(
            f"{op}: {path} must be a complete .npy array or a matrix that boost_ext wrote, got "
            f"{type(error).__name__}: {error}"
        ) from error


def _sealed(op: str, path: Path, file: IO[bytes]) -> Stored:
    """A file of ours: its header by the checksum, then what the header says by the size of the file."""
    damaged = f"{op}: {path} must be whole, got one that is damaged or cut short, rebuild it"
    header, size = file.read(8), os.fstat(file.fileno()).st_size
    length = int.from_bytes(header, "little")
    if length > min(size, _LARGEST_HEADER):
        raise ValueError(damaged)
    header += file.read(length)
    if _digest(header) != file.read(_DIGEST).hex():
        raise ValueError(damaged)
    owner = f"{op}: the record of {path}"
    metadata = parsed_json(owner, header[8:]).get("__metadata__")
    text = str(metadata.get(MATRIX_NAME)) if isinstance(metadata, dict) else ""
    record = parsed_json(owner, text)
    tensors = _described(op, owner, record)
    begin = len(header) + _DIGEST
    if header != _header(text, tensors) or size != begin + sum(_size(*tensor) for tensor in tensors.values()):
        raise ValueError(damaged)
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in tensors.items():
        arrays[name] = np.memmap(file, dtype, "r", begin, shape)
        begin += _size(dtype, shape)
    return Stored(arrays, record)


def _described(op: str, owner: str, record: Any) -> Tensors:
    """The tensors of a record, which may be anything."""
    version = record.get("version") if isinstance(record, dict) else None
    if version != _VERSION:
        raise ValueError(f"{owner} must be of version {_VERSION}, got {version!r:.99}")
    shape, dtype, digests = record.get("shape"), record.get("dtype"), record.get("digests")
    fits = isinstance(shape, list) and len(shape) == 2 and all(type(size) is int and size > 0 for size in shape)
    if fits and dtype in _DTYPES and isinstance(digests, dict):
        tensors = _tensors(shape, storage_dtype(op, dtype), "average" in digests)
        counts = {name: len(rows) for name, rows in digests.items() if isinstance(rows, list)}
        if counts == {name: rows for name, (_, (rows, _)) in tensors.items()}:
            return tensors
    raise ValueError(
        f"{owner} must hold shape, dtype and one checksum a row, got shape {shape!r:.99}, dtype {dtype!r:.99} and "
        f"checksums {digests!r:.99}"
    )


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
        path: the file.
        n_components: k, rows needed. n_elements: n, columns needed.
        timeout: seconds to wait for the file while another rank builds it; 0 does not wait.
        parameters, checkpoints: if given, the file must name the same ones; a matrix left
            from other checkpoints is waited out, as one that is not there yet. A plain .npy
            names no parameters, and passes if no checkpoints are given.
        rows: (first, last + 1) of the rows to read and check, for a rank that holds no others;
            they may be none. None: all.
        dtype: if given, the file must name the same one, as with `parameters`. Nothing is converted.

    Returns:
        (n_components, n_elements) array, or as many rows as asked for, float32, float16 or bfloat16; of a file of int8
        codes a `QuantizedMatrix`.

    Raises:
        FileNotFoundError: no such file, and `timeout` is 0. TimeoutError: none in time.
        ValueError: the file is damaged, truncated, of another shape, dtype, byte order or origin.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import pca
        >>> pca.save_matrix("P.safetensors", np.eye(2, 6, dtype=np.float32))
        >>> pca.load_matrix("P.safetensors", n_components=2, n_elements=6).shape
        (2, 6)
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
        problem = "no file"
        if file.exists():
            stored = open_stored("load_matrix", file)
            if (found := _mismatch(file, stored.record, source)) is None:
                return _checked(file, stored, n_components, n_elements, rows)
            problem = found
        left = deadline - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(pause, left))
        pause = min(2 * pause, _POLL[1])
    if timeout > 0:
        raise TimeoutError(f"load_matrix: {file} must appear within {timeout:g} s, got {problem}")
    if problem != "no file":
        raise ValueError(f"load_matrix: {problem}")
    raise FileNotFoundError(f"load_matrix: path must be an existing file, got {file}")


def reusable(
    op: str, path: Path, shape: tuple[int | None, int], dtype: np.dtype[Any], source: Mapping[str, Any]
) -> Stored | None:
    """Return the valid matrix at `path` made from `source`, None if there is none to reuse. Rows None: any number.

    Raises:
        FileExistsError: there is a file that this project did not write.
    """
    if not path.exists():
        return None
    if not is_matrix(path):
        raise FileExistsError(
            f"{op}: path must be free or a matrix that boost_ext wrote, got {path}: a file of yours is not overwritten"
        )
    try:
        stored = open_stored(op, path)
        rows = stored.matrix.shape[0]
        if shape[0] in (None, rows) and _mismatch(path, stored.record, {"dtype": dtype.name, **source}) is None:
            return _checked(path, stored, rows, shape[1])
    except ValueError:
        pass  # damaged: build it again
    return None


def _mismatch(path: Path, record: Mapping[str, Any] | None, source: Mapping[str, Any]) -> str | None:
    if record is None:  # a plain .npy; of the parameters it tells their number
        key = next((key for key in source if key != "parameters"), None)
        return key and f"{path} must have a record to compare {key} with, got a plain .npy"
    for key, expected in source.items():
        if record.get(key) != expected:
            return f"{path} must be made from the given {key}, got other {key}"
    return None


def _checked(
    path: Path, stored: Stored, n_components: int | None, n_elements: int, rows: tuple[int, int] | None = None
) -> Stored:
    """The rows that are asked for, after checking them; of all rows if no range is asked for."""
    matrix = stored.matrix
    plain = stored.record is None
    if plain and (matrix.dtype.name not in ("float16", "float32", "float64") or not matrix.dtype.isnative):
        raise ValueError(f"load_matrix: {path} must hold float16, float32 or float64, got {matrix.dtype}")
    k = n_components or (matrix.shape[0] if len(matrix.shape) == 2 else 1)
    if len(matrix.shape) != 2 or matrix.shape[0] < k or matrix.shape[1] != n_elements:
        raise ValueError(f"load_matrix: {path} must have shape ({k}, {n_elements}), got {matrix.shape}")
    first, end = rows or (0, k)
    if stored.record is not None:
        _check_rows(path, stored, stored.record["digests"], *(rows or (0, matrix.shape[0])))
        return stored.rows(first, end)
    values = stored.tensors["matrix"][first:end]
    if values.dtype.name == "float64" or not stored.tensors["matrix"].flags.c_contiguous:
        with np.errstate(over="ignore"):  # what overflows to inf is refused just below
            half = values.dtype.name == "float16"
            values = np.ascontiguousarray(values, dtype=np.float16 if half else np.float32)
    for index, row in enumerate(values, first):
        for start in range(0, n_elements, _BLOCK):
            if not np.isfinite(row[start : start + _BLOCK]).all():
                raise ValueError(f"load_matrix: {path} must be finite in float32, got row {index}")
    return Stored({"matrix": values}, None)


def _check_rows(path: Path, stored: Stored, digests: Mapping[str, Sequence[str]], first: int, end: int) -> None:
    own = range(first, end)
    chosen = [(name, row) for name in stored.tensors for row in (range(1) if name == "average" else own)]

    def digest(place: tuple[str, int]) -> str:
        return _digest(stored.tensors[place[0]][place[1]].view(np.uint8).data)

    with ThreadPoolExecutor(_THREADS) as pool:
        for (name, row), got in zip(chosen, pool.map(digest, chosen), strict=True):
            if got != (expected := digests[name][row]):
                of = "its average" if name == "average" else f"row {row}"
                raise ValueError(
                    f"load_matrix: {path} must match the checksum {expected} of {of}, got {got}: "
                    "the file is damaged, rebuild it"
                )
