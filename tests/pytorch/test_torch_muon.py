"""boost_ext.torch.Muon beside torch.optim.Muon and torch.optim.AdamW, step by step."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import beside_torch  # noqa: E402
from beside_torch import check_beside_adamw, check_masters, check_resumed, check_scaled, goes_over, gradients  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

pytestmark = pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="a PyTorch without Muon")

MATRICES = ((64, 80), (30, 7), (5, 90))
SETTINGS = [
    {"lr": 0.02},
    {"lr": 0.1, "momentum": 0.8, "nesterov": False, "weight_decay": 0.0, "ns_steps": 3},
    {"lr": 0.01, "adjust_lr_fn": "match_rms_adamw"},
]


def parameters(shapes: Any = MATRICES, dtype: Any = None) -> list[Any]:
    return beside_torch.parameters(shapes, dtype)


def close(ours: list[Any], theirs: list[Any], atol: float = 5e-5) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=atol)


@pytest.fixture
def wide(monkeypatch):
    """PyTorch's iteration in float64 instead of bfloat16."""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("settings", SETTINGS)
def test_steps_like_torch(settings):
    ours, theirs = parameters(), parameters()
    optimizer, reference = boost.Muon(ours, **settings), torch.optim.Muon(theirs, **settings)
    for step in range(5):
        gradients(step, ours, theirs)
        optimizer.step()
        reference.step()
        close(ours, theirs)
        for p, q in zip(ours, theirs, strict=True):
            torch.testing.assert_close(optimizer.state[p]["momentum_buffer"], reference.state[q]["momentum_buffer"])


def test_steps_like_torch_in_bfloat16():
    """As far as its eight bits reach: 4 % of the length of a step."""
    ours, theirs = parameters(), parameters()
    optimizer, reference = boost.Muon(ours, lr=1.0), torch.optim.Muon(theirs, lr=1.0)
    start = [p.detach().clone() for p in ours]
    gradients(0, ours, theirs)
    optimizer.step()
    reference.step()
    for p, q, w in zip(ours, theirs, start, strict=True):
        assert (p - q).norm() < 0.04 * (p - w).norm()


@pytest.mark.usefixtures("wide")
@pytest.mark.parametrize("to_torch", [True, False])
def test_a_state_dict_goes_over_to_torch_and_back(to_torch, tmp_path):
    ours, theirs = parameters(), parameters()
    optimizer, reference = boost.Muon(ours, lr=0.02), torch.optim.Muon(theirs, lr=0.02)
    first, second = (ours, theirs) if to_torch else (theirs, ours)
    one, two = (optimizer, reference) if to_torch else (reference, optimizer)
    goes_over(one, two, first, second, tmp_path, close, 3)


def test_all_else_is_stepped_by_adamw():
    def make(groups: Any, eps: float, **others: Any) -> Any:
        return boost.Muon(groups, adamw_eps=eps, **others)

    check_beside_adamw(make, ((4, 6), (5,), (), (3, 2, 2, 2)), {"use_muon": False}, ["momentum_buffer", "step"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_keep_what_rounding_loses(dtype):
    check_masters(lambda params, **master: boost.Muon(params, lr=1e-4, **master), ((16, 24), (5,)), dtype)


def test_five_and_five_steps_are_the_bits_of_ten(tmp_path):
    check_resumed(lambda params: boost.Muon(params, lr=0.02), ((64, 80), (4, 3, 3, 3), (5,)), tmp_path)


def test_a_scaled_step_and_one_that_is_skipped():
    check_scaled(lambda params: boost.Muon(params, lr=0.02), MATRICES)


def test_what_is_refused():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    with pytest.raises(
        ValueError, match=r"^Muon: ns_coefficients must be \(3\.4445, -4\.775, 2\.0315\), got \(1, 0, 0\)"
    ):
        boost.Muon([weight], ns_coefficients=(1, 0, 0))
    with pytest.raises(ValueError, match=r"^Muon: state_dtype must be 'float32' for this rule"):
        boost.Muon([weight], state_dtype="float8")
    weight.grad = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"^muon_step: momentum must be in \[0, 1\), got 1$"):
        boost.Muon([weight], momentum=1.0).step()
