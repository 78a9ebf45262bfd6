"""The span of a sequence of weight checkpoints, and their average: what trainable weight averaging moves in.

Source: Li, Huang, Tao, Wu & Huang, "Trainable weight averaging: efficient training by optimizing historical solutions",
ICLR 2023. Not centred as the PCA is: the average, too, is a direction. The streaming is that of
:mod:`boost_ext.subspace.components`, the file and its checks those of :mod:`boost_ext.subspace.matrix_file`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from boost_ext.ops.projection_codes import QuantizedMatrix
from boost_ext.subspace.checkpoints import Array, Checkpoint, Parameters, Reader
from boost_ext.subspace.components import CHUNK, components
from boost_ext.subspace.matrix_file import load_stored

__all__ = ["Span", "average_path", "load_span", "weight_span"]

_DTYPES = ("float32", "float16", "bfloat16")


class Span(NamedTuple):
    """`basis` (k, n): orthonormal rows, float32, float16 or bfloat16. `average` (n,) float32.

    Examples:
        >>> import numpy as np
        >>> from boost_ext.pca_span import weight_span
        >>> span = weight_span([{"w": np.float32([1, 1])}, {"w": np.float32([3, 1])}], {"w": (2,)})
        >>> span.basis.shape, span.average.shape
        ((2, 2), (2,))
    """

    basis: Array
    average: Array


def average_path(path: str | os.PathLike[str]) -> Path:
    """Where the average is if the file at `path` is a plain basis, such as yours: `twa.npy` → `twa.average.npy`.

    Examples:
        >>> from boost_ext.pca_span import average_path
        >>> average_path("twa.npy").name
        'twa.average.npy'
    """
    file = Path(path)
    return file.with_name(f"{file.stem}.average{file.suffix}")


def weight_span(
    checkpoints: Sequence[Checkpoint],
    parameters: Parameters,
    *,
    path: str | os.PathLike[str] | None = None,
    dtype: object = "float32",
    chunk_elements: int = CHUNK,
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
        path: if given, the basis and the average are written there, in one file with checksums; a valid one of the
            same checkpoints, parameters and dtype found there is reused.

    Returns:
        The basis and the average; with `path`, mapped read-only from the file. Peak memory beyond them is
        O(c · chunk_elements), plus what the reader of one checkpoint needs.

    Raises:
        ValueError: fewer than two checkpoints, duplicates, a missing parameter, a wrong shape or dtype, a weight that
            is not finite, or nothing but zeros; the message names it.
        FileExistsError: `path` holds a file that this module did not write.
        OSError: the disk, if full for one. No temporary file is left.

    Examples:
        >>> import numpy as np
        >>> from boost_ext.pca_span import weight_span
        >>> checkpoints = [{"w": np.float32([1, 1])}, {"w": np.float32([3, 1])}]  # or files
        >>> span = weight_span(checkpoints, {"w": (2,)})
        >>> print(span.average, abs(span.basis @ span.basis.T).round(3))
        [2. 1.] [[1. 0.]
         [0. 1.]]
    """
    if str(dtype) not in _DTYPES:
        raise ValueError(f"weight_span: dtype must be float32, float16 or bfloat16, got {dtype}")
    stored = components(
        "weight_span",
        checkpoints,
        parameters,
        None,
        path=path,
        dtype=dtype,
        chunk_elements=chunk_elements,
        reader=reader,
        progress=progress,
        scratch_dir=scratch_dir,
    )
    return Span(stored.tensors["matrix"], stored.tensors["average"][0])


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

    Examples:
        >>> import numpy as np
        >>> from boost_ext.pca_span import load_span, weight_span
        >>> checkpoints = [{"w": np.float32([1, 1])}, {"w": np.float32([3, 1])}]
        >>> _ = weight_span(checkpoints, {"w": (2,)}, path="span.safetensors")
        >>> print(load_span("span.safetensors", n_elements=2).average)
        [2. 1.]
    """
    stored = load_stored(Path(path), None, n_elements, timeout, parameters, checkpoints)
    basis = _floats(path, stored.matrix)
    if (average := stored.average) is None:
        beside = load_stored(average_path(path), 1, n_elements, timeout, parameters, checkpoints)
        average = _floats(average_path(path), beside.matrix)[0]
    return Span(basis, average)


def _floats(path: str | os.PathLike[str], matrix: Array | QuantizedMatrix) -> Array:
    if isinstance(matrix, QuantizedMatrix):
        raise ValueError(f"load_span: {path} must hold float32, float16 or bfloat16, got int8 codes")
    return matrix
