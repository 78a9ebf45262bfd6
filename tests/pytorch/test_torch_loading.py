"""Checkpoints that do not fit are refused, and then nothing has changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from beside_torch import gradients, parameters  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

SHAPES = ((5,), (64, 80), ())

EVERY = [
    ("AdamW", {}),
    ("AdamW8bit", {"master": "split16"}),
    ("Adam", {"amsgrad": True}),
    ("SGD", {"momentum": 0.9}),
    ("Lars", {"master": True}),
    ("Adafactor", {}),
    ("Muon", {}),
    ("Apollo", {}),
    ("GaLore", {}),
    ("Lamb", {"state_dtype": "bfloat16"}),
    ("AdamWeightDecay", {}),
    ("Lion", {}),
    ("NAdamW", {}),
    ("AdEMAMix", {}),
    ("Adan", {}),
    ("ScheduleFreeSGD", {}),
    ("ScheduleFreeAdamW", {}),
]
EACH = pytest.mark.parametrize(("name", "settings"), EVERY, ids=[name for name, _ in EVERY])


def make(name: str, settings: Any, steps: int = 2) -> tuple[list[Any], Any]:
    params = parameters(SHAPES, torch.bfloat16 if "master" in settings else None)
    optimizer = getattr(boost, name)(params, lr=0.01, **settings)
    for step in range(steps):
        gradients(step, params)
        optimizer.step()
    return params, optimizer


def refuses(optimizer: Any, saved: Any, text: str, kind: Any = ValueError) -> None:
    """And its weights, groups and state are what they were."""
    params = [p for g in optimizer.param_groups for p in g["params"]]
    before = copy.deepcopy((params, optimizer.state_dict()))
    held = {p: {k: (v, v.clone()) for k, v in optimizer.state[p].items()} for p in params}
    with pytest.raises(kind, match=text):
        optimizer.load_state_dict(saved)
    for p, was in zip(params, before[0], strict=True):
        assert torch.equal(p, was)
        assert list(optimizer.state[p]) == list(held[p])
        for k, (v, bits) in held[p].items():
            assert optimizer.state[p][k] is v
            assert torch.equal(v, bits)
    assert optimizer.state_dict()["param_groups"] == before[1]["param_groups"]


def goes_on(name: str, settings: Any, params: list[Any], optimizer: Any) -> None:
    """With the bits of one that has met no checkpoint."""
    others, twin = make(name, settings)
    gradients(9, params, others)
    optimizer.step()
    twin.step()
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def may_lack(name: str, number: int) -> set[str]:
    """What PyTorch's class, or the authors' code, does not save; and masters, which are made from the weights."""
    optional = {"master", "mu_product"}
    if name in ("SGD", "Lars"):
        return optional | {"step", "momentum_buffer"}
    if name in ("Lion", "ScheduleFreeSGD", "ScheduleFreeAdamW") or (name == "Muon" and number == 1):
        return optional | {"step"}
    return optional


@EACH
def test_half_a_checkpoint_is_refused(name, settings):
    params, optimizer = make(name, settings)
    for number, entry in optimizer.state_dict()["state"].items():
        for key in entry:
            saved = copy.deepcopy(optimizer.state_dict())
            del saved["state"][number][key]
            if key not in may_lack(name, number):
                refuses(optimizer, saved, rf"^load_state_dict: state of parameter {number} must hold {key}, got ")
    goes_on(name, settings, params, optimizer)


@EACH
def test_state_of_another_shape_is_refused(name, settings):
    params, optimizer = make(name, settings)
    for number, entry in optimizer.state_dict()["state"].items():
        for key in set(entry) - {"step", "mu_product"}:
            shape = tuple(entry[key].shape)
            broadcast = {(1, *shape[1:]), (*shape[:-1], 1), (2 * shape[0], *shape[1:])} if shape else set()
            for other in ({(*shape, 1), (1,)} | broadcast) - {shape}:
                saved = copy.deepcopy(optimizer.state_dict())
                saved["state"][number][key] = torch.zeros(other, dtype=entry[key].dtype)
                text = rf"^load_state_dict: {key} of parameter {number} must have shape .*, got "
                refuses(optimizer, saved, text)
    goes_on(name, settings, params, optimizer)


@EACH
def test_a_checkpoint_of_another_rule_is_refused(name, settings):
    params, optimizer = make(name, settings)
    other = make("SGD", {"momentum": 0.9})[1] if name not in ("SGD", "Lars") else make("AdamW", {})[1]
    saved = other.state_dict()
    for key in set(saved["param_groups"][0]) - {"params"}:
        del saved["param_groups"][0][key]
    refuses(optimizer, saved, r"^load_state_dict: state of parameter \d must hold ")
    goes_on(name, settings, params, optimizer)


def test_a_parameter_is_named():
    net = torch.nn.Linear(3, 2)
    optimizer = boost.AdamW(net.parameters())
    optimizer.param_groups[0]["param_names"] = [name for name, _ in net.named_parameters()]  # as PyTorch 2.6 does
    gradients(0, [*net.parameters()])
    optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    del saved["state"][1]["exp_avg_sq"]
    refuses(optimizer, saved, r"state of parameter 1 \(bias\) must hold exp_avg_sq, got exp_avg, step$")
    saved["state"][1] |= {"exp_avg_sq": 0.5}
    refuses(optimizer, saved, r"^load_state_dict: exp_avg_sq of parameter 1 \(bias\) must be a tensor, got float$")
    saved["state"][1] |= {"exp_avg_sq": torch.zeros(2), "step": torch.tensor(-1.0)}
    refuses(optimizer, saved, r"^load_state_dict: step of parameter 1 \(bias\) must be finite and >= 0, got -1.0$")


def test_a_refused_checkpoint_moves_no_weight():
    """A master that lies halfway between two weights may move one, but not before all is checked."""
    [halfway, last] = [torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16)) for _ in range(2)]
    optimizer = boost.AdamW([halfway, last], lr=1e-3, master="split16")
    gradients(0, [halfway, last])
    optimizer.step()
    saved = optimizer.state_dict()
    saved["state"][0]["master"] = torch.full((4,), 1 + 2**-8)
    with torch.no_grad():
        halfway.fill_(1)
    whole = copy.deepcopy(saved)
    del saved["state"][1]["exp_avg"]
    refuses(optimizer, saved, "parameter 1 must hold exp_avg")
    optimizer.load_state_dict(whole)
    assert halfway[0] > 1


@EACH
@pytest.mark.parametrize("flat", [False, True])
def test_distributed_checkpoints(name, settings, flat):
    """``torch.distributed.checkpoint`` reads the state itself, and takes nothing but tensors and numbers."""
    api: Any = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    options = api.StateDictOptions(flatten_optimizer_state_dict=flat)
    nets = [torch.nn.Linear(64, 80).to(torch.bfloat16 if "master" in settings else None) for _ in range(2)]
    one, two = (getattr(boost, name)(net.parameters(), lr=0.01, **settings) for net in nets)
    gradients(0, [*nets[0].parameters()])
    one.step()
    saved = copy.deepcopy(api.get_optimizer_state_dict(nets[0], one, options=options))
    nets[1].load_state_dict(nets[0].state_dict())
    api.set_optimizer_state_dict(nets[1], two, saved, options=options)
    for step in range(1, 3):
        gradients(step, *([*net.parameters()] for net in nets))
        one.step()
        two.step()
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.equal(p, q)


def test_adamw_keeps_its_decay_with_a_checkpoint_of_adam():
    pairs = []
    for module in (boost, torch.optim):
        params = parameters(SHAPES)
        optimizer = torch.optim.Adam(params, lr=0.01, weight_decay=0.1)
        gradients(0, params)
        optimizer.step()
        other = module.AdamW(params)
        other.load_state_dict(optimizer.state_dict())
        for step in range(1, 4):
            gradients(step, params, scale=1e-3)
            other.step()
        pairs.append(params)
    for p, q in zip(*pairs, strict=True):
        torch.testing.assert_close(p, q, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(
    ("name", "theirs", "settings", "text"),
    [
        ("Adafactor", "Adafactor", {"weight_decay": 0.1}, r"^Adafactor: weight_decay must be 0, got 0.1$"),
        ("Muon", "Muon", {"ns_coefficients": (2.0, -1.5, 0.5)}, r"^Muon: ns_coefficients must be .*, got \(2.0, -1.5"),
        ("AdamW", "AdamW", {"amsgrad": True}, r"^AdamW: amsgrad must be False with decoupled decay, got True"),
        (
            "Adam8bit",
            "Adam",
            {"amsgrad": True},
            r"^Adam8bit: state_dtype must be 'float32' with amsgrad, got 'float8'$",
        ),
        ("NAdamW", "NAdam", {"weight_decay": 0.1}, r"^NAdamW: decoupled_weight_decay must be True, got False$"),
        ("AdamW", "AdamW", {"differentiable": True}, r"^AdamW: differentiable must be False, got True$"),
    ],
)
def test_settings_that_a_rule_has_not_are_refused(name, theirs, settings, text):
    """From a checkpoint, and where somebody sets them."""
    if not hasattr(torch.optim, theirs):
        pytest.skip(f"a PyTorch without {theirs}")
    [p] = parameters(((64, 80),))
    other = getattr(torch.optim, theirs)([p], **{k: v for k, v in settings.items() if k != "differentiable"})
    gradients(0, [p])
    other.step()
    other.param_groups[0].update(settings)
    optimizer = getattr(boost, name)([p])
    optimizer.step()
    refuses(optimizer, other.state_dict(), text)
    optimizer.param_groups[0].update({k: v for k, v in other.param_groups[0].items() if k != "params"})
    before = p.detach().clone()
    with pytest.raises(ValueError, match=text):
        optimizer.step()
    assert torch.equal(p, before)


@pytest.mark.parametrize(
    ("name", "theirs", "settings", "flag"),
    [("Lars", "SGD", {"momentum": 0.9}, "adapt"), ("Muon", "Muon", {}, "use_muon"), ("SGD", "SGD", {}, "maximize")],
)
def test_what_a_checkpoint_does_not_say_stays(name, theirs, settings, flag):
    if not hasattr(torch.optim, theirs):
        pytest.skip(f"a PyTorch without {theirs}")
    params = parameters(((4, 6), (4, 5)))
    first, second = ({"params": [p]} for p in params)
    other = getattr(torch.optim, theirs)([first, second], lr=0.5, **settings)
    gradients(0, params[:1])
    other.step()
    saved = other.state_dict()
    for group in saved["param_groups"]:
        group.pop(flag, None)
    optimizer = getattr(boost, name)([first, {**second, flag: flag == "maximize"}], lr=0.1)
    optimizer.load_state_dict(saved)
    assert [g[flag] for g in optimizer.param_groups] == [flag != "maximize", flag == "maximize"]
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, 0.5]
