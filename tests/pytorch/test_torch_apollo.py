"""boost_ext.torch.Apollo beside the oracle in float64, and beside boost_ext.torch.AdamW where it steps as that does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import beside_torch  # noqa: E402
from beside_torch import (  # noqa: E402
    check_beside_adamw,
    check_checkpoint_of_adamw_is_refused,
    check_masters,
    check_resumed,
    check_scaled,
    gradients,
)

import oracle  # noqa: E402
from boost_ext import torch as boost  # noqa: E402
from masks import signs  # noqa: E402

MATRICES = ((64, 80), (90, 16), (24, 3, 3, 3))
SETTINGS: list[tuple[dict[str, Any], oracle.Apollo]] = [
    ({"lr": 0.01, "weight_decay": 0.1, "update_proj_gap": 2}, oracle.Apollo()),
    (
        {"lr": 0.01, "scale_type": "tensor", "scale": 16.0, "betas": (0.8, 0.9), "norm_growth": 1.5, "seed": 3},
        oracle.Apollo(True, 16.0, 1.5, (0.8, 0.9)),
    ),
    ({"lr": 0.01, "norm_growth": None, "eps": 1e-3, "maximize": True}, oracle.Apollo(limit=np.inf, eps=1e-3)),
]


def parameters(shapes: Any = MATRICES, dtype: Any = None) -> list[Any]:
    return beside_torch.parameters(shapes, dtype)


@pytest.mark.parametrize(("settings", "hyper"), SETTINGS)
def test_steps_like_the_oracle(settings, hyper):
    """Of the default rank, an eighth of the shorter side."""
    params = parameters()
    optimizer = boost.Apollo(params, **settings)
    weights = [p.detach().double().numpy() for p in params]
    states: list[Any] = [None] * len(params)
    for t in range(1, 6):
        gradients(t, params)
        optimizer.step()
        for i, p in enumerate(params):
            rows, columns = p.shape[0], p.numel() // p.shape[0]
            rank, wide = min(rows, columns) // 8, rows <= columns
            draw = (t - 1) // settings.get("update_proj_gap", 200)
            P = signs((rank, min(rows, columns)), settings.get("seed", 0), draw, i)
            zeros = np.zeros((rank, columns) if wide else (rows, rank))
            u = (-1 if settings.get("maximize") else 1) * p.grad.double().numpy()
            decay = settings.get("weight_decay", 0.0)
            made = oracle.apollo_step(weights[i], u, P, states[i] or (zeros, zeros, 0.0), 0.01, t, decay, hyper)
            weights[i], states[i] = made
            np.testing.assert_allclose(p.detach().numpy(), weights[i], rtol=1e-4, atol=1e-4)
            found = optimizer.state[p]
            assert found["exp_avg"].shape == zeros.shape
            for name, exact in zip(("exp_avg", "exp_avg_sq", "update_norm"), states[i], strict=True):
                np.testing.assert_allclose(found[name].numpy(), exact, rtol=1e-3, atol=1e-5)


def test_all_else_is_stepped_by_adamw():
    shapes, names = ((16, 24), (5,), (), (7, 30), (16, 2, 2, 2)), ["exp_avg", "exp_avg_sq", "step", "update_norm"]
    check_beside_adamw(boost.Apollo, shapes, {"use_apollo": False}, names)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_keep_what_rounding_loses(dtype):
    check_masters(lambda params, **master: boost.Apollo(params, lr=1e-4, **master), ((16, 24), (24, 16), (5,)), dtype)


@pytest.mark.parametrize("settings", [{"update_proj_gap": 3}, {"rank": 1, "scale_type": "tensor", "scale": 128.0}])
def test_five_and_five_steps_are_the_bits_of_ten(tmp_path, settings):
    check_resumed(lambda params: boost.Apollo(params, lr=0.02, **settings), (*MATRICES, (5,)), tmp_path)


def test_a_parameter_without_a_gradient_changes_no_other_basis():
    """The place in the optimizer counts, not the one among those that step."""
    ours, theirs = parameters(), parameters()
    gradients(0, ours, theirs)
    ours[0].grad = None
    boost.Apollo(ours, lr=0.02).step()
    boost.Apollo(theirs, lr=0.02).step()
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        assert torch.equal(a, b)


def test_a_scaled_step_and_one_that_is_skipped():
    check_scaled(lambda params: boost.Apollo(params, lr=0.02), MATRICES)


def test_a_checkpoint_of_adamw_is_refused():
    check_checkpoint_of_adamw_is_refused(boost.Apollo, {"use_apollo": True, "rank": None}, "update_norm")


def test_what_is_refused():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    for rank, error, text in ((0, ValueError, ">= 1, got 0"), (1.0, TypeError, "an int or None, got float")):
        with pytest.raises(error, match=f"^Apollo: rank must be {text}$"):
            boost.Apollo([weight], rank=rank)
    with pytest.raises(ValueError, match=r"^Apollo: state_dtype must be 'float32' for this rule"):
        boost.Apollo([weight], state_dtype="float8")
    weight.grad = torch.ones(2, 3)
    with pytest.raises(ValueError, match=r"^apollo_step: scale_type must be one of channel, tensor, got 'row'$"):
        boost.Apollo([weight], scale_type="row").step()
