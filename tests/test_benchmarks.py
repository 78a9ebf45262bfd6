"""What ``python -m benchmarks`` does before it measures."""

from __future__ import annotations

import re

import pytest
from benchmarks.__main__ import memory_notice


def facts(free: float | None, limit: float | None = None) -> dict[str, int | None]:
    return {
        key: None if gib is None else int(gib * 2**30) for key, gib in (("memory_free", free), ("memory_limit", limit))
    }


def test_the_memory_is_told() -> None:
    assert memory_notice(["adasum", "step"], False, facts(9)) == "memory: 8 GiB needed, by step; 9.0 GiB free"
    assert memory_notice(["adasum"], False, facts(7)).startswith("memory: 5 GiB needed, by adasum")
    assert memory_notice(["step"], True, facts(3)).startswith("memory: 2 GiB needed")
    assert memory_notice(["step"], False, facts(None)).startswith("memory: 8 GiB needed")


@pytest.mark.parametrize("there", [facts(7.9), facts(20, 7.9)])
def test_too_little_memory_is_refused(there: dict[str, int | None]) -> None:
    with pytest.raises(MemoryError, match=re.escape("8 GiB needed, by step; 7.9 GiB free. Take --quick, or --only")):
        memory_notice(["adasum", "step"], False, there)
