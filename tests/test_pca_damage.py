"""A PCA matrix and its checkpoints, damaged or hostile: a ValueError that names the file, whatever was hit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.damage import damaged, is_refused
from tests.matrix_file import KEY, begin, damage, forge, header, record

from boost_ext import pca
from boost_ext.ops.projection_codes import QuantizedMatrix, quantize_projection
from boost_ext.subspace.reference import reference_parameters
from boost_ext.subspace.span import load_span, weight_span

N = 100


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "p.npy"


@pytest.fixture
def matrix() -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(1).normal(size=(N, 4)))[0].T.astype(np.float32)


def load(path: Path, k: int = 4, **options) -> np.ndarray:
    return pca.load_matrix(path, n_components=k, n_elements=N, **options)


def test_a_tampered_byte_is_found(out, matrix):
    pca.save_matrix(out, matrix)
    damage(out, "matrix", 3 * 4 * N - 1)  # the last byte of row 2
    with pytest.raises(ValueError, match=r"p\.npy must match the checksum .* of row 2, got"):
        load(out)


@pytest.mark.parametrize("left", [0, 50, 900])
def test_a_truncated_npy_is_found(out, matrix, left):
    np.save(out, matrix)
    out.write_bytes(out.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"load_matrix: .*p\.npy must be a complete \.npy array or a matrix"):
        load(out)


def test_hostile_records_are_named(out, matrix):
    """The checksum of the header is right: it tells of damage, not of who wrote it."""
    pca.save_matrix(out, matrix)
    whole, content, made = out.read_bytes(), header(out), record(out)
    values, rows = whole[begin(out, "matrix") :], made["digests"]["matrix"]
    start = f'{{"__metadata__": {{"{KEY}": '.encode()

    def named(message: str, text: bytes) -> None:
        forge(out, text, values)
        with pytest.raises(ValueError, match=f"^load_matrix: .*p\\.npy.* {message}"):
            load(out)

    def of(change: object) -> bytes:
        text = json.dumps(made | change if isinstance(change, dict) else change)
        return json.dumps(content | {"__metadata__": {KEY: text}}).encode()

    for change, message in (
        ({"version": 9}, "must be of version 1, got 9"),
        (5, "must be of version 1, got None"),
        ({"digests": {}}, "must hold shape, dtype and one checksum a row, got shape .* checksums {}"),
        ({"digests": [1]}, r"one checksum a row, got .* checksums \[1\]"),
        ({"digests": {"matrix": rows[:3]}}, "one checksum a row"),
        ({"digests": {"matrix": 4}}, "one checksum a row"),
        ({"digests": {"matrix": rows, "average": ["0"]}}, "must be whole"),
        ({"shape": 4}, "one checksum a row, got shape 4"),
        ({"shape": ["4", 100]}, r"one checksum a row, got shape \['4', 100\]"),
        ({"shape": [True, 100]}, "one checksum a row, got shape"),
        ({"shape": [-4, -100]}, "one checksum a row, got shape"),
        ({"shape": [4, 100.0]}, r"one checksum a row, got shape \[4, 100.0\]"),
        ({"shape": [4, 99]}, "must be whole, got one that is damaged or cut short"),
        ({"shape": [4, 10**30]}, "must be whole"),
        ({"dtype": ["float32"]}, r"must hold shape, dtype and .*, dtype \['float32'\]"),
        ({"dtype": "float64"}, "must hold shape, dtype and .*, dtype 'float64'"),
        ({"dtype": "int8"}, "one checksum a row"),
        ({"dtype": "float16"}, "must be whole"),
        ({"deep": json.loads("[" * 900 + "]" * 900)}, "must be whole"),
    ):
        named(message, of(change))
    for change in (
        {"matrix": content["matrix"] | {"data_offsets": [0, 1600]}},
        {"matrix": content["matrix"] | {"dtype": "I32"}},
        {"more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}},
    ):
        named("must be whole", json.dumps(content | change).encode())
    for text in (
        start + b'"{"}}',
        start + b'"' + b"[" * 100_000 + b'"}}',
        start + b'"' + b"9" * 5000 + b'"}}',
        start + b"[" * 100_000,
        start,
        start + b"\xff",
        start + b'"1"}, "__metadata__": 5}',
    ):
        named("must be JSON, got", text)
    named("must be of version 1, got None", start + b"{}}}")
    for cut in (8 + len(start), 8 + len(start) + 40):
        out.write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"p\.npy must be whole, got one that is damaged or cut short"):
            load(out)
    out.write_bytes((2**63).to_bytes(8, "little") + whole[8:])
    with pytest.raises(ValueError, match=r"p\.npy must be whole"):
        load(out)


def test_pickles_are_never_loaded(out):
    marker = out.with_name("ran")

    class Payload:
        def __reduce__(self):
            return marker.touch, ()

    np.save(out, np.array([[Payload()] * N] * 4, dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"must be a complete \.npy array or a matrix that boost_ext wrote, got"):
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
    for content in [*damaged(whole, 150), *each_byte, *(whole[:-i] for i in range(1, 60, 5)), whole + b"0"]:
        out.write_bytes(content)
        with pytest.raises(ValueError, match=r"^load_matrix: .*p\.npy"):
            read()


@pytest.mark.filterwarnings("ignore")  # of NumPy, on headers that only Python 2 could have written
def test_a_damaged_npy_loads_or_is_named(out, matrix):
    """Without a checksum over all of it other values may load, but nothing else may be raised."""
    np.save(out, matrix)
    refused, whole = 0, out.read_bytes()
    header = (whole[:i] + bytes([b]) + whole[i + 1 :] for i in range(0, 110, 3) for b in b"\x00(9'")
    for content in [*damaged(whole, 75), *header]:
        out.write_bytes(content)
        refused += is_refused(lambda: load(out), "load_matrix: ")
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
