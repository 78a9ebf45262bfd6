"""Where the matrix of dimension-reduced training comes from, and who waits for it."""

import logging
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from boost_ext import ops, pca
from boost_ext.config import BoostConfig, DimReduceConfig
from boost_ext.ms.ranks.ranks import ALONE, Ranks
from boost_ext.ms.subspace.projection import projection_matrix

WEIGHTS = (Parameter(Tensor(np.zeros((2, 3)), ms.float32), name="w"),)


def test_one_rank_does_not_wait_for_a_file_that_nobody_writes(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(FileNotFoundError, match=r"dim_reduce: pca_mat_path must be .*nope\.npy, where there is none"):
        projection_matrix(WEIGHTS, DimReduceConfig(n_components=2, pca_mat_path=str(tmp_path / "nope.npy")))
    assert time.monotonic() - began < 60


def test_one_of_several_ranks_says_what_it_waits_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "P.npy"
    config = DimReduceConfig(n_components=2, pca_mat_path=path, timeout=1)
    with (
        caplog.at_level(logging.WARNING, "boost_ext"),
        pytest.raises(TimeoutError, match=r"P\.npy must appear within 1 s"),
    ):
        projection_matrix(WEIGHTS, config, Ranks(1, 2, True))
    assert [r.getMessage() for r in caplog.records] == [
        f"dim_reduce: rank 1 of 2 waits up to 1 s for {path}, which somebody puts there"
    ]
    caplog.clear()
    np.save(path, np.eye(2, 6, dtype=np.float32))
    np.testing.assert_array_equal(projection_matrix(WEIGHTS, config, Ranks(1, 2, True)), np.eye(2, 6)[1:])
    assert not caplog.records


def test_a_path_is_a_path(tmp_path: Path) -> None:
    given = {"pca_mat_path": tmp_path / "P.npy", "weight_load_dir": tmp_path}
    config = BoostConfig.load({"dim_reduce": given}).dim_reduce
    assert (config.pca_mat_path, config.weight_load_dir) == (str(tmp_path / "P.npy"), str(tmp_path))
    with pytest.raises(TypeError, match="must be a str or None, got bytes"):
        BoostConfig.load({"dim_reduce": {"pca_mat_path": b"P.npy"}})


def test_the_matrix_is_stored_as_the_configuration_says(tmp_path: Path) -> None:
    path, P = tmp_path / "P.npy", np.linspace(-1, 1, 12, dtype=np.float32).reshape(2, 6)
    np.save(path, P)

    def load(dtype: str | None, ranks: Ranks = ALONE) -> Any:
        config = DimReduceConfig(n_components=2, pca_mat_path=path, pca_mat_dtype=dtype)
        return projection_matrix(WEIGHTS, config, ranks)

    for dtype in (None, "float32", "float16", "int8"):
        assert load(dtype).dtype.name == (dtype or "float32")
    codes, scale = ops.quantize_projection(P)
    for ranks, rows in ((ALONE, slice(0, 2)), (Ranks(1, 2, True), slice(1, 2)), (Ranks(2, 3, True), slice(2, 2))):
        got = load("int8", ranks)
        np.testing.assert_array_equal(got.codes, codes[rows])
        np.testing.assert_array_equal(got.scale, scale[rows])
    pca.save_matrix(path, load("int8"))
    np.testing.assert_array_equal(load(None).codes, codes)
    with pytest.raises(ValueError, match=r"pca_mat_dtype must be int8 or None for .*P\.npy, .*, got float32"):
        load("float32")


def test_the_matrix_is_built_as_the_configuration_says(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(4):
        np.savez(tmp_path / f"c-{i}.npz", w=rng.standard_normal((2, 3)))
    for dtype in ("int8", "float16", None):
        keys = {"pca_mat_path": tmp_path / "P.npy", "weight_load_dir": tmp_path, "pca_mat_dtype": dtype}
        config = DimReduceConfig(n_components=3, timeout=1, **keys)
        (tmp_path / "P.npy").unlink(missing_ok=True)
        assert projection_matrix(WEIGHTS, config).dtype.name == (dtype or "float32")
