"""Muon on two ranks: every matrix is orthogonalized after its gradients were exchanged, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.distributed.launch import Launch

MODES = ("pynative", "graph")


def job(ranks: int, folder: Path) -> list[str]:
    return ["muon_ranks", *MODES] if ranks == 2 else []


@pytest.mark.parametrize("mode", MODES)
def test_two_ranks(mode: str, launched: Callable[[int], Launch]) -> None:
    text = "".join(launched(2).logs)
    for rank in range(2):
        assert f"muon, {mode}: rank {rank} is right" in text
