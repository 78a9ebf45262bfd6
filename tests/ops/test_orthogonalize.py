from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import _core, ops
from dtypes import DTYPES, FLOATS, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(out: np.ndarray, matrix: np.ndarray, steps: int = 5, tolerance: float = 2e-4) -> None:
    """The slope of the polynomial at 0 is 3.4445, and so five steps multiply a rounding by 485 at most."""
    wide = matrix.astype(np.float64)
    exact = oracle.orthogonalize(wide.reshape(len(wide), -1), steps).reshape(matrix.shape)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, exact, rtol=0, atol=tolerance * max(1, abs(exact).max()))


def orthogonalized(matrix: np.ndarray, **settings: float) -> np.ndarray:
    out = np.full(matrix.shape, np.nan, np.float32)
    assert ops.orthogonalize(matrix, out, **settings) is out
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (7, 9), (16, 16), (17, 33), (33, 17)])
def test_shapes(rng, dtype, shape):
    matrix = normal(rng, shape, dtype)
    check(orthogonalized(matrix), matrix)


@pytest.mark.parametrize("shape", [(40, 100), (100, 40), (70, 150), (130, 150)])
def test_more_tiles_than_one(rng, shape):
    matrix = normal(rng, shape)
    check(orthogonalized(matrix), matrix)


def test_steps(rng):
    for shape in ((6, 8), (6, 20)):
        matrix = normal(rng, shape)
        for steps in range(5):
            check(orthogonalized(matrix, steps=steps), matrix, steps)


def test_singular_values_come_near_1(rng):
    for shape in ((64, 96), (64, 256), (256, 64)):
        found = np.linalg.svd(orthogonalized(normal(rng, shape)), compute_uv=False)
        assert found.min() > 0.65
        assert found.max() < 1.2


def test_singular_vectors_stay(rng):
    """U S V becomes U f(S) V: with the same U and V the result is diagonal."""
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in (20, 50))
    matrix = (U @ np.eye(20, 50) * np.linspace(1, 2, 50) @ V).astype(np.float32)
    u, _, v = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    turned = u.T @ orthogonalized(matrix) @ v.T
    np.testing.assert_allclose(turned - np.diag(np.diag(turned)), 0, atol=2e-4)


def test_a_power_of_two_changes_no_bit_without_eps(rng):
    matrix = normal(rng, (12, 30))
    one, two = (orthogonalized(m, eps=0.0) for m in (matrix, matrix * np.float32(2.0**60)))
    assert_same_bits(one, two)


def test_a_convolution_is_a_matrix_of_its_filters(rng):
    kernel = normal(rng, (8, 3, 3, 3))
    assert_same_bits(orthogonalized(kernel).reshape(8, 27), orthogonalized(kernel.reshape(8, 27)))


def test_a_list(rng):
    matrices = [normal(rng, (9, 5)), np.empty((0, 3), np.float32), np.zeros((4, 6), np.float32), normal(rng, 7)]
    out = [np.full(m.shape, np.nan, np.float32) for m in matrices]
    ops.orthogonalize(matrices, out)
    assert_same_bits(out[0], orthogonalized(matrices[0]))
    np.testing.assert_array_equal(out[2], matrices[2])
    check(out[3][:, None], matrices[3][:, None])


def test_in_place(rng):
    matrices = [normal(rng, (9, 5)), normal(rng, (7, 30))]
    apart = [orthogonalized(m) for m in matrices]
    ops.orthogonalize(matrices, matrices)
    for a, b in zip(matrices, apart, strict=True):
        assert_same_bits(a, b)


@pytest.mark.parametrize("shape", [(256, 300), (700, 200)])
def test_a_large_matrix_is_shared_by_threads(rng, threads, shape):
    matrix = normal(rng, shape)
    found = []
    for count in (1, 3):
        threads(count)
        found.append(orthogonalized(matrix))
    assert_same_bits(*found)
    check(found[0], matrix, tolerance=1e-3)


def test_large_matrices_beside_larger_work_are_one_thread_s_each(rng, threads):
    """A twelfth of the work; that of 300 x 700 is shared by all, and so is each of the others when it is alone."""
    matrices = [normal(rng, (130, 1030)) for _ in range(8)] + [normal(rng, (300, 700)), normal(rng, (3, 4))]
    threads(2)
    out = [np.full(m.shape, np.nan, np.float32) for m in matrices]
    ops.orthogonalize(matrices, out)
    for found, matrix in zip(out, matrices, strict=True):
        assert_same_bits(found, orthogonalized(matrix))
    check(out[-2], matrices[-2], tolerance=1e-3)


def in_bfloat16(matrix: np.ndarray) -> np.ndarray:
    """The iteration as its authors run it: all that is kept is bfloat16."""

    def kept(a: np.ndarray) -> np.ndarray:
        return a.astype(FLOATS["bfloat16"]).astype(np.float64)

    X = kept((matrix.T if len(matrix) > len(matrix.T) else matrix) / np.linalg.norm(matrix))
    for _ in range(5):
        A = kept(X @ X.T)
        X = kept(3.4445 * X + kept(kept(-4.7750 * A + kept(2.0315 * A @ A)) @ X))
    return X.T if len(matrix) > len(matrix.T) else X


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize(
    "shape", [(16, 16), (17, 40), (40, 17), (33, 65), (130, 150), (150, 129), (300, 130), (48, 1031)]
)
def test_medium_precision(rng, shape, threads):
    """Factors are rounded to bfloat16: the errors are those of an iteration that keeps nothing more, up to a factor."""
    matrix = normal(rng, shape)
    out = orthogonalized(matrix)
    threads(1)
    assert_same_bits(orthogonalized(matrix), out)
    wide = matrix.astype(np.float64)
    exact = oracle.orthogonalize(wide)
    if not _core.has_narrow_products():
        check(out, matrix, tolerance=1e-3)
        return
    assert np.linalg.norm(out - exact) < 3 * np.linalg.norm(in_bfloat16(wide) - exact)
    found = np.linalg.svd(out, compute_uv=False)
    assert found.min() > 0.65
    assert found.max() < 1.25


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize("shape", [(64, 96), (64, 256), (40, 256)])
def test_small_singular_values_of_medium_precision(rng, shape):
    """A hundredth of the largest one is brought as far as in float64, up to a tenth; none grows beyond."""
    rows, columns = shape
    U, V = (np.linalg.qr(rng.standard_normal((n, n)))[0] for n in shape)
    values = np.geomspace(0.01, 1, rows)
    matrix = (U @ (np.eye(rows, columns) * values[:, None]) @ V).astype(np.float32)
    found = np.linalg.svd(orthogonalized(matrix), compute_uv=False)
    expected = np.linalg.svd(oracle.orthogonalize(matrix.astype(np.float64)), compute_uv=False)
    np.testing.assert_allclose(found, expected, rtol=0.1 if _core.has_narrow_products() else 1e-3)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_inf_and_nan_fill_their_matrix(rng, bad):
    matrices = [normal(rng, (3, 4)), normal(rng, (3, 4))]
    matrices[0][2, 3] = bad
    out = [np.zeros((3, 4), np.float32) for _ in range(2)]
    ops.orthogonalize(matrices, out)
    assert np.isnan(out[0]).all()
    assert np.isfinite(out[1]).all()


def test_errors():
    m, out = np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match=r"^orthogonalize: steps must be >= 0, got -1$"):
        ops.orthogonalize(m, out, steps=-1)
    with pytest.raises(ValueError, match=r"^orthogonalize: eps must be finite and >= 0, got -1$"):
        ops.orthogonalize(m, out, eps=-1.0)
