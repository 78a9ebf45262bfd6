"""The span of checkpoints and their average: against float64 NumPy, dependent checkpoints, and the files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.matrix_file import damage

from boost_ext import pca
from boost_ext.subspace.span import average_path, load_span, weight_span

SHAPES = [("conv.weight", (4, 3, 5)), ("bias", (7,)), ("scale", ())]
SIZE = 68


def history(count: int, size: int = SIZE, spread: float = 0.05, seed: int = 0) -> np.ndarray:
    """`count` float32 checkpoints near a common mean."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=size) + spread * rng.normal(size=(count, size))).astype(np.float32)


def dictionaries(rows: np.ndarray) -> list[dict[str, np.ndarray]]:
    return [{"conv.weight": r[:60].reshape(4, 3, 5), "bias": r[60:67], "scale": r[67]} for r in rows]


def projector(rows: np.ndarray) -> np.ndarray:
    """Onto the span of the rows, in float64."""
    right = np.linalg.svd(rows.astype(np.float64), full_matrices=False)[2]
    return right.T @ right


@pytest.mark.parametrize("chunk", [7, 1 << 15])
@pytest.mark.parametrize("spread", [1.0, 0.01])
def test_spans_the_checkpoints_and_averages_them(chunk: int, spread: float) -> None:
    rows = history(6, spread=spread)
    basis, average = weight_span(dictionaries(rows), SHAPES, chunk_elements=chunk)
    assert basis.shape == (6, SIZE)
    assert basis.dtype == average.dtype == np.float32
    np.testing.assert_allclose(basis.astype(np.float64) @ basis.T, np.eye(6), atol=1e-6)
    np.testing.assert_allclose(basis.T.astype(np.float64) @ basis, projector(rows), atol=2e-6)
    np.testing.assert_array_equal(average, rows.astype(np.float64).mean(axis=0).astype(np.float32))


def test_the_rows_are_those_of_pca() -> None:
    checkpoints = dictionaries(history(5))
    np.testing.assert_array_equal(weight_span(checkpoints, SHAPES).basis, pca.pca_matrix(checkpoints, SHAPES, 5))


@pytest.mark.parametrize(
    ("mix", "rank"),
    [
        ([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0]], 2),
        ([[1, 0, 0], [1, 0, 0]], 1),
        ([[1, 0, 0], [2, 0, 0], [3, 0, 0]], 1),
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0.3, 0.3, 0.4], [0.25, 0.5, 0.25]], 3),
        ([[1, 0, 0], [-1, 0, 0]], 1),
        ([[1, 0, 0], [0, 1, 0], [3, -2, 0.0]], 2),
    ],
)
def test_dependent_checkpoints(mix: list[list[float]], rank: int) -> None:
    """Mixed in float32, so that rounding leaves what must not count as a direction."""
    rows = (np.float32(mix) @ history(3, spread=0.3)).astype(np.float32)
    basis, average = weight_span(dictionaries(rows), SHAPES)
    assert len(basis) == rank
    wide = basis.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, np.eye(rank), atol=1e-6)
    for row in [*rows, average]:
        np.testing.assert_allclose(wide.T @ (wide @ row), row, atol=1e-5)


def test_more_checkpoints_than_weights() -> None:
    basis, _ = weight_span([{"w": r} for r in history(6, 3)], {"w": (3,)})
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_narrow_basis_has_a_float32_average(tmp_path: Path, dtype: str) -> None:
    checkpoints = dictionaries(history(4))
    wide = weight_span(checkpoints, SHAPES)
    for path in (None, tmp_path / "twa.npy", tmp_path / "twa.npy"):  # in memory, written, and found again
        narrow = weight_span(checkpoints, SHAPES, path=path, dtype=dtype)
        assert narrow.basis.dtype.name == dtype
        np.testing.assert_array_equal(narrow.basis, wide.basis.astype(narrow.basis.dtype))
        np.testing.assert_array_equal(narrow.average, wide.average)


def test_a_valid_file_is_reused_and_any_other_is_not(tmp_path: Path) -> None:
    for i, checkpoint in enumerate(dictionaries(history(4))):
        np.savez(tmp_path / f"net-{i}.npz", **checkpoint)
    files, path = pca.find_checkpoints(tmp_path), tmp_path / "twa.npy"
    expected = weight_span(files, SHAPES)

    def same(span: tuple[np.ndarray, np.ndarray]) -> None:
        for got, want in zip(span, expected, strict=True):
            np.testing.assert_array_equal(got, want)

    same(weight_span(files, SHAPES, path=path))
    assert {p.name for p in tmp_path.iterdir()} - {f.name for f in files} == {"twa.npy"}
    before = path.stat().st_ino
    same(weight_span(files, SHAPES, path=path))
    assert path.stat().st_ino == before
    same(load_span(path, n_elements=SIZE, parameters=SHAPES, checkpoints=files))
    for tensor in ("matrix", "average"):
        damage(path, tensor, 5)
        with pytest.raises(ValueError, match=r"must match the checksum .* the file is damaged"):
            load_span(path, n_elements=SIZE)
        same(weight_span(files, SHAPES, path=path))
        same(load_span(path, n_elements=SIZE))
    assert len(weight_span(files[:3], SHAPES, path=path).basis) == 3
    for dtype in ("int8", "float32"):
        pca.pca_matrix(files, SHAPES, 2, path=path, dtype=dtype)  # takes its place, and is none of a span
        if dtype == "int8":
            with pytest.raises(ValueError, match="must hold float32, float16 or bfloat16, got int8 codes"):
                load_span(path, n_elements=SIZE)
    assert weight_span(files, SHAPES, path=path).basis.shape == (4, SIZE)


def test_two_files_of_yours(tmp_path: Path) -> None:
    basis, average = weight_span(dictionaries(history(4)), SHAPES)
    path = tmp_path / "twa.npy"
    np.save(path, basis)
    with pytest.raises(FileNotFoundError, match=r"twa\.average\.npy"):
        load_span(path, n_elements=SIZE)
    np.save(average_path(path), average[None])
    for parameters in (None, SHAPES):
        np.testing.assert_array_equal(load_span(path, n_elements=SIZE, parameters=parameters).average, average)
    with pytest.raises(ValueError, match=r"twa\.npy must have a record to compare checkpoints with, got a plain \.npy"):
        load_span(path, n_elements=SIZE, parameters=SHAPES, checkpoints=dictionaries(history(4)))


def test_errors(tmp_path: Path) -> None:
    checkpoints = dictionaries(history(3))
    with pytest.raises(ValueError, match="weight_span: checkpoints must be two at least, got 1"):
        weight_span(checkpoints[:1], SHAPES)
    with pytest.raises(ValueError, match=r"weight_span: checkpoints\[1\] must hold all 3 parameters, .*'bias'"):
        weight_span([checkpoints[0], {k: v for k, v in checkpoints[1].items() if k != "bias"}], SHAPES)
    with pytest.raises(ValueError, match=r"parameter 'bias' must have shape \(7,\), got \(6,\)"):
        weight_span([checkpoints[0], checkpoints[1] | {"bias": np.zeros(6, np.float32)}], SHAPES)
    with pytest.raises(ValueError, match="weight_span: checkpoints must hold a weight that is not 0, got 2 without"):
        weight_span([{"w": np.zeros(3, np.float32)}, {"w": np.zeros(3, np.float32)}], {"w": (3,)})
    with pytest.raises(ValueError, match="chunk_elements must be at least 1, got 0"):
        weight_span(checkpoints, SHAPES, chunk_elements=0)
    with pytest.raises(FileNotFoundError, match=r"nope\.npy"):
        load_span(tmp_path / "nope.npy", n_elements=SIZE)
    np.save(tmp_path / "mine.npy", np.eye(3))
    with pytest.raises(FileExistsError, match=r"a file of yours is not overwritten"):
        weight_span(checkpoints, SHAPES, path=tmp_path / "mine.npy")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine.npy"]
