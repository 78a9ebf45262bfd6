"""benchmarks/cuda/visit.sh as far as it goes without a GPU: its tools are stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

VISIT = Path(__file__).resolve().parents[2] / "benchmarks" / "cuda" / "visit.sh"


@pytest.fixture
def visit(tmp_path):
    """visit(*parts), with a compiler that fails; what other tools do is in `tools`."""
    tools = tmp_path / "tools"
    tools.mkdir()

    def tool(name: str, text: str) -> None:
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)

    for name in ("nvidia-smi", "nvcc"):
        tool(name, "echo 9.0")
    tool("cmake", "exit 1")

    def run(*parts: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHON": sys.executable}
        environment |= {"BUILD": str(tmp_path / "build")}
        command = ["bash", str(VISIT), "1", str(tmp_path / "out"), *parts]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)

    run.tool, run.folder = tool, tmp_path
    return run


def test_nothing_runs_with_the_package_before_a_failed_build(visit):
    old = visit.folder / "build" / "package" / "boost_ext"
    old.mkdir(parents=True)
    (old / "__init__.py").write_text("build_info = lambda: {'cuda': 1}\n")
    (old / "cuda.py").write_text("")
    result = visit("build", "tests_cuda")
    assert result.returncode == 1
    assert "build: FAILED with 1" in result.stdout
    assert "nothing else runs: there is no package of this source" in result.stdout
    assert "tests_cuda" not in result.stdout.split("\n", 1)[1]
    assert not old.exists()
    later = visit("tests_cuda")  # a call of its own
    assert "package: FAILED" in later.stdout


def test_a_second_call_adds_to_what_the_first_one_found(visit):
    out = visit.folder / "out"
    out.mkdir()
    (out / "bench.json").write_text('{"global_norm": {"rows": []}}')
    visit("machine")
    visit("machine")
    assert (out / "summary.txt").read_text().count("\nmachine: ") == 2
    assert (out / "logs.txt").read_text().count("== machine") == 2
    assert json.loads((out / "bench.json").read_text()) == {"global_norm": {"rows": []}}


def test_an_unknown_part_is_refused(visit):
    result = visit("everything")
    assert result.returncode == 2
    assert "a part must be one of " in result.stderr
