"""10,000 steps of LeNet5 take no more memory at the end than at the start, beside MindSpore's own cell."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_memory_does_not_grow() -> None:
    command = [sys.executable, "-m", "benchmarks.long_run"]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
