"""Data-parallel training: the same bits on all ranks, and what one process with the whole batch does.

One launch a number of ranks runs all cases (data_parallel.py); the tests look at what it wrote. A step is the same
graph in both modes: most cases in PYNATIVE_MODE are exhaustive, and have a launch of their own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.distributed.launch import Launch, launch_jobs, python_path

TRAINING = ["plain", "network", "eager", "halves", "dynamic_scale", "fixed_scale", "group_scale", "accumulation"]
TRAINING += ["freezing", "resume", "broadcast", "freeze_cells", "own_construct", "adaptive_clip"]
OTHERS = ["added_up", "different_starts", "rank_0_fails"]
DIM_REDUCE = ["dim_reduce_5", "dim_reduce_2_scaled", "dim_reduce_4_eager", "dim_reduce_autoboost"]
# Three ranks: k is not divisible by them, or smaller; means are no longer exact.
FEW = ["plain", "dynamic_scale", "dim_reduce_5", "dim_reduce_2_scaled", "dim_reduce_autoboost"]
HOLDING = ["accumulation", "freezing", "resume"]
ONLY_PYNATIVE = {"network", "eager", "dim_reduce_4_eager"}
EAGER = {*ONLY_PYNATIVE, "own_construct", "freeze_cells"}
MODES = ["graph", pytest.param("pynative", marks=pytest.mark.exhaustive)]
Results = Callable[[int, str, str], list[dict[str, np.ndarray]]]
NAME = "data_parallel"


def is_exhaustive(mode: str, case: str) -> bool:
    return mode == "pynative" and case not in EAGER


def cases_of(mode: str, exhaustive: bool, ranks: int) -> list[str]:
    """As the script takes them: MODE/CASE."""
    known = FEW if ranks > 2 else [*TRAINING, *DIM_REDUCE, *OTHERS]
    known = [c for c in known if mode == "pynative" or c not in ONLY_PYNATIVE]
    return [f"{mode}/{c}" for c in known if is_exhaustive(mode, c) == exhaustive]


def job(ranks: int, folder: Path, exhaustive: bool = False) -> list[str]:
    cases = [c for mode in ("graph", "pynative") for c in cases_of(mode, exhaustive, ranks)]
    return ["data_parallel", str(folder / NAME), *cases] if ranks <= 3 else []


@pytest.fixture(scope="module")
def results(launched: Callable[[int], Launch], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """results(ranks, mode, case): what each rank wrote; launched when first asked for."""
    known: dict[tuple[int, bool], Path] = {}

    def alone(exhaustive: bool) -> Path:
        folder = tmp_path_factory.mktemp("alone")
        script = Path(__file__).with_name("data_parallel.py")
        command = [sys.executable, str(script), *job(1, folder, exhaustive)[1:]]
        environment = {**os.environ, "GLOG_v": "3", "OMP_NUM_THREADS": "1", **python_path()}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout + done.stderr
        return folder

    def run(ranks: int, exhaustive: bool) -> Path:
        if ranks == 1:
            return alone(exhaustive)
        if not exhaustive:
            return launched(ranks).folder
        folder = tmp_path_factory.mktemp("exhaustive")
        launch_jobs([job(ranks, folder, exhaustive)], ranks, folder).require_success()
        return folder

    def get(ranks: int, mode: str, case: str) -> list[dict[str, np.ndarray]]:
        key = ranks, is_exhaustive(mode, case)
        if key not in known:
            known[key] = run(*key)
        files = [known[key] / NAME / f"{rank}-{mode}-{case}.npz" for rank in range(ranks)]
        return [dict(np.load(file)) for file in files]

    return get


def assert_same_bits(ranks: list[dict[str, np.ndarray]], own: tuple[str, ...] = ()) -> None:
    for name in ranks[0].keys() - set(own):
        for other in ranks[1:]:
            np.testing.assert_array_equal(other[name], ranks[0][name], err_msg=name)


def each(cases: list[str]) -> list[Any]:
    """Ranks, mode and case."""
    known = [(2, c) for c in cases] + [(3, c) for c in cases if c in FEW]
    return [
        pytest.param(n, mode, c, marks=[pytest.mark.exhaustive] * is_exhaustive(mode, c))
        for n, c in known
        for mode in ("graph", "pynative")
        if mode == "pynative" or c not in ONLY_PYNATIVE
    ]


@pytest.mark.parametrize(("ranks", "mode", "case"), each(TRAINING))
def test_trains_as_one_process_with_the_whole_batch(results: Results, mode: str, ranks: int, case: str) -> None:
    got, (want,) = results(ranks, mode, case), results(1, mode, case)
    assert_same_bits(got, own=("loss",))  # each rank's own
    half = case in ("halves", "broadcast")
    for name in want:
        tolerance = {"rtol": 2e-3, "atol": 2e-3} if half else {"rtol": 1e-5, "atol": 1e-6}
        value = np.mean([g[name] for g in got], axis=0) if name == "loss" else got[0][name]
        np.testing.assert_allclose(value, want[name], err_msg=name, **tolerance)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "case", ["dynamic_scale", "fixed_scale", "group_scale", "own_construct", "adaptive_clip", *HOLDING]
)
def test_an_overflow_on_one_rank_is_one_on_all(results: Results, mode: str, case: str) -> None:
    for rank in results(2, mode, case):
        assert np.flatnonzero(rank["overflow"]).tolist() == [2]
    first, last = results(2, mode, case)
    assert np.isfinite(first["loss"]).all()
    assert not np.isfinite(last["loss"][2]), "only the last rank had a bad batch"


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_scale_moves_on_all_ranks(results: Results, mode: str) -> None:
    for rank in results(2, mode, "dynamic_scale"):
        assert rank["scale"].tolist() == [1024, 1024, 2048, 1024, 1024, 2048]
    for rank in results(2, mode, "group_scale"):
        np.testing.assert_allclose(rank["scales"], 64 * 2 ** (3 / 1000) / np.sqrt(2), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_micro_batch_that_overflows_anywhere_counts_nowhere(results: Results, mode: str) -> None:
    for rank in results(2, mode, "accumulation"):
        assert rank["count"].tolist() == 1, "6 micro-batches, one of them dropped, two for each update"


@pytest.mark.parametrize("mode", MODES)
def test_all_ranks_freeze_the_same_layers(results: Results, mode: str) -> None:
    first, last = results(2, mode, "freezing")
    assert set(first["schedule"]) == {0, 1}
    np.testing.assert_array_equal(first["schedule"], last["schedule"])
    assert first["position"].tolist() == last["position"].tolist() == [3]


@pytest.mark.parametrize("mode", MODES)
def test_gradients_add_up_without_gradients_mean(results: Results, mode: str) -> None:
    """The first step of Momentum: twice that of the mean."""
    summed, mean = results(2, mode, "added_up"), results(2, mode, "plain")
    assert_same_bits(summed, own=("loss",))
    assert not np.allclose(summed[0]["weight.a"], mean[0]["weight.a"], rtol=1e-3)


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_do_not_start_alike_are_told(results: Results, mode: str) -> None:
    for rank in results(2, mode, "different_starts"):
        assert "the weights must be the same on all ranks, got others on rank 1 than on rank 0" in str(rank["error"])


@pytest.mark.parametrize(("ranks", "mode", "case"), each(DIM_REDUCE))
def test_h4_h5_dim_reduce_over_ranks(results: Results, mode: str, ranks: int, case: str) -> None:
    """Any number of components on any number of ranks: the steps of one process, decided by the exact mean loss."""
    got, (want,) = results(ranks, mode, case), results(1, mode, case)
    assert_same_bits(got, own=("mine",))
    for name in want.keys() - {"mine", "all", "collectives"}:
        np.testing.assert_allclose(got[0][name], want[name], rtol=2e-3, atol=2e-4, err_msg=name)
    if "rho" in want:
        np.testing.assert_array_equal(got[0]["rho"], want["rho"])
        assert (want["rho"] > 0).any(), "H4: the search succeeds"


def test_a_step_of_dim_reduce_takes_one_gather_and_one_all_reduce(results: Results) -> None:
    """And a gather of losses for each trial point; two all-reduces, of gradients and flag, are those of any step."""
    for rank in results(2, "pynative", "dim_reduce_4_eager"):
        m = np.log(np.maximum(rank["rho"], 1e-9)) / np.log(0.55)
        trials = np.where(rank["rho"] > 0, 1 + np.rint(m).astype(int), 5)  # further points only where one was refused
        assert len(set(trials)) > 1
        expected = np.stack([1 + trials, np.full_like(trials, 3), np.zeros_like(trials)], axis=1)
        np.testing.assert_array_equal(rank["collectives"][1:], expected[1:])  # the first asks whether all are alike
        assert rank["collectives"][0].tolist() == (expected[0] + [1, 0, 0]).tolist()


@pytest.mark.parametrize("mode", MODES)
def test_the_line_search_refuses_on_all_ranks_too(results: Results, mode: str) -> None:
    rho = results(2, mode, "dim_reduce_2_scaled")[0]["rho"]
    assert {r > 0 for r in rho} == {True, False}
    assert (results(2, mode, "dim_reduce_5")[0]["rho"] > 0).all(), "eight points"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_rank_holds_its_rows_of_the_matrix_that_rank_0_built(results: Results, mode: str, ranks: int) -> None:
    got = results(ranks, mode, "dim_reduce_autoboost")
    share = -(-4 // ranks)
    held = np.concatenate([rank["mine"] for rank in got])
    np.testing.assert_array_equal(held[:4], got[0]["all"])
    np.testing.assert_array_equal(held[4:], 0)
    assert all(len(rank["mine"]) == share for rank in got)


@pytest.mark.parametrize("mode", MODES)
def test_the_others_hear_that_rank_0_could_not_build_the_matrix(results: Results, mode: str) -> None:
    first, other = (str(rank["error"]) for rank in results(2, mode, "rank_0_fails"))
    assert "checkpoint" in first
    assert "rank 0 must build" in other
    assert first in other
