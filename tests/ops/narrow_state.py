"""The storage of ops/optimizer_step.h for narrow state and split masters, in NumPy: the bits, roundings and codes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from boost_ext import ops

BLOCK = 256
MASK = 2**64 - 1
BF16 = np.dtype(ml_dtypes.bfloat16)


def _mixed(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def key(*parts: int) -> int:
    """Of seed, step and tensor."""
    result = 0
    for part in parts:
        result = _mixed((result + 0x9E3779B97F4A7C15 * (part + 1)) & MASK)
    return result


def random_bits(key: int, count: int, k: int) -> np.ndarray:
    """Sixteen of state k for each element."""
    x = np.arange(count, dtype=np.uint32) ^ np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    x = x ^ (x >> np.uint32(16)) ^ np.uint32(key >> 32)
    return (x >> np.uint32(16 * k)) & np.uint32(0xFFFF)


def to_bfloat16(values: np.ndarray, random: np.ndarray) -> np.ndarray:
    bits = values.reshape(-1).view(np.uint32)
    rounded = ((bits + random) >> np.uint32(16)).astype(np.uint16).view(BF16)
    return np.where(np.isnan(values.reshape(-1)), values.reshape(-1).astype(BF16), rounded).reshape(values.shape)


def to_codes(values: np.ndarray, random: np.ndarray, non_negative: bool) -> tuple[np.ndarray, np.ndarray]:
    top = 255 if non_negative else 127
    flat = values.reshape(-1)
    blocks = np.zeros((-(-flat.size // BLOCK), BLOCK), np.float32)
    blocks.reshape(-1)[: flat.size] = flat
    chance = np.zeros(blocks.shape, np.float32)
    chance.reshape(-1)[: flat.size] = random.astype(np.float32) * np.float32(2.0**-16)
    with np.errstate(all="ignore"):
        largest = np.abs(blocks).max(axis=1, initial=0)
        # The smallest power of two of which it is at most 31/32; 2^-87 at least.
        exponent = np.ceil(np.log2(np.maximum(largest.astype(np.float64) * 32 / 31, 2.0**-87)))
        good = exponent <= 126
        scales = np.where(good, np.exp2(np.where(good, exponent, 0)), np.nan).astype(np.float32)
        y = np.abs(blocks) / np.where(good, scales, 1)[:, None]
        # A quarter of the logarithm, as the bits of a float have it, is the logarithm of the code.
        shift = np.uint32((4 * (134 if top == 127 else 135) - 127) << 21)
        code = (((y.view(np.uint32) >> np.uint32(2)) + shift).view(np.float32) + chance).astype(np.int32)
    signs = np.where(np.signbit(blocks), 128, 0)
    code = np.where((y > 0) & (code == 0), 1, code) if non_negative else code | signs
    code[~good] = 0
    return code.reshape(-1)[: flat.size].astype(np.uint8).reshape(values.shape), scales


class Stored:
    """One state of one tensor: what the op takes, what it stands for, and what storing other values makes of it."""

    def __init__(self, kind: str, shape: Any, k: int) -> None:
        self.kind, self.k = kind, k
        dtype = {"float32": np.float32, "bfloat16": BF16, "uint8": np.uint8}[kind]
        self.array = np.zeros(shape, dtype)
        self.scale = np.zeros(-(-self.array.size // BLOCK), np.float32) if kind == "uint8" else None

    def floats(self) -> np.ndarray:
        if self.kind == "uint8":
            return ops.dequantize_state(self.array, self.scale, non_negative=self.k == 1)
        return self.array.astype(np.float32)

    def store(self, values: np.ndarray, of: int) -> None:
        """As the op does with the key `of`."""
        random = random_bits(of, values.size, self.k)
        if self.kind == "uint8":
            self.array, self.scale = to_codes(values, random, self.k == 1)
        else:
            self.array = values if self.kind == "float32" else to_bfloat16(values, random)


def split_master(master: npt.NDArray[np.float32], residual_bits: int) -> tuple[npt.NDArray, npt.NDArray]:
    """The bits of the bfloat16 weight, and the residual, whose unit is 2^(16 - residual_bits) last places."""
    m = np.ascontiguousarray(master, np.float32).view(np.uint32).astype(np.int64)
    unit = 2 ** (16 - residual_bits)
    m = (m + unit // 2) // unit * unit
    w = (m + 0x8000) >> 16
    nan = np.isnan(master)
    quiet = (m >> 16) | 0x40
    residual = np.where(nan, 0, (m - (w << 16)) // unit)
    return np.where(nan, quiet, w).astype(np.uint16), residual.astype(f"i{residual_bits // 8}")


def join_master(weight_bits: npt.NDArray[np.uint16], residual: npt.NDArray) -> npt.NDArray[np.float32]:
    unit = 2 ** (16 - 8 * residual.dtype.itemsize)
    m = (weight_bits.astype(np.int64) << 16) + unit * residual.astype(np.int64)
    return m.astype(np.uint32).view(np.float32)
