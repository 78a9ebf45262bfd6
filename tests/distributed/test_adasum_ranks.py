"""AdaSum over 2 to 8 processes, against the simulator (the same bits) and float64 (which tests the simulator)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adasum_training
import mindspore as ms
import numpy as np
import pytest
from adasum_script import CALLS, SHAPES, deltas, dtypes_of, olds
from tests.distributed.launch import Launch, launch_jobs

from boost_ext import adasum_simulate

CASES = {
    2: ["1/graph/mixed", "1/pynative/mixed", "1/graph/bfloat16"],
    3: ["1/graph/mixed", "1/pynative/float32"],
    4: ["1/graph/mixed", "1/pynative/mixed", "2/graph/mixed", "2/pynative/float16"],
    6: ["1/graph/float32", "2/graph/mixed"],
    8: ["1/graph/float32", "2/graph/mixed"],
}
MANY = (6, 8)  # exhaustive: what they add to 3 and 4 is in the schedule, see tests/test_adasum_simulate.py
TRAINED = (2, 4)
ON_TWO = [2, pytest.param(4, marks=pytest.mark.exhaustive)]
NODES = "nodes of two"
MARGIN = 0.02
NAME = "adasum"


def job(ranks: int, folder: Path) -> list[str]:
    (folder / NAME).mkdir()
    return ["adasum_script", str(folder / NAME), *CASES[ranks], *{2: ["training"], 4: [NODES]}.get(ranks, [])]


@pytest.fixture(scope="module")
def results(launched: Callable[[int], Launch], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each of so many ranks wrote; they are started when a test first asks: once, four again for `training`."""
    known: dict[tuple[int, bool], list[Any]] = {}

    def of(ranks: int, training: bool = False) -> list[Any]:
        again = training and ranks > 2
        if (ranks, again) not in known:
            if again:
                folder = tmp_path_factory.mktemp("training")
                launch_jobs([["adasum_script", str(folder), "training"]], ranks, folder).require_success()
            else:
                folder = launched(ranks).folder / NAME
            known[ranks, again] = [np.load(folder / f"rank_{rank}.npz") for rank in range(ranks)]
        return known[ranks, again]

    return of


def wide(array: Any) -> np.ndarray:
    return np.asarray(array).astype(np.float32)


@pytest.mark.parametrize(
    ("ranks", "case"),
    [
        pytest.param(ranks, case, marks=[pytest.mark.exhaustive] * (ranks in MANY))
        for ranks, cases in CASES.items()
        for case in cases
    ],
)
def test_the_bits_are_those_of_the_simulator(results: Any, ranks: int, case: str) -> None:
    devices, _, name = case.split("/")
    dtypes = dtypes_of(name)
    nodes = ranks // int(devices)
    for call in range(CALLS):
        total = adasum_simulate([deltas(node, call, dtypes) for node in range(nodes)], int(devices))
        for i, (old, delta) in enumerate(zip(olds(dtypes), total, strict=True)):
            expected = wide((wide(old) - wide(delta)).astype(old.dtype))
            assert old.size == 0 or not np.array_equal(expected, wide(old))
            for rank, found in enumerate(results(ranks)):
                got = found[f"{case} {call} {i}"]
                assert got.shape == SHAPES[i]
                np.testing.assert_array_equal(got.astype(np.float32), expected, err_msg=f"rank {rank}, tensor {i}")


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        pytest.param(ranks, name, marks=[pytest.mark.exhaustive] * (ranks > 2 and name != NODES))
        for ranks in TRAINED
        for name, variant in adasum_training.VARIANTS.items()
        if ranks > variant[4]
    ],
)
def test_a_cell_adds_up_what_the_optimizers_of_all_nodes_did(results: Any, ranks: int, name: str) -> None:
    found, devices = results(ranks, name != NODES), adasum_training.VARIANTS[name][4]
    before = [p.asnumpy().copy() for p in adasum_training.Regression().trainable_params()]
    for step in range(adasum_training.STEPS):
        each = [[found[rank][f"{name} {step} delta {i}"] for i in range(2)] for rank in range(0, ranks, devices)]
        total = adasum_simulate(each, devices)
        # Adding up matters: no node alone, and not their mean, comes near.
        assert np.abs(np.mean([d[0] for d in each], axis=0) - total[0]).max() > 1e-3
        for i in range(2):
            now = [rank[f"{name} {step} weight {i}"] for rank in found]
            np.testing.assert_allclose(now[0], before[i] - total[i], rtol=1e-5, atol=1e-6)
            for other in now[1:]:
                np.testing.assert_array_equal(other, now[0])
            before[i] = now[0]
    losses = {float(rank[f"{name} 0 loss"]) for rank in found}
    assert len(losses) == ranks  # each saw its own batch


@pytest.mark.parametrize("ranks", ON_TWO)
def test_half_weights_move_by_the_steps_of_their_masters(results: Any, ranks: int) -> None:
    """Which are too small for the weights themselves: of these there would be no more than 0 to add up."""
    found, name = results(ranks, True), adasum_training.HALVES
    for step in range(adasum_training.STEPS):
        each = [[adasum_training.HALF_RATE * rank[f"{name} {step} grad {i}"] for i in range(2)] for rank in found]
        total = adasum_simulate(each)
        for i in range(2):
            before, after = found[0][f"{name} {step} before {i}"], found[0][f"{name} {step} after {i}"]
            assert np.abs(total[i]).max() > 1e-6
            np.testing.assert_allclose(after, before - total[i], rtol=0, atol=5e-7)  # a rounding or two of the masters
            for rank in found:
                np.testing.assert_array_equal(rank[f"{name} {step} after {i}"], after)
                np.testing.assert_array_equal(rank[f"{name} {step} weight {i}"], rank[f"{name} {step} rounded {i}"])


@pytest.mark.parametrize("ranks", ON_TWO)
def test_an_overflow_of_one_rank_is_one_of_all_and_changes_nothing(results: Any, ranks: int) -> None:
    for found in results(ranks, True):
        assert bool(found["overflow"])
        assert not bool(found["overflow changed"])


@pytest.mark.parametrize("ranks", ON_TWO)
def test_a_resumed_training_has_the_bits_of_an_uninterrupted_one(results: Any, ranks: int) -> None:
    """Though the optimizers of the ranks have states of their own."""
    for found in results(ranks, True):
        for i in range(2):
            np.testing.assert_array_equal(found[f"resumed {i}"], found[f"uninterrupted {i}"])
            assert not np.array_equal(found[f"resumed {i}"], found[f"before {i}"])


@pytest.fixture(scope="module")
def one_process() -> dict[str, Any]:
    found = adasum_training.train_digits(0, 1, over_ranks=False)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    return found


@pytest.mark.parametrize("ranks", ON_TWO)
def test_as_many_samples_over_ranks_train_as_well(results: Any, one_process: dict[str, Any], ranks: int) -> None:
    for found in results(ranks, True):
        assert int(found["digits steps"]) * ranks == one_process["digits steps"]
        assert float(found["digits accuracy"]) >= one_process["digits accuracy"] - MARGIN
    assert one_process["digits accuracy"] > 0.96
