"""The PCA matrix for one of many ranks, which reads and checks its rows alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.matrix_file import damage

from boost_ext import pca

N = 100


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "p.npy"


@pytest.fixture
def matrix() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(N, 4)))[0].T.astype(np.float32)


def load(path: Path, rows: tuple[int, int]) -> np.ndarray:
    return pca.load_matrix(path, n_components=4, n_elements=N, rows=rows)


@pytest.mark.parametrize("order", ["C", "F", "record"])
@pytest.mark.parametrize("rows", [(0, 4), (0, 2), (2, 3), (3, 4), (4, 4)])
def test_a_rank_loads_its_rows_alone(out, matrix, order, rows):
    if order == "record":
        pca.save_matrix(out, matrix)
    else:
        np.save(out, np.asarray(matrix, order=order))
    got = load(out, rows)
    assert got.shape == (rows[1] - rows[0], N)
    np.testing.assert_array_equal(got, matrix[slice(*rows)])


def test_rows_of_other_ranks_are_not_read(out, matrix):
    pca.save_matrix(out, matrix)
    damage(out, "matrix", 3 * 4 * N - 1)  # the last byte of row 2
    np.testing.assert_array_equal(load(out, (0, 2)), matrix[:2])
    with pytest.raises(ValueError, match=r"p\.npy must match the checksum .* of row 2, got"):
        load(out, (1, 3))
    matrix[2, 5] = np.inf
    np.save(out, matrix)
    np.testing.assert_array_equal(load(out, (0, 2)), matrix[:2])
    with pytest.raises(ValueError, match="finite in float32, got row 2"):
        load(out, (1, 3))
