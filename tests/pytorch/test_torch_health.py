"""HealthMonitor on a network of PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from boost_ext.health import HealthMonitor  # noqa: E402


def network() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 6), torch.nn.Linear(6, 2)]
    return torch.nn.Sequential(*layers)


def test_the_numbers_are_those_of_pytorch() -> None:
    net, monitor = network(), HealthMonitor(sample=10_000)
    unused = torch.nn.Parameter(torch.ones(3))  # without a gradient
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    parameters = {**dict(net.named_parameters()), "unused": unused}
    for step in (1, 2):
        optimizer.zero_grad()
        net(torch.randn(8, 12)).square().mean().backward()
        before = {name: p.detach().clone() for name, p in parameters.items()}
        optimizer.step()
        gradients = {name: p.grad for name, p in parameters.items()}
        health = monitor.check(step, gradients=gradients, weights=parameters)
    assert health is not None
    rows = {(t.of, t.name): t for t in health.tensors}
    assert ("gradient", "unused") not in rows
    for name, p in net.named_parameters():
        assert rows["gradient", name].norm == pytest.approx(float(p.grad.norm()), rel=1e-6)
        assert rows["weight", name].largest == float(p.detach().abs().max())
        ratio = float((p.detach() - before[name]).norm() / before[name].norm())
        assert rows["weight", name].update_ratio == pytest.approx(ratio, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_fault_in_a_gradient_is_named(dtype: Any) -> None:
    names = list(dict(network().named_parameters()))
    for seed, name in enumerate(names):
        rng = np.random.default_rng(seed)
        net = network().to(dtype)
        for p in net.parameters():
            p.grad = torch.from_numpy(rng.standard_normal(tuple(p.shape))).to(dtype)
        gradients = {n: p.grad for n, p in net.named_parameters()}
        place = int(rng.integers(gradients[name].numel()))
        gradients[name].view(-1)[place] = float("nan")
        health = HealthMonitor().check(1, gradients=gradients, weights=dict(net.named_parameters()))
        assert health is not None
        assert health.fault is not None
        assert (health.fault.of, health.fault.name, health.fault.first_index) == ("gradient", name, place)
