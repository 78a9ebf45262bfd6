"""Split masters of boost_ext.torch: the bits of float32 masters, and checkpoints that go over."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import beside_torch  # noqa: E402
from beside_torch import gradients  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

SHAPES = ((), (3,), (0,), (64, 80), (8, 4, 3, 3), (5000,))
RULES = [
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "state_dtype": "float8"}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "cautious": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "state_dtype": "bfloat16"}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    ("Lamb", {"lr": 0.01, "weight_decay": 0.1}),
    ("Lars", {"lr": 0.1}),
    ("Lion", {"lr": 0.001}),
    ("NAdam", {"lr": 0.01}),
    ("AdEMAMix", {"lr": 0.01}),
    ("ScheduleFreeAdamW", {"lr": 0.01}),
]
EACH_RULE = pytest.mark.parametrize(("name", "settings"), [r for r in RULES if hasattr(boost, r[0])])
KINDS = (True, "split16", "split8")


def parameters(shapes: Any = SHAPES) -> list[Any]:
    return beside_torch.parameters(shapes, torch.bfloat16)


def trained(name: str, params: list[Any], steps: Any, **settings: Any) -> Any:
    optimizer = getattr(boost, name)(params, **settings)
    run(optimizer, params, steps)
    return optimizer


def run(optimizer: Any, params: list[Any], steps: Any) -> None:
    for step in steps:
        gradients(step, params)
        optimizer.step()


def masters(optimizer: Any, params: list[Any]) -> list[Any]:
    state = optimizer.state_dict()["state"]
    return [state[i]["master"] for i in range(len(params))]


def assert_same(ours: list[Any], theirs: list[Any]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)


@EACH_RULE
def test_split16_has_the_bits_of_float32_masters(name, settings):
    ours, theirs = parameters(), parameters()
    one = trained(name, ours, range(8), master="split16", **settings)
    two = trained(name, theirs, range(8), master=True, **settings)
    assert_same(masters(one, ours), masters(two, theirs))
    for p, q in zip(ours, theirs, strict=True):
        assert one.state[p]["master"].dtype == torch.int16
        assert one.state[p]["master"].stride() == p.stride()
        torch.testing.assert_close(p, q, rtol=2**-7, atol=0)  # another weight only halfway between two


def test_split8_is_close():
    ours, theirs, without = parameters(), parameters(), parameters()
    one = trained("AdamW", ours, range(200), lr=1e-4, master="split8")
    two = trained("AdamW", theirs, range(200), lr=1e-4, master=True)
    trained("AdamW", without, range(200), lr=1e-4)
    wide = [*map(torch.ravel, masters(two, theirs))]
    errors = [
        torch.cat([a.float() - b for a, b in zip(map(torch.ravel, found), wide, strict=True)]).square().mean().sqrt()
        for found in (masters(one, ours), [p.detach() for p in without])
    ]
    assert errors[0] < 0.1 * errors[1]
    assert one.state[ours[3]]["master"].dtype == torch.int8


def halfway(params: list[Any]) -> list[Any]:
    """Masters whose last bits are 0x8000, to an even and an odd weight, and others around, of either sign."""
    result = []
    for p in params:
        bits = p.detach().float().view(torch.int32)
        lower = torch.tensor([0x8000, 0x7FFF, 0x8001, 0, 0x7F80, 0x7F7F], dtype=torch.int32)
        result.append((bits | lower.repeat(p.numel() // 6 + 1)[: p.numel()].reshape(p.shape)).view(torch.float32))
    return result


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("of", KINDS)
def test_checkpoints_go_over(of, to, tmp_path):
    """To the bit but into split8, which has the first byte. Half of the masters lie halfway between two weights."""
    params = parameters()
    one = trained("AdamW", params, range(2), lr=1e-4, master=of)
    state = copy.deepcopy(one.state_dict())
    for i, m in enumerate(halfway(params)):
        state["state"][i]["master"] = m
    with torch.no_grad():
        for p, m in zip(params, halfway(params), strict=True):
            p.copy_(m)
    one.load_state_dict(state)
    torch.save({"net": [p.detach() for p in params], "optimizer": one.state_dict()}, tmp_path / "all.pt")
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    assert all(saved["optimizer"]["state"][i]["master"].dtype == torch.float32 for i in range(len(params)))
    others = parameters()
    with torch.no_grad():
        for p, q in zip(others, saved["net"], strict=True):
            p.copy_(q)
    two = boost.AdamW(others, lr=1e-4, master=to)
    two.load_state_dict(saved["optimizer"])
    if to == "split8":
        for a, b in zip(masters(two, others), masters(one, params), strict=True):
            torch.testing.assert_close(a, b, rtol=2**-16, atol=2**-133)
    else:
        assert_same(masters(two, others), masters(one, params))
    if to is True:  # each weight is what its own storage makes of its master, which does not follow it
        assert_same([p.detach() for p in others], [m.bfloat16() for m in masters(two, others)])
    run(one, params, range(2, 4))
    run(two, others, range(2, 4))
    if "split8" not in (of, to):
        assert_same(masters(two, others), masters(one, params))


@pytest.mark.parametrize("kind", ["split16", "split8"])
def test_five_and_five_steps_are_the_bits_of_ten(kind, tmp_path):
    settings: dict[str, Any] = {"lr": 0.01, "state_dtype": "float8", "master": kind}
    whole, params = parameters(), parameters()
    optimizer = trained("AdamW", whole, range(10), **settings)
    part = trained("AdamW", params, range(5), **settings)
    torch.save(part.state_dict(), tmp_path / "state.pt")
    part = boost.AdamW(params, **settings)
    part.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    run(part, params, range(5, 10))
    assert_same([p.detach() for p in params], [p.detach() for p in whole])
    for p, q in zip(params, whole, strict=True):
        assert torch.equal(part.state[p]["master"], optimizer.state[q]["master"])
    again = pickle.loads(pickle.dumps(part))
    copied = copy.deepcopy(part)
    for other in (again, copied):
        assert_same(masters(other, params), masters(part, params))


@pytest.mark.parametrize("kind", ["split16", "split8"])
def test_a_state_without_masters(kind):
    """Of torch.optim, say: residuals of 0, so that the masters are the weights."""
    params = parameters()
    optimizer = boost.AdamW(params, lr=0.01, master=kind)
    theirs = trained("AdamW", parameters(), range(2), lr=0.01)
    optimizer.load_state_dict(theirs.state_dict())
    assert_same(masters(optimizer, params), [p.detach().float() for p in params])
    run(optimizer, params, [2])


def test_inf_nan_and_zeros():
    values = [float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 3.4e38, 1e-45, -1e-40]
    p = torch.nn.Parameter(torch.zeros(8, dtype=torch.bfloat16))
    optimizer = boost.SGD([p], lr=1.0, master="split16")
    state = {"state": {0: {"master": torch.tensor(values)}}, "param_groups": optimizer.state_dict()["param_groups"]}
    with torch.no_grad():
        p.copy_(torch.tensor(values))
    optimizer.load_state_dict(state)
    (found,) = masters(optimizer, [p])
    torch.testing.assert_close(found, torch.tensor(values), rtol=0, atol=0, equal_nan=True)
    assert torch.signbit(found)[3:].tolist() == [False, True, False, False, True]
    with torch.no_grad():  # as a pruning does
        p.zero_()
    (found,) = masters(optimizer, [p])
    assert (found.abs() < 2**-133).all()


@pytest.mark.parametrize("kind", KINDS)
def test_schedule_free_there_and_back(kind):
    params = parameters()
    optimizer = trained("ScheduleFreeAdamW", params, range(3), lr=0.01, master=kind)
    before = masters(optimizer, params)
    optimizer.eval()
    optimizer.train()
    for a, b in zip(masters(optimizer, params), before, strict=True):
        torch.testing.assert_close(a, b, rtol=2**-14, atol=1e-5)
    run(optimizer, params, [3])


def test_another_order_of_elements():
    """Gradients, state and residuals get that of the weights."""
    p = torch.nn.Parameter(torch.randn(64, 80).bfloat16().t())
    q = torch.nn.Parameter(p.detach().clone())
    one, two = boost.SGD([p], lr=0.1, master="split16"), boost.SGD([q], lr=0.1, master=True)
    for _ in range(3):
        p.grad = torch.randn(80, 64).bfloat16()
        q.grad = p.grad.clone()
        one.step()
        two.step()
    assert_same(masters(one, [p]), masters(two, [q]))


def test_what_is_refused():
    half = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))
    with pytest.raises(TypeError, match=r"^AdamW: master must be True or False for float16 parameters, got 'split16'$"):
        boost.AdamW([half], master="split16")
    text = r"^AdamW: master must be one of False, True, 'split16', 'split8', got 'half'$"
    with pytest.raises(ValueError, match=text):
        boost.AdamW(parameters(), master="half")
    for name in ("Muon", "Apollo", "GaLore", "Adafactor"):
        with pytest.raises(ValueError, match=rf"^{name}: master must be one of False, True, got 'split8'$"):
            getattr(boost, name)(parameters(), master="split8")
    wide = torch.nn.Parameter(torch.ones(3))
    optimizer = boost.AdamW([wide], master="split16")
    wide.grad = torch.ones(3)
    optimizer.step()
    assert "master" not in optimizer.state[wide]


@pytest.mark.parametrize("master", [True, "split16", "split8"])
@pytest.mark.parametrize("name", ["AdamW", "Lars", "ScheduleFreeAdamW"])
def test_weights_that_become_narrow_get_masters(name, master):
    """And lose them again: as in an optimizer that was made for the weights that there are, with the state so far."""
    nets = [torch.nn.Linear(70, 60) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    one, two = (getattr(boost, name)(net.parameters(), lr=0.01, master=master) for net in nets)
    step = 0
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        for net in nets:
            net.to(dtype)
        saved = two.state_dict()
        for entry in saved["state"].values():
            entry.pop("master", None)
        two = getattr(boost, name)(nets[1].parameters(), lr=0.01, master=master)
        two.load_state_dict(saved)
        for _ in range(2):
            step += 1
            gradients(step, *([*net.parameters()] for net in nets))
            one.step()
            two.step()
        for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
            assert torch.equal(p, q)
            assert ("master" in one.state[p]) == (dtype == torch.bfloat16)


def test_a_split_master_of_weights_that_become_float16_is_refused():
    net = torch.nn.Linear(4, 3)
    optimizer = boost.AdamW(net.parameters(), master="split16")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        net.to(dtype)
        gradients(0, [*net.parameters()])
        if dtype == torch.float16:
            with pytest.raises(
                TypeError, match=r"^AdamW: master must be True or False for float16 parameters, got 'spl"
            ):
                optimizer.step()
        else:
            optimizer.step()
