"""State of optimizers: codes of one byte, re-exported by :mod:`boost_ext.ops`; the shape of what is projected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["STATE_BLOCK", "dequantize_state", "projected_shape", "projection_rank", "quantize_state"]

STATE_BLOCK = 256
"""Elements that share a scale."""
_SHARE = 8
"""The default rank is this share of the shorter side."""


def _values(codes: Any, top: int) -> npt.NDArray[np.float32]:
    """What codes up to `top` stand for at scale 1, as the native op computes it: by the bits of floats."""
    bits = np.asarray(codes, np.float32).view(np.uint32)
    shift = (4 * (134 if top == 127 else 135) - 127) << 21
    values = ((bits - np.uint32(shift)) << np.uint32(2)).view(np.float32)
    return np.where(codes == 0, np.float32(0), values)


def quantize_state(values: Any, *, non_negative: bool = False) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """The nearest codes: what the optimizers' ops take as uint8 state, to begin with or from a checkpoint.

    A code holds the sign in its first bit, and the magnitude c, from 0 to 127; or, without a sign, c from 0 to 255. c
    stands for ``scale * (c / 128)**4`` (or ``/ 256``), linear between powers of two as the bits of floats are:
    16 (32) codes for each of the upper four binary orders of magnitude, 8 (16) for the next four, and so on. The scale
    of a block is the smallest power of two of which all magnitudes are at most 31/32, and 2**-87 at least. The error is
    at most half the distance of two codes: 1/64 (1/128) of the scale, and less for smaller values.

    Args:
        values (numpy.ndarray): finite, at most 31/32 * 2**126; taken as float32.
        non_negative (bool): for second moments, of which no code but that of 0 stands for 0. Default: False.

    Returns:
        codes, uint8 of the shape of `values`, and scales, float32 (ceil(size / 256),).

    Raises:
        ValueError: if a value is not finite, too large, or negative with `non_negative`.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> codes, scales = ops.quantize_state(np.float32([1, 0.01, 0]), non_negative=True)
        >>> print(codes, scales)
        [224  68   0] [2.]
    """
    array = np.ascontiguousarray(values, np.float32)
    flat = array.reshape(-1)
    if not (np.abs(flat) <= 31 / 32 * 2.0**126).all():
        raise ValueError("quantize_state: values must be finite and at most 31/32 * 2**126, got others")
    if non_negative and (flat < 0).any():
        raise ValueError(f"quantize_state: values must be >= 0, got {flat.min()}")
    top = 255 if non_negative else 127
    blocks = np.zeros((-(-flat.size // STATE_BLOCK), STATE_BLOCK), np.float32)
    blocks.reshape(-1)[: flat.size] = flat
    largest = np.maximum(np.abs(blocks).max(axis=1, initial=0), np.float32(2.0**-88))
    fraction, exponent = np.frexp(largest)
    scales = np.ldexp(np.float32(1), exponent + (fraction > 31 / 32)).astype(np.float32)
    y = (np.abs(blocks) / scales[:, None]).astype(np.float64)
    grid = _values(np.arange(top + 1), top).astype(np.float64)
    codes = np.searchsorted((grid[:-1] + grid[1:]) / 2, y)
    if non_negative:
        codes = np.where((y > 0) & (codes == 0), 1, codes)
    else:
        codes += 128 * np.signbit(blocks)
    return codes.reshape(-1)[: flat.size].astype(np.uint8).reshape(array.shape), scales


def dequantize_state(codes: Any, scales: Any, *, non_negative: bool = False) -> npt.NDArray[Any]:
    """The float32 values of codes of :func:`quantize_state`, with the bits that the optimizers' ops compute with.

    Args:
        codes (numpy.ndarray): uint8.
        scales (numpy.ndarray): float32 (ceil(size / 256),).
        non_negative (bool): as they were made. Default: False.

    Raises:
        TypeError: if `codes` are not uint8.
        ValueError: if there is not one scale for each block.

    Examples:
        >>> import numpy as np
        >>> from boost_ext import ops
        >>> codes, scales = ops.quantize_state(np.float32([1, -0.5, 0]))
        >>> print(ops.dequantize_state(codes, scales))
        [ 1.  -0.5  0. ]
    """
    codes, scales = np.asarray(codes), np.asarray(scales, np.float32).reshape(-1)
    if codes.dtype != np.uint8:
        raise TypeError(f"dequantize_state: codes must be uint8, got {codes.dtype}")
    count = -(-codes.size // STATE_BLOCK)
    if scales.size != count:
        raise ValueError(f"dequantize_state: scales must have {count} elements, got {scales.size}")
    each = np.repeat(scales, STATE_BLOCK)[: codes.size].reshape(codes.shape)
    if non_negative:
        return np.asarray(each * _values(codes, 255))
    values = each * _values(codes & 127, 127)
    return np.where(codes & 128, -values, values)


def scales_beside(op: str, scales: Any) -> Any:
    """The scales of each state as the native op takes them: empty beside other state than uint8."""
    if scales is None:
        return None
    if not isinstance(scales, (list, tuple)):
        raise TypeError(f"{op}: scales must hold a list of arrays for each state, got {type(scales).__name__}")
    lists = [item if isinstance(item, (list, tuple)) else [item] for item in scales]
    return [[np.empty(0, np.float32) if x is None else x for x in item] for item in lists]


def projection_rank(shape: Sequence[int], rank: int | None, keeps_basis: bool = False) -> int:
    """With which the optimizers of APOLLO and GaLore project a tensor: None is the largest one with an eighth of
    AdamW's state, to which the basis may belong. 0 where AdamW steps it."""
    side, longer = sorted(_sides(shape))
    if rank is None:
        return 2 * side * longer // (_SHARE * (2 * longer + keeps_basis * side)) if side else 0
    return rank if rank < side else 0


def projected_shape(shape: Sequence[int], rank: int) -> tuple[int, int]:
    """Of what APOLLO and GaLore project, and of its moments."""
    rows, columns = _sides(shape)
    return (rank, columns) if rows <= columns else (rows, rank)


def _sides(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a matrix, or two zeros."""
    if len(shape) < 2 or 0 in shape:
        return 0, 0
    return shape[0], math.prod(shape[1:])
