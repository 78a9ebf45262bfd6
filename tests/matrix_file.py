"""A file of a PCA matrix, taken apart and put together for tests: a safetensors file with a checked header."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

KEY = "boost_ext.pca_matrix"


def header(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])


def record(path: Path) -> dict[str, Any]:
    return json.loads(header(path)["__metadata__"][KEY])


def begin(path: Path, tensor: str) -> int:
    """Where a tensor begins."""
    return 8 + int.from_bytes(path.read_bytes()[:8], "little") + header(path)[tensor]["data_offsets"][0]


def damage(path: Path, tensor: str, byte: int) -> None:
    content = bytearray(path.read_bytes())
    content[begin(path, tensor) + byte] ^= 1
    path.write_bytes(content)


def forge(path: Path, text: bytes, values: bytes) -> None:
    """A header that may be anything, with a checksum that is right."""
    start = len(text).to_bytes(8, "little") + text
    path.write_bytes(start + hashlib.blake2b(start, digest_size=16).digest() + values)
