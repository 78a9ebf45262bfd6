"""Local steps on two ranks, to the bits of the simulator, in both modes; and on three."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.distributed.launch import Launch


def job(ranks: int, folder: Path) -> list[str]:
    return ["local_steps_ranks", str(folder / "local_steps")] if ranks in (2, 3) else []


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks(launched: Callable[[int], Launch], ranks: int) -> None:
    run = launched(ranks)
    for rank in range(ranks):
        assert f"local steps: rank {rank} is right" in "".join(run.logs)
    assert len(list((run.folder / "local_steps").glob("rank*.ckpt"))) == (2 if ranks == 2 else 0)
