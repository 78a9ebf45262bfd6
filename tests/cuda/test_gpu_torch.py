"""The ops on PyTorch's tensors on a GPU: beside the CPU kernels and the float64 oracle, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu import needs_gpu, to_gpu, to_host, torch

import oracle
from boost_ext import ops
from dtypes import DTYPES, assert_close, assert_same_bits, normal

pytestmark = needs_gpu

SHAPES = [(), (0,), (1,), (7,), (3, 5), (4095,), (4096,), (4097,), (129, 513), (70_001,)]
EACH_DTYPE = pytest.mark.parametrize("dtype", DTYPES)


def tensors(rng: np.random.Generator, dtype: Any = np.float32) -> list[np.ndarray]:
    return [normal(rng, shape, dtype) for shape in SHAPES]


def assert_all_same_bits(there: list[Any], here: list[np.ndarray]) -> None:
    """Any nan is as good as another: a GPU makes all of them the same, a CPU keeps their payload."""
    for tensor, array in zip(there, here, strict=True):
        got, nan = to_host(tensor), np.isnan(array)
        np.testing.assert_array_equal(np.isnan(got), nan)
        assert_same_bits(got[~nan], array[~nan])


@EACH_DTYPE
@pytest.mark.parametrize("bad", [None, np.inf, np.nan])
def test_unscale_and_check_gives_the_cpus_bits(rng, dtype, bad):
    here = tensors(rng, dtype)
    if bad is not None:
        here[-1][-1] = bad
    there = [to_gpu(a) for a in here]
    report, expected = (ops.unscale_and_check(x, 1 / 3, report=True) for x in (there, here))
    assert report.fetch() == expected
    assert bool(report) == (bad is not None)
    assert_all_same_bits(there, here)


@EACH_DTYPE
def test_accumulate_gives_the_cpus_bits(rng, dtype):
    here, grads = tensors(rng), tensors(rng, dtype)
    there = [to_gpu(a) for a in here]
    for first in (True, False):
        ops.accumulate(here, grads, 1 / 3, first)
        ops.accumulate(there, [to_gpu(g) for g in grads], 1 / 3, first)
    assert_all_same_bits(there, here)


@EACH_DTYPE
def test_adam_gives_the_cpus_bits(rng, dtype):
    weights, grads = tensors(rng, dtype), tensors(rng, dtype)
    state = [[np.zeros(s, np.float32) for s in SHAPES] for _ in range(2)]
    there, there_grads, *there_state = ([to_gpu(a) for a in arrays] for arrays in (weights, grads, *state))
    for step in (1, 2, 3):
        settings: dict[str, Any] = {"lr": 0.01, "step": step, "weight_decay": 0.1, "inv_scale": 0.5}
        ops.adam_step(weights, grads, *state, **settings)
        ops.adam_step(there, there_grads, *there_state, **settings)
    for theirs, ours in zip([there, *there_state], [weights, *state], strict=True):
        assert_all_same_bits(theirs, ours)


@EACH_DTYPE
def test_global_norm_is_the_oracles(rng, dtype):
    here = tensors(rng, dtype)
    norm = ops.global_norm([to_gpu(a) for a in here])
    assert float(norm) == pytest.approx(oracle.global_norm(here), rel=1e-12)


@EACH_DTYPE
def test_pca_project_is_the_oracles(rng, dtype):
    here = tensors(rng, dtype)
    P = normal(rng, (5, sum(a.size for a in here)), dtype)
    out = torch.empty(5, device="cuda")
    ops.pca_project(to_gpu(P), [to_gpu(a) for a in here], out)
    magnitude = np.abs(P.astype(np.float64)) @ np.abs(oracle.flat(here))
    assert_close(to_host(out), oracle.pca_project(P, here), magnitude, roundings=64)


@EACH_DTYPE
def test_adasum_pair_is_the_oracles(rng, dtype):
    a, b = tensors(rng, dtype)[2:], tensors(rng, dtype)[2:]
    out = [to_gpu(np.zeros_like(x)) for x in a]
    ops.adasum_pair([to_gpu(x) for x in a], [to_gpu(x) for x in b], out)
    for got, x, y in zip(out, a, b, strict=True):
        wide, other = x.astype(np.float64), y.astype(np.float64)
        magnitude = 4 * (np.abs(wide) + np.abs(other))
        assert_close(to_host(got), oracle.adasum_pair(wide, other), magnitude, roundings=8)


def test_views_are_taken_where_they_are_contiguous(rng):
    whole = to_gpu(normal(rng, (6, 8)))
    before = to_host(whole).copy()
    ops.unscale_and_check([whole[2:4], whole.view(-1)[1:3]], 0.5)
    expected = before.copy()
    expected[2:4] *= 0.5
    expected.reshape(-1)[1:3] *= 0.5
    assert_same_bits(to_host(whole), expected)
    assert float(ops.global_norm(whole.t())) == float(ops.global_norm(whole))
    for call in (lambda: ops.global_norm(whole[:, ::2]), lambda: ops.centralize(whole.t())):
        with pytest.raises(ValueError, match=r"^\w+: \w+(\[0\])? must be C-contiguous, got a strided array"):
            call()


def test_parameters_go_in_where_nothing_is_recorded():
    weight = torch.nn.Parameter(torch.ones(8, device="cuda"))
    text = r"unscale_and_check: grads(\[0\])? (must not require a gradient|cannot be read through DLPack)"
    with pytest.raises(ValueError, match=text):
        ops.unscale_and_check(weight, 0.5)
    ops.unscale_and_check(weight.detach(), 0.5)
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        with torch.no_grad():
            ops.unscale_and_check(weight, 2.0)
        assert (weight == 1).all()
    else:
        assert (weight == 0.5).all()


def test_host_and_device_do_not_mix():
    with pytest.raises(ValueError, match="global_norm: all arguments must live on one device"):
        ops.global_norm([torch.ones(3, device="cuda"), torch.ones(3)])
    with pytest.raises(ValueError, match="accumulate: all arguments must live on one device"):
        ops.accumulate(np.ones(3, np.float32), torch.ones(3, device="cuda"), 1.0)


def test_results_are_arrays_of_every_framework():
    x = torch.full((4,), 3.0, device="cuda")
    norm = ops.global_norm(x)
    assert norm.__dlpack_device__() == (2, 0)
    assert torch.from_dlpack(norm).item() == 6
    assert torch.as_tensor(norm, device="cuda").item() == 6
    assert norm.numpy().tolist() == [6]
    out = torch.zeros(1, dtype=torch.float64, device="cuda")
    assert ops.global_norm(x, out=out) is out
    assert out.item() == 6


def test_what_is_taken_over_outlives_the_result():
    taken = torch.from_dlpack(ops.global_norm(torch.full((4,), 3.0, device="cuda")))
    for _ in range(10):
        torch.from_dlpack(ops.global_norm(torch.zeros(4, device="cuda")))
    assert taken.item() == 6


def test_twenty_runs_give_the_same_bits(rng):
    x = [to_gpu(normal(rng, n)) for n in (1_000_003, 7, 40_000)]
    y = [to_gpu(normal(rng, t.numel())) for t in x]
    P = to_gpu(normal(rng, (4, 1_040_010)))
    seen = set()
    for _ in range(20):
        dots = torch.zeros(3, 3, dtype=torch.float64, device="cuda")
        projected = torch.zeros(4, device="cuda")
        ops.adasum_dots(x, y, dots)
        ops.pca_project(P, x, projected)
        norm = ops.global_norm(x).numpy()
        seen.add((norm.tobytes(), to_host(dots).tobytes(), to_host(projected).tobytes()))
    assert len(seen) == 1


@pytest.mark.slow
def test_more_elements_than_32_bits_count():
    n = 2**31 + 9
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free GPU memory")
    x = torch.zeros(n, dtype=torch.float16, device="cuda")
    places = [0, 2**31 - 1, 2**31, n - 1]
    x[places] = 2
    assert float(ops.global_norm(x)) == 4
    assert not ops.unscale_and_check(x, 0.5)
    assert x[places].tolist() == [1, 1, 1, 1]
    x[n - 1] = np.inf
    (tensor,) = ops.unscale_and_check(x, 1, report=True).fetch().tensors
    assert (tensor.inf, tensor.nan, tensor.first, tensor.max_abs) == (1, 0, n - 1, 1)
    sums = torch.zeros(n, device="cuda")
    x[n - 1] = 3
    ops.accumulate(sums, x, 2.0)
    assert sums[places].tolist() == [2, 2, 2, 6]


@pytest.mark.skipif(torch is None or torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_call_is_on_the_device_of_its_arrays():
    here, there = torch.full((4,), 3.0, device="cuda:0"), torch.full((4,), 3.0, device="cuda:1")
    with torch.cuda.device(1):
        norm = ops.global_norm(there)
        assert norm.__dlpack_device__() == (2, 1)
        assert float(norm) == 6
    assert torch.cuda.current_device() == 0
    assert float(ops.global_norm(here)) == 6
    with pytest.raises(ValueError, match="global_norm: "):
        ops.global_norm([here, there])
