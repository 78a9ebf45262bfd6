"""MindSpore tests run in both modes."""

import gc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import mindspore as ms
import pytest


@pytest.fixture(params=[ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def mode(request: pytest.FixtureRequest) -> Iterator[int]:
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.fixture
def graph_mode() -> Iterator[None]:
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=mode)


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore writes into the working directory: rewritten networks (level O1), the graph of a failed compilation."""
    monkeypatch.chdir(tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """MindSpore collects garbage before each compilation: not through what earlier tests left and MindSpore keeps. That
    took a quarter of the time of these tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """GRAPH_MODE compiles everything: there the cells' ``compile`` decides nothing, and one value of it is enough."""

    def is_repeated(item: pytest.Item) -> bool:
        params = getattr(getattr(item, "callspec", None), "params", {})
        return params.get("mode") == ms.GRAPH_MODE and params.get("compile") in ("network", "off")

    repeated = [item for item in items if is_repeated(item)]
    config.hook.pytest_deselected(items=repeated)
    items[:] = [item for item in items if not is_repeated(item)]

    for item in items:
        if mark := item.get_closest_marker("standard"):
            params = item.callspec.params  # type: ignore[attr-defined]
            if not mark.args[0](SimpleNamespace(**params, graph=params.get("mode") == ms.GRAPH_MODE)):
                item.add_marker("exhaustive")
