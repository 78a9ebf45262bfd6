"""The health of gradients on two ranks, from before their exchange."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.distributed.launch import Launch


def job(ranks: int, folder: Path) -> list[str]:
    return ["health_ranks", str(folder)] if ranks == 2 else []


def test_both_ranks_name_the_one_at_fault(launched: Callable[[int], Launch]) -> None:
    run = launched(2)
    for rank in range(2):
        assert f"health: rank {rank} is right" in "".join(run.logs)
