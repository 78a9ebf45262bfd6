"""thor on two ranks: the matrices of both, in groups, in both modes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.distributed.launch import launch


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_two_ranks(mode: str, tmp_path: Path) -> None:
    done = launch(Path(__file__).with_name("thor_ranks.py"), 2, mode, folder=tmp_path).require_success()
    text = "".join(done.logs)
    assert "rank 0 is right" in text
    assert "rank 1 is right" in text
