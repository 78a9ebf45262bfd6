"""On which cores the threads of ops may run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CORES = sorted(os.sched_getaffinity(0))

CALLS = """
import os
import numpy as np
import boost_ext
from boost_ext import ops

def call():
    ops.unscale_and_check([np.ones(2**20, np.float32)], 0.5)

def threads():
    return {int(name) for name in os.listdir("/proc/self/task")}

def pin(cores):
    os.sched_setaffinity(0, cores)

def allowed():
    return [os.sched_getaffinity(thread) for thread in workers]

boost_ext.set_num_threads(3)
cores = os.sched_getaffinity(0)
before = threads()
"""


def run(script: str) -> None:
    subprocess.run([sys.executable, "-c", CALLS + script], timeout=120, check=True)


def test_a_worker_leaves_the_core_of_its_caller() -> None:
    """On a virtual machine it would be woken there, and wait until the caller has done all."""
    run(
        """
call()
workers = threads() - before
assert len(workers) == 2
for core in [*cores, *cores]:
    pin({core})
    call()
    others = cores - {core} or cores
    assert allowed() == 2 * [others], (core, allowed())
"""
    )


@pytest.mark.skipif(len(CORES) < 2, reason="one core is all there is")
def test_a_worker_gets_no_core_that_it_had_not() -> None:
    run(
        """
core, *rest = cores
pin({core})
call()
workers = threads() - before
pin(cores)
for other in [*rest, core]:
    pin({other})
    call()
    assert allowed() == 2 * [{core}], allowed()
"""
    )
