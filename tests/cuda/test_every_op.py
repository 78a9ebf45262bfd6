"""tests/cuda/every_op.py on the emulator, or on a GPU with and without compute-sanitizer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import every_setting
import pytest
from gpu import missing_gpu

import boost_ext
from boost_ext import _core
from on_cuda import EMULATED

NO_GPU = missing_gpu()
BY_NVCC = Path(__file__).parents[2] / "build" / "cuda" / "native_tests"
EVERY_OP = Path(__file__).with_name("every_op.py")
SANITIZER = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
UNSUPPORTED = "Device not supported"  # what compute-sanitizer says where it has no access to the GPU's debugger


def run(*before: str, short: bool) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(folder) for folder in (Path(boost_ext.__file__).parents[1], EVERY_OP.parents[1]))
    command = [*before, sys.executable, str(EVERY_OP), *(["--short"] if short else [])]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, timeout=500, env=environment)


@pytest.mark.skipif(bool(NO_GPU) and not EMULATED, reason=NO_GPU)
@pytest.mark.parametrize("short", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_every_op_runs(short):
    result = run(short=short)
    assert result.returncode == 0, result.stdout + result.stderr
    if EMULATED:  # what memcheck and racecheck see
        counts = re.search(r"kernels launched: (\d+) of (\d+)", result.stdout)
        assert counts is not None
        assert counts[1] == counts[2]
    ran = result.stdout.splitlines()[0]
    for op in ("unscale_and_check (", "global_norm (", "accumulate ("):
        assert op in ran


@pytest.mark.skipif(not EMULATED, reason="compares with the emulated build")
@pytest.mark.skipif(not BY_NVCC.exists(), reason="there is no build by nvcc: make test-nvcc")
def test_a_build_by_nvcc_has_the_same_kernels():
    def counted(names: Iterable[str]) -> Counter[str]:
        # Each once: by nvcc a template of two files is in both, and the host's linker keeps one.
        plain = {name.replace("(anonymous namespace)::", "") for name in names}
        return Counter(re.search(r"(\w+)(?:<.*>)?\(", name)[1] for name in plain)

    here = every_setting.kernels(every_setting.symbols(Path(_core.__file__)))
    assert counted(every_setting.kernels(every_setting.symbols(BY_NVCC)).values()) == counted(here.values())


@pytest.mark.slow
@pytest.mark.skipif(bool(NO_GPU), reason=NO_GPU)
@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_the_sanitizer_finds_nothing(tool):
    assert SANITIZER is not None
    result = run(SANITIZER, "--tool", tool, "--error-exitcode", "9", short=True)
    if UNSUPPORTED in result.stdout + result.stderr:
        pytest.skip(f"compute-sanitizer: {UNSUPPORTED}")
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    assert "ran: " in result.stdout
    assert "ERROR SUMMARY: 0 errors" in result.stdout + result.stderr or "RACECHECK SUMMARY: 0 hazards" in (
        result.stdout + result.stderr
    )
