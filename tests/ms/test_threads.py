"""How many threads kernels use beside MindSpore."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["import mindspore, boost_ext", "import boost_ext, mindspore"])
@pytest.mark.parametrize("asked", [None, "1", "3"])
def test_threads_are_those_that_were_asked_for(first: str, asked: str | None) -> None:
    """MindSpore sets OMP_NUM_THREADS to 1 behind Python's back."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("NUM_THREADS")}
    environment |= {"OMP_NUM_THREADS": asked} if asked else {}
    command = [sys.executable, "-c", f"{first}; print(boost_ext.num_threads())"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert int(done.stdout.split()[-1]) == int(asked or len(os.sched_getaffinity(0)))
