from __future__ import annotations

import numpy as np
import pytest

import oracle
from boost_ext import ops
from dtypes import DTYPES, FLOATS, SIZES, assert_close, assert_same_bits, normal

pytestmark = pytest.mark.usefixtures("isa")


def check(P: np.ndarray, vectors: list[np.ndarray], out: list[list[np.ndarray]]) -> None:
    assert ops.pca_back_project(P, vectors, out) is out
    exact = P.astype(np.float64)
    for v, tensors in zip(vectors, out, strict=True):
        v = v.astype(np.float64)
        expected = oracle.pca_back_project(exact, v, tensors)
        magnitude = oracle.pca_back_project(abs(exact), abs(v), tensors)
        for actual, e, m in zip(tensors, expected, magnitude, strict=True):
            assert_close(actual, e, m, roundings=2 * len(P))  # a product and a sum a row


def unset(shape: int | tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.full(shape, np.nan, dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes(rng, dtype, size):
    P = normal(rng, (5, size), dtype)
    check(P, [normal(rng, 5), normal(rng, 5)], [[unset(size, dtype)], [unset(size, dtype)]])


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 33])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_rows_and_vectors(rng, rows, count):
    P = normal(rng, (rows, 4100))
    vectors = [normal(rng, rows) for _ in range(count)]
    check(P, vectors, [[unset(4100, np.float32)] for _ in vectors])


@pytest.mark.parametrize("of_P", DTYPES)
def test_many_tensors_of_all_shapes_and_types(rng, of_P):
    shapes = [(), (3,), (0,), (2, 3, 4), (1, 1), (4097,), (64, 65), (2, 0, 5)] * 10
    kinds = list(FLOATS.values())
    out = [[unset(s, kinds[(i + j) % 3]) for i, s in enumerate(shapes)] for j in range(3)]
    P = normal(rng, (6, sum(t.size for t in out[0])), of_P)
    check(P, [normal(rng, 6) for _ in out], out)


def test_vectors_together_or_alone_give_the_same_bits(rng):
    P = normal(rng, (7, 9000))
    vectors = [normal(rng, 7) for _ in range(3)]
    together = ops.pca_back_project(P, vectors, [unset(9000, np.float32) for _ in vectors])
    for v, t in zip(vectors, together, strict=True):
        assert_same_bits(t, ops.pca_back_project(P, [v], [unset(9000, np.float32)])[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_vector_gives_a_row_of_P(rng, dtype):
    P = normal(rng, (5, 4099), dtype)
    for row in range(5):
        out = unset(4099, dtype)
        ops.pca_back_project(P, [np.eye(5, dtype=np.float32)[row]], [out])
        np.testing.assert_array_equal(out, P[row])


def test_no_elements_do_nothing():
    ops.pca_back_project(np.empty((2, 0), np.float32), [np.ones(2, np.float32)], [[np.empty(0, np.float32)]])


@pytest.mark.parametrize("place", [0, 4095, 4096, -1])
def test_inf_and_nan_stay_in_their_column(rng, place):
    P = normal(rng, (4, 5000))
    v = abs(normal(rng, 4))
    before = ops.pca_back_project(P, [v], [unset(5000, np.float32)])[0].copy()
    for bad in (np.inf, np.nan):
        P[2, place] = bad
        out = ops.pca_back_project(P, [v], [unset(5000, np.float32)])[0]
        np.testing.assert_array_equal(out[place], bad)
        others = np.arange(5000) != place % 5000
        assert_same_bits(out[others], before[others])


def test_projection_onto_orthonormal_rows_is_idempotent(rng):
    """P P^T = I, hence P P^T v = v for every v, and P^T P is a projection."""
    P = np.linalg.qr(rng.standard_normal((6000, 8)))[0].T.astype(np.float32, order="C")
    v = normal(rng, 8)
    lifted = ops.pca_back_project(P, [v], [unset(6000, np.float32)])[0]
    coordinates = ops.pca_project(P, lifted)
    np.testing.assert_allclose(coordinates, v, rtol=0, atol=4e-6)
    again = ops.pca_back_project(P, [coordinates], [unset(6000, np.float32)])[0]
    np.testing.assert_allclose(again, lifted, rtol=0, atol=1e-6)


def test_adjoint_of_pca_project(rng):
    """<P g, v> = <g, P^T v>"""
    P, g, v = normal(rng, (6, 9001)), normal(rng, 9001), normal(rng, 6)
    lifted = ops.pca_back_project(P, [v], [unset(9001, np.float32)])[0]
    left = ops.pca_project(P, g).astype(np.float64) @ v
    right = g.astype(np.float64) @ lifted
    scale = abs(g.astype(np.float64)) @ abs(P.T.astype(np.float64)) @ abs(v)
    assert abs(left - right) <= 150 * 2.0**-24 * scale


def test_count_of_lists_must_match_the_vectors(rng):
    P, v = normal(rng, (2, 3)), normal(rng, 2)
    with pytest.raises(
        ValueError, match=r"^pca_back_project: out must hold one list for each of the 2 vectors, got 1$"
    ):
        ops.pca_back_project(P, [v, v], [[unset(3, np.float32)]])
    with pytest.raises(
        ValueError, match=r"^pca_back_project: vectors must hold at least one array, got an empty list$"
    ):
        ops.pca_back_project(P, [], [])


def test_lists_must_have_the_same_sizes(rng):
    P, v = normal(rng, (2, 4)), normal(rng, 2)
    out = [[unset(1, np.float32), unset(3, np.float32)], [unset(2, np.float32), unset(2, np.float32)]]
    with pytest.raises(ValueError, match=r"^pca_back_project: out\[1\]\[0\] must have 1 elements, got 2$"):
        ops.pca_back_project(P, [v, v], out)
