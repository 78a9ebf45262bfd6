"""Principal components of checkpoints, out of core. The public functions: :mod:`boost_ext.pca` and
:mod:`boost_ext.subspace.span`.

A checkpoint is a vector of n weights, the parameters flattened and joined in the order of the
*current* parameter list and found by name. With X the c checkpoints as rows and Xc = X - mean
over the checkpoints, the k×n matrix P holds the first k right singular vectors of Xc.

c is tens and n is millions, so everything goes through the c×c Gram matrix (the snapshot
method, L. Sirovich, 1987): G = Xc Xcᵀ = U diag(λ) Uᵀ and P = diag(λ)^(-1/2) Uᵀ Xc. Both passes
stream over column chunks in float64; the checkpoints wait on disk, one row each. Peak memory
beyond P is O(c · chunk_elements), plus what the reader of one checkpoint needs.
"""

from __future__ import annotations

import operator
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from boost_ext.ops.projection_codes import PROJECTION_BLOCK
from boost_ext.subspace.checkpoints import (
    Array,
    Checkpoint,
    CheckpointValues,
    Parameter,
    Parameters,
    Reader,
    checkpoint_list,
    parameter_layout,
    weight_pieces,
)
from boost_ext.subspace.matrix_file import (
    Columns,
    Stored,
    build_matrix,
    columns_of,
    reusable,
    source_record,
    storage_dtype,
)

__all__ = ["CHUNK", "components"]

CHUNK = 1 << 15  # columns: 40 checkpoints of them are 10 MB in float64
_EPS = float(np.finfo(np.float64).eps)
_ROUNDING = float(np.finfo(np.float32).eps)  # of all weights together: a direction below it is none
_REFINE = 1e-6  # of λ_1: below it, c·eps·λ_1/λ_k of the Gram matrix nears float32 rounding
_TIE = 1e-6  # scores this close count as equal, so rounding cannot flip a sign

Stage: TypeAlias = Callable[[str, int], Callable[[], None]]


def components(
    op: str,
    checkpoints: Sequence[Checkpoint],
    parameters: Parameters,
    k: int | None,
    *,
    path: str | os.PathLike[str] | None,
    dtype: object,
    chunk_elements: int,
    reader: Reader | None,
    progress: bool | None,
    scratch_dir: str | os.PathLike[str] | None,
) -> Stored:
    """`boost_ext.pca.pca_matrix`; without k all components there are, and the average (`weight_span`)."""
    width = operator.index(chunk_elements)
    if width < 1:
        raise ValueError(f"{op}: chunk_elements must be at least 1, got {width}")
    out_dtype = storage_dtype(op, dtype)
    if out_dtype == np.int8:
        width = -(-width // PROJECTION_BLOCK) * PROJECTION_BLOCK  # a chunk is whole blocks
    layout = parameter_layout(op, parameters)
    sources = checkpoint_list(op, checkpoints)
    n = sum(parameter.size for parameter in layout)
    _check_counts(op, k, len(sources), n)
    target = None if path is None else Path(path)
    source: dict[str, Any] = {}
    if target is not None:
        source = source_record(op, layout, sources) | ({"spans": "all checkpoints"} if k is None else {})
        stored = reusable(op, target, (k, n), out_dtype, source)
        if stored is not None and (stored.average is None) == (k is not None):
            return stored
        scratch_dir = target.parent if scratch_dir is None else scratch_dir
    # Unlinked as soon as it is open (POSIX), so not even a killed process leaves it behind.
    with _progress(progress) as stage, tempfile.TemporaryFile(dir=scratch_dir) as scratch:
        _spill(op, sources, layout, reader, scratch, stage)
        chunks = _Chunks(scratch, len(sources), n, width)
        weights = _coordinates(op, chunks, k, stage)
        columns = _project(chunks, weights, out_dtype, k is None, stage)
        return build_matrix(op, target, (len(weights), n), out_dtype, source, columns, average=k is None)


def _check_counts(op: str, k: int | None, count: int, n: int) -> None:
    if k is None:
        if count < 2:
            raise ValueError(f"{op}: checkpoints must be two at least, got {count}")
        return
    if count < k:
        raise ValueError(f"{op}: checkpoints must be at least n_components = {k} in number, got {count}")
    if k > n:
        raise ValueError(f"{op}: n_components must be at most the {n} elements, got {k}")


class _Chunks:
    """The spilled checkpoints, centred, in column chunks; iterate as often as needed.

    Yields (first column, block): block (c+1, w) float64, the rows of Xc and the mean below
    them. A thread prepares the next block meanwhile, so a block lives until the step after.
    """

    def __init__(self, scratch: IO[bytes], rows: int, columns: int, width: int) -> None:
        self._scratch = scratch
        self.rows = rows
        self.columns = columns
        self._width = min(width, columns)
        self.count = -(-columns // self._width)

    def __iter__(self) -> Iterator[tuple[int, Array]]:
        stored = np.empty((self.rows, self._width), np.float32)
        buffers = [np.empty((self.rows + 1, self._width)) for _ in range(2)]
        with ThreadPoolExecutor(1) as thread:
            ahead = thread.submit(self._block, 0, stored, buffers[0])
            for step in range(self.count):
                start, block = ahead.result()
                if step + 1 < self.count:
                    buffers.reverse()
                    ahead = thread.submit(self._block, start + self._width, stored, buffers[0])
                yield start, block

    def _block(self, start: int, stored: Array, buffer: Array) -> tuple[int, Array]:
        width = min(self._width, self.columns - start)
        for index, row in enumerate(stored[:, :width]):
            self._scratch.seek(4 * (index * self.columns + start))
            self._scratch.readinto(row)  # type: ignore[attr-defined]
        block = buffer[:, :width]
        centred, mean = block[:-1], block[-1]
        centred[...] = stored[:, :width]
        np.mean(centred, axis=0, out=mean)
        centred -= mean
        return start, block


def _spill(
    op: str,
    sources: Sequence[Path | CheckpointValues],
    layout: Sequence[Parameter],
    reader: Reader | None,
    scratch: IO[bytes],
    stage: Stage,
) -> None:
    advance = stage("read checkpoints", len(sources))
    for index, source in enumerate(sources):
        for piece in weight_pieces(op, source, index, layout, reader):
            scratch.write(np.ascontiguousarray(piece).data)
        advance()


def _coordinates(op: str, chunks: _Chunks, k: int | None, stage: Stage) -> Array:
    """Return W, (k, c+1) float64, with P = W · [Xc; mean]; without k all the rows there are."""
    c = chunks.rows
    gram = np.zeros((c + 1, c + 1))
    advance = stage("Gram matrix", chunks.count)
    for _, block in chunks:
        gram += block @ block.T
        advance()
    values, left = np.linalg.eigh(gram[:c, :c])
    values, left = values[::-1], left[:, ::-1]
    sigma = np.sqrt(np.maximum(values, 0))
    wanted = c - 1 if k is None else min(k, c - 1)  # centring takes one dimension away
    if wanted and values[0] > 0 and values[wanted - 1] < _REFINE * values[0]:
        left, sigma, weights = _refine(chunks, left, sigma, stage)
    else:
        left, sigma = left[:, :wanted], sigma[:wanted]
        weights = left.T / np.where(sigma > 0, sigma, 1)[:, None]
    # What centring in float64 can leave of identical rows; of rows that are dependent, what rounding to float32 can.
    noise = (4 * c * _EPS if k is not None else _ROUNDING) * np.sqrt(np.trace(gram[:c, :c]) + c * gram[c, c])
    rank = int(np.count_nonzero(sigma[:wanted] > noise))
    along = weights[:rank] @ gram[:c, c]  # the mean's coordinates in the components
    rest = gram[c, c] - along @ along
    if k is None:
        k = rank + int(rest > 1e-10 * gram[c, c])
        if k == 0:
            raise ValueError(f"{op}: checkpoints must hold a weight that is not 0, got {c} without one")
    if rank < k - 1 or (rank < k and rest <= 1e-10 * gram[c, c]):
        raise ValueError(
            f"{op}: checkpoints must vary in n_components = {k} directions (k-1, if their mean "
            f"adds another), got {c} checkpoints of numerical rank {rank}"
        )
    result = np.zeros((k, c + 1))
    result[:rank, :c] = weights[:rank] * _signs(left[:, :rank])[:, None]
    if rank < k:
        result[rank, :c] = -along @ weights[:rank]
        result[rank, c] = 1
        result[rank] /= np.sqrt(rest)
    return result


def _refine(chunks: _Chunks, left: Array, sigma: Array, stage: Stage) -> tuple[Array, Array, Array]:
    """Repeat the Gram step on the rows Y = diag(1/σ) Uᵀ Xc, which are nearly orthonormal.

    The Gram matrix squares the condition number, so weak components come out of it skewed. Y has
    a small one: with Y Yᵀ = V diag(μ) Vᵀ, Xc = (U diag(σ) V diag(√μ)) Q, Q orthonormal, and the
    SVD of the small factor gives the singular values and vectors down to 1e-11 of the largest.
    """
    scale = np.maximum(sigma, np.sqrt(chunks.rows * _EPS) * sigma[0])
    whiten = left.T / scale[:, None]
    gram = np.zeros_like(whiten)
    advance = stage("weak components", chunks.count)
    for _, block in chunks:
        rows = whiten @ block[:-1]
        gram += rows @ rows.T
        advance()
    mu, basis = np.linalg.eigh(gram)
    kept = mu > 1e-8 * mu[-1]
    root, basis = np.sqrt(mu[kept]), basis[:, kept]
    left, sigma, right = np.linalg.svd((left * scale) @ (basis * root), full_matrices=False)
    return left, sigma, right @ (basis / root).T @ whiten


def _signs(left: Array) -> Array:
    size = np.abs(left)
    first = np.argmax(size >= (1 - _TIE) * size.max(axis=0, initial=0), axis=0)
    return np.where(left[first, np.arange(left.shape[1])] < 0, -1.0, 1.0)


def _project(chunks: _Chunks, weights: Array, dtype: np.dtype[Any], average: bool, stage: Stage) -> Iterator[Columns]:
    advance = stage("principal components", chunks.count)
    for start, block in chunks:
        yield columns_of(start, weights @ block, dtype, block[-1] if average else None)
        advance()


@contextmanager
def _progress(wanted: bool | None) -> Iterator[Stage]:
    """Give a function stage(description, steps) → advance(), shown as a bar or silent."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    from boost_ext.terminal import progress

    columns = TextColumn("{task.description:>20}"), BarColumn(), TimeRemainingColumn()
    with progress(*columns, shown=wanted) as bar:

        def stage(description: str, steps: int) -> Callable[[], None]:
            return partial(bar.advance, bar.add_task(description, total=steps))

        yield stage
