"""thor on two ranks: the matrices of both, in groups, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.launch import launch


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("thor")
    return "".join(launch(Path(__file__).with_name("thor_ranks.py"), 2, folder=folder).logs)


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_two_ranks(mode: str, said: str) -> None:
    for rank in range(2):
        assert f"{mode}: rank {rank} is right" in said, said[-4000:]
