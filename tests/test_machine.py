"""What the control groups of a process allow, and tables on a narrow terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from boost_ext import machine
from boost_ext.config import BoostConfig
from boost_ext.plan import plan
from boost_ext.terminal import Fitting

FILES = {
    "pod/job/cpu.max": "max 100000",
    "pod/cpu.max": "150000 100000",
    "pod/job/memory.max": "max",
    "pod/memory.max": "4294967296",
    "cpu/job/cpu.cfs_quota_us": "300000",
    "cpu/job/cpu.cfs_period_us": "100000",
    "memory/job/memory.limit_in_bytes": "1073741824",
    "memory/memory.limit_in_bytes": "9223372036854771712",
}


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("0::/pod/job\n", (1.5, 4 << 30)),
        ("4:memory:/job\n1:cpu:/job\n0::/\n", (3.0, 1 << 30)),
        ("0::/elsewhere\n", (None, None)),
        ("", (None, None)),
    ],
    ids=["version 2", "version 1", "none", "no groups"],
)
def test_limits(tmp_path: Path, groups: str, expected: tuple[float | None, int | None]) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "groups").write_text(groups)
    assert machine.limits(tmp_path / "groups", tmp_path) == expected


def test_the_facts_of_this_machine() -> None:
    facts = machine.facts()
    assert facts["cpu"]
    assert 1 <= facts["cores_allowed"] <= facts["cores"]
    assert 0 < facts["memory_free"] < facts["memory"]


def shown(table: object, width: int) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(table)
    return screen.getvalue().splitlines()


def test_a_table_that_does_not_fit_becomes_a_list() -> None:
    table = Table(title="Times")
    table.add_column("case")
    for name in ("ours, ms", "peer", "ratio"):
        table.add_column(name, no_wrap=name != "peer", justify="right")
    table.add_row("a [bold]sum[/]", "123456.78", "somebody", "12.34")
    table.add_row("", "123456.78", "somebody else", "")
    assert any("123456.78" in line and "12.34" in line for line in shown(Fitting(table), 60))
    assert shown(Fitting(table), 40) == [
        "Times",
        "a sum",
        "  ours, ms: 123456.78".ljust(40),
        "  peer: somebody".ljust(40),
        "  ratio: 12.34".ljust(40),
        "  ours, ms: 123456.78".ljust(40),
        "  peer: somebody else".ljust(40),
    ]


def test_a_plan_on_any_terminal() -> None:
    decided = plan("O1", BoostConfig())
    for width in (40, 80, 160):
        lines = shown(decided, width)
        text = " ".join("".join(lines).split())
        assert "…" not in text
        assert all(len(line) <= width for line in lines)
        assert all(name in text for name in decided.features)
    assert repr(decided) == str(decided)
    assert repr(decided).startswith("boost plan: level O1, mode auto\n")


GIVEN = {
    "AMD EPYC (family 26, model 2)": "cpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC\nflags\t\t: fma avx2\n",
    "Intel(R) Xeon(R) Platinum 8481C": "cpu family : 6\nmodel : 143\nmodel name : Intel(R) Xeon(R) Platinum 8481C\n",
    "": "CPU implementer : 0x41\nFeatures : asimd sve\n",
}
"""What /proc/cpuinfo says of a core, by the name that we make of it."""


@pytest.mark.parametrize("name", GIVEN)
def test_a_cpu_without_a_number_in_its_name_gets_its_family(tmp_path: Path, name: str) -> None:
    (tmp_path / "cpuinfo").write_text(GIVEN[name] + "\n" + GIVEN[name])
    got, features = machine._cpu(tmp_path / "cpuinfo")
    assert got == name if name else got
    assert features == {"AMD": {"fma", "avx2"}, "Int": set(), "": {"asimd", "sve"}}[name[:3]]
