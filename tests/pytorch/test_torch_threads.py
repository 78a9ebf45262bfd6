"""Calls on PyTorch's tensors run on PyTorch's own threads, with the bits of all others, and with the same manners."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from boost_ext import ops  # noqa: E402

N = 1 << 20
BEGIN = f"""
import os, sys
import numpy as np
import torch
import boost_ext
from boost_ext import ops

boost_ext.set_num_threads(3)
torch.set_num_threads(3)
x = np.ones({N}, np.float32)
t = torch.from_numpy(x)
"""
THREADS = """
def threads():
    return len(os.listdir("/proc/self/task"))

t.clone().exp_()
before = threads()
assert ops.global_norm([t]) == 1024
assert threads() == before, threads() - before
assert ops.global_norm([x]) == 1024
assert threads() == before + 2, threads() - before
"""
FORK = """
for depth in range(2):
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert ops.global_norm([t]) == 1024
    boost_ext.set_num_threads(2)
    assert ops.adasum_pair([t], [t])[0].numpy().tobytes() == x.tobytes()  # functions of PyTorch would wait for ever
"""


def has_gcc_openmp() -> bool:
    try:
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def run(script: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    command = [sys.executable, "-c", BEGIN + script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="Linux lists a process's threads")
@pytest.mark.skipif(not has_gcc_openmp(), reason="this PyTorch has another OpenMP")
def test_no_thread_is_started_beside_pytorchs():
    run(THREADS)


@pytest.mark.parametrize("used_before", [True, False])
def test_calls_after_a_fork(used_before):
    """The threads of the parent are not there in the child, nor in its child."""
    run(("assert ops.global_norm([t]) == 1024\n" if used_before else "") + FORK)


def stepped(arrays: list[Any]) -> list[bytes]:
    for step in (1, 2):
        ops.adamw_step(*([a] for a in arrays), lr=0.1, step=step)
    norm = np.float64(ops.global_norm(arrays))
    return [norm.tobytes(), *(np.asarray(a).tobytes() for a in arrays)]


def fresh() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    w, g = (rng.standard_normal(N // 2 + 13).astype(np.float32) for _ in range(2))
    return [w, g, np.zeros_like(w), np.zeros_like(w)]


@pytest.fixture
def both(threads):
    """The threads of ours and of PyTorch for one test."""
    before = torch.get_num_threads()

    def choose(ours: int, theirs: int) -> None:
        threads(ours)
        torch.set_num_threads(theirs)

    yield choose
    torch.set_num_threads(before)


@pytest.mark.parametrize(("ours", "theirs"), [(1, 2), (2, 1), (2, 2), (3, 2), (2, 5)])
def test_same_bits(both, ours, theirs):
    both(ours, theirs)
    assert stepped([torch.from_numpy(a) for a in fresh()]) == stepped(fresh())


def test_concurrent_calls(both):
    both(3, 2)
    expected = stepped(fresh())
    with ThreadPoolExecutor(3) as pool:
        found = pool.map(lambda _: stepped([torch.from_numpy(a) for a in fresh()]), range(6))
        assert list(found) == [expected] * 6


def test_subnormal_numbers_are_kept_where_pytorch_flushes_them(both):
    both(2, 2)
    small = np.full(N, 1e-40, np.float32)
    if not torch.set_flush_denormal(True):
        pytest.skip("PyTorch does not flush them on this CPU")
    try:
        sums = torch.zeros(N)
        ops.accumulate([sums], [torch.from_numpy(small)], 0.5)
    finally:
        torch.set_flush_denormal(False)
    assert (sums.numpy() == np.float32(0.5) * small).all()
    assert sums.numpy()[0] > 0
