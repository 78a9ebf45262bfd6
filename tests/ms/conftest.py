"""MindSpore tests run in both modes."""

from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import pytest


@pytest.fixture(params=[ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore writes into the working directory: rewritten networks (level O1), the graph of a failed compilation."""
    monkeypatch.chdir(tmp_path)
