"""What ``python -m benchmarks`` does before it measures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from benchmarks.__main__ import memory_notice
from benchmarks.record import update_page

from boost_ext.bench.harness import Row


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


def test_a_page_has_one_table_for_each_cpu(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n<!-- benchmark: adasum -->\nStill to be measured.\n<!-- end -->\nbehind\n")

    def measure(cpu: str, ours: float) -> None:
        about: dict[str, Any] = {"date": "2026-11-26T10:00", "cpu": cpu, "threads": 2, "boost_ext": {"isa": "avx512"}}
        row = Row("pair", ours, 0, "NumPy", 8, 0, 8 / ours, 2, 5)
        update_page(page, "adasum", {**about, "versions": {"numpy": "1.26.4"}, "others": 0}, [row])

    measure("AMD EPYC", 4)
    measure("Intel Xeon", 2)
    measure("AMD EPYC", 1)
    lines = page.read_text().splitlines()
    assert [re.match(r"\S+ (\w+)", line)[1] for line in lines if line[:2] == "20"] == ["AMD", "Intel"]  # type: ignore[index]
    assert [line.split("|")[2] for line in lines if line.startswith("| pair")] == [" 1.00 ", " 2.00 "]
    assert lines[0] == "# Title"
    assert lines[-2:] == ["<!-- end -->", "behind"]
    assert "Still to be measured." not in lines


def test_a_card_has_one_table_whatever_it_copied_in_a_second(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- benchmark: cuda dropout -->\n<!-- end -->\n")
    for card, rate in (("NVIDIA H100", 3009), ("NVIDIA H100 NVL", 3500), ("NVIDIA H100", 3010)):
        about = {"date": "2026-11-26T10:00", "card": card, "copy_gb_per_second": rate, "versions": {}, "others": 0}
        update_page(page, "cuda dropout", about, [Row("dropout", 1, 0, "PyTorch", 2, 0, 2, 1, 5)])
    found = re.findall(r"^\S+, (.*) GB/s copied", page.read_text(), re.MULTILINE)
    assert found == ["NVIDIA H100, 3010", "NVIDIA H100 NVL, 3500"]
