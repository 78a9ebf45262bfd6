"""A step in mixed precision as a CUDA graph: captured once, replayed, beside the same step call by call."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from gpu import needs_gpu, to_gpu, to_host, torch

import boost_ext
from boost_ext import ops
from device import cudart
from dtypes import normal

pytestmark = needs_gpu

SHAPES = [(300, 70), (70,), (4097,), ()]
STEPS = 8
OVERFLOW = 3  # in this step


class Training:
    """float16 weights with float32 masters; the learning rate, the number of the step and the scale on the device."""

    def __init__(self, rng: np.random.Generator) -> None:
        wide = [normal(rng, shape) for shape in SHAPES]
        self.weights = [to_gpu(w.astype(np.float16)) for w in wide]
        self.masters = [w.float() for w in self.weights]
        self.grads = [torch.zeros_like(w) for w in self.weights]
        self.moments1, self.moments2 = ([torch.zeros_like(m) for m in self.masters] for _ in range(2))
        self.scale = torch.full((1,), 1024.0, device="cuda")
        self.inv_scale = 1 / self.scale
        self.counters = torch.tensor([1, 0, 0], dtype=torch.int32, device="cuda")
        self.found = torch.zeros(1, device="cuda")
        self.step = torch.ones(1, dtype=torch.int32, device="cuda")
        self.lr = torch.full((1,), 0.01, device="cuda")

    def __call__(self) -> None:
        ops.unscale_and_check(self.grads, 1.0, out=self.found)
        ops.adam_step(
            self.weights,
            self.grads,
            self.moments1,
            self.moments2,
            lr=self.lr,
            step=self.step,
            inv_scale=self.inv_scale,
            skip=self.found,
            masters=self.masters,
        )
        ops.loss_scale_update(self.scale, self.counters, self.found, window=2)
        torch.reciprocal(self.scale, out=self.inv_scale)
        self.step.add_((self.found == 0).int())
        self.lr.mul_(0.9)

    def receive(self, grads: list[Any]) -> None:
        for to, grad in zip(self.grads, grads, strict=True):
            to.copy_(grad)

    def state(self) -> list[Any]:
        tensors = [*self.weights, *self.masters, *self.moments1, *self.moments2]
        return [*tensors, self.scale, self.counters, self.step, self.lr, self.found]

    def snapshot(self) -> list[bytes]:
        return [to_host(t).tobytes() for t in self.state()]

    def restore(self, state: list[Any]) -> None:
        for to, saved in zip(self.state(), state, strict=True):
            to.copy_(saved)
        torch.reciprocal(self.scale, out=self.inv_scale)


def gradients(rng: np.random.Generator) -> list[list[Any]]:
    steps = [[to_gpu((8 * normal(rng, shape)).astype(np.float16)) for shape in SHAPES] for _ in range(STEPS)]
    steps[OVERFLOW][2][-1] = np.inf
    return steps


def captured(training: Training) -> Any:
    """A graph of the step. The training is where it was."""
    before = [t.clone() for t in training.state()]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        training()  # the kernels are loaded before
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        training()
    training.restore(before)
    return graph


def test_replays_are_the_steps_bit_for_bit(rng):
    steps = gradients(rng)
    eager, replayed = (Training(np.random.default_rng(1)) for _ in range(2))
    graph = captured(replayed)
    scales = []
    for number, grads in enumerate(steps):
        before = eager.snapshot()[: len(SHAPES)]
        for training in (eager, replayed):
            training.receive(grads)
        eager()
        graph.replay()
        assert eager.snapshot() == replayed.snapshot(), number
        assert bool(eager.found.item()) == (number == OVERFLOW)
        assert (eager.snapshot()[: len(SHAPES)] == before) == (number == OVERFLOW)
        scales.append(eager.scale.item())
    assert eager.step.item() == STEPS  # from 1, and one was skipped
    assert min(np.diff(scales)) < 0 < max(np.diff(scales))


def test_a_graph_needs_no_python_between_replays(rng):
    """Several replays in a row, the queue never empty, are as many steps."""
    grads = gradients(rng)[0]
    eager, replayed = (Training(np.random.default_rng(1)) for _ in range(2))
    graph = captured(replayed)
    for training in (eager, replayed):
        training.receive(grads)
    for _ in range(5):
        eager()
    for _ in range(5):
        graph.replay()
    assert eager.snapshot() == replayed.snapshot()


@pytest.mark.parametrize("op", ["unscale_and_check", "global_norm"])
def test_results_need_memory_of_their_own_in_a_graph(op):
    x = torch.ones(100, device="cuda")
    arguments = {"unscale_and_check": (x, 0.5), "global_norm": (x,)}[op]
    getattr(ops, op)(*arguments)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    message = f"^{op}: out must be given while a CUDA graph is captured, since the graph would own new memory, got none"
    with torch.cuda.graph(graph), pytest.raises(ValueError, match=message):
        getattr(ops, op)(*arguments)
    assert float(ops.global_norm(x)) == (5 if op == "unscale_and_check" else 10)  # the refusal has broken nothing


def test_results_of_the_default_stream_may_go_while_a_stream_is_captured():
    """Nobody may use the default stream while one is captured that waits for it, as CuPy's do and PyTorch's do not."""
    pointer = ctypes.c_void_p()
    assert cudart().cudaStreamCreate(ctypes.byref(pointer)) == 0
    x, out = torch.ones(100, device="cuda"), torch.zeros(1, dtype=torch.float64, device="cuda")
    norm = ops.global_norm(x)
    ops.global_norm(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.ExternalStream(pointer.value)):
        del norm
        ops.global_norm(x, out=out)
    out.zero_()
    graph.replay()
    assert out.item() == 10


def test_workspace_in_a_graph_is_its_own(rng):
    """A norm needs memory for the sums of its blocks, which other calls must not get between two replays."""
    x, out = torch.ones(1 << 20, device="cuda"), torch.zeros(1, dtype=torch.float64, device="cuda")
    ops.global_norm(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ops.global_norm(x, out=out)
    for value in (1, 2, 3):
        x.fill_(value)
        graph.replay()
        other = ops.global_norm(torch.full_like(x, 7))
        assert out.item() == 1024 * value
        assert float(other) == 1024 * 7


def test_large_matrices_in_a_graph(rng):
    """cuBLAS, which PyTorch has loaded, with memory that belongs to the graph."""
    n = 300
    x, identity = to_gpu(normal(rng, (n, n))), torch.eye(n, device="cuda")
    curvature = torch.eye(n, dtype=torch.float64, device="cuda")[None] * 3
    inverted = torch.zeros(1, device="cuda")
    out = [torch.zeros(n, n, device="cuda") for _ in range(3)]

    def run() -> list[Any]:
        ops.orthogonalize(x, out[0])
        ops.precondition(x, identity[None], identity[None], out[1], inv_scale=0.5)
        ops.damped_inverse(curvature, out[2][None], inverted=inverted)
        return out

    run()
    assert boost_ext.build_info()["cuda"]["cublas"] is not None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    for _ in range(2):
        x.copy_(to_gpu(normal(rng, (n, n))))
        curvature.mul_(2)
        eager = [o.clone() for o in run()]
        for o in out:
            o.zero_()
        graph.replay()
        torch.empty(1 << 22, device="cuda").fill_(float("nan"))
        assert [to_host(o).tobytes() for o in out] == [to_host(o).tobytes() for o in eager]
        assert inverted.item() == 1
