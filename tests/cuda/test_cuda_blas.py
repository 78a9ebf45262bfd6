"""Large matrices on CUDA, which cuBLAS multiplies; on the emulator, a stand-in for it. tests/ops has the small ones."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import boost_ext
import device
import kfac
import oracle
from boost_ext import ops
from dtypes import DTYPES, UNIT, assert_same_bits, normal
from on_cuda import EMULATED, needs_cuda

pytestmark = needs_cuda

LEAST = 128
"""The least side of a matrix for cuBLAS: kernels/cuda/blas.cuh."""


def cuda(op: str) -> Callable[..., Any]:
    return device.on_device(inspect.unwrap(getattr(ops, op)), *device.memory_of("cuda"))


# orthogonalize


def check(out: np.ndarray, matrix: np.ndarray, steps: int = 5) -> None:
    wide = matrix.astype(np.float64).reshape(len(matrix), -1)
    exact = oracle.orthogonalize(wide, steps).reshape(matrix.shape)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, exact, rtol=0, atol=2e-4 * max(1, abs(exact).max()))


@pytest.mark.parametrize("dtype", DTYPES)
def test_matrices_of_equal_and_other_shapes(rng, dtype):
    """Both forms of the iteration, both orientations, and small matrices between."""
    n = LEAST
    shapes = [
        (n, n),
        (9, 5),
        (n, n + 40),
        (n, 2 * n),
        (n, n),
        (n - 1, n),
        (n + 40, n),
        (n, n),
        (2 * n, n),
        (n + 1, 9, 60),
    ]
    matrices = [normal(rng, s, dtype) for s in shapes]
    out = [np.full(s, np.nan, np.float32) for s in shapes]
    cuda("orthogonalize")(matrices, out)
    for m, o in zip(matrices, out, strict=True):
        check(o, m)


def test_in_place_and_in_every_call_the_same_bits(rng):
    matrices = [normal(rng, s) for s in ((LEAST, LEAST + 3), (2 * LEAST + 1, LEAST), (LEAST, LEAST + 3))]
    apart = [np.empty_like(m) for m in matrices]
    cuda("orthogonalize")(matrices, apart)
    cuda("orthogonalize")(matrices, matrices)
    for one, two in zip(apart, matrices, strict=True):
        assert_same_bits(one, two)


@pytest.mark.parametrize("shape", [(LEAST, LEAST), (LEAST, 2 * LEAST)])
def test_steps_of_large_matrices(rng, shape):
    matrix = normal(rng, shape)
    for steps in range(3):
        out = np.full(shape, np.nan, np.float32)
        cuda("orthogonalize")(matrix, out, steps=steps)
        check(out, matrix, steps)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
@pytest.mark.parametrize("shape", [(LEAST, LEAST), (LEAST, 2 * LEAST)])
def test_inf_and_nan_fill_their_matrix_alone(rng, bad, shape):
    matrices = [normal(rng, shape), normal(rng, shape), np.zeros(shape, np.float32)]
    matrices[0][2, 3] = bad
    out = [np.zeros(shape, np.float32) for _ in matrices]
    cuda("orthogonalize")(matrices, out)
    assert np.isnan(out[0]).all()
    check(out[1], matrices[1])
    np.testing.assert_array_equal(out[2], matrices[2])


def test_muon_step_of_large_matrices(rng):
    shapes = [(LEAST, LEAST + 9), (5, 7), (2 * LEAST, LEAST)]
    w, g = ([normal(rng, s) for s in shapes] for _ in range(2))
    m = [np.zeros(s, np.float32) for s in shapes]
    exact = [
        oracle.muon_step(a.astype(np.float64), b.astype(np.float64), 0.0 * a, 0.1, 0.0)[0]
        for a, b in zip(w, g, strict=True)
    ]
    cuda("muon_step")(w, g, m, [None] * 3, lr=0.1, weight_decay=0.0, step=1)
    for found, expected in zip(w, exact, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_muon_step_in_tf32(rng):
    """Its 11 bits in large products alone; the next call without it has float32's."""
    shapes = [(LEAST, LEAST + 9), (5, 7)]
    start, g = ([normal(rng, s) for s in shapes] for _ in range(2))
    found = []
    for allowed in (False, True, False):
        w = [x.copy() for x in start]
        m = [np.zeros(s, np.float32) for s in shapes]
        cuda("muon_step")(w, g, m, [None] * 2, lr=1.0, step=1, allow_tf32=allowed)
        found.append(w)
    for one, two in zip(found[0], found[2], strict=True):
        assert_same_bits(one, two)
    assert_same_bits(found[1][1], found[0][1])
    assert 1e-5 < abs(found[1][0] - found[0][0]).max() < 1e-2


# precondition


def factor(rng: np.random.Generator, d: int, size: int) -> np.ndarray:
    """Blocks, or a diagonal for size 0, with nan in the place that belongs to no row: it must not be read."""
    if size == 0:
        return normal(rng, d)
    blocks = normal(rng, (-(-d // size), size, size))
    rest = d - (len(blocks) - 1) * size
    blocks[-1, rest:, :] = blocks[-1, :, rest:] = np.nan
    return blocks


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "columns", "sizes"),
    [
        (LEAST, LEAST, (LEAST, LEAST)),
        (2 * LEAST + 9, LEAST + 1, (LEAST, LEAST + 50)),
        (LEAST, 2 * LEAST + 30, (0, LEAST)),
        (2 * LEAST + 30, LEAST, (LEAST + 3, 0)),
        (LEAST + 1, LEAST, (LEAST - 1, LEAST)),
    ],
    ids=str,
)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_precondition(rng, dtype, rows, columns, sizes, scale):
    g = normal(rng, (rows, columns), dtype)
    left, right = factor(rng, rows, sizes[0]), factor(rng, columns, sizes[1])
    none = np.empty(0, np.float32)
    out = [np.full(s, np.nan, np.float32) for s in ((3, 4), (rows, columns), 7)]
    others = normal(rng, (3, 4)), normal(rng, 7)
    lefts, rights = [np.eye(3, dtype=np.float32)[None], left, none], [np.eye(4, dtype=np.float32)[None], right, none]
    cuda("precondition")([others[0], g, others[1]], lefts, rights, out, inv_scale=scale)
    L, R, wide = kfac.from_blocks(left, rows), kfac.from_blocks(right, columns), g.astype(np.float64)
    bound = scale * abs(L) @ abs(wide) @ abs(R)
    assert (abs(out[1] - scale * L @ wide @ R) <= 2 * LEAST * UNIT["float32"] * bound).all()
    for o, other in zip(out[::2], others, strict=True):
        np.testing.assert_array_equal(o, np.float32(scale) * other)


# damped_inverse


def positive(rng: np.random.Generator, batch: int, n: int) -> np.ndarray:
    root = rng.standard_normal((batch, n, n + 3))
    return root @ root.transpose(0, 2, 1) / n


def test_inverses_of_several_extents(rng):
    """Of one panel of rows less, as many, and more, in a list with numbers of its own; lower triangles are not read."""
    extents = [(1, LEAST), (2, LEAST + 1), (2, 5), (1, LEAST), (1, LEAST + 129)]
    matrices = [positive(rng, *e) for e in extents]
    read = [m.copy() for m in matrices]
    for m in read:
        m[(slice(None), *np.tril_indices(m.shape[1], -1))] = np.nan
    out = [np.full(m.shape, np.nan, np.float32) for m in matrices]
    numbers = [0.5, 1.0, 2.0, 3.0, 0.25], [0.1, 0.2, 0.3, 0.4, 0.5]
    assert cuda("damped_inverse")(read, out, factor=numbers[0], damping=numbers[1])
    for m, o, f, d in zip(matrices, out, *numbers, strict=True):
        exact = np.stack([kfac.damped_inverse(f * x, d) for x in m])
        np.testing.assert_allclose(o, exact, rtol=0, atol=1e-6 * abs(exact).max())
        assert_same_bits(o, np.ascontiguousarray(o.transpose(0, 2, 1)))


@pytest.mark.parametrize("bad", ["negative", "negative at the end", "inf", "nan", "too small", "too large"])
def test_a_large_matrix_that_cannot_be_inverted_stays(rng, bad):
    n = LEAST
    matrices = positive(rng, 3, n) + np.eye(n)
    if bad == "negative":
        matrices[1] -= 100 * np.eye(n)
    elif bad == "negative at the end":
        matrices[1, -1, -1] = -1
    elif bad == "too small":
        matrices[1] = 1e-40 * np.eye(n)
    elif bad == "too large":  # the inverse of the first four elements is beyond float32, and no pivot's is
        matrices[1] = np.eye(n)
        matrices[1, :2, :2] = [[1e-30, 1e-25], [1e-25, 1e-20 + 1e-30]]
    else:
        matrices[1, 4, n - 1] = float(bad)
    out = np.full((3, n, n), 7, np.float32)
    assert not cuda("damped_inverse")(matrices, out)
    np.testing.assert_array_equal(out[1], np.full((n, n), 7))
    for i in (0, 2):
        np.testing.assert_allclose(out[i] @ matrices[i], np.eye(n), atol=1e-4)


def test_ill_conditioned(rng):
    """A rank of one and little damping: condition 1e8, of which float32 arithmetic would leave nothing."""
    v = rng.standard_normal(LEAST)
    out = np.empty((1, LEAST, LEAST), np.float32)
    assert cuda("damped_inverse")(np.outer(v, v)[None], out, damping=1e-5)
    exact = 1e5 * (np.eye(LEAST) - np.outer(v, v) / (1e-5 + v @ v))  # Sherman & Morrison
    np.testing.assert_allclose(out[0], exact, rtol=1e-4, atol=1e-2)


# With another cuBLAS, or none

CALL = f"""
import ctypes, sys
import numpy as np
import boost_ext, device, kfac, oracle
from boost_ext import _core, ops
ctypes.CDLL(_core.__file__).boost_ext_cuda_pretend(13000, 1, int(sys.argv[1]))
n = {LEAST}
cuda = lambda op: device.on_device(op, *device.memory_of("cuda"))
small, x, out = np.eye(3, dtype=np.float32), np.eye(n, dtype=np.float32), np.empty((n, n), np.float32)
cuda(ops.orthogonalize)(small, np.empty_like(small))
assert boost_ext.build_info()["cuda"]["cublas"] is None
cuda(ops.orthogonalize)(x, out)
print(boost_ext.build_info()["cuda"]["cublas"], abs(out - oracle.orthogonalize(x.astype(float), 5)).max() < 1e-6)
"""


def called(cublas: int) -> subprocess.CompletedProcess[str]:
    folders = (Path(boost_ext.__file__).parents[1], Path(__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    command = [sys.executable, "-c", CALL, str(cublas)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)


@pytest.mark.skipif(not EMULATED, reason="only the emulator pretends")
@pytest.mark.parametrize(("cublas", "name"), [(0, "None"), (1, "libcublas.so.13")])
def test_with_and_without_the_library(cublas, name):
    result = called(cublas)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == [name, "True"]


@pytest.mark.skipif(not EMULATED, reason="only the emulator pretends")
def test_what_the_library_says_is_passed_on():
    result = called(2)
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "RuntimeError: CUDA: cuBLAS: start: the library was not initialized"


def test_the_least_side_is_that_of_the_kernels():
    header = (Path(__file__).parents[2] / "kernels" / "cuda" / "blas.cuh").read_text()
    assert f"kLeastSide = {LEAST};" in header
