"""Hyperparameters out of their range are refused at once, and before any group is stepped."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from beside_torch import gradients, parameters  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

NAMES = [
    "AdamW",
    "AdamW8bit",
    "Adam",
    "SGD",
    "Lars",
    "Adafactor",
    "Muon",
    "Apollo",
    "GaLore",
    "Lamb",
    "AdamWeightDecay",
    "Lion",
    "NAdamW",
    "AdEMAMix",
    "Adan",
    "ScheduleFreeSGD",
    "ScheduleFreeAdamW",
]
WRONG = [
    ("lr", -1.0, NAMES),
    ("lr", float("nan"), NAMES),
    ("lr", "fast", NAMES),
    ("weight_decay", -0.1, NAMES),
    ("betas", (1.5, 0.9), ["AdamW", "Adam", "Muon", "Apollo", "GaLore", "Lamb", "Lion", "NAdamW", "ScheduleFreeAdamW"]),
    ("betas", (0.9, -0.1), ["AdamW8bit", "Adam", "Muon", "AdamWeightDecay", "Lion", "NAdamW", "ScheduleFreeAdamW"]),
    ("betas", (0.9, 0.99, 1.0), ["AdEMAMix", "Adan"]),
    (
        "eps",
        -1e-8,
        ["AdamW", "Adam", "Muon", "Apollo", "GaLore", "Lamb", "Lars", "NAdamW", "Adan", "ScheduleFreeAdamW"],
    ),
    ("momentum", -0.9, ["SGD", "Lars", "Muon", "ScheduleFreeSGD"]),
    ("dampening", -0.9, ["Lars"]),
    ("trust_coefficient", -1.0, ["Lars"]),
    ("alpha", -1.0, ["AdEMAMix"]),
    ("momentum_decay", -1.0, ["NAdamW"]),
    ("scale_type", "row", ["Apollo"]),
    ("d", 0.0, ["Adafactor"]),
    ("ns_steps", -1, ["Muon"]),
    ("adjust_lr_fn", "none", ["Muon"]),
]
EACH = pytest.mark.parametrize(
    ("name", "key", "value"), [(name, key, value) for key, value, names in WRONG for name in names]
)
REFUSED = (ValueError, TypeError)


def text(name: str, key: str) -> str:
    shown = {"betas": "beta[123]", "d": "clip_threshold", "trust_coefficient": "coefficient", "eps": "eps(ilon)?"}
    return rf"^[A-Za-z_0-9]+: {shown.get(key, key)} must "


@EACH
def test_the_constructor_refuses(name, key, value):
    with pytest.raises(REFUSED, match=text(name, key)):
        getattr(boost, name)(parameters(((4, 6),)), **{key: value})


@pytest.mark.parametrize("group", [[1], "params", None])
def test_a_group_that_is_no_dict_is_refused(group):
    optimizer = boost.AdamW(parameters(((4, 6),)))
    with pytest.raises(TypeError, match="AdamW: param_group must be a dict, got"):
        optimizer.add_param_group(group)


@EACH
def test_a_group_and_a_checkpoint_are_refused(name, key, value):
    first, second = parameters(((4, 6), (5,)))
    optimizer = getattr(boost, name)([first])
    with pytest.raises(REFUSED, match=text(name, key)):
        optimizer.add_param_group({"params": [second], key: value})
    assert len(optimizer.param_groups) == 1
    saved = optimizer.state_dict()
    saved["param_groups"][0][key] = value
    was = optimizer.param_groups[0][key]
    with pytest.raises(REFUSED, match=text(name, key)):
        optimizer.load_state_dict(saved)
    assert optimizer.param_groups[0][key] is was


@EACH
def test_no_group_is_stepped_if_one_is_refused(name, key, value):
    params = parameters(((4, 6), (5,)))
    gradients(0, params)
    before = [p.detach().clone() for p in params]
    optimizer = getattr(boost, name)([{"params": [p]} for p in params])
    for steps in range(2):
        was, optimizer.param_groups[1][key] = optimizer.param_groups[1][key], value
        with pytest.raises(REFUSED, match=text(name, key)):
            optimizer.step()
        for p, q in zip(params, before, strict=True):
            assert torch.equal(p, q)
            assert float(optimizer.state[p].get("step", 0)) == steps
        optimizer.param_groups[1][key] = was
        optimizer.step()
        before = [p.detach().clone() for p in params]


@pytest.mark.parametrize("name", ["AdamW", "Adam", "NAdamW", "Muon", "Apollo", "ScheduleFreeAdamW", "Adan"])
def test_betas_and_rates_may_be_tensors(name):
    lists = [parameters(((16, 24), (5,))) for _ in range(2)]
    betas = (0.9, 0.99, 0.999) if name == "Adan" else (0.9, 0.99)
    kinds = (betas, tuple(torch.tensor(b, dtype=torch.float64) for b in betas))
    pairs = [
        getattr(boost, name)(params, lr=rate, betas=of)
        for params, of, rate in zip(lists, kinds, (0.25, torch.tensor(0.25)), strict=True)
    ]
    for step in range(3):
        gradients(step, *lists)
        for optimizer in pairs:
            optimizer.step()
    for p, q in zip(*lists, strict=True):
        assert torch.equal(p, q)
    pairs[0].load_state_dict(pairs[1].state_dict())


@pytest.mark.parametrize("name", NAMES)
def test_defaults_of_torch_do_not_matter(name):
    params = parameters(((16, 24), (5,)))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            optimizer = getattr(boost, name)(params)
    finally:
        torch.set_default_dtype(torch.float32)
    gradients(0, params)
    optimizer.step()
    assert all(p.isfinite().all() for p in params)
