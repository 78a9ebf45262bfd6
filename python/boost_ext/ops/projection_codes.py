"""The matrix of dimension-reduced training in codes of one byte; the functions are re-exported by
:mod:`boost_ext.ops`."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["PROJECTION_BLOCK", "QuantizedMatrix", "dequantize_projection", "quantize_projection"]

PROJECTION_BLOCK = 256
"""Columns of a row that share a scale."""

_TOP = 127
_PIECE = 1 << 16  # elements at a time: what is computed on the way stays in the cache
_THREADS = min(8, os.cpu_count() or 1)  # NumPy releases the GIL

Array = npt.NDArray[Any]


def _blocks(n: int) -> int:
    return -(-n // PROJECTION_BLOCK)


def _require_codes(op: str, codes: Array, scale: Array) -> None:
    if codes.dtype != np.int8 or scale.dtype != np.float32:
        raise TypeError(f"{op}: codes must be int8 and scale float32, got {codes.dtype} and {scale.dtype}")
    if codes.ndim != 2 or scale.shape != (len(codes), _blocks(codes.shape[1])):
        raise ValueError(
            f"{op}: codes must be (k, n) and scale (k, ceil(n / {PROJECTION_BLOCK})), got {codes.shape} and "
            f"{scale.shape}"
        )


@dataclass(frozen=True, eq=False)
class QuantizedMatrix:
    """A (k, n) matrix as :func:`quantize_projection` makes it.

    Args:
        codes (numpy.ndarray): (k, n) int8.
        scale (numpy.ndarray): (k, ceil(n / 256)) float32.

    Raises:
        TypeError, ValueError: for other dtypes or shapes.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> from boost_ext.pca import QuantizedMatrix
        >>> matrix = QuantizedMatrix(*ops.quantize_projection(np.eye(4, 1000)))
        >>> matrix.shape, matrix[:2].shape
        ((4, 1000), (2, 1000))
    """

    codes: Array
    scale: Array

    def __post_init__(self) -> None:
        _require_codes("QuantizedMatrix", self.codes, self.scale)

    @property
    def shape(self) -> tuple[int, ...]:
        """(k, n)"""
        return self.codes.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """int8"""
        return self.codes.dtype

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> QuantizedMatrix:
        """Some rows, on the same memory."""
        return QuantizedMatrix(self.codes[rows], self.scale[rows])


def quantize_projection(P: Any) -> tuple[Array, Array]:
    """The matrix of dimension-reduced training in a quarter of float32's memory, for :func:`pca_project` and
    :func:`pca_back_project`.

    ``P[r, i]`` becomes ``scale[r, i // 256] * codes[r, i]``: the scale of a block is its largest magnitude / 127, and a
    code the nearest whole number, half to even. So an element is off by half a scale at most. Source: block-wise
    quantization, Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022; Li et al., "Trainable
    Weight Averaging: A General Approach for Subspace Training", for a subspace stored in few bits.

    Args:
        P (numpy.ndarray): (k, n), of any floating dtype, taken as float32.

    Returns:
        codes, int8 (k, n), from -127 to 127, and scale, float32 (k, ceil(n / 256)), 0 for a block of zeros.

    Raises:
        ValueError: if `P` has not two axes, or holds inf or nan.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> P = np.linalg.qr(np.random.randn(1000, 4))[0].T
        >>> codes, scale = ops.quantize_projection(P)
        >>> print(codes.dtype, codes.shape, scale.shape)
        int8 (4, 1000) (4, 4)
        >>> coordinates = ops.pca_project(codes, [np.ones(1000, np.float32)], scale=scale)
    """
    P = np.asarray(P)
    if P.ndim != 2:
        raise ValueError(f"quantize_projection: P must be a (k, n) matrix, got {P.ndim} axes")
    k, n = P.shape
    codes, scale = np.empty((k, n), np.int8), np.empty((k, _blocks(n)), np.float32)
    pieces = [(row, start) for row in range(k) for start in range(0, n, _PIECE)]

    def quantize(piece: tuple[int, int]) -> None:
        row, start = piece
        _quantize(row, P[row, start : start + _PIECE], codes[row, start:], scale[row, start // PROJECTION_BLOCK :])

    if len(pieces) < 2 * _THREADS or P.size < 8 * _PIECE:
        for piece in pieces:
            quantize(piece)
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            for _ in pool.map(quantize, pieces):
                pass
    return codes, scale


def _quantize(row: int, values: Array, codes: Array, scale: Array) -> None:
    with np.errstate(over="ignore"):  # of float64; refused just below
        values = np.ascontiguousarray(values, np.float32)
    whole = values.size // PROJECTION_BLOCK
    for first, width, count in ((0, PROJECTION_BLOCK, whole), (whole, values.size % PROJECTION_BLOCK, 1)):
        if width == 0 or count == 0:
            continue
        part = slice(first * PROJECTION_BLOCK, first * PROJECTION_BLOCK + width * count)
        blocks = values[part].reshape(count, width)
        largest = np.abs(blocks).max(axis=1)
        if not np.isfinite(largest).all():
            raise ValueError(f"quantize_projection: P must be finite in float32, got inf or nan in row {row}")
        scales = largest / np.float32(_TOP)
        # The quotient may pass 127 where the scale is subnormal.
        quotient = blocks / np.where(scales > 0, scales, np.float32(1))[:, None]
        np.clip(np.rint(quotient, out=quotient), -_TOP, _TOP, out=quotient)
        codes[part] = quotient.reshape(-1)
        scale[first : first + count] = scales


def dequantize_projection(codes: Any, scale: Any) -> Array:
    """The float32 (k, n) matrix that codes of :func:`quantize_projection` stand for.

    Raises:
        TypeError, ValueError: if they are not int8 (k, n) and float32 (k, ceil(n / 256)).

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> codes, scale = ops.quantize_projection(np.float32([[127, -64, 0]]))
        >>> print(ops.dequantize_projection(codes, scale))
        [[127. -64.   0.]]
    """
    codes, scale = np.asarray(codes), np.asarray(scale)
    _require_codes("dequantize_projection", codes, scale)
    result = np.empty(codes.shape, np.float32)
    for row, values in enumerate(result):
        for start in range(0, values.size, _PIECE):
            part = slice(start, start + _PIECE)
            scales = scale[row, start // PROJECTION_BLOCK : _blocks(start + _PIECE)]
            each = np.repeat(scales, PROJECTION_BLOCK)[: values[part].size]
            np.multiply(each, codes[row, part], out=values[part])
    return result
