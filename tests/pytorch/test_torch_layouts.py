"""Weights, gradients and state of any strides: what is computed depends on the numbers alone."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from beside_torch import gradients, parameters  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

NAMES = [
    "AdamW",
    "AdamW8bit",
    "SGD",
    "Lamb",
    "Lars",
    "Adafactor",
    "Muon",
    "Apollo",
    "GaLore",
    "Lion",
    "ScheduleFreeSGD",
]
SHAPES = ((64, 96), (72, 8, 3, 3), (5,), (96, 64))
WHOLE = ("Adafactor", "Muon", "Apollo", "GaLore")
"""They take the tensors as matrices."""


def laid_out(params: list[Any], layout: str) -> list[Any]:
    def of(p: Any) -> Any:
        if layout == "transposed":
            return p.detach().T.contiguous().T if p.ndim == 2 else p.detach()
        if layout == "strided":
            return torch.stack([p.detach()] * 2, -1)[..., 0]
        return p.detach().to(memory_format=torch.channels_last) if p.ndim == 4 else p.detach()

    return [torch.nn.Parameter(of(p)) for p in params]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["channels_last", "transposed"])
@pytest.mark.parametrize("name", NAMES)
def test_any_dense_layout(name, layout, dtype):
    first = parameters(SHAPES, dtype)
    second = laid_out(first, layout)
    strides = [p.stride() for p in second]
    assert strides != [p.stride() for p in first]
    settings = {"lr": 0.01, **({"master": True} if dtype == torch.bfloat16 else {})}
    one, two = (getattr(boost, name)(params, **settings) for params in (first, second))
    for step in range(4):
        gradients(step, first, second)
        if step == 1:
            second[1].grad = second[1].grad.contiguous()
        if step == 2:
            saved = copy.deepcopy(two.state_dict())
            two = getattr(boost, name)(second, **settings)
            two.load_state_dict(saved)
        one.step()
        two.step()
    assert [p.stride() for p in second] == strides
    tolerance = 1e-2 if name == "AdamW8bit" else 0 if name in WHOLE else 1e-6
    for p, q in zip(first, second, strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", WHOLE)
def test_checkpoints_do_not_depend_on_the_layout(name):
    first = parameters(SHAPES)
    second = laid_out(first, "transposed")
    one, two = (getattr(boost, name)(params, lr=0.01) for params in (first, second))
    gradients(0, first)
    one.step()
    with torch.no_grad():
        for p, q in zip(first, second, strict=True):
            q.copy_(p)
    two.load_state_dict(one.state_dict())
    gradients(1, first, second)
    one.step()
    two.step()
    for p, q in zip(first, second, strict=True):
        assert torch.equal(p, q)
