"""The PCA matrix on disk: reuse, atomic writing, and damage that must not go unseen."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tests.matrix_file import begin, damage, record

from boost_ext import pca
from boost_ext.ops.projection_codes import QuantizedMatrix, quantize_projection
from boost_ext.subspace import components as pca_components
from boost_ext.subspace import matrix_file as pca_file
from boost_ext.subspace.matrix_file import storage_dtype
from boost_ext.subspace.span import weight_span

SHAPES = [("a", (5, 8)), ("b", (60,))]
N = 100


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "weights"
    folder.mkdir()
    for index in range(6):
        write(folder / f"net-{index}_1.npz", index)
    return pca.find_checkpoints(folder)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder / "p.npy"


@pytest.fixture
def matrix() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(N, 4)))[0].T.astype(np.float32)


def write(path: Path, seed: int) -> None:
    row = np.random.default_rng(seed).normal(size=N).astype(np.float32)
    np.savez(path, a=row[:40].reshape(5, 8), b=row[40:])


def load(path: Path, k: int = 4, **options) -> np.ndarray:
    return pca.load_matrix(path, n_components=k, n_elements=N, **options)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_written_file_equals_the_array_and_says_its_origin(files, out):
    p = pca.pca_matrix(files, SHAPES, 3, path=out, chunk_elements=7)
    np.testing.assert_array_equal(p, pca.pca_matrix(files, SHAPES, 3, chunk_elements=7))
    assert names(out.parent) == ["p.npy"]
    assert not p.flags.writeable
    made = record(out)
    assert (made["version"], made["shape"], made["dtype"]) == (1, [3, N], "float32")
    assert made["parameters"] == [["a", [5, 8]], ["b", [60]]]
    info = files[0].stat()
    first = {"name": "net-0_1.npz", "size": info.st_size, "mtime_ns": info.st_mtime_ns}
    assert made["checkpoints"][0] == first
    again = load(out, 3, parameters=SHAPES, checkpoints=files)
    np.testing.assert_array_equal(again, p)


def test_valid_matrix_is_reused(files, out):
    first = np.array(pca.pca_matrix(files, SHAPES, 3, path=out))
    before = out.stat()
    second = pca.pca_matrix(files, dict(SHAPES), 3, path=out)
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("change", ["checkpoint", "fewer", "k", "order", "dtype", "damage"])
def test_anything_else_is_rebuilt(files, out, change):
    pca.pca_matrix(files, SHAPES, 3, path=out)
    before = out.stat().st_ino
    arguments = {"checkpoints": files, "parameters": SHAPES, "n_components": 3}
    if change == "checkpoint":
        write(files[2], 99)
        os.utime(files[2], ns=(1, files[2].stat().st_mtime_ns + 1))
    elif change == "damage":
        damage(out, "matrix", 4 * 3 * N - 3)
    else:
        arguments |= {
            "fewer": {"checkpoints": files[:-1]},
            "k": {"n_components": 4},
            "order": {"parameters": SHAPES[::-1]},
            "dtype": {"dtype": "float16"},
        }[change]
    p = pca.pca_matrix(**arguments, path=out)
    np.testing.assert_array_equal(p, pca.pca_matrix(**arguments))
    assert out.stat().st_ino != before
    assert names(out.parent) == ["p.npy"]


def test_mappings_are_known_by_their_weights(files, out):
    checkpoints = [dict(np.load(file)) for file in files]
    pca.pca_matrix(checkpoints, SHAPES, 3, path=out)
    before = out.stat().st_ino
    pca.pca_matrix([dict(np.load(file)) for file in files], SHAPES, 3, path=out)
    assert out.stat().st_ino == before
    checkpoints[4]["b"][7] += 1
    p = pca.pca_matrix(checkpoints, SHAPES, 3, path=out)
    np.testing.assert_array_equal(p, pca.pca_matrix(checkpoints, SHAPES, 3))


def test_a_file_of_the_users_is_never_overwritten(files, out, matrix):
    np.save(out, matrix)
    with pytest.raises(FileExistsError, match=r"pca_matrix: .*p\.npy: a file of yours is not overwritten"):
        pca.pca_matrix(files, SHAPES, 3, path=out)
    np.testing.assert_array_equal(np.load(out), matrix)


@pytest.mark.parametrize("kept", [False, True])
def test_failure_in_the_middle_leaves_nothing_new(files, out, kept, monkeypatch):
    if kept:
        pca.pca_matrix(files, SHAPES, 2, path=out)
    before = names(out.parent), out.read_bytes() if kept else b""
    project = pca_components._project

    def stops(*arguments):
        yield next(project(*arguments))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pca_components, "_project", stops)
    with pytest.raises(OSError, match="No space left"):
        pca.pca_matrix(files, SHAPES, 3, path=out, chunk_elements=9)
    assert before == (names(out.parent), out.read_bytes() if kept else b"")


@pytest.mark.parametrize("chunk", [1, 12])
def test_a_failed_write_of_any_chunk_is_raised(files, out, monkeypatch, chunk):
    put, calls = pca_file._put, []

    def fails(file, places):
        calls.append(places)
        if len(calls) == chunk:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(file, places)

    monkeypatch.setattr(pca_file, "_put", fails)
    with pytest.raises(OSError, match="No space left"):
        pca.pca_matrix(files, SHAPES, 3, path=out, chunk_elements=9)
    assert names(out.parent) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_an_error_of_the_write(out, matrix, monkeypatch):
    real = open
    monkeypatch.setattr(
        "builtins.open",
        lambda path, mode="r", **options: (
            real("/dev/full", "wb") if ".part/" in str(path) else real(path, mode, **options)
        ),
    )
    with pytest.raises(OSError, match="No space left"):
        pca.save_matrix(out, matrix)
    assert names(out.parent) == []


def test_unreadable_checkpoint_leaves_nothing(files, out):
    files[4].write_bytes(files[4].read_bytes()[:-300])
    with pytest.raises(ValueError, match=r"net-4_1\.npz"):
        pca.pca_matrix(files, SHAPES, 3, path=out)
    assert names(out.parent) == []


def test_save_and_load(out, matrix):
    pca.save_matrix(out, matrix, parameters=SHAPES)
    np.testing.assert_array_equal(load(out), matrix)
    np.testing.assert_array_equal(load(out, 2), matrix[:2])
    pca.save_matrix(out, matrix[::-1])
    np.testing.assert_array_equal(load(out), matrix[::-1])


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16", "int8", "average"])
def test_the_package_safetensors_reads_the_file(out, matrix, kind):
    load_file = pytest.importorskip("safetensors.numpy").load_file
    if kind == "average":
        checkpoints = [{"w": row} for row in matrix]
        basis, average = weight_span(checkpoints, {"w": (N,)}, path=out)
        expected = {"matrix": basis, "average": average[None]}
    elif kind == "int8":
        codes, scale = quantize_projection(matrix)
        pca.save_matrix(out, QuantizedMatrix(codes, scale))
        expected = {"codes": codes, "scale": scale}
    else:
        expected = {"matrix": matrix.astype(storage_dtype("", kind))}
        pca.save_matrix(out, expected["matrix"])
    read = load_file(out)
    assert read.pop("header_digest").shape == (16,)
    assert set(read) == set(expected)
    for name, values in expected.items():
        # By name: MindSpore, where a test before this one has imported it, brings a bfloat16 of its own.
        assert read[name].dtype.name == values.dtype.name
        np.testing.assert_array_equal(read[name].astype(np.float32), np.asarray(values, np.float32))
        assert begin(out, name) % 4 == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_plain_file_of_the_users_is_accepted(out, matrix, dtype, order):
    mine = np.asarray(matrix, dtype=dtype, order=order)
    np.save(out, mine)
    loaded = load(out)
    assert loaded.dtype == (np.float16 if dtype == "float16" else np.float32)
    assert loaded.flags.c_contiguous
    np.testing.assert_array_equal(loaded, mine.astype(loaded.dtype))


def test_a_bad_plain_file_is_named(out, matrix):
    for bad, message in (
        (matrix[:3], r"must have shape \(4, 100\), got \(3, 100\)"),
        (matrix[:, :99], r"must have shape \(4, 100\), got \(4, 99\)"),
        (matrix[0], r"must have shape \(4, 100\), got \(100,\)"),
        (matrix.astype(np.int32), "must hold float16, float32 or float64, got int32"),
        (matrix.astype(">f4"), "must hold float16, float32 or float64, got >f4"),
        (np.where(matrix == matrix[3, 99], np.nan, matrix), "must be finite in float32, got row 3"),
        (matrix.astype(np.float64) * 1e300, "must be finite in float32, got row 0"),
    ):
        np.save(out, bad)
        with pytest.raises(ValueError, match="load_matrix: .*" + message):
            load(out)


def test_save_refuses_what_it_cannot_vouch_for(out, matrix, tmp_path):
    for arguments, message in (
        ((matrix[0],), r"matrix must be 2-D and not empty, got \(100,\)"),
        ((matrix.astype(np.float64),), "dtype must be float32, float16, bfloat16 or int8, got float64"),
        ((matrix * np.float32(np.inf),), "matrix must be finite, got nan or inf"),
    ):
        with pytest.raises(ValueError, match="save_matrix: " + message):
            pca.save_matrix(out, *arguments)
    with pytest.raises(ValueError, match="parameters must add up to 100 elements, got 40"):
        pca.save_matrix(out, matrix, parameters=SHAPES[:1])
    with pytest.raises(ValueError, match="parameters must be given with checkpoints, got None"):
        pca.save_matrix(out, matrix, checkpoints=[tmp_path / "a.npz"])
    assert names(out.parent) == []


def test_waiting_ends_with_the_file_or_the_timeout(out, matrix):
    with pytest.raises(FileNotFoundError, match=r"load_matrix: path must be .*p\.npy"):
        load(out)
    start = time.monotonic()
    with pytest.raises(TimeoutError, match=r"p\.npy must appear within 0\.2 s, got no file"):
        load(out, timeout=0.2)
    assert 0.2 <= time.monotonic() - start < 2
    builder = threading.Timer(0.2, pca.save_matrix, (out, matrix))
    builder.start()
    np.testing.assert_array_equal(load(out, timeout=30), matrix)
    builder.join()


def test_an_old_matrix_is_waited_out(files, out):
    pca.pca_matrix(files, SHAPES, 3, path=out)
    wanted = {"parameters": SHAPES, "checkpoints": files[1:]}
    with pytest.raises(ValueError, match=r"must be made from the given checkpoints, got other"):
        load(out, 3, **wanted)
    with pytest.raises(TimeoutError, match=r"within 0\.1 s, got .* other checkpoints"):
        load(out, 3, timeout=0.1, **wanted)
    builder = threading.Timer(0.2, pca.pca_matrix, (files[1:], SHAPES, 3), {"path": out, "progress": False})
    builder.start()
    p = load(out, 3, timeout=30, **wanted)
    builder.join()
    np.testing.assert_array_equal(p, pca.pca_matrix(files[1:], SHAPES, 3))


def test_loading_while_another_process_rebuilds_never_sees_a_mixture(files, out):
    wanted = {"parameters": SHAPES, "checkpoints": files}
    expected = pca.pca_matrix(files, SHAPES, 3)
    stop = threading.Event()

    def rebuild() -> None:
        while not stop.is_set():
            pca.pca_matrix(files[1:], SHAPES, 3, path=out, progress=False)
            pca.pca_matrix(files, SHAPES, 3, path=out, progress=False)

    builder = threading.Thread(target=rebuild)
    builder.start()
    try:
        for _ in range(10):
            np.testing.assert_array_equal(load(out, 3, timeout=30, **wanted), expected)
    finally:
        stop.set()
        builder.join()


def test_a_matrix_replaced_while_it_is_checked_stays_whole(files, out, monkeypatch):
    old = pca.pca_matrix(files[1:], SHAPES, 3, path=out)
    new = pca.pca_matrix(files, SHAPES, 3)
    check = pca_file._checked

    def replace_first(*arguments):
        monkeypatch.setattr(pca_file, "_checked", check)
        pca.pca_matrix(files, SHAPES, 3, path=out, progress=False)
        return check(*arguments)

    monkeypatch.setattr(pca_file, "_checked", replace_first)
    np.testing.assert_array_equal(load(out, 3, timeout=30), old)
    np.testing.assert_array_equal(load(out, 3), new)
