"""The environment variables that MindSpore needs: on which machine, beside what the user has set, to what effect."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from boost_ext import environment, machine

LIMIT, BLOCKING = {"ONEDNN_MAX_CPU_ISA": "AVX2"}, {"MS_DEV_HOST_BLOCKING_RUN": "1"}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        ({"avx512": False}, {}),
        ({"avx512": True}, LIMIT),
        ({"avx512": True, "dnnl": "AVX2"}, {}),
        ({"avx512": False, "cores": 1}, BLOCKING),
        ({"avx512": False, "cores": 2}, BLOCKING),
        ({"avx512": False, "cores": 2.5}, {}),
        ({"avx512": False, "cores": 0.5, "blocking": "0"}, {}),
        ({"avx512": True, "cores": 2}, LIMIT | BLOCKING),
        ({"avx512": True, "cores": 2, "blocking": "1"}, LIMIT),
    ],
)
def test_what_is_missing_and_set(pretend: Callable[..., None], here: dict[str, Any], expected: dict[str, str]) -> None:
    pretend(**here)
    before = dict(os.environ)
    assert environment.missing() == expected
    advice = environment.advice()
    spins = here.get("cores", 3) <= 2 and here.get("blocking") != "1"
    assert ("PYNATIVE_MODE" in advice) == spins, "also where it is the user's choice"
    assert ("convolutions" in advice) == ("ONEDNN_MAX_CPU_ISA" in expected)
    assert environment.make_fast() == expected
    assert dict(os.environ) == before | expected
    assert environment.make_fast() == {}, "it is set already"


@pytest.mark.parametrize(("quota", "expected"), [(None, 1), (4.0, 1), (0.5, 0.5)])
def test_cores_by_affinity_and_by_the_containers_limit(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, expected: float
) -> None:
    monkeypatch.setattr(machine, "limits", lambda: (quota, None))
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.usable_cores() == expected
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize("value", ["0", "1"])
def test_mindspore_runs_an_op_in_the_thread_that_calls_it(value: str) -> None:
    """By the names of its threads: what waits for ops is called a queue."""
    pytest.importorskip("mindspore")
    code = """if True:
        from pathlib import Path
        import mindspore as ms
        assert int(ms.Tensor(2) + ms.Tensor(3)) == 5
        names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
        print(sum("_queue" in name for name in names))
        """
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, environment.DISPATCH: value},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert (int(done.stdout.split()[-1]) == 0) == (value == "1")
