"""Run logs and configurations that are damaged or hostile: what they hold, or a ValueError that names them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.damage import damaged, is_refused

from boost_ext import report as run_report
from boost_ext.config import BoostConfig
from boost_ext.report.log import End, Header, LineSearch, Parameters, RunLogWriter, Step, TensorOverflow
from boost_ext.report.tables import tables

DEEP = b"[" * 100_000
CONFIG = {
    "boost": {"mode": "manual", "less_bn": True},
    "common": {"gradient_split_groups": [50, 100], "device_number": 8},
    "dim_reduce": {"rho": 0.5, "pca_mat_path": "a.npy", "timeout": 3},
    "grad_freeze": {"freeze_p": 0.5},
}


def load(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    return is_refused(lambda: BoostConfig.load(str(path)), "boost_config_dict")


def test_a_damaged_configuration_loads_or_is_named(tmp_path: Path) -> None:
    whole = json.dumps(CONFIG).encode()
    refused = 0
    for content in damaged(whole, 300):
        try:
            refused += load(tmp_path / "boost.json", content)
        except TypeError as error:  # values of a wrong type and nothing else, as documented
            refused += str(error).startswith("boost_config_dict")
    assert refused > 200


@pytest.mark.parametrize(
    "content",
    [
        DEEP,
        b'{"boost":' * 100_000,
        b'{"boost":' + DEEP[:900] + b"]" * 900 + b"}}",
        b"9" * 5000,
        b'{"dim_reduce":{"timeout":' + b"9" * 5000 + b"}}",
        b'{"\\ud800":1}',
        b'{"boost":{"\\ud800":1}}',
        b'{"dim_reduce":{"rho":NaN}}',
        b"\xff\xfe",
        b"\x00" * 30,
    ],
    ids=range(10),
)
def test_odd_configurations_are_named(tmp_path: Path, content: bytes) -> None:
    assert load(tmp_path / "boost.json", content)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.jsonl"
    plan = {"level": "O1", "features": [{"name": "less_bn", "applied": True, "reason": "x", "details": {}}]}
    overflow = TensorOverflow(name="w", inf=1, nan=0, first_index=0, largest=1.0)
    header = Header(started="2026-01-02", name="x", parameters=Parameters(tensors=1, elements=2), plan=plan)
    with RunLogWriter(path, header) as writer:
        for i in range(1, 5):
            numbers = {"loss": i / 2, "loss_scale": 8.0, "frozen_share": 0.5, "freeze_index": 2, "seconds": 0.1}
            search = LineSearch(accepted=True, rho=0.5)
            over = {"overflow": True, "overflowed": (overflow,)} if i == 3 else {}
            writer.write(Step(step=i, epoch=1, line_search=search, slots={"source": 0.1}, **numbers, **over))
        writer.write(End())
    return path


def shown(path: Path) -> None:
    """Read, and made into every table of the report."""
    run = run_report.read(path)
    for table in tables([run], ["x"]):
        str(table.rows).encode()


def test_a_damaged_log_is_shown_or_named(log: Path) -> None:
    whole, refused = log.read_bytes(), 0
    for content in damaged(whole, 500):
        log.write_bytes(content)
        refused += is_refused(lambda: shown(log), f"run log {log}: ")
    assert refused > 250


ODD_STEPS = [
    {"step": 10**400},
    {"epoch": 2**63},
    {"freeze_index": 10**400},
    {"loss": 10**400},
    {"slots": {"a": 10**400}},
]
ODD_HEADERS = [{"rank": 10**400}, {"name": "\ud800"}, {"plan": {"\ud800": 1}}, {"parameters": {"tensors": 10**99}}]


def test_odd_lines_are_named(log: Path) -> None:
    header, step, *rest = log.read_bytes().splitlines(keepends=True)

    def changed(line: bytes, change: dict[str, object]) -> bytes:
        return json.dumps(json.loads(line) | change).encode() + b"\n"

    deep = header[:-2] + b',"deep":' + b'{"a":' * 900 + b"1" + b"}" * 901 + b"\n"
    for content in [
        *([header, changed(step, change), *rest] for change in ODD_STEPS),
        *([changed(header, change), step, *rest] for change in ODD_HEADERS),
        *([deep.replace(b"deep", name), step, *rest] for name in (b"deep", b"plan")),
        [DEEP + b"\n", step, *rest],
        [header, DEEP + b"\n", step, *rest],
        [b"\xff\xfe\n", step, *rest],
    ]:
        log.write_bytes(b"".join(content))
        assert is_refused(lambda: shown(log), f"run log {log}: "), content[0][:200]
