"""The same bits for any number of threads and any instruction set, and good manners towards other threads and forks."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import boost_ext
from boost_ext import _core, ops
from dtypes import FLOATS, normal

from .steps import VARIANTS

STEPS = ["momentum", "adam", "lamb", "proximal_adagrad", "centered_rmsprop", "ftrl"]
SIZES = [200_003, 7, 0, 1, 65, 32768, 70_000, *range(1, 60)]


def everything(seed: int = 5) -> dict[str, list[bytes]]:
    """Every op on one set of arguments, as bytes: results, and arguments after the call."""
    rng = np.random.default_rng(seed)
    kinds = [list(FLOATS.values())[i % 3] for i in range(len(SIZES))]
    a, b, c = ([normal(rng, n, k) for n, k in zip(SIZES, kinds, strict=True)] for _ in range(3))
    m, proj, dn = ([normal(rng, n) for n in SIZES] for _ in range(3))
    n, k = sum(SIZES), 5
    done: dict[str, list[bytes]] = {}

    def keep(op: str, *arrays: object) -> None:
        done[op] = [np.asarray(x).tobytes() for x in arrays]

    for kind, dtype in FLOATS.items():
        P = normal(rng, (k, n), dtype)
        keep(f"pca_project {kind}", ops.pca_project(P, a))
        out = [[np.empty_like(t) for t in a] for _ in range(3)]
        ops.pca_back_project(P, [normal(rng, k) for _ in out], out)
        keep(f"pca_back_project {kind}", *(t for ts in out for t in ts))
    P, scale = ops.quantize_projection(normal(rng, (k, n)))
    keep("pca_project int8", ops.pca_project(P, a, scale=scale))
    ops.pca_back_project(P, [normal(rng, k) for _ in out], out, scale=scale)
    keep("pca_back_project int8", *(t for ts in out for t in ts))
    keep("adasum_dots", ops.adasum_dots(a, b))
    keep("adasum_pair", *ops.adasum_pair(a, b))
    keep("global_norm", ops.global_norm(a))
    ops.dim_reduce_trial(b, c, dn, 0.1, save=True)
    keep("dim_reduce_trial", *b, *c)
    ops.dim_reduce_apply(m, a, proj, dn, b, gamma=0.9, alpha=0.1, rho=0.5, inv_scale=1 / 3, saved=c, lr=0.01)
    keep("dim_reduce_apply", *m, *b)
    keep("dropout", *(ops.dropout(t, 0.3, 2**60 + 1, draw=t.size, stream=3) for t in a))
    keep("dropout of rows", *(ops.dropout(t, 0.3, 7, shared=t.size // 5 or 1) for t in a if t.size % 5 == 0))
    matrices = [t.reshape(-1, 1 + (t.size % 5 == 0) * 4) for t in c]
    keep("centralize", *ops.centralize(matrices))
    a[0][[3, -1]] = np.inf, np.nan
    report = ops.unscale_and_check(a, 1 / 3, report=True)
    keep("tensor_statistics", ops.tensor_statistics(a, 3))
    keep("unscale_and_check", np.array(str(report)), *a, *(np.float64(t.max_abs) for t in report.tensors))

    rows = rng.integers(0, 1001, 900).astype(np.int32)
    for name in STEPS:
        rule, weights = VARIANTS[name], [t.copy() for t in b]
        state = rule.states(b)
        rule(weights, matrices, state, weight_decay=0.01, inv_scale=1 / 3, centralize=True, step=7)
        if rule.elementwise:  # and some rows of the first tensor
            part = [t[: 1001 * 199].reshape(1001, 199) for t in (weights[0], *(s[0] for s in state))]
            rule(part[0], c[0][: 900 * 199], part[1:], indices=rows)
        keep(f"{rule.name}_step", *weights, *(t for ts in state for t in ts))

    B = np.eye(33, dtype=np.float32)
    s, gk_last, gk, dk = (normal(rng, 33) for _ in range(4))
    B_next = np.empty_like(B)
    slope = ops.dim_reduce_direction(B, s, gk_last, True, gk, B_next, dk, inv_scale=1 / 3)
    keep("dim_reduce_direction", B_next, dk, gk, slope)
    keep("covariance", ops.covariance(normal(rng, (9001, 40), np.float16), np.empty((2, 32, 32))))
    keep("covariance of patches", ops.covariance(normal(rng, (4, 9, 20, 20)), np.empty((9, 9, 9)), kernel=3, padding=1))
    roots = [normal(rng, (5, 33, 40)).astype(np.float64), normal(rng, (1, 70, 90)).astype(np.float64)]
    inverses = [np.empty((len(r), r.shape[1], r.shape[1]), np.float32) for r in roots]
    ops.damped_inverse([r @ r.transpose(0, 2, 1) for r in roots], inverses, damping=0.1)
    keep("damped_inverse", *inverses)
    none, g = np.empty(0, np.float32), [normal(rng, (160, 300)), normal(rng, 40_001)]
    factors = [normal(rng, (5, 33, 33)), none], [normal(rng, (5, 70, 70)), none]
    keep("precondition", *ops.precondition(g, *factors, [np.empty_like(t) for t in g], inv_scale=1 / 3))
    wide = [normal(rng, (33, 60)), normal(rng, (33, 70), np.float16), normal(rng, (140, 9))]
    wide_grads = [normal(rng, t.shape) for t in wide]
    keep("orthogonalize", *ops.orthogonalize(wide, [np.empty(t.shape, np.float32) for t in wide]))
    first, second = ([np.zeros(t.shape, np.float32) for t in wide] for _ in range(2))
    ops.muon_step(wide, wide_grads, first, [None, None, second[2]], lr=0.1, step=1, centralize=True)
    keep("muon_step", *wide, *first, second[2])
    small = [[np.zeros(n, np.float32) for n in (120, 2100, 140 * 3)] for _ in range(2)]
    norms = [np.zeros(1, np.float32) for _ in wide]
    ops.apollo_step(wide, wide_grads, *small, norms, lr=0.1, step=1, centralize=True)
    keep("apollo_step", *wide, *small[0], *small[1], *norms)
    bases = [np.zeros(n, np.float32) for n in (66, 990, 27)]
    small = [[np.zeros(n, np.float32) for n in (120, 2100, 140 * 3)] for _ in range(2)]
    ops.galore_step(wide, wide_grads, bases, *small, lr=0.1, step=1, centralize=True)
    keep("galore_step", *wide, *small[0], *small[1], *bases)
    keep("bfgs_update", ops.bfgs_update(B, s, abs(s) * np.sign(s)), B)
    return done


@pytest.fixture(scope="module")
def reference() -> dict[str, list[bytes]]:
    before = boost_ext.num_threads()
    boost_ext.set_num_threads(1)
    try:
        return everything()
    finally:
        boost_ext.set_num_threads(before)


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 64])
def test_same_bits(reference, threads, count):
    threads(count)
    for op, data in everything().items():
        assert data == reference[op], op


@pytest.mark.usefixtures("isa")
def test_same_bits_at_any_address(rng):
    """A view that begins anywhere in a buffer gives what a fresh array gives."""
    memory = normal(rng, 40_000)
    for start in range(1, 18):
        view = memory[start : start + 33_000]
        fresh = view.copy()
        assert ops.global_norm(view) == ops.global_norm(fresh)
        assert ops.pca_project(view[None], fresh).tobytes() == ops.pca_project(fresh[None], view).tobytes()


def test_instruction_sets_can_be_chosen():
    assert boost_ext.build_info()["isa"] in boost_ext.build_info()["cpu_isas"]
    before = boost_ext.build_info()["isa"]
    with pytest.raises(ValueError, match=r"^set_isa: name must be one of .* on this CPU, got mmx$"):
        _core.set_isa("mmx")
    assert boost_ext.build_info()["isa"] == before


def test_threads_can_be_chosen(threads):
    threads(5)
    assert boost_ext.num_threads() == boost_ext.build_info()["threads"] == 5
    for bad in (0, -1, 1025):
        with pytest.raises(ValueError, match=f"^set_num_threads: threads must be from 1 to 1024, got {bad}$"):
            threads(bad)
    assert boost_ext.num_threads() == 5


def test_concurrent_calls(reference, threads):
    threads(3)
    with ThreadPoolExecutor(4) as pool:
        for data in pool.map(lambda _: everything(), range(8)):
            assert data == reference


def test_changing_the_number_of_threads_during_calls(reference, threads):
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            for count in (1, 4, 2, 3):
                threads(count)

    other = threading.Thread(target=change)
    other.start()
    try:
        for _ in range(3):
            assert everything() == reference
    finally:
        stop.set()
        other.join()


def test_the_gil_is_released(threads):
    """While one thread is inside an op, this one goes on."""
    threads(1)
    P, g = np.ones((64, 1 << 19), np.float16), np.ones(1 << 19, np.float32)
    inside, done, steps = threading.Event(), threading.Event(), 0

    def work() -> None:
        inside.set()
        for _ in range(4):
            ops.pca_project(P, g)
        done.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # only a release, never a request, hands the GIL over
    try:
        other = threading.Thread(target=work)
        other.start()
        inside.wait()
        while not done.is_set():
            steps += 1
            time.sleep(1e-4)
    finally:
        sys.setswitchinterval(interval)
        other.join()
    assert steps > 3


FORK = """
import os, sys
import numpy as np
import boost_ext
from boost_ext import ops

boost_ext.set_num_threads(4)
x = np.ones(1 << 20, np.float32)
assert ops.global_norm(x) == 1024
for depth in range(2):
    child = os.fork()
    if child:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert ops.global_norm(x) == 1024
    boost_ext.set_num_threads(3)
    assert ops.adasum_pair(x, x).tobytes() == x.tobytes()
"""


@pytest.mark.parametrize("used_before", [True, False])
def test_calls_after_a_fork(used_before):
    """What a data loader's workers do. The threads of the parent are not there in the child, nor in its child."""
    script = FORK if used_before else FORK.replace("assert ops.global_norm(x) == 1024\nfor", "for")
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert result.returncode == 0, result.stderr


def test_parent_keeps_its_threads_after_a_fork(threads):
    threads(4)
    x = np.ones(1 << 20, np.float32)
    ops.global_norm(x)
    child = os.fork()
    if not child:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert boost_ext.num_threads() == 4
    assert ops.global_norm(x) == 1024
