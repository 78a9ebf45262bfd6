"""Local steps on two ranks, to the bits of the simulator, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.distributed.launch import Launch


def job(ranks: int, folder: Path) -> list[str]:
    return ["local_steps_ranks", str(folder / "local_steps")] if ranks == 2 else []


def test_two_ranks(launched: Callable[[int], Launch]) -> None:
    run = launched(2)
    for rank in range(2):
        assert f"local steps: rank {rank} is right" in "".join(run.logs)
    assert len(list((run.folder / "local_steps").glob("rank*.ckpt"))) == 2
