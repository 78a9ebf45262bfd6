"""The PCA matrix in int8 codes: built, written, loaded, and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.matrix_file import damage

from boost_ext import ops, pca
from boost_ext.ops.projection_codes import QuantizedMatrix

SIZE = 700  # three blocks of columns
SHAPES = [("a", (20, 30)), ("b", (100,))]


@pytest.fixture
def checkpoints() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES} for _ in range(6)]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "p.npy"


@pytest.fixture
def matrix() -> QuantizedMatrix:
    return QuantizedMatrix(*ops.quantize_projection(np.random.default_rng(1).standard_normal((4, SIZE))))


def load(path: Path, k: int = 4, **options) -> QuantizedMatrix:
    return pca.load_matrix(path, n_components=k, n_elements=SIZE, **options)


def assert_same(actual: QuantizedMatrix, expected: QuantizedMatrix) -> None:
    assert isinstance(actual, QuantizedMatrix)
    np.testing.assert_array_equal(actual.codes, expected.codes)
    np.testing.assert_array_equal(actual.scale, expected.scale)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("chunk", [1, 256, 300, 1 << 15])
def test_built_in_memory_and_in_a_file(checkpoints, out, chunk):
    expected = QuantizedMatrix(*ops.quantize_projection(pca.pca_matrix(checkpoints, SHAPES, 3)))
    assert_same(pca.pca_matrix(checkpoints, SHAPES, 3, dtype="int8", chunk_elements=chunk), expected)
    stored = pca.pca_matrix(checkpoints, SHAPES, 3, dtype="int8", chunk_elements=chunk, path=out)
    assert_same(stored, expected)
    assert not any(a.flags.writeable for a in (stored.codes, stored.scale))
    assert names(out.parent) == ["p.npy"]
    assert_same(load(out, 3, parameters=SHAPES, checkpoints=checkpoints, dtype="int8"), expected)
    with pytest.raises(ValueError, match="must be made from the given dtype, got other dtype"):
        load(out, 3, dtype="float32")


def test_a_valid_one_is_reused_and_another_one_replaced(checkpoints, out):
    def build(dtype: str) -> int:
        pca.pca_matrix(checkpoints, SHAPES, 3, dtype=dtype, path=out)
        return out.stat().st_ino

    first = build("int8")
    assert build("int8") == first
    for tensor in ("codes", "scale"):
        damage(out, tensor, 7)
        before = out.stat().st_ino
        assert build("int8") != before, "damaged"
    before = out.stat().st_ino
    assert build("float32") != before
    assert names(out.parent) == ["p.npy"]


@pytest.mark.parametrize("rows", [(0, 4), (0, 2), (2, 3), (4, 4)])
def test_saved_and_loaded_by_rows(out, matrix, rows):
    pca.save_matrix(out, matrix)
    assert_same(load(out, rows=rows), matrix[slice(*rows)])
    assert_same(load(out, 2), matrix[:2])


def test_damage_is_seen(out, matrix):
    pca.save_matrix(out, matrix)
    for tensor, values in (("codes", matrix.codes), ("scale", matrix.scale)):
        damage(out, tensor, values.nbytes - 1)
        with pytest.raises(ValueError, match=r"p\.npy must match the checksum .* of row 3, got"):
            load(out)
        assert_same(load(out, rows=(0, 3)), matrix[:3])
        damage(out, tensor, values.nbytes - 1)
    assert_same(load(out), matrix)


def test_errors(out, matrix):
    with pytest.raises(ValueError, match="matrix must be a QuantizedMatrix to hold int8 codes, got an array alone"):
        pca.save_matrix(out, matrix.codes)
    with pytest.raises(ValueError, match="matrix must be finite"):
        pca.save_matrix(out, QuantizedMatrix(matrix.codes, matrix.scale * np.float32(np.inf)))
    with pytest.raises(
        ValueError, match=r"QuantizedMatrix: codes must be \(k, n\) and scale .*, got \(4, 700\) and \(3, 3\)"
    ):
        QuantizedMatrix(matrix.codes, matrix.scale[:3])
    np.save(out, matrix.codes)
    with pytest.raises(ValueError, match="must hold float16, float32 or float64, got int8"):
        load(out)
