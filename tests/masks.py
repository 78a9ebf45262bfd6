"""What is drawn at random, in NumPy: the generator, the masks of dropout, and the basis of APOLLO; and that of
GaLore, whose random start does not matter."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from remembered import remembered


def philox(seed: int, block: npt.ArrayLike, draw: int = 0, stream: int = 0, rounds: int = 7) -> np.ndarray:
    """Philox4x32 of Salmon et al. 2011, section 3.2: four words of 32 bits for each block, as uint64 (blocks, 4)."""
    low = np.uint64(0xFFFFFFFF)
    b = np.atleast_1d(np.asarray(block, np.uint64))
    c = [b & low, b >> np.uint64(32), np.full_like(b, draw), np.full_like(b, stream)]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(rounds):
        x, y = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [y >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), y & low, x >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), x & low]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, axis=1)


def dropout(
    x: np.ndarray, p: float, seed: int, draw: int = 0, stream: int = 0, shared: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """x / (1 - p) where the 16 bits of a place are at least p * 2^16, otherwise 0; and where that is. p is rounded."""
    p = round(p * 2**16) / 2**16
    words = philox(seed, np.arange(-(-x.size // shared // 8)), draw, stream)
    halves = np.stack([words & np.uint64(0xFFFF), words >> np.uint64(16)], axis=2).ravel()
    kept = (halves[np.arange(x.size) // shared] >= np.uint64(p * 2**16)).reshape(x.shape)
    with np.errstate(all="ignore"):
        return np.where(kept, x.astype(np.float64) / (1 - p) if p < 1 else 0, 0), kept


def signs(shape: tuple[int, int], seed: int, draw: int = 0, stream: int = 0) -> np.ndarray:
    """The basis of APOLLO: a sign in each column, as the comment of csrc/ops/apollo_step.h has it."""
    (rank, depth), block = shape, shape[0]
    while block < 64:
        block *= 2
    words = philox(seed, np.arange(-(-depth // 4)), draw, stream).ravel()[:depth].astype(np.int64)
    k = np.arange(depth)
    offsets = words[::block] % 2**31 % rank
    basis = np.zeros(shape)
    basis[(k + offsets[k // block]) % rank, k] = 1 - 2 * (words >> 31)
    return basis


@remembered
def singular_basis(u: np.ndarray, rank: int) -> np.ndarray:
    """The leading singular vectors of a gradient along its shorter side, as columns. Largest elements are positive."""
    G = u.reshape(len(u), -1)
    P = np.linalg.svd(G.T if G.shape[0] > G.shape[1] else G, full_matrices=False)[0][:, :rank]
    return P * np.sign(P[abs(P).argmax(axis=0), np.arange(rank)])
