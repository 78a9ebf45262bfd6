"""A PCA matrix as version 1 wrote it: a plain .npy, the record in a sidecar, the scales in another .npy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def save(path: Path, matrix: np.ndarray, scale: np.ndarray | None = None, **source: Any) -> None:
    """Plainly, since what is tested is the reader."""
    np.save(path, np.ascontiguousarray(matrix))
    rows = []
    for index, row in enumerate(matrix):
        digest = hashlib.blake2b(row.tobytes(), digest_size=16)
        if scale is not None:
            digest.update(scale[index].tobytes())
        rows.append(digest.hexdigest())
    if scale is not None:
        np.save(path.with_name(path.name + ".scale.npy"), scale)
    record = {"format": "boost_ext.pca_matrix", "version": 1, "shape": list(matrix.shape), "dtype": matrix.dtype.name}
    record |= {"checksum": {"algorithm": "blake2b-128 of each row", "rows": rows}, **source}
    path.with_name(path.name + ".json").write_text(json.dumps(record))
