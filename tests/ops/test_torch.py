"""Real PyTorch and JAX, where they are; test_frameworks.py and test_layouts.py hold the same with stand-ins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from boost_ext import ops

torch: Any = pytest.importorskip("torch")


def test_backward_refuses_what_was_written():
    x = torch.randn(5, requires_grad=True)
    y = x.exp()
    with torch.no_grad():
        ops.accumulate([y], [torch.full((5,), 100.0)], 1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = x.exp()
    with torch.no_grad():
        ops.global_norm([y])
        ops.unscale_and_check([y], 1.0)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad, y.detach())


def test_tensors_of_inference_have_no_version():
    with torch.inference_mode():
        x = torch.ones(3)
        ops.unscale_and_check([x], 0.5)
    assert x.tolist() == [0.5] * 3


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_results_are_tensors(dtype):
    x = torch.arange(1, 13, dtype=getattr(torch, dtype)).reshape(3, 4)
    total = ops.adasum_pair([x], [x])
    assert isinstance(total[0], torch.Tensor)
    assert total[0].dtype == x.dtype
    assert torch.equal(total[0], x)
    assert torch.equal(ops.adasum_combine(x, x, ops.adasum_dots(x, x)), x)
    dropped = ops.dropout(x, 0.5, 1)
    assert set((dropped / x).flatten().tolist()) == {0, 2}
    projected = ops.pca_project(torch.ones(2, 12), x)
    assert projected.dtype == torch.float32
    assert projected.tolist() == [78, 78]
    assert all(isinstance(r, torch.Tensor) for r in ops.lars_ratios([x], [x]))
    assert isinstance(ops.adasum_pair(np.ones(3, np.float32), np.ones(3, np.float32)), np.ndarray)


def test_channels_last_trains_as_other_networks():
    networks = [torch.nn.Conv2d(3, 8, 3) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    networks[1].to(memory_format=torch.channels_last)
    images = torch.randn(2, 3, 8, 8)
    grads = []
    for network in networks:
        network(images).square().sum().backward()
        grads.append([p.grad for p in network.parameters()])
    assert grads[1][0].is_contiguous(memory_format=torch.channels_last)
    for theirs, ours in zip(*grads, strict=True):
        ours.copy_(theirs)
    for network, its in zip(networks, grads, strict=True):
        params = list(network.parameters())
        state = [[torch.zeros_like(p) for p in params] for _ in range(2)]
        with torch.no_grad():
            assert not ops.unscale_and_check(its, 0.5)
            ops.adam_step(params, its, *state, lr=0.1, step=1)
    assert all(map(torch.equal, networks[0].parameters(), networks[1].parameters()))
    with pytest.raises(ValueError, match=r"^dropout: x must be C-contiguous, got a strided array$"):
        ops.dropout(grads[1][0], 0.5, 1)


def test_adamw_is_torchs(rng):
    weight = rng.standard_normal(500).astype(np.float32)
    theirs, state = torch.tensor(weight, requires_grad=True), [np.zeros_like(weight) for _ in range(2)]
    optimizer = torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1)
    for step in range(1, 21):
        grad = rng.standard_normal(500).astype(np.float32)
        ops.adamw_step(weight, grad, *state, lr=0.01, step=step, weight_decay=0.1)
        theirs.grad = torch.tensor(grad)
        optimizer.step()
    np.testing.assert_allclose(weight, theirs.detach(), rtol=1e-5, atol=1e-6)


def test_generators_and_missing_gradients():
    network = torch.nn.Linear(3, 4)
    with pytest.raises(TypeError, match=r"must be an array or a list or tuple of arrays .*, got generator$"):
        ops.global_norm(network.parameters())
    with pytest.raises(TypeError, match=r"tensors\[0\] must be an array .*, got None \(a parameter without a gradient"):
        ops.global_norm([p.grad for p in network.parameters()])


def test_distributed_tensors():
    tensor = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )  # of one process
    try:
        mesh = tensor.init_device_mesh("cpu", (1,))
        spread = tensor.distribute_tensor(torch.ones(4), mesh, [tensor.Shard(0)])
        with pytest.raises(TypeError, match=r"such as x.to_local\(\), got DTensor$"):
            ops.global_norm([spread])
        assert ops.global_norm([spread.to_local()]) == 2
    finally:
        torch.distributed.destroy_process_group()
