"""The PCA matrix against an SVD in float64, and what it does with bad checkpoints."""

from __future__ import annotations

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boost_ext import pca
from boost_ext.subspace import components as pca_components

SHAPES = [("conv.weight", (4, 3, 5)), ("fc.bias", (7,)), ("scale", ()), ("fc.weight", (8, 4))]
SIZE = 60 + 7 + 1 + 32


def svd_oracle(x: np.ndarray, k: int) -> np.ndarray:
    """The first k right singular vectors of the centered rows, signed by the first of the
    (nearly) largest left entries."""
    x = x.astype(np.float64)
    left, _, right = np.linalg.svd(x - x.mean(0), full_matrices=False)
    size = np.abs(left)
    first = (size >= (1 - 1e-6) * size.max(0)).argmax(0)
    signs = np.sign(left[first, np.arange(left.shape[1])])
    return (signs[:, None] * right)[:k]


def rows(count: int, size: int = SIZE, condition: float = 30.0, mean: float = 1.0, seed: int = 0) -> np.ndarray:
    """`count` float32 checkpoints about a common mean, their singular values well apart."""
    rng = np.random.default_rng(seed)
    rank = min(count, size)
    left = np.linalg.qr(rng.normal(size=(count, count)))[0][:, :rank]
    right = np.linalg.qr(rng.normal(size=(size, rank)))[0]
    x = (left * np.geomspace(1, 1 / condition, rank)) @ right.T + mean * rng.normal(size=size)
    return x.astype(np.float32)


def mapping(row: np.ndarray, shapes=SHAPES) -> dict[str, np.ndarray]:
    result, start = {}, 0
    for name, shape in shapes:
        size = int(np.prod(shape))
        result[name] = row[start : start + size].reshape(shape)
        start += size
    return result


def write_npz(folder: Path, x: np.ndarray, shapes=SHAPES) -> list[Path]:
    for index, row in enumerate(x):
        np.savez(folder / f"net-{index + 1}_10.npz", **mapping(row, shapes))
    return pca.find_checkpoints(folder)


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "weights"
    folder.mkdir()
    return write_npz(folder, rows(6))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@settings(deadline=None, max_examples=40)
@given(
    count=st.integers(2, 9),
    size=st.integers(9, 60),
    data=st.data(),
    chunk=st.integers(1, 70),
    seed=st.integers(0, 1000),
)
def test_equals_the_svd(count, size, data, chunk, seed):
    k = data.draw(st.integers(1, count - 1))
    x = rows(count, size, seed=seed)
    p = pca.pca_matrix([{"w": row} for row in x], {"w": (size,)}, k, chunk_elements=chunk)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p, svd_oracle(x, k), atol=2e-6)


def test_equals_scikit_learn():
    decomposition = pytest.importorskip("sklearn.decomposition")
    x = rows(12, 300)
    theirs = decomposition.PCA(5, svd_solver="full").fit(x.astype(np.float64)).components_
    ours = pca.pca_matrix([{"w": row} for row in x], [("w", (300,))], 5).astype(np.float64)
    np.testing.assert_allclose(ours.T @ ours, theirs.T @ theirs, atol=1e-6)
    signs = np.sign(np.sum(ours * theirs, axis=1))
    np.testing.assert_allclose(signs[:, None] * ours, theirs, atol=1e-6)


@pytest.mark.parametrize("chunk", [1, 7, SIZE - 1, SIZE, 10 * SIZE])
def test_chunk_size_does_not_matter(chunk):
    checkpoints = [mapping(row) for row in rows(6)]
    p = pca.pca_matrix(checkpoints, SHAPES, 4, chunk_elements=chunk)
    np.testing.assert_allclose(p, pca.pca_matrix(checkpoints, SHAPES, 4), atol=1e-7)


@pytest.mark.parametrize("condition", [1e2, 1e5, 1e8])
def test_weak_components_stay_orthonormal_and_exact(condition):
    x = rows(8, 500, condition, mean=0)  # beside a mean they would drown in float32 rounding
    p = pca.pca_matrix([{"w": row} for row in x], {"w": (500,)}, 7, chunk_elements=64)
    wide = p.astype(np.float64)
    np.testing.assert_allclose(wide @ wide.T, np.eye(7), atol=1e-6)
    cosines = np.abs(np.sum(wide * svd_oracle(x, 7), axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-6)


def test_projection_is_idempotent_and_variance_falls():
    x = rows(9, 400)
    p = pca.pca_matrix([{"w": row} for row in x], {"w": (400,)}, 6).astype(np.float64)
    projector = p.T @ p
    np.testing.assert_allclose(projector @ projector, projector, atol=1e-6)
    variance = np.var(p @ x.T, axis=1)
    assert np.all(np.diff(variance) < 0)


def test_columns_follow_the_parameters_not_the_checkpoint():
    x = rows(6)
    straight = [mapping(row) for row in x]
    mixed = [dict(sorted(c.items(), reverse=i % 2 == 0)) | {"moments.fc": np.ones(3)} for i, c in enumerate(straight)]
    p = pca.pca_matrix(straight, SHAPES, 3)
    np.testing.assert_array_equal(pca.pca_matrix(mixed, dict(SHAPES), 3), p)
    swapped = pca.pca_matrix(straight, SHAPES[::-1], 3)
    np.testing.assert_allclose(swapped[:, :32], p[:, -32:], atol=1e-6)


def test_inputs_are_not_modified_and_may_be_strided():
    checkpoints = [mapping(row) for row in rows(5)]
    for checkpoint in checkpoints:
        checkpoint["fc.weight"] = np.asfortranarray(checkpoint["fc.weight"])
        for array in checkpoint.values():
            array.flags.writeable = False
    expected = pca.pca_matrix([{n: a.copy() for n, a in c.items()} for c in checkpoints], SHAPES, 2)
    np.testing.assert_array_equal(pca.pca_matrix(checkpoints, SHAPES, 2), expected)


def test_as_many_components_as_checkpoints_ends_with_the_mean():
    x = rows(5)
    p = pca.pca_matrix([mapping(row) for row in x], SHAPES, 5).astype(np.float64)
    np.testing.assert_allclose(p @ p.T, np.eye(5), atol=1e-6)
    np.testing.assert_allclose(p[:4], svd_oracle(x, 4), atol=1e-6)
    mean = x.mean(0, dtype=np.float64)
    assert mean @ p[4] > 0
    np.testing.assert_allclose(p.T @ (p @ mean), mean, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
def test_sign_survives_ties(scale):
    x = scale * rows(2)  # two checkpoints: both scores have the same size
    p = pca.pca_matrix([mapping(row) for row in x], SHAPES, 1, chunk_elements=3)
    assert p[0] @ (x[0] - x[1]) > 0
    nearly = np.array([[0.5, -0.5, 0.1], [-0.5 - 1e-9, 0.5 + 1e-9, -0.9]])
    np.testing.assert_array_equal(pca_components._signs(nearly), [1, -1, -1])


def test_a_chunk_stays_while_the_next_is_prepared():
    x = rows(3)
    with tempfile.TemporaryFile() as scratch:
        scratch.write(x.tobytes())
        seen = []
        for _, block in pca_components._Chunks(scratch, 3, SIZE, 30):
            time.sleep(0.02)  # long enough for the thread to fill what it fills
            seen.append(block.copy())
    joined = np.concatenate(seen, axis=1)
    np.testing.assert_allclose(joined[:3] + joined[3], x, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision(dtype, tmp_path):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    checkpoints = [mapping(row) for row in rows(6)]
    wide = pca.pca_matrix(checkpoints, SHAPES, 3)
    p = pca.pca_matrix(checkpoints, SHAPES, 3, dtype=dtype)
    assert p.dtype.name == dtype
    np.testing.assert_array_equal(p, wide.astype(p.dtype))
    stored = pca.pca_matrix(checkpoints, SHAPES, 3, dtype=dtype, path=tmp_path / "p.npy")
    assert stored.dtype == p.dtype
    loaded = pca.load_matrix(tmp_path / "p.npy", n_components=3, n_elements=SIZE)
    np.testing.assert_array_equal(loaded, p)


def test_half_precision_checkpoints_are_read():
    x = rows(5).astype(np.float16)
    p = pca.pca_matrix([mapping(row) for row in x], SHAPES, 3)
    np.testing.assert_allclose(p, svd_oracle(x, 3), atol=2e-6)


def test_every_file_format_gives_the_same(tmp_path):
    numpy_format = pytest.importorskip("safetensors.numpy")
    x = rows(5)
    expected = pca.pca_matrix(write_npz(tmp_path, x), SHAPES, 3)
    for index, row in enumerate(x):
        numpy_format.save_file(mapping(row), tmp_path / f"net-{index + 1}_10.safetensors")
        (tmp_path / f"net-{index + 1}_10.ckpt").write_bytes(row.tobytes())
    opened = []

    def reader(path: Path) -> dict[str, np.ndarray]:
        opened.append(path.name)
        return mapping(np.fromfile(path, np.float32))

    tensors = pca.find_checkpoints(tmp_path, [".safetensors"])
    np.testing.assert_array_equal(pca.pca_matrix(tensors, SHAPES, 3), expected)
    ckpt = pca.find_checkpoints(tmp_path, [".ckpt"])
    result = pca.pca_matrix(ckpt, SHAPES, 3, reader=reader, path=tmp_path / "p.npy")
    np.testing.assert_array_equal(result, expected)
    assert opened == [path.name for path in ckpt]  # each file is parsed once


def test_missing_safetensors_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"a\.safetensors needs .* pip install safetensors"):
        pca.pca_matrix([tmp_path / "a.safetensors"], SHAPES, 1)


def test_checkpoints_sort_by_epoch_and_step(tmp_path):
    for name in ("net-10_5.ckpt", "net-3_120.ckpt", "net-3_20.ckpt", "net_1-1_5.npz", "net.meta"):
        (tmp_path / name).touch()
    (tmp_path / "folder.ckpt").mkdir()
    found = [path.name for path in pca.find_checkpoints(tmp_path)]
    assert found == ["net-3_20.ckpt", "net-3_120.ckpt", "net-10_5.ckpt", "net_1-1_5.npz"]
    pca.save_matrix(tmp_path / "pca.safetensors", np.eye(2, 3, dtype=np.float32))
    assert [path.name for path in pca.find_checkpoints(tmp_path)] == found, "a matrix is no checkpoint"
    with pytest.raises(ValueError, match=r"must hold files ending in \.pt, got none"):
        pca.find_checkpoints(tmp_path, [".pt"])
    with pytest.raises(ValueError, match=r"directory must be an existing directory, got .*nowhere"):
        pca.find_checkpoints(tmp_path / "nowhere")


def test_memory_is_bounded_by_the_chunk(tmp_path):
    count, size, chunk = 20, 400_000, 4096  # the checkpoints are 32 MB, P is 16 MB
    paths = write_npz(tmp_path, rows(count, size), [("w", (size // 4, 4))])
    tracemalloc.start()
    pca.pca_matrix(paths, [("w", (size // 4, 4))], 10, path=tmp_path / "p.npy", chunk_elements=chunk)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    one_checkpoint, chunks = 4 * size, 8 * (3 * count + 2 * 10 + 10) * chunk
    assert peak < 2 * one_checkpoint + chunks + 1_000_000


def test_progress_bar_names_its_stages(capsys):
    checkpoints = [mapping(row) for row in rows(4)]
    pca.pca_matrix(checkpoints, SHAPES, 2, progress=True)
    shown = capsys.readouterr().err
    assert all(s in shown for s in ("read checkpoints", "Gram matrix", "principal components"))
    pca.pca_matrix(checkpoints, SHAPES, 2, progress=None)  # no terminal here
    pca.pca_matrix(checkpoints, SHAPES, 2, progress=False)
    assert capsys.readouterr() == ("", "")


def broken(kind: str) -> list[dict[str, np.ndarray]]:
    checkpoints = [mapping(row.copy()) for row in rows(4)]
    last = checkpoints[3]
    if kind == "missing":
        del last["scale"], last["fc.bias"]
    elif kind == "shape":
        last["fc.weight"] = last["fc.weight"].T
    elif kind == "dtype":
        last["fc.bias"] = np.arange(7)
    elif kind == "huge":
        last["fc.bias"] = np.full(7, 1e300)
    else:
        last["fc.weight"].flat[31 if kind == "nan" else 0] = float(kind)
    return checkpoints


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("missing", r"checkpoints\[3\] must hold all 4 .* these 2: 'fc\.bias', 'scale'"),
        ("shape", r"'fc\.weight' must have shape \(8, 4\), got \(4, 8\)"),
        ("dtype", r"checkpoints\[3\]: parameter 'fc\.bias' must be floating point, got int64"),
        ("nan", r"'fc\.weight' must be finite in float32, got nan at flat position 31"),
        ("-inf", r"'fc\.weight' must be finite in float32, got -inf at flat position 0"),
        ("huge", r"'fc\.bias' must be finite in float32, got 1e\+300 at flat position 0"),
    ],
)
def test_bad_weights_are_named(kind, message, tmp_path):
    with pytest.raises(ValueError, match="pca_matrix: .*" + message):
        pca.pca_matrix(broken(kind), SHAPES, 2, scratch_dir=tmp_path)
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_components": 0}, "n_components must be at least 1, got 0"),
        ({"n_components": 7}, "checkpoints must be at least n_components = 7 in number, got 6"),
        ({"chunk_elements": 0}, "chunk_elements must be at least 1, got 0"),
        ({"dtype": "uint8"}, "dtype must be float32, float16, bfloat16 or int8, got uint8"),
        ({"checkpoints": []}, "checkpoints must hold at least one checkpoint, got none"),
        ({"parameters": []}, "parameters must hold at least one element"),
        ({"parameters": [("a", (2,)), ("a", (2,))]}, "distinct names, got twice: 'a'"),
        ({"parameters": [("a", (-1,))]}, r"sizes >= 0, got \('a', \(-1,\)\)"),
        ({"parameters": [("scale", ())], "n_components": 2}, "at most the 1 elements, got 2"),
    ],
)
def test_bad_arguments_are_named(files, change, message):
    arguments = {"checkpoints": files, "parameters": SHAPES, "n_components": 3} | change
    with pytest.raises(ValueError, match="pca_matrix: .*" + message):
        pca.pca_matrix(**arguments)


def test_bad_checkpoint_lists_are_named(files, tmp_path):
    with pytest.raises(ValueError, match=r"distinct, got checkpoint .*net-1_10\.npz twice"):
        pca.pca_matrix([*files, str(files[0])], SHAPES, 3)
    with pytest.raises(TypeError, match="sequence of paths or mappings, got one str"):
        pca.pca_matrix(str(files[0]), SHAPES, 1)
    with pytest.raises(TypeError, match=r"checkpoints\[0\] must be a path or a mapping .* int"):
        pca.pca_matrix([3], SHAPES, 1)
    with pytest.raises(ValueError, match=r"reader must be given for checkpoint a\.ckpt"):
        pca.pca_matrix(["a.ckpt"], SHAPES, 1)
    files[2].write_bytes(files[2].read_bytes()[:200])
    with pytest.raises(ValueError, match=r"net-3_10\.npz must be a readable checkpoint, got"):
        pca.pca_matrix(files, SHAPES, 3)
    files[2].unlink()
    with pytest.raises(ValueError, match=r"net-3_10\.npz must be a readable .* FileNotFoundError"):
        pca.pca_matrix(files, SHAPES, 3, path=tmp_path / "p.npy")


@pytest.mark.parametrize("condition", [10.0, 1e6])
def test_too_little_variation_is_refused(condition):
    x = np.concatenate([rows(4, condition=condition)] * 2)  # rank 3 of 8 checkpoints
    checkpoints = [mapping(row) for row in x]
    assert pca.pca_matrix(checkpoints, SHAPES, 3).shape == (3, SIZE)
    with pytest.raises(ValueError, match=r"n_components = 5 .* 8 checkpoints of numerical rank 3"):
        pca.pca_matrix(checkpoints, SHAPES, 5)
    with pytest.raises(ValueError, match="numerical rank 0"):
        pca.pca_matrix([mapping(0 * row) for row in x], SHAPES, 1)
