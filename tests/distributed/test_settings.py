"""Ranks whose settings differ do not begin: one launch, many wrong settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.distributed.launch import Launch

NAME = "settings"
BOTH = {
    "Adam beta1": "optimizer.beta1 must be the same on all ranks, got 0.8 on rank 1 and 0.9 on rank 0",
    "Adam use_nesterov": "optimizer.use_nesterov must be the same on all ranks, got True on rank 1 and False on rank 0",
    "Momentum weight_decay": "optimizer.weight_decay must be the same on all ranks, got 0.1 on rank 1 and 0 on rank 0",
    "SGD dampening": "optimizer.dampening must be the same on all ranks, got 0.5 on rank 1 and 0 on rank 0",
    "Lamb eps": "optimizer.eps must be the same on all ranks, got 1e-05 on rank 1 and 1e-06 on rank 0",
    "RMSProp decay": "optimizer.decay must be the same on all ranks, got 0.8 on rank 1 and 0.9 on rank 0",
    "FTRL lr_power": "optimizer.lr_power must be the same on all ranks, got -0.6 on rank 1 and -0.5 on rank 0",
}
EXPECTED = {f"{owner}.{name}": text for owner in ("nn", "optim") for name, text in BOTH.items()} | {
    "optim.Adam state_seed": "optimizer.state_seed must be the same on all ranks, got 1 on rank 1 and 0 on rank 0",
    "optim.Adam state_dtype": "optimizer.state_dtype must be the same on all ranks, got 'bfloat16' on rank 1 and 'floa",
    "nn.Sgd factor": "optimizer.factor must be the same on all ranks, got 0.2 on rank 1 and 0.1 on rank 0",
    "another optimizer": "optimizer must be the same on all ranks, got a boost_ext Adam on rank 1 and a boost_ext ",
    "schedule": "optimizer.learning_rate.decay_steps must be the same on all ranks, got 6 on rank 1 and 5 on rank 0",
    "schedule of a user": "optimizer.learning_rate.factor must be the same on all ranks, got 0.8 on rank 1 and 0.9 on",
    "rates": "optimizer.init_learning_rate must be the same on all ranks, got (0.1, 1.2) on rank 1 and (0.1, 0.2) on",
    "rate of a group": "optimizer.params[0].lr must be the same on all ranks, got 1.1 on rank 1 and 0.1 on rank",
    "centralization of a group": "optimizer.params[0].grad_centralization must be the same on all ranks, got Tr",
    "decay of a group": "optimizer.params[0].weight_decay.decay_steps must be the same on all ranks, got 6 on rank 1 a",
    "coefficient of LARS": "optimizer.coefficient must be the same on all ranks, got 0.02 on rank 1 and 0.01 on rank 0",
    "fewer parameters": "optimizer.params must be the same on all ranks, got (w Float32 (4, 3)) on rank 1 and (",
    "another network": "the parameter more must be the same on all ranks, got Float32 (3,) on rank 1 and nothing on r",
    "clip_norm": "clip_norm must be the same on all ranks, got 2 on rank 1 and 1 on rank 0",
    "clip_norm of one": "clip_norm must be the same on all ranks, got 1 on rank 1 and None on rank 0",
    "adaptive_clip": "adaptive_clip must be the same on all ranks, got AdaptiveClip(clipping=0.01, eps=0.001, exclude",
    "adaptive_clip of one": "adaptive_clip must be the same on all ranks, got AdaptiveClip(clipping=0.01, eps=0.001,",
    "accumulation_steps": "accumulation_steps must be the same on all ranks, got 3 on rank 1 and 2 on rank 0",
    "sens": "the state must be the same on all ranks, got others on rank 1 than on rank 0: scale_sense; give all ranks",
    "compile": "compile must be the same on all ranks, got off on rank 1 and step on rank 0",
    "strategy of freezing": "optimizer.train_strategy must be the same on all ranks, got int32 (2,) with checksum ",
    "groups of freezing": "optimizer.opt_1.optimizer.params must be the same on all ranks, got (b Float32 (1, 3)) on",
    "initial scale": "the state must be the same on all ranks, got others on rank 1 than on rank 0: loss_scale.value",
    "window of the scale": "loss scale.rule must be the same on all ranks, got (2, 11, 1.8446744073709552e+19) on ",
    "window of MindSpore's scale": "loss scale.scale_window must be the same on all ranks, got 11 on rank 1 and 10",
    "largest scale of groups": "loss scale.maximum must be the same on all ranks, got 1024 on rank 1 and 512 on rank 0",
    "scale of groups": "the state must be the same on all ranks, got others on rank 1 than on rank 0: loss_scale.",
    "dim_reduce.sigma": "dim_reduce.sigma must be the same on all ranks, got 0.5 on rank 1 and 0.4 on rank 0",
    "state": "the state must be the same on all ranks, got others on rank 1 than on rank 0: moment1.w; give all ranks",
    "steps made": "the state must be the same on all ranks, got others on rank 1 than on rank 0: boost.steps; give all",
}


def job(ranks: int, folder: Path) -> list[str]:
    if ranks != 2:
        return []
    (folder / NAME).mkdir()
    return ["settings", str(folder / NAME)]


@pytest.fixture(scope="module")
def said(launched: Callable[[int], Launch]) -> list[dict[str, str]]:
    """What each rank said of each case."""
    return [json.loads((launched(2).folder / NAME / f"said-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_setting_that_differs_is_named_on_every_rank(name: str, said: list[dict[str, str]]) -> None:
    for rank in said:
        owner, _, text = rank[name].partition(": ")
        assert owner.startswith("BoostTrainOneStep")
        assert text.startswith(EXPECTED[name])


def test_every_case_is_looked_at(said: list[dict[str, str]]) -> None:
    assert set(said[0]) == set(said[1]) == {*EXPECTED, "nothing", "a TrainingState"}


def test_what_is_each_ranks_own_may_differ(said: list[dict[str, str]]) -> None:
    assert [rank["nothing"] for rank in said] == ["trained", "trained"]


def test_a_training_state_resumes_all_ranks(said: list[dict[str, str]]) -> None:
    assert [rank["a TrainingState"] for rank in said] == ["8 steps", "8 steps"]
