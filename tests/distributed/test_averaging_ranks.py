"""Trainable weight averaging on two ranks: one builds the basis, both step by the mean of their gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.distributed.launch import Launch
from tests.ms.test_weight_averaging import checkpoints

NAME = "averaging"


def job(ranks: int, folder: Path) -> list[str]:
    if ranks != 2:
        return []
    (folder / NAME).mkdir()
    for i, values in enumerate(checkpoints()):
        np.savez(folder / NAME / f"net-{i}.npz", **values)
    return ["averaging_ranks", str(folder / NAME)]


def test_two_ranks(launched: Callable[[int], Launch]) -> None:
    run = launched(2)
    for rank in range(2):
        assert f"averaging: rank {rank} is right" in "".join(run.logs)
    assert [p.name for p in (run.folder / NAME).glob("twa*")] == ["twa.npy"]
