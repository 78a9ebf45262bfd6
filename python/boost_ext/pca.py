"""The PCA matrix of DimReduce: principal components of a sequence of weight checkpoints, its file, and its reader."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence

from boost_ext.ops.projection_codes import QuantizedMatrix
from boost_ext.subspace.checkpoints import Array, Checkpoint, Parameters, Reader, find_checkpoints
from boost_ext.subspace.components import CHUNK, components
from boost_ext.subspace.matrix_file import load_matrix, save_matrix

__all__ = ["QuantizedMatrix", "find_checkpoints", "load_matrix", "pca_matrix", "save_matrix"]


def pca_matrix(
    checkpoints: Sequence[Checkpoint],
    parameters: Parameters,
    n_components: int,
    *,
    path: str | os.PathLike[str] | None = None,
    dtype: object = "float32",
    chunk_elements: int = CHUNK,
    reader: Reader | None = None,
    progress: bool | None = None,
    scratch_dir: str | os.PathLike[str] | None = None,
) -> Array | QuantizedMatrix:
    """Compute the first `n_components` principal components of `checkpoints`.

    The rows are orthonormal (to about 1e-6 in float32) and sorted by falling variance. A row's
    sign makes the score of one checkpoint positive: of the checkpoint with the largest |score|,
    the first one on a tie (scikit-learn's u-based `svd_flip`). If Xc has rank k-1, as it has for
    k = c, no k-th component exists; the last row is then the part of the mean checkpoint
    orthogonal to the other rows, normalized, signed along the mean.

    Args:
        checkpoints: c >= k of them, paths or mappings name → array; float16, bfloat16, float32
            or float64 arrays, read as float32. Other names in them (optimizer state) are
            ignored. Each file is opened and read once. Nothing is modified.
        parameters: name → shape, or (name, shape) pairs: the columns of P in this order.
        n_components: k, at least 1.
        path: if given, P is written there (with checksums, see `save_matrix`), and a valid matrix of
            the same checkpoints, parameters, k and dtype found there is reused.
        dtype: of P: float32, float16, int8 (codes and scales, `boost_ext.ops.quantize_projection`), or
            bfloat16 if `ml_dtypes` is installed.
        chunk_elements: columns in memory at a time.
        reader: reads files that are neither .npz nor .safetensors: path → mapping.
        progress: show a bar on stderr; None shows it on a terminal only.
        scratch_dir: for 4·c·n bytes of temporary file; beside `path`, else the system's.

    Returns:
        (k, n) array, or a `QuantizedMatrix` for int8; with `path`, mapped read-only from the file.

    Raises:
        ValueError: no checkpoint, fewer than k, duplicates, a missing parameter, a wrong shape or
            dtype, a weight that is not finite, or a rank below k-1; the message names it.
        FileExistsError: `path` holds a file that this module did not write.
        OSError: the disk, if full for one. No temporary file is left.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import pca
        >>> rng = np.random.default_rng(0)
        >>> checkpoints = [{"weight": rng.random((2, 3), np.float32)} for _ in range(4)]  # or files
        >>> P = pca.pca_matrix(checkpoints, {"weight": (2, 3)}, n_components=2)
        >>> print(abs(P @ P.T).round(3))
        [[1. 0.]
         [0. 1.]]
    """
    k = operator.index(n_components)
    if k < 1:
        raise ValueError(f"pca_matrix: n_components must be at least 1, got {k}")
    return components(
        "pca_matrix",
        checkpoints,
        parameters,
        k,
        path=path,
        dtype=dtype,
        chunk_elements=chunk_elements,
        reader=reader,
        progress=progress,
        scratch_dir=scratch_dir,
    ).matrix
