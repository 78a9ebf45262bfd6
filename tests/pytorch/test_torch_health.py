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


def test_update_ratios_of_weights_in_any_order_and_dtype() -> None:
    """Sampled where they lie: sliced, transposed and channels_last weights, halves, an empty one and a large one."""
    torch.manual_seed(0)
    whole = torch.randn(40, 60)
    weights = {
        "sliced": whole[:, ::2],
        "transposed": torch.randn(70, 50).t(),
        "last": torch.randn(8, 16, 3, 3).to(memory_format=torch.channels_last),
        "half": torch.randn(3000).half(),
        "brain": torch.nn.Parameter(torch.randn(3000).bfloat16()),
        "large": torch.nn.Parameter(torch.randn(100, 100)),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0),
    }
    monitor = HealthMonitor(sample=100)
    dense = {name: w.detach().contiguous() for name, w in weights.items()}
    monitor.check(1, weights=dense)  # a look refuses what is not contiguous
    expected = monitor._kept
    for name, w in weights.items():
        assert w.requires_grad is (name in ("brain", "large"))
    kept = monitor._samples(weights, 1, True)
    assert kept is not None
    assert expected is not None
    assert (kept.names, kept.counts) == (expected[1].names, expected[1].counts)
    np.testing.assert_array_equal(kept.values, expected[1].values)
    assert max(kept.counts) <= 100
    for w in dense.values():
        w.mul_(1.5)
    health = monitor.check(2, weights=dense)
    assert health is not None
    ratios = {t.name: t.update_ratio for t in health.tensors}
    assert ratios.pop("empty") is None
    assert ratios == pytest.approx(dict.fromkeys(ratios, 0.5), rel=2e-2)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("with_loss", [False, True])
def test_a_nan_that_went_through_the_training_is_found_where_it_began(with_loss: bool, after: bool) -> None:
    for seed in range(10):
        torch.manual_seed(seed)
        layers = [layer for _ in range(5) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
        net = torch.nn.Sequential(*layers, torch.nn.Linear(8, 4))
        optimizer, rng = torch.optim.SGD(net.parameters(), lr=0.1), np.random.default_rng(seed)
        parameters = dict(net.named_parameters())
        at, who = int(rng.integers(1, 30)), str(rng.choice(list(parameters)))
        monitor = HealthMonitor(every=10)
        for step in range(1, 40):
            optimizer.zero_grad()
            loss = net(torch.randn(4, 8)).square().mean()
            loss.backward()
            if step == at:
                parameters[who].grad.view(-1)[0] = float("nan")
            if after:
                optimizer.step()
            given = {"loss": loss.item()} if with_loss else {}
            gradients = {name: p.grad for name, p in parameters.items()}
            monitor.check(step, gradients=gradients, weights=parameters, **given)
            if not after:
                optimizer.step()
        assert str(monitor.first_fault) == f"step {at}: the gradient of {who} holds 0 inf, 1 nan, first at 0"
