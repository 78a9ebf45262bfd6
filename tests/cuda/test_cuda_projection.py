"""Dimension-reduced training on CUDA: what only a device has, and the CPU's bits. tests/ops has the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import device
import oracle
from boost_ext import _core, ops
from dtypes import DTYPES, FLOATS, assert_close, assert_same_bits, normal
from on_cuda import needs_cuda
from ops.producers import Producer

pytestmark = needs_cuda

ROUNDINGS = 32 + 32 + 3  # a lane has 32 products, then its accumulators add up
RATES = {"gamma": 0.9, "alpha": 0.001}


def cpu(op: str) -> Callable[..., Any]:
    return inspect.unwrap(getattr(ops, op))


def cuda(op: str) -> Callable[..., Any]:
    return device.on_device(cpu(op), *device.memory_of("cuda"))


def number(value: float) -> np.ndarray:
    """A float32 that cuda() moves to the device."""
    return np.array([value], np.float32)


def copies(arrays: Any) -> Any:
    """Of arrays, or of lists of them, in lists and dictionaries."""
    if isinstance(arrays, np.ndarray):
        return arrays.copy()
    return {n: copies(a) for n, a in arrays.items()} if isinstance(arrays, dict) else [copies(a) for a in arrays]


def assert_all_same_bits(actual: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, e in zip(actual, expected, strict=True):
        assert_same_bits(a, e)


# The projections


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 8, 31, 32, 33, 70])
@pytest.mark.parametrize("dtype", DTYPES)
def test_project_any_number_of_rows(rng, dtype, rows):
    """Some warps share a row, or a block has as many rows as it takes, or some more blocks have the rest."""
    P, grads = normal(rng, (rows, 4096 + 1025), dtype), [normal(rng, 4096 + 25), normal(rng, 1000)]
    exact = P.astype(np.float64), [g.astype(np.float64) for g in grads]
    magnitude = oracle.pca_project(abs(exact[0]), [abs(g) for g in exact[1]])
    assert_close(cuda("pca_project")(P, grads), oracle.pca_project(*exact), magnitude, ROUNDINGS)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [4096, 9001])
def test_project_gives_the_same_bits_wherever_P_lies(rng, dtype, size):
    rows = 3
    memory = np.empty(rows * size + 16, dtype)
    memory = memory[-memory.ctypes.data % 16 // dtype.itemsize :]
    values, grad = normal(rng, (rows, size), dtype), normal(rng, size)
    expected = cuda("pca_project")(values, grad)
    for offset in range(9):
        P = memory[offset : offset + rows * size].reshape(rows, size)
        P[...] = values
        assert P.ctypes.data % 16 == offset * dtype.itemsize % 16
        assert_same_bits(cuda("pca_project")(P, grad), expected)


def fused(P: np.ndarray, scale: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Of codes: a product and a sum rounded once, in float64, which leaves nothing to round but by rare chance."""
    sums = np.zeros(P.shape[1], np.float32)
    for codes, scales, v in zip(P, scale, vector, strict=True):
        by = (v * np.repeat(scales, 256)[: sums.size]).astype(np.float64)
        sums = (sums + by * codes).astype(np.float32)
    return sums


def check_back_project(
    rng: np.random.Generator, P: np.ndarray, scale: np.ndarray | None = None, *, sizes: list[int], count: int
) -> None:
    vectors = [normal(rng, len(P)) for _ in range(count)]
    kinds = list(FLOATS.values())
    out = [[np.full(s, np.nan, kinds[(i + j) % 3]) for i, s in enumerate(sizes)] for j in range(count)]
    expected = copies(out)
    if scale is None:
        cpu("pca_back_project")(P, vectors, expected)
    else:
        for of_vector, v in zip(expected, vectors, strict=True):
            for tensor, x in zip(of_vector, np.split(fused(P, scale, v), np.cumsum(sizes)[:-1]), strict=True):
                tensor[...] = x
    assert cuda("pca_back_project")(P, vectors, out, scale=scale) is out
    for actual, e in zip(out, expected, strict=True):
        assert_all_same_bits(actual, e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("last", [2000, 2001])  # of even and odd rows
def test_back_project_gives_the_cpus_bits(rng, dtype, count, last):
    sizes = [4096, 0, 1, 7, 1024, last]
    check_back_project(rng, normal(rng, (5, sum(sizes)), dtype), sizes=sizes, count=count)


@pytest.mark.parametrize("dtype", DTYPES)
def test_back_project_any_number_of_rows(rng, dtype):
    """The coordinates of 256 rows at a time lie in shared memory."""
    for rows in (255, 256, 257, 520):
        check_back_project(rng, normal(rng, (rows, 2048), dtype), sizes=[2048], count=2)


def codes_of(rng: np.random.Generator, rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    return rng.integers(-127, 128, (rows, size), np.int8), normal(rng, (rows, -(-size // 256)))


@pytest.mark.parametrize("size", [4096, 4100, 4104, 9001])  # whose rows begin at 16, 4, 8 and 1 bytes
def test_codes_give_the_same_bits_wherever_they_lie(rng, size):
    """At each byte of 16, and where what comes behind or before them belongs to nobody."""
    memory = np.empty(9 * size + 32, np.int8)
    memory = memory[-memory.ctypes.data % 16 :]
    for rows in (3, 9):
        values, scale = codes_of(rng, rows, size)
        grads = [normal(rng, s) for s in (21, size - 24, 3)]
        vectors = [normal(rng, rows) for _ in range(2)]

        def results(P, scale=scale, grads=grads, vectors=vectors):
            images = [copies(grads) for _ in vectors]
            cuda("pca_back_project")(P, vectors, images, scale=scale)
            return [cuda("pca_project")(P, grads, scale=scale), *(x for tensors in images for x in tensors)]

        expected = results(values)
        for offset in range(16):
            P = memory[offset : offset + rows * size].reshape(rows, size)
            P[...] = values
            assert_all_same_bits(results(P), expected)


@pytest.mark.parametrize("start", range(16))
def test_project_codes_of_a_tensor_at_any_column(rng, start):
    """Blocks end at each place of a vector: in whole chunks, in the last vector, behind it; where warps share a row."""
    for rows in (2, 8, 17):
        sizes = [256 + start, 4096, 1, 512 - 1, 4096 + 256 - start]
        P, scale = codes_of(rng, rows, sum(sizes))
        grads = [normal(rng, s) for s in sizes]
        exact = P * np.repeat(scale.astype(np.float64), 256, axis=1)[:, : P.shape[1]]
        of = [g.astype(np.float64) for g in grads]
        magnitude = oracle.pca_project(abs(exact), [abs(g) for g in of])
        got = cuda("pca_project")(P, grads, scale=scale)
        assert_close(got, oracle.pca_project(exact, of), magnitude, ROUNDINGS)


@pytest.mark.parametrize("rows", [1, 5, 16, 17])
@pytest.mark.parametrize("sizes", [[8192], [4096, 4096 + 512, 16], [5, 4096, 3]])
def test_project_codes(rng, rows, sizes):
    """Rows in pairs and alone; blocks that end in the middle of a vector."""
    P, scale = codes_of(rng, rows, sum(sizes))
    grads = [normal(rng, s, t) for s, t in zip(sizes, FLOATS.values(), strict=False)]
    exact = P * np.repeat(scale.astype(np.float64), 256, axis=1)[:, : P.shape[1]]
    of = [g.astype(np.float64) for g in grads]
    magnitude = oracle.pca_project(abs(exact), [abs(g) for g in of])
    got = cuda("pca_project")(P, grads, scale=scale)
    assert_close(got, oracle.pca_project(exact, of), magnitude, ROUNDINGS)
    for r in {0, rows - 1}:  # alone it is not in a pair, and with its sums in the same order
        alone = cuda("pca_project")(P[[r] * rows], grads, scale=scale[[r] * rows])
        assert_same_bits(alone, np.full(rows, got[r]))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("sizes", [[4096, 4096], [8192, 16, 4096], [5, 4096, 0, 250, 4097, 1], [3, 2, 2, 4098, 4100]])
def test_back_project_of_codes_rounds_once_a_row(rng, count, sizes):
    check_back_project(rng, *codes_of(rng, 5, sum(sizes)), sizes=sizes, count=count)


def test_back_project_codes_of_any_number_of_rows(rng):
    for rows in (1, 7, 9, 31, 32, 33, 40, 65):
        for last in (7, 8):
            check_back_project(rng, *codes_of(rng, rows, 2048 + last), sizes=[2048, last], count=2)


def test_project_makes_an_array_on_the_device():
    P, g = np.ones((3, 5), np.float32), np.ones(5, np.float32)
    memory, kind = device.memory_of("cuda")
    image = device.Image([P, g])
    on = memory(image.bytes)
    there = [Producer(a, data=on.address + image.place(a), device=(kind, 0)) for a in (P, g)]
    out = cpu("pca_project")(*there)
    assert isinstance(out, _core.DeviceArray)
    assert (out.shape, out.dtype) == ((3,), "float32")
    np.testing.assert_array_equal(out.numpy(), [5, 5, 5])
    on.free()


# The subspace


def problem(rng: np.random.Generator, k: int, dtype: Any = np.float32) -> dict[str, np.ndarray]:
    root = rng.standard_normal((k, k))
    B = (root @ root.T / k + np.eye(k)).astype(dtype)
    s = rng.standard_normal(k).astype(dtype)
    return {"B": np.triu(B) + np.triu(B, 1).T, "s": s, "y": (s + 0.1 * rng.standard_normal(k)).astype(dtype)}


@pytest.mark.parametrize("k", [1, 15, 16, 17, 32, 33, 100, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bfgs_gives_the_cpus_bits(rng, k, dtype):
    x = problem(rng, k, dtype)
    expected, updated = copies(x.values()), np.full(1, np.nan, np.float32)
    assert cpu("bfgs_update")(*expected)
    assert cuda("bfgs_update")(**x, out=updated) is updated
    assert updated == 1
    assert_all_same_bits([*x.values()], expected)


def test_bfgs_says_on_the_device_that_it_did_not_update(rng):
    x = problem(rng, 33)
    x["y"] *= -1
    before, updated = copies(x.values()), np.full(1, np.nan, np.float32)
    cuda("bfgs_update")(**x, out=updated)
    assert updated == 0
    assert_all_same_bits([*x.values()], before)


def test_bfgs_reads_what_lies_above_the_diagonal(rng):
    """And as it was: the mirror image is written, while other blocks still read."""
    x = problem(rng, 50)
    x["B"][np.tril_indices(50, -1)] *= np.float32(1 + 2**-20)
    expected = copies(x.values())
    cpu("bfgs_update")(*expected)
    cuda("bfgs_update")(**x)
    assert_same_bits(x["B"], expected[0])
    assert_same_bits(x["B"], x["B"].T)


def direction(rng: np.random.Generator, k: int) -> dict[str, np.ndarray]:
    x = problem(rng, k)
    return {"B": x["B"], "s": x["s"], "gk_last": normal(rng, k), "gk": normal(rng, k)} | {
        "B_next": np.full((k, k), np.nan, np.float32),
        "dk": np.full(k, np.nan, np.float32),
    }


@pytest.mark.parametrize("k", [1, 16, 33, 300])
@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("inv_scale", [1 / 3, number(1 / 3)], ids=["number", "device"])
def test_direction_gives_the_cpus_bits(rng, k, started, inv_scale):
    x = direction(rng, k)
    expected, slope = copies(x), np.full(1, np.nan)
    of_cpu = cpu("dim_reduce_direction")(**expected, started=started, inv_scale=1 / 3)
    assert cuda("dim_reduce_direction")(**x, started=started, inv_scale=inv_scale, out=slope) is slope
    assert slope[0] == of_cpu
    assert_all_same_bits([*x.values()], [*expected.values()])


# The weights

SIZES = [8200, 0, 1, 7, 4096, 33] * 2


def tensors(rng: np.random.Generator, first: int | None = None) -> list[np.ndarray]:
    """float32, or from the `first` on all storage types in turn."""
    kinds = list(FLOATS.values())
    return [normal(rng, s, np.float32 if first is None else kinds[(first + i) % 3]) for i, s in enumerate(SIZES)]


@pytest.mark.parametrize("save", [False, True])
@pytest.mark.parametrize("step", ["number", "zero", "one", "each"])
def test_trial_gives_the_cpus_bits(rng, save, step):
    x = {"weights": tensors(rng, 0), "saved": tensors(rng, 0), "dn": tensors(rng)}
    each = normal(rng, len(SIZES))
    each[4] = 0
    length = {"number": 0.3, "zero": 0.0, "one": number(0.3), "each": each}[step]
    expected = copies(x)
    cpu("dim_reduce_trial")(**expected, step=length, save=save)
    cuda("dim_reduce_trial")(**x, step=length, save=save)
    for name in x:
        assert_all_same_bits(x[name], expected[name])


@pytest.mark.parametrize("form", ["delta", "weights", "rates"])
@pytest.mark.parametrize("rho", [0.55, 0.0, number(0.55), number(0.0)], ids=["number", "zero", "device", "device zero"])
@pytest.mark.parametrize("inv_scale", [1 / 3, number(1 / 3)], ids=["number", "device"])
def test_apply_gives_the_cpus_bits(rng, form, rho, inv_scale):
    x = {"momentum": tensors(rng), "grads": tensors(rng, 1), "grad_proj": tensors(rng), "dn": tensors(rng)}
    if form == "delta":
        x["out"] = [np.full_like(t, np.nan) for t in x["dn"]]
    else:
        x |= {"out": tensors(rng, 0), "saved": tensors(rng, 0)}
    if not np.any(rho):
        x["dn"][0][:] = np.inf  # of a refused direction
    lr = {"delta": None, "weights": 0.3, "rates": abs(normal(rng, len(SIZES)))}[form]
    expected = copies(x)
    cpu("dim_reduce_apply")(**expected, **RATES, rho=float(np.ravel(rho)[0]), inv_scale=1 / 3, lr=lr)
    assert cuda("dim_reduce_apply")(**x, **RATES, rho=rho, inv_scale=inv_scale, lr=lr) is x["out"]
    for name in x:
        assert_all_same_bits(x[name], expected[name])
