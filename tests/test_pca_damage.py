"""A PCA matrix, its checkpoints and its sidecars, damaged: a ValueError that names the file, whatever was hit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests import old_matrix
from tests.damage import damaged, is_refused

from boost_ext import pca
from boost_ext.pca_reference import reference_parameters
from boost_ext.pca_span import load_span, weight_span
from boost_ext.projection_codes import QuantizedMatrix, quantize_projection

N = 100


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "p.npy"


@pytest.fixture
def matrix() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(N, 4)))[0].T.astype(np.float32)


def load(path: Path, k: int = 4, **options) -> np.ndarray:
    return pca.load_matrix(path, n_components=k, n_elements=N, **options)


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_a_tampered_byte_is_found(out, matrix):
    pca.save_matrix(out, matrix)
    damage(out, 4096 + 3 * 4 * N - 1)  # the last byte of row 2
    with pytest.raises(ValueError, match=r"p\.npy must match the checksum .* of row 2, got"):
        load(out)


@pytest.mark.parametrize("left", [0, 50, 900])
@pytest.mark.parametrize("sidecar", [False, True])
def test_a_truncated_npy_is_found(out, matrix, sidecar, left):
    if sidecar:
        old_matrix.save(out, matrix)
    else:
        np.save(out, matrix)
    out.write_bytes(out.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"load_matrix: .*p\.npy must be a complete \.npy array"):
        load(out)


def test_bad_sidecars_are_named(out, matrix):
    note = out.with_name("p.npy.json")
    old_matrix.save(out, matrix)
    good = json.loads(note.read_text())
    for change, message in (
        ({"shape": [4, 99]}, r"p\.npy must be .*99.* by its sidecar, got .*100"),
        ({"version": 9}, r"p\.npy\.json must be 'boost_ext.pca_matrix' version 1, got .* 9"),
        ({"checksum": {}}, "one checksum a row, got shape .* and 0 checksums"),
        ({"checksum": [1]}, "one checksum a row, got shape .* and 0 checksums"),
        ({"checksum": {"rows": [1, 2, 3, 4]}}, "one checksum a row, got shape .* and 4 checksums"),
        ({"shape": 4}, "one checksum a row, got shape 4"),
        ({"shape": ["4", 100]}, r"one checksum a row, got shape \['4', 100\]"),
        ({"dtype": ["float32"]}, r"must hold shape, dtype and .*, dtype \['float32'\]"),
    ):
        note.write_text(json.dumps(good | change))
        with pytest.raises(ValueError, match="load_matrix: .*" + message):
            load(out)
    for text in ("{", "[" * 100_000, "9" * 5000, b"\xff"):
        note.write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(ValueError, match=r"p\.npy\.json must be JSON, got"):
            load(out)


def test_pickles_are_never_loaded(out):
    marker = out.with_name("ran")

    class Payload:
        def __reduce__(self):
            return marker.touch, ()

    np.save(out, np.array([[Payload()] * N] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"must be a complete \.npy array, got"):
        load(out)
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["float32", "float16", "int8", "average"])
def test_any_damage_of_a_matrix_is_found(out, matrix, kind):
    if kind == "average":
        checkpoints = [{"w": np.random.default_rng(i).normal(size=N).astype(np.float32)} for i in range(4)]
        weight_span(checkpoints, {"w": (N,)}, path=out)
    else:
        saved = QuantizedMatrix(*quantize_projection(matrix)) if kind == "int8" else matrix.astype(kind)
        pca.save_matrix(out, saved, parameters={"w": (N,)})

    def read() -> None:
        if kind == "average":
            load_span(out, n_elements=N)
        else:
            load(out)

    read()
    whole = out.read_bytes()
    each_byte = (whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(0, len(whole), 61))
    values = whole[: 4096 + 4 * N * np.load(out).itemsize]
    for content in [*damaged(whole, 150), *each_byte, *(whole[:-i] for i in range(1, 60, 5)), values]:
        out.write_bytes(content)
        with pytest.raises(ValueError, match=r"^load_matrix: .*p\.npy"):
            read()


@pytest.mark.filterwarnings("ignore")  # of NumPy, on headers that only Python 2 could have written
@pytest.mark.parametrize("kind", ["plain", "sidecar", "int8"])
def test_a_damaged_npy_loads_or_is_named(out, matrix, kind):
    """Without a checksum over all of it other values may load, but nothing else may be raised."""
    if kind == "int8":
        old_matrix.save(out, *quantize_projection(matrix))
    elif kind == "sidecar":
        old_matrix.save(out, matrix, parameters=[["w", [N]]])
    else:
        np.save(out, matrix)
    refused = 0
    for target in sorted(out.parent.iterdir()):
        whole = target.read_bytes()
        header = (whole[:i] + bytes([b]) + whole[i + 1 :] for i in range(0, 110, 3) for b in b"\x00(9'")
        for content in [*damaged(whole, 75), *header]:
            target.write_bytes(content)
            refused += is_refused(lambda: load(out), "load_matrix: ")
        target.write_bytes(whole)
    assert refused > 90


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "header",
    [
        "(" * 5000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': " + "(" * 900 + ")" * 900 + ", }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 100), ",
        "{'descr': {}, 'fortran_order': False, 'shape': (4, 100), }",
        "{'descr': '<f4', 'fortran_order': [], 'shape': 4, }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-4, -100), }",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({2**62}, {2**62}), }}",
        f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**30}, 1), }}",
        "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4, 100), }",
        "{[]: 1}",
        "'unterminated",
        "\x00",
    ],
    ids=range(12),
)
def test_odd_npy_headers_are_named(out, header):
    text = header.encode() + b"\n"
    out.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(1600))
    with pytest.raises(ValueError, match=r"^load_matrix: .*p\.npy must "):
        load(out)


@pytest.mark.parametrize("save", ["npz", "compressed", "safetensors"])
def test_a_damaged_checkpoint_loads_or_is_named(tmp_path, save):
    values = {"w": np.arange(N, dtype=np.float32)}
    path = tmp_path / f"a.{'safetensors' if save == 'safetensors' else 'npz'}"
    if save == "safetensors":
        pytest.importorskip("safetensors.numpy").save_file(values, str(path))
    else:
        {"npz": np.savez, "compressed": np.savez_compressed}[save](path, **values)
    other, whole, refused = {"w": np.ones(N, np.float32)}, path.read_bytes(), 0
    for content in damaged(whole, 150):
        path.write_bytes(content)
        for read in (
            lambda: pca.pca_matrix([path, other], {"w": (N,)}, 2),
            lambda: reference_parameters(path),
        ):
            refused += is_refused(read, "pca_matrix: ", "reference_parameters: ")
    assert refused > 60
