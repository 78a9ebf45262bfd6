"""boost_ext.torch on tensors that are only shapes: what tools ask that want to know the memory of a training."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

OPTIMIZERS = [
    ("AdamW", {}),
    ("AdamW8bit", {}),
    ("AdamW", {"master": "split16", "state_dtype": "bfloat16"}),
    ("SGD", {"momentum": 0.9}),
    ("Lamb", {}),
    ("Lion", {}),
    ("Adan", {}),
    ("AdEMAMix", {}),
    ("Adafactor", {}),
    ("Muon", {}),
    ("Apollo", {}),
    ("GaLore", {}),
    ("ScheduleFreeAdamW", {}),
]


def train(optimizer_class: Any, settings: Any, device: str | None) -> tuple[Any, list[Any]]:
    on = {"device": device, "dtype": torch.bfloat16 if "master" in settings else None}
    net = torch.nn.Sequential(torch.nn.Linear(128, 64, **on), torch.nn.Linear(64, 3, **on))
    optimizer = optimizer_class(net.parameters(), lr=1e-3, **settings)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(2, 128, **on)).square().sum().backward()
        optimizer.step()
    return optimizer, list(net.parameters())


def shapes(optimizer: Any, weights: list[Any]) -> list[Any]:
    entries = [optimizer.state[p] for p in weights]
    return [{k: (tuple(v.shape), v.dtype) for k, v in s.items() if isinstance(v, torch.Tensor)} for s in entries]


@pytest.mark.parametrize("kind", ["fake", "meta"])
@pytest.mark.parametrize(("name", "settings"), OPTIMIZERS)
def test_the_state_is_that_of_a_real_training(name, settings, kind):
    real = shapes(*train(getattr(boost, name), settings, None))
    with FakeTensorMode() if kind == "fake" else nullcontext():
        optimizer, weights = train(getattr(boost, name), settings, "meta" if kind == "meta" else None)
    assert shapes(optimizer, weights) == real
    if kind == "meta":
        assert all(v.is_meta for s in optimizer.state.values() for k, v in s.items() if k != "step" and v is not None)


@pytest.mark.parametrize("kind", ["fake", "meta"])
def test_clipping_without_data(kind):
    with FakeTensorMode() if kind == "fake" else nullcontext():
        weight = torch.nn.Parameter(torch.zeros(3, 4, device="meta" if kind == "meta" else None))
        weight.grad = torch.ones_like(weight)
        norm = boost.clip_grad_norm_([weight], 1.0)
        found = boost.unscale_([weight], 1024.0)
        boost.adaptive_clip_grad_([weight])
    assert norm.shape == found.shape == ()
    assert norm.dtype == torch.float64
    assert found.dtype == torch.float32
