"""A few random layers; `make fuzz` makes more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import pytest
from hypothesis import HealthCheck, given, settings
from tests.fuzz.layer_recipes import Recipe, recipes

worked = {True: 0, False: 0}


@pytest.fixture(autouse=True)
def graph_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In a folder of its own, where MindSpore writes the graphs of failed compilations."""
    monkeypatch.chdir(tmp_path)
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


@settings(max_examples=40, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
@given(recipe=recipes())
def test_a_layer_is_mindspores(recipe: Recipe) -> None:
    worked[recipe.check()] += 1


def test_most_compute() -> None:
    assert worked[True] > worked[False] > 0
