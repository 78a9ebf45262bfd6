"""The span of a sequence of weight checkpoints, and their average: what trainable weight averaging moves in.

Source: Li, Huang, Tao, Wu & Huang, "Trainable weight averaging: efficient training by optimizing historical solutions",
ICLR 2023. Not centred as the PCA is: the average, too, is a direction. The streaming, the file and its checks are those
of :mod:`boost_ext.pca`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .pca import _CHUNK, _chunk_width, _Chunks, _components, _progress, _spill
from .pca_checkpoints import Array, Checkpoint, Parameters, Reader, checkpoint_list, parameter_layout
from .pca_load import load_matrix, open_matrix, stored_matrix
from .pca_save import MatrixWriter, source_record, storage_dtype
from .projection_codes import QuantizedMatrix

__all__ = ["Span", "average_path", "load_span", "weight_span"]

_OP = "weight_span"
_DTYPES = ("float32", "float16", "bfloat16")


class Span(NamedTuple):
    """`basis` (k, n): orthonormal rows, float32, float16 or bfloat16. `average` (n,) float32."""

    basis: Array
    average: Array


def average_path(path: str | os.PathLike[str]) -> Path:
    """Where the average is that belongs to the basis at `path`: `twa.npy` → `twa.average.npy`."""
    file = Path(path)
    return file.with_name(f"{file.stem}.average{file.suffix}")


def weight_span(
    checkpoints: Sequence[Checkpoint],
    parameters: Parameters,
    *,
    path: str | os.PathLike[str] | None = None,
    dtype: object = "float32",
    chunk_elements: int = _CHUNK,
    reader: Reader | None = None,
    progress: bool | None = None,
    scratch_dir: str | os.PathLike[str] | None = None,
) -> Span:
    """Compute an orthonormal basis of the span of `checkpoints`, and their average.

    The first rows are the principal components of the checkpoints about their average, by falling variance; the last
    one is the part of the average orthogonal to them. k is the rank of the checkpoints, at most their number c: a
    direction in which they vary by less than float32's rounding of all of them together (2^-23 of their Frobenius norm)
    counts as none, and so does the average if it leaves the others by less than 1e-5 of its norm.

    Args:
        checkpoints, parameters, dtype, chunk_elements, reader, progress, scratch_dir: as of `pca.pca_matrix`; c >= 2.
        path: if given, the basis is written there and the average beside it (`average_path`), each with a sidecar;
            a valid pair of the same checkpoints, parameters and dtype found there is reused.

    Returns:
        The basis and the average; with `path`, mapped read-only from the files. Peak memory beyond them is
        O(c · chunk_elements), plus what the reader of one checkpoint needs.

    Raises:
        ValueError: fewer than two checkpoints, duplicates, a missing parameter, a wrong shape or dtype, a weight that
            is not finite, or nothing but zeros; the message names it.
        FileExistsError: `path`, or where the average goes, holds a file that this module did not write.
        OSError: the disk, if full for one. No temporary file is left.
    """
    width = _chunk_width(_OP, chunk_elements)
    if str(dtype) not in _DTYPES:
        raise ValueError(f"{_OP}: dtype must be float32, float16 or bfloat16, got {dtype}")
    out_dtype = storage_dtype(_OP, dtype)
    layout = parameter_layout(_OP, parameters)
    sources = checkpoint_list(_OP, checkpoints)
    if len(sources) < 2:
        raise ValueError(f"{_OP}: checkpoints must be two at least, got {len(sources)}")
    n = sum(parameter.size for parameter in layout)
    target = None if path is None else Path(path)
    source: dict[str, Any] = {}
    if target is not None:
        source = source_record(_OP, layout, sources) | {"spans": "all checkpoints"}
        if (stored := _stored(target, n, out_dtype, source)) is not None:
            return stored
        scratch_dir = target.parent if scratch_dir is None else scratch_dir
    with _progress(progress) as stage, tempfile.TemporaryFile(dir=scratch_dir) as scratch, ExitStack() as stack:
        _spill(_OP, sources, layout, reader, scratch, stage)
        chunks = _Chunks(scratch, len(sources), n, width)
        weights = _components(_OP, chunks, None, stage)
        advance = stage("basis and average", chunks.count)
        if target is None:
            span = Span(np.empty((len(weights), n), out_dtype), np.empty(n, np.float32))
            for start, block in chunks:
                columns = slice(start, start + block.shape[1])
                span.basis[:, columns], span.average[columns] = weights @ block, block[-1]
                advance()
            return span
        to_average = stack.enter_context(MatrixWriter.open(average_path(target), (1, n), np.dtype(np.float32), source))
        to_basis = stack.enter_context(MatrixWriter.open(target, (len(weights), n), out_dtype, source))
        for start, block in chunks:
            to_basis.write(start, (weights @ block).astype(out_dtype))
            to_average.write(start, block[-1:].astype(np.float32))
            advance()
    return Span(open_matrix(target).view(out_dtype), open_matrix(average_path(target))[0])


def load_span(
    path: str | os.PathLike[str],
    *,
    n_elements: int,
    timeout: float = 0.0,
    parameters: Parameters | None = None,
    checkpoints: Sequence[Checkpoint] | None = None,
) -> Span:
    """Load what `weight_span` has written, mapped read-only from the files, after checking all of it.

    Args:
        path: of the basis; the average is beside it.
        n_elements, timeout, parameters, checkpoints: as of `pca.load_matrix`.

    Raises:
        FileNotFoundError, TimeoutError, ValueError: as `pca.load_matrix`.
    """
    same: dict[str, Any] = {"n_elements": n_elements, "parameters": parameters, "checkpoints": checkpoints}
    # Written last, so that the basis is there when it is.
    average = load_matrix(average_path(path), n_components=1, timeout=timeout, **same)
    basis = load_matrix(path, n_components=_rows(Path(path)), **same)
    return Span(_floats(path, basis), _floats(average_path(path), average)[0])


def _floats(path: str | os.PathLike[str], matrix: Array | QuantizedMatrix) -> Array:
    if isinstance(matrix, QuantizedMatrix):
        raise ValueError(f"load_span: {path} must hold float32, float16 or bfloat16, got int8 codes")
    return matrix


def _rows(path: Path) -> int:
    """How many rows the file says it has; 1 where it is none: whoever loads it says what is wrong."""
    try:
        return max(int(open_matrix(path).shape[0]), 1)
    except (ValueError, EOFError, OSError, IndexError):
        return 1


def _stored(path: Path, n: int, dtype: np.dtype[Any], source: dict[str, Any]) -> Span | None:
    """The valid pair at `path` made from `source`, None if there is none to reuse."""
    average = stored_matrix(_OP, average_path(path), (1, n), np.dtype(np.float32), source)
    basis = stored_matrix(_OP, path, (_rows(path), n), dtype, source)
    if basis is None or average is None:
        return None
    return Span(_floats(path, basis), _floats(average_path(path), average)[0])
