"""Where the matrix of dimension-reduced training comes from, and who waits for it."""

import logging
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor

from boost_ext.config import BoostConfig, DimReduceConfig
from boost_ext.ms.projection import projection_matrix
from boost_ext.ms.ranks import Ranks

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
