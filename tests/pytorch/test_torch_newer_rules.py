"""Lion, NAdamW, AdEMAMix, Adan and the flag `cautious`: beside torch.optim.NAdam and beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import beside_torch  # noqa: E402
from beside_torch import goes_over, gradients  # noqa: E402

import oracle  # noqa: E402
from boost_ext import torch as boost  # noqa: E402

SHAPES = ((), (3,), (0,), (64, 80), (5000,))

NADAM = [
    {"lr": 0.01, "weight_decay": 0.1},
    {"lr": 0.01, "betas": (0.5, 0.9), "momentum_decay": 0.5, "maximize": True},
    {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-3, "momentum_decay": 0.0},
    {"lr": 0.01, "betas": (0.0, 0.9)},
]


def parameters(dtype: Any = None) -> list[Any]:
    return beside_torch.parameters(SHAPES, dtype)


def close(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("settings", NADAM)
def test_nadamw_is_torchs(settings):
    ours, theirs = parameters(), parameters()
    optimizer = boost.NAdamW(ours, **{"weight_decay": 0.0, **settings})
    reference = torch.optim.NAdam(theirs, decoupled_weight_decay=True, **settings)
    for step in range(40):
        for params in (ours, theirs):
            gradients(step, params)
        optimizer.step()
        reference.step()
        close(ours, theirs)


@pytest.mark.parametrize("to_torch", [True, False])
def test_nadamw_goes_over_to_torch_and_back(to_torch, tmp_path):
    ours, theirs = parameters(), parameters()
    settings = {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.1}
    pairs = [(ours, boost.NAdamW(ours, **settings))]
    pairs.append((theirs, torch.optim.NAdam(theirs, decoupled_weight_decay=True, **settings)))
    (first, one), (second, two) = pairs if to_torch else pairs[::-1]
    goes_over(one, two, first, second, tmp_path, close, 7)


def lion(w, u, s, t, decay, cautious):
    return oracle.lion_step(w, u, *s, 0.01, 0.9, 0.99, decay, cautious)


def nadamw(w, u, s, t, decay, cautious):
    return oracle.nadamw_step(w, u, *s, 0.01, t, 0.9, 0.999, 1e-8, 0.004, decay, cautious)


def ademamix(w, u, s, t, decay, cautious):
    m, v, slow = s
    return oracle.ademamix_step(w, u, m, v, slow, 0.01, t, 0.9, 0.999, 1e-8, 0.99, 3.0, 5, 9, decay, cautious)


def adan(w, u, s, t, decay, cautious):
    return oracle.adan_step(w, u, *s, 0.01, t, 0.98, 0.92, 0.99, 1e-8, decay, cautious)


def adamw(w, u, s, t, decay, cautious):
    return oracle.adamw_step(w, u, *s, 0.01, t, 0.9, 0.999, 1e-8, decay, cautious)


def adam_weight_decay(w, u, s, t, decay, cautious):
    return oracle.adam_weight_decay_step(w, u, *s, 0.01, 0.9, 0.999, 1e-6, decay, cautious)


def adam(w, u, s, t, decay, cautious):
    """PyTorch's eps stands behind the correction of the root."""
    eps = 1e-8 * np.sqrt(1 - 0.999**t)
    return oracle.adam_step(w, u + decay * w, *s, None, 0.01, t, 0.9, 0.999, eps, False, cautious)


def sgd(w, u, s, t, decay, cautious):
    return oracle.momentum_step(w, u + decay * w, *s, 0.01, 0.9, False, cautious)


SLOW = {"betas": (0.9, 0.999, 0.99), "alpha": 3.0, "alpha_steps": 5, "beta3_steps": 9}
RULES = {
    "Lion": (lion, 1, {}),
    "NAdamW": (nadamw, 2, {}),
    "AdEMAMix": (ademamix, 3, SLOW),
    "Adan": (adan, 4, {}),
    "AdamW": (adamw, 2, {}),
    "AdamWeightDecay": (adam_weight_decay, 2, {}),
    "Adam": (adam, 2, {}),
    "SGD": (sgd, 1, {"momentum": 0.9}),
}


@pytest.mark.parametrize("cautious", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_steps_beside_float64(name, cautious):
    rule, count, settings = RULES[name]
    ours = parameters()
    weights = [p.detach().double().numpy() for p in ours]
    states = [[np.zeros(w.shape)] * count for w in weights]
    optimizer = getattr(boost, name)(ours, lr=0.01, weight_decay=0.1, cautious=cautious, **settings)
    for step in range(12):
        gradients(step, ours)
        optimizer.step()
        for i, p in enumerate(ours):
            weights[i], states[i] = rule(weights[i], p.grad.double().numpy(), states[i], step + 1, 0.1, cautious)
    for p, w in zip(ours, weights, strict=True):
        # Where a sum of moments is 0 but for rounding, the sign of float32 may be another: a few elements.
        off = np.abs(p.detach().double().numpy() - w) > 1e-5
        assert off.mean() < 1e-3 if p.numel() else True


@pytest.mark.parametrize(
    ("name", "state_dtype"),
    [(n, t) for n in ("Lion", "NAdamW") for t in ("float32", "bfloat16", "float8")]
    + [("AdEMAMix", "float32"), ("Adan", "float32")],
)
def test_five_and_five_steps_are_the_bits_of_ten(name, state_dtype, tmp_path):
    settings = {"lr": 0.01, "state_dtype": state_dtype, "master": True, "cautious": True}
    settings |= {"alpha_steps": 8, "beta3_steps": 8} if name == "AdEMAMix" else {}
    whole, params = parameters(torch.bfloat16), parameters(torch.bfloat16)
    optimizer, part = (getattr(boost, name)(p, **settings) for p in (whole, params))
    for step in range(10):
        if step == 5:
            torch.save(part.state_dict(), tmp_path / "state.pt")
            part = getattr(boost, name)(params, **settings)
            part.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        for each, of in ((optimizer, whole), (part, params)):
            gradients(step, of)
            each.step()
    for p, q in zip(params, whole, strict=True):
        assert torch.equal(p, q)
        for key, value in optimizer.state[q].items():
            assert torch.equal(part.state[p][key], value), key


@pytest.mark.parametrize("name", ["Lion8bit", "NAdamW8bit"])
def test_names_for_8_bits(name):
    weight = torch.nn.Parameter(torch.randn(64, 80))
    optimizer = getattr(boost, name)([weight], lr=0.01)
    gradients(0, [weight])
    optimizer.step()
    assert optimizer.state[weight]["exp_avg"].dtype == torch.uint8


def test_refusals():
    [weight] = parameters()[1:2]
    for name in ("AdEMAMix", "Adan"):
        with pytest.raises(ValueError, match=f"^{name}: state_dtype must be 'float32' for this rule, got 'float8'$"):
            getattr(boost, name)([weight], state_dtype="float8")
    with pytest.raises(ValueError, match=r"^SGD: cautious must come with a momentum and without dampening$"):
        boost.SGD([weight], cautious=True)


def test_the_product_of_momenta_in_a_checkpoint_of_nadamw():
    """That of PyTorch; of many steps it takes no time, and no memory for each."""
    ours, theirs = parameters(), parameters()
    settings = {"betas": (0.99, 0.999), "weight_decay": 0.1, "momentum_decay": 0.01}
    one, two = boost.NAdamW(ours, **settings), torch.optim.NAdam(theirs, decoupled_weight_decay=True, **settings)
    for step in range(30):
        gradients(step, ours, theirs)
        if step == 20:
            ours[0].grad = theirs[0].grad = None
        one.step()
        two.step()
    for p, q in zip(one.state_dict()["state"].values(), two.state_dict()["state"].values(), strict=True):
        torch.testing.assert_close(p["mu_product"], q["mu_product"], rtol=1e-5, atol=0)
    one.state[ours[1]]["step"].fill_(1e12)
    saved = one.state_dict()["state"]
    assert saved[0]["mu_product"] > 0
    assert saved[1]["mu_product"] == 0
