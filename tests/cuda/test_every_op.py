"""tests/cuda/every_op.py on the emulator, or on a GPU with and without compute-sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import boost_ext

CUDA = boost_ext.build_info()["cuda"]
pytestmark = pytest.mark.skipif(CUDA is None, reason="this build has no CUDA kernels")
EVERY_OP = Path(__file__).with_name("every_op.py")
SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
UNSUPPORTED = "Device not supported"  # what compute-sanitizer says where it has no access to the GPU's debugger


def run(*before: str, short: bool) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder) for folder in (Path(boost_ext.__file__).parents[1], EVERY_OP.parents[1]))
    command = [*before, sys.executable, str(EVERY_OP), *(["--short"] if short else [])]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)


def test_every_op_runs():
    result = run(short=False)
    assert result.returncode == 0, result.stdout + result.stderr
    ran = result.stdout.splitlines()[0]
    for op in ("unscale_and_check (", "global_norm (", "accumulate ("):
        assert op in ran


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool):
    if CUDA["emulated"]:
        pytest.skip("the CUDA kernels of this build run on the host")
    if SANITIZER is None:
        pytest.skip("compute-sanitizer is not installed")
    result = run(SANITIZER, "--tool", tool, "--error-exitcode", "9", short=True)
    if UNSUPPORTED in result.stdout + result.stderr:
        pytest.skip(f"compute-sanitizer: {UNSUPPORTED}")
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert "ran: " in result.stdout
    assert "ERROR SUMMARY: 0 errors" in result.stdout + result.stderr or "RACECHECK SUMMARY: 0 hazards" in (
        result.stdout + result.stderr
    )
