"""The networks of benchmarks/compilation.py train, and each of their layers has a faster function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from benchmarks.compilation import LAYERS, first_step

from boost_ext.ms.core import fast_calls
from boost_ext.ms.core.substitutes import substituted


@pytest.mark.usefixtures("graph_mode")
@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer(monkeypatch: pytest.MonkeyPatch, layer: str) -> None:
    found: set[Any] = set()

    @contextmanager
    def noted(table: Mapping[Any, Any]) -> Iterator[list[Any]]:
        with substituted(table) as met:
            yield met
        found.update(met)

    monkeypatch.setattr(fast_calls, "substituted", noted)
    assert first_step(layer, 2, boosted=True) > 0
    assert len(found) >= (1 if layer.startswith("Dense") else 2)  # there is a Dense before each
