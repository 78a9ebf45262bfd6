"""Calls only enqueue, on the stream that is current, in its order; nobody synchronizes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from gpu import needs_gpu, sleep, torch

import boost_ext.cuda
from boost_ext import ops

pytestmark = needs_gpu

N = 1 << 20
PAUSE = 0.4  # seconds


class Tensors:
    def __init__(self) -> None:
        self.x, self.y, self.m, self.v, self.copy = (torch.ones(N, device="cuda") for _ in range(5))
        self.flag, self.norm = torch.zeros(1, device="cuda"), torch.zeros(1, dtype=torch.float64, device="cuda")


# Each makes 1.5 of 3s.
OPS: dict[str, Callable[[Tensors], Any]] = {
    "unscale_and_check": lambda t: ops.unscale_and_check(t.x, 0.5, out=t.flag),
    "with report": lambda t: ops.unscale_and_check(t.x, 0.5, report=True, out=t.flag),
    "accumulate": lambda t: ops.accumulate(t.x, t.y, -1.5),
    "sgd_step": lambda t: ops.sgd_step(t.x, t.y, lr=1.5),
}


def warm(call: Callable[[Tensors], Any], tensors: Tensors) -> None:
    """CUDA loads a kernel when it is first launched, and may wait for all streams then."""
    call(tensors)
    sleep(0.001)
    tensors.copy.copy_(tensors.x)
    torch.cuda.synchronize()


@pytest.mark.parametrize("call", OPS.values(), ids=OPS.keys())
@pytest.mark.parametrize("side", [True, False], ids=["side stream", "default stream"])
def test_a_call_keeps_the_order_and_does_not_wait(call, side):
    t = Tensors()
    warm(call, t)
    stream = torch.cuda.Stream() if side else torch.cuda.current_stream()
    with torch.cuda.stream(stream):
        t.x.zero_()
        t.copy.zero_()
        sleep(PAUSE)
        t.x.fill_(3)
        start = time.perf_counter()
        call(t)
        took = time.perf_counter() - start
        still_asleep = not stream.query()
        t.copy.copy_(t.x)
        t.x.zero_()
    assert still_asleep
    assert took < PAUSE / 2
    stream.synchronize()
    assert (t.copy == 1.5).all()
    assert not t.x.any()


def test_results_wait_for_nobody_until_they_are_read():
    t = Tensors()
    warm(lambda t: ops.global_norm(t.x), t)
    t.x.zero_()
    torch.cuda.synchronize()
    sleep(PAUSE)
    t.x.fill_(1)
    start = time.perf_counter()
    norm = ops.global_norm(t.x)
    called = time.perf_counter() - start
    value = float(norm)
    assert called < PAUSE / 2 < time.perf_counter() - start
    assert value == 1024


def test_a_result_of_another_stream_is_ready_where_it_is_taken_over():
    t = Tensors()
    warm(lambda t: ops.global_norm(t.x), t)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        sleep(PAUSE)
        t.x.fill_(2)
        norm = ops.global_norm(t.x)
    taken = torch.from_dlpack(norm).clone()  # on the default stream
    torch.cuda.default_stream().synchronize()
    assert taken.item() == 2048


def test_a_stream_can_be_named():
    t = Tensors()
    warm(OPS["unscale_and_check"], t)
    stream = torch.cuda.Stream()
    t.x.fill_(3)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        sleep(PAUSE)
    with boost_ext.cuda.stream(stream.cuda_stream):
        ops.unscale_and_check(t.x, 0.5, out=t.flag)
    before = t.x[:1].clone()  # on the default stream, which does not wait for the other
    torch.cuda.default_stream().synchronize()
    assert not stream.query()
    stream.synchronize()
    assert before.item() == 3
    assert (t.x == 1.5).all()
