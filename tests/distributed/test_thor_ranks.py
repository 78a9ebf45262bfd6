"""thor on two ranks: the matrices of both, in groups, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.distributed.launch import Launch

MODES = ("pynative", "graph")


def job(ranks: int, folder: Path) -> list[str]:
    return ["thor_ranks", *MODES] if ranks == 2 else []


@pytest.mark.parametrize("mode", MODES)
def test_two_ranks(mode: str, launched: Callable[[int], Launch]) -> None:
    text = "".join(launched(2).logs)
    for rank in range(2):
        assert f"thor, {mode}: rank {rank} is right" in text


def test_a_thor_from_before_the_parallel_mode_is_refused(launched: Callable[[int], Launch]) -> None:
    text = "".join(launched(2).logs)
    for rank in range(2):
        assert f"thor, made too early: rank {rank} is refused" in text
