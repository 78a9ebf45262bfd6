"""Arrays of CuPy and JAX, where they are installed."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from gpu import needs_gpu, sleep, torch

from boost_ext import ops
from dtypes import assert_same_bits, normal

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture(scope="module")
def jax() -> Any:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else three quarters of the card are JAX's
    module = pytest.importorskip("jax")
    if module.default_backend() != "gpu":
        pytest.skip("JAX has no GPU")
    return module


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_cupy_arrays(cupy, rng, dtype):
    here = [normal(rng, shape, dtype) for shape in ((), (0,), (33, 17), (5000,))]
    there = [cupy.asarray(a) for a in here]
    report, expected = (ops.unscale_and_check(x, 1 / 3, report=True) for x in (there, here))
    assert report.fetch() == expected
    for theirs, ours in zip(there, here, strict=True):
        assert_same_bits(cupy.asnumpy(theirs), ours)


def test_cupy_takes_results(cupy):
    norm = ops.global_norm(cupy.full(4, 3, np.float32))
    assert cupy.from_dlpack(norm).get().tolist() == [6]
    assert cupy.asarray(norm).get().tolist() == [6]


def test_cupys_current_stream(cupy):
    x, flag = cupy.ones(1000, np.float32), cupy.zeros(1, np.float32)
    ops.unscale_and_check(x, 0.5, out=flag)
    stream = cupy.cuda.Stream(non_blocking=True)
    external = torch.cuda.ExternalStream(stream.ptr)
    cupy.cuda.Device().synchronize()
    with stream:
        with torch.cuda.stream(external):
            sleep(0.3)
        x.fill(3)
        start = time.perf_counter()
        ops.unscale_and_check(x, 0.5, out=flag)
        took = time.perf_counter() - start
        asleep = not external.query()
    assert asleep
    assert took < 0.15
    stream.synchronize()
    assert (x.get() == 1.5).all()


def test_cupy_and_pytorch_in_one_call(cupy, rng):
    here = [normal(rng, 4000) for _ in range(2)]
    sums, grads = torch.from_numpy(here[0]).cuda(), cupy.asarray(here[1])
    torch.cuda.synchronize()
    cupy.cuda.Device().synchronize()
    ops.accumulate(sums, grads, 0.25)
    assert_same_bits(sums.cpu().numpy(), ops.accumulate(here[0], here[1], 0.25))


def test_jax_arrays_are_read(jax, rng):
    here = [normal(rng, shape) for shape in ((33, 17), (5000,))]
    there = [jax.device_put(a) for a in here]
    for array in there:
        array.block_until_ready()
    assert float(ops.global_norm(there)) == pytest.approx(ops.global_norm(here), rel=1e-12)


def test_jax_takes_results(jax):
    x = jax.device_put(np.full(4, 3, np.float32)).block_until_ready()
    found = ops.unscale_and_check(x, 1.0)
    assert jax.dlpack.from_dlpack(found).tolist() == [0]
