"""boost_ext.torch.GaLore beside the oracle in float64, and beside boost_ext.torch.AdamW where it steps as that does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

from beside_torch import (  # noqa: E402
    check_beside_adamw,
    check_checkpoint_of_adamw_is_refused,
    check_masters,
    check_resumed,
    check_scaled,
    gradients,
    parameters,
)

import oracle  # noqa: E402
from boost_ext import torch as boost  # noqa: E402

MATRICES = ((64, 80), (90, 16), (24, 3, 3, 3))
SETTINGS: list[tuple[dict[str, Any], oracle.Apollo]] = [
    ({"weight_decay": 0.1, "update_proj_gap": 2}, oracle.Apollo(factor=0.25)),
    ({"rank": 3, "scale": 2.0, "betas": (0.8, 0.9), "eps": 1e-3}, oracle.Apollo(False, 2.0, None, (0.8, 0.9), 1e-3)),
    ({"maximize": True, "seed": 3}, oracle.Apollo(factor=0.25)),
]


@pytest.mark.parametrize(("settings", "hyper"), SETTINGS)
def test_steps_like_the_oracle(settings, hyper):
    """The space is that of the gradient's largest singular values, found anew in every update_proj_gap-th step."""
    params = parameters(MATRICES)
    optimizer = boost.GaLore(params, lr=0.01, **settings)
    weights = [p.detach().double().numpy() for p in params]
    states: list[Any] = [(0.0, 0.0)] * len(params)
    for t in range(1, 6):
        gradients(t, params)
        before = [optimizer.state[p]["projection"].clone() for p in params] if t > 1 else []
        optimizer.step()
        for i, p in enumerate(params):
            u = (-1 if settings.get("maximize") else 1) * p.grad.double().numpy()
            P, G = optimizer.state[p]["projection"].double().numpy(), u.reshape(len(u), -1)
            rank = settings.get("rank", oracle_rank(min(G.shape), max(G.shape)))
            assert P.shape == (min(G.shape), rank)
            if (t - 1) % settings.get("update_proj_gap", 200):
                assert torch.equal(before[i], optimizer.state[p]["projection"])
            else:
                kept = np.linalg.norm(G @ P if len(G) > G.shape[1] else P.T @ G) ** 2
                assert kept > 0.97 * np.sum(np.linalg.svd(G, compute_uv=False)[:rank] ** 2)
            made = oracle.galore_step(weights[i], u, P, *states[i], 0.01, t, settings.get("weight_decay", 0.0), hyper)
            weights[i], states[i] = made
            np.testing.assert_allclose(p.detach().numpy(), weights[i], rtol=1e-4, atol=1e-4)
            for name, exact in zip(("exp_avg", "exp_avg_sq"), states[i], strict=True):
                np.testing.assert_allclose(optimizer.state[p][name].numpy(), exact, rtol=1e-3, atol=1e-5)


def oracle_rank(side: int, longer: int) -> int:
    """With which the projection and two averages have at most an eighth of the elements of AdamW's averages."""
    return max(r for r in range(side) if 8 * r * (side + 2 * longer) <= 2 * side * longer)


def test_all_else_is_stepped_by_adamw():
    shapes, names = ((16, 24), (5,), (), (7, 30), (16, 3, 3, 3)), ["exp_avg", "exp_avg_sq", "projection", "step"]
    check_beside_adamw(boost.GaLore, shapes, {"use_galore": False}, names)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masters_keep_what_rounding_loses(dtype):
    check_masters(lambda params, **master: boost.GaLore(params, lr=1e-4, **master), ((24, 40), (40, 24), (5,)), dtype)


@pytest.mark.parametrize("settings", [{"update_proj_gap": 3}, {"rank": 2}])
def test_five_and_five_steps_are_the_bits_of_ten(tmp_path, settings):
    check_resumed(lambda params: boost.GaLore(params, lr=0.02, **settings), (*MATRICES, (5,)), tmp_path)


def test_a_scaled_step_and_one_that_is_skipped():
    check_scaled(lambda params: boost.GaLore(params, lr=0.02), MATRICES)


def test_a_checkpoint_of_adamw_is_refused():
    check_checkpoint_of_adamw_is_refused(boost.GaLore, {"use_galore": True, "rank": None}, "projection")


def test_what_is_refused():
    params = parameters(MATRICES)
    gradients(0, params)
    with pytest.raises(ValueError, match=r"^GaLore: rank must be >= 1, got 0$"):
        boost.GaLore(params, rank=0)
    with pytest.raises(ValueError, match=r"^galore_step: scale must be finite and >= 0, got -1$"):
        boost.GaLore(params, scale=-1.0).step()
