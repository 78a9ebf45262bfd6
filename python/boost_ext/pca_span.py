"""The span of a sequence of weight checkpoints, and their average: what trainable weight averaging moves in.

Source: Li, Huang, Tao, Wu & Huang, "Trainable weight averaging: efficient training by optimizing historical solutions",
ICLR 2023. Not centred as the PCA is: the average, too, is a direction. The streaming, the file and its checks are those
of :mod:`boost_ext.pca`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .pca import _CHUNK, _chunk_width, _Chunks, _components, _progress, _spill
from .pca_checkpoints import Array, Checkpoint, Parameters, Reader, checkpoint_list, parameter_layout
from .pca_format import open_stored, storage_dtype
from .pca_load import load_stored, stored_matrix
from .pca_save import MatrixWriter, source_record
from .projection_codes import QuantizedMatrix

__all__ = ["Span", "average_path", "load_span", "weight_span"]

_OP = "weight_span"
_DTYPES = ("float32", "float16", "bfloat16")


class Span(NamedTuple):
    """`basis` (k, n): orthonormal rows, float32, float16 or bfloat16. `average` (n,) float32."""

    basis: Array
    average: Array


def average_path(path: str | os.PathLike[str]) -> Path:
    """Where the average is if the file at `path` is a plain basis, such as yours: `twa.npy` → `twa.average.npy`."""
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
        path: if given, the basis and the average are written there, in one .npy with checksums whose array is the
            basis; a valid one of the same checkpoints, parameters and dtype found there is reused.

    Returns:
        The basis and the average; with `path`, mapped read-only from the file. Peak memory beyond them is
        O(c · chunk_elements), plus what the reader of one checkpoint needs.

    Raises:
        ValueError: fewer than two checkpoints, duplicates, a missing parameter, a wrong shape or dtype, a weight that
            is not finite, or nothing but zeros; the message names it.
        FileExistsError: `path` holds a file that this module did not write.
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
        stored = stored_matrix(_OP, target, (None, n), out_dtype, source)
        if stored is not None and stored.average is not None:
            return Span(_floats(target, stored.matrix), stored.average)
        scratch_dir = target.parent if scratch_dir is None else scratch_dir
    with _progress(progress) as stage, tempfile.TemporaryFile(dir=scratch_dir) as scratch:
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
        with MatrixWriter.open(target, (len(weights), n), out_dtype, source, average=True) as writer:
            for start, block in chunks:
                writer.write(start, (weights @ block).astype(out_dtype), average=block[-1].astype(np.float32))
                advance()
    written = open_stored(_OP, target)
    assert written.average is not None
    return Span(_floats(target, written.matrix), written.average)


def load_span(
    path: str | os.PathLike[str],
    *,
    n_elements: int,
    timeout: float = 0.0,
    parameters: Parameters | None = None,
    checkpoints: Sequence[Checkpoint] | None = None,
) -> Span:
    """Load what `weight_span` has written, mapped read-only from the file, after checking all of it.

    Args:
        path: of the file; or of a basis alone, with the average beside it (`average_path`).
        n_elements, timeout, parameters, checkpoints: as of `pca.load_matrix`.

    Raises:
        FileNotFoundError, TimeoutError, ValueError: as `pca.load_matrix`.
    """
    stored = load_stored(Path(path), None, n_elements, timeout, parameters, checkpoints)
    basis = _floats(path, stored.matrix)
    if (average := stored.average) is None:
        beside = load_stored(average_path(path), 1, n_elements, timeout, parameters, checkpoints)
        if stored.record is not None and beside.record is not None:  # of version 1, which wrote two files
            for key in ("parameters", "checkpoints"):
                if stored.record.get(key) != beside.record.get(key):
                    raise ValueError(
                        f"load_span: {path} and {average_path(path)} must be of the same {key}, got others"
                    )
        average = _floats(average_path(path), beside.matrix)[0]
    return Span(basis, average)


def _floats(path: str | os.PathLike[str], matrix: Array | QuantizedMatrix) -> Array:
    if isinstance(matrix, QuantizedMatrix):
        raise ValueError(f"load_span: {path} must hold float32, float16 or bfloat16, got int8 codes")
    return matrix
