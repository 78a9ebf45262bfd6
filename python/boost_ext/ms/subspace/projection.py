"""The matrix of dimension-reduced training, for one rank or for each of many: built once, its rows handed out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from mindspore import Parameter

from boost_ext import pca
from boost_ext.config import DimReduceConfig
from boost_ext.files import write_text
from boost_ext.ms.core.checkpoint import read_checkpoint
from boost_ext.ms.ranks.ranks import ALONE, Ranks, exchange
from boost_ext.ms.subspace.dim_reduce_ranks import rows_of
from boost_ext.ops.projection_codes import QuantizedMatrix, quantize_projection
from boost_ext.subspace.matrix_file import storage_dtype

__all__ = ["built_by_rank_0", "projection_matrix"]

Matrix = npt.NDArray[Any] | QuantizedMatrix

_logger = logging.getLogger("boost_ext")
_LOOK = 0.5  # seconds between two looks at whether rank 0 has failed

Built = TypeVar("Built")


def projection_matrix(
    weights: Sequence[Parameter], config: DimReduceConfig, ranks: Ranks = ALONE, *, progress: bool | None = None
) -> Matrix:
    """The (k, n) matrix that the configuration describes; n is the number of elements of all ``weights``, in order.

    With ``weight_load_dir`` it is built from the checkpoints in there (parameters matched by name, out of core, with a
    progress bar) and kept at ``pca_mat_path``, where a valid one is used again. With ``pca_mat_path`` alone it is read;
    one of several ranks waits for it, ``timeout`` seconds, and logs that it does.

    With several ranks each gets its rows alone (:func:`boost_ext.ms.subspace.dim_reduce_ranks.rows_of`), and reads and
    checks no others. Rank 0 builds the matrix; the others wait for the file, ``timeout`` seconds, or until rank 0 says
    that it failed.

    ``pca_mat_dtype`` is what it is built in, or what the rows of a file are converted to: int8 gives a
    :class:`boost_ext.pca.QuantizedMatrix`.

    Raises:
        ValueError: without either key; with several ranks and ``weight_load_dir``, without ``pca_mat_path``; and for a
            matrix or checkpoints that do not fit, see :mod:`boost_ext.pca`.
        FileNotFoundError: on one rank, if there is no file at ``pca_mat_path`` and nothing to build it from.
        TimeoutError: on several, if the matrix does not appear in time.
        RuntimeError: on the other ranks, if rank 0 could not build it; with its error.
    """
    k = config.n_components
    elements = int(sum(w.size for w in weights))
    rows = rows_of(k, ranks.rank, ranks.size)
    path, folder = config.pca_mat_path, config.weight_load_dir
    if folder is None:
        if path is None:
            raise ValueError(
                "dim_reduce: set weight_load_dir (checkpoints to build the matrix from) or pca_mat_path (the matrix), "
                "got neither"
            )
        if ranks.size == 1 and not Path(path).is_file():  # nobody else will put it there
            raise FileNotFoundError(
                f"dim_reduce: pca_mat_path must be the file of the matrix, got {path}, where there is none; "
                "set weight_load_dir too to have it built from checkpoints"
            )
        timeout = 0.0 if ranks.size == 1 else config.timeout
        _say_that_it_waits(Path(path), "somebody puts there", timeout, ranks)
        loaded = pca.load_matrix(path, n_components=k, n_elements=elements, timeout=timeout, rows=rows)
        return _converted(loaded, config.pca_mat_dtype, path)
    layout = [(w.name, tuple(w.shape)) for w in weights]
    if ranks.size > 1 and path is None:
        raise ValueError(
            f"dim_reduce: pca_mat_path must say where rank 0 puts the matrix for all {ranks.size} ranks, got None"
        )

    dtype = config.pca_mat_dtype or "float32"

    def build() -> Matrix:
        found = pca.find_checkpoints(folder)
        whole = pca.pca_matrix(found, layout, k, path=path, dtype=dtype, reader=read_checkpoint, progress=progress)
        return whole[slice(*rows)]

    def load(timeout: float) -> Matrix:
        return pca.load_matrix(
            str(path),
            n_components=k,
            n_elements=elements,
            timeout=timeout,
            parameters=layout,
            checkpoints=pca.find_checkpoints(folder),
            rows=rows,
            dtype=dtype,
        )

    return build() if ranks.size == 1 else built_by_rank_0(build, load, Path(str(path)), config.timeout, ranks)


def _converted(matrix: Matrix, dtype: str | None, path: str) -> Matrix:
    if dtype in (None, matrix.dtype.name):
        return matrix
    if isinstance(matrix, QuantizedMatrix):
        raise ValueError(f"dim_reduce: pca_mat_dtype must be int8 or None for {path}, which holds int8, got {dtype}")
    stored = storage_dtype("dim_reduce", dtype)
    return QuantizedMatrix(*quantize_projection(matrix)) if stored == np.int8 else matrix.astype(stored)


def built_by_rank_0(
    build: Callable[[], Built],
    load: Callable[[float], Built],
    path: Path,
    timeout: float,
    ranks: Ranks,
    owner: str = "dim_reduce",
) -> Built:
    """What rank 0 gets from ``build()``, which leaves it at ``path``; the others from ``load(seconds to wait)``. See
    :func:`projection_matrix` for what is raised."""
    note = path.with_name(f"{path.name}.failed")
    if ranks.rank == 0:
        note.unlink(missing_ok=True)
    exchange(0, ranks)  # from here on a note is of this run
    if ranks.rank == 0:
        try:
            return build()
        except BaseException as error:
            _leave(note, f"{type(error).__name__}: {error}")
            raise
    _say_that_it_waits(path, "rank 0 builds", timeout, ranks, owner)
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        try:
            return load(max(min(_LOOK, left), 1e-3))
        except (TimeoutError, FileNotFoundError, ValueError) as error:  # a damaged one is built again by rank 0
            if note.exists():
                said = note.read_text(errors="replace") or "no room for it"
                raise RuntimeError(f"{owner}: rank 0 must build {path}, got an error there: {said}") from error
            if left <= 0:
                raise TimeoutError(
                    f"{owner}: {path}, which rank 0 builds, must be there for rank {ranks.rank} within timeout = "
                    f"{timeout:g} s, got: {error}; all ranks must see the same file system"
                ) from error


def _say_that_it_waits(path: Path, what: str, timeout: float, ranks: Ranks, owner: str = "dim_reduce") -> None:
    if ranks.size > 1 and not path.exists():
        _logger.warning(
            "%s: rank %d of %d waits up to %g s for %s, which %s", owner, ranks.rank, ranks.size, timeout, path, what
        )


def _leave(note: Path, text: str) -> None:
    """Write the note; an empty one where the disk is full."""
    with suppress(OSError):
        try:
            write_text(note, text)
        except OSError:
            note.touch()
