"""Schedule-Free beside the paper's equations in float64; its switch, its checkpoints and those of the authors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import beside_torch  # noqa: E402
from beside_torch import gradients  # noqa: E402

import oracle  # noqa: E402
from boost_ext import torch as boost  # noqa: E402

SHAPES = ((), (3,), (0,), (64, 80), (5000,))
SETTINGS = {"lr": 0.05, "weight_decay": 0.1, "warmup_steps": 5, "r": 0.5, "weight_lr_power": 1.0}
NAMES = ["ScheduleFreeSGD", "ScheduleFreeAdamW"]
EACH = pytest.mark.parametrize("name", NAMES)


def parameters(dtype: Any = None) -> list[Any]:
    return beside_torch.parameters(SHAPES, dtype)


def trained(name: str, params: list[Any], which: range, **settings: Any) -> Any:
    optimizer = getattr(boost, name)(params, **{**SETTINGS, **settings})
    for step in which:
        gradients(step, params)
        optimizer.step()
    return optimizer


class Exact:
    """x, z and v of one tensor, by the paper's equations."""

    def __init__(self, name: str, w: np.ndarray) -> None:
        self.adaptive, self.x, self.z, self.v = name.endswith("AdamW"), w, w, np.zeros(w.shape)

    @property
    def y(self) -> np.ndarray:
        return 0.1 * self.z + 0.9 * self.x

    def step(self, g: np.ndarray, t: int, lr: float, c: float) -> None:
        d = g + 0.1 * self.y
        if self.adaptive:
            self.v = 0.999 * self.v + 0.001 * g**2
            d = g / (np.sqrt(self.v / (1 - 0.999**t)) + 1e-8) + 0.1 * self.y
        self.z = self.z - lr * d
        self.x = (1 - c) * self.x + c * self.z


@EACH
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_beside_float64(name, dtype):
    """Half weights by their masters. The rate is that of a scheduler in the last steps."""
    ours = parameters(dtype)
    exact = [Exact(name, p.detach().double().numpy()) for p in ours]
    optimizer = trained(name, ours, range(0), master=True)
    rates = [0.05 * min(1, t / 5) for t in range(1, 11)] + [0.02] * 4
    weights = oracle.averaging_weights(rates, 0.5, 1.0)
    for step, (rate, c) in enumerate(zip(rates, weights, strict=True)):
        gradients(step, ours)
        optimizer.param_groups[0]["lr"] = 0.05 if step < 10 else 0.02
        optimizer.step()
        for p, e in zip(ours, exact, strict=True):
            e.step(p.grad.double().numpy(), step + 1, rate, c)
    for mode in ("y", "x", "x", "y"):
        optimizer.train() if mode == "y" else optimizer.eval()
        for p, e in zip(ours, exact, strict=True):
            master = optimizer.state[p].get("master", p)
            np.testing.assert_allclose(master.detach().double().numpy(), getattr(e, mode), rtol=2e-5, atol=2e-6)
            assert torch.equal(p, master.to(p.dtype))
    assert optimizer.param_groups[0]["k"] == 14


@EACH
@pytest.mark.parametrize("evaluated", [False, True])
def test_five_and_five_steps_are_the_bits_of_ten(name, evaluated, tmp_path):
    whole, params = parameters(torch.bfloat16), parameters(torch.bfloat16)
    one = trained(name, whole, range(5), master=True)
    if evaluated:
        one.eval()
    torch.save([one.state_dict(), whole], tmp_path / "state.pt")
    state, weights = torch.load(tmp_path / "state.pt", weights_only=True)
    with torch.no_grad():
        for p, q in zip(params, weights, strict=True):
            p.copy_(q)
    two = trained(name, params, range(0), master=True)
    two.load_state_dict(state)
    assert two.param_groups[0]["train_mode"] != evaluated
    for each, of in ((one, whole), (two, params)):
        each.train()
        for step in range(5, 10):
            gradients(step, of)
            each.step()
    for p, q in zip(params, whole, strict=True):
        assert torch.equal(p, q)
        for key, value in one.state[q].items():
            assert torch.equal(two.state[p][key], value), key


@EACH
def test_a_step_after_eval_is_refused(name):
    ours = parameters()
    optimizer = trained(name, ours, range(3))
    optimizer.eval()
    before = copy.deepcopy([p.detach() for p in ours]), copy.deepcopy(optimizer.state_dict())
    gradients(3, ours)
    with pytest.raises(ValueError, match=rf"^{name}: train_mode must be True for a step, got False; call train\(\)$"):
        optimizer.step()
    assert all(torch.equal(p, was) for p, was in zip(ours, before[0], strict=True))
    assert optimizer.state_dict()["param_groups"] == before[1]["param_groups"]
    optimizer.train()
    optimizer.step()


@EACH
def test_eval_before_the_first_step(name):
    """Then x is what the weights are, wherever they were when the optimizer was made."""
    ours = parameters()
    optimizer = trained(name, ours, range(0))
    with torch.no_grad():
        for p in ours:
            p.add_(3)
    before = [p.detach().clone() for p in ours]
    optimizer.eval()
    assert all(torch.equal(p, was) for p, was in zip(ours, before, strict=True))
    optimizer.train()
    gradients(0, ours)
    optimizer.step()
    for p, was in zip(ours, before, strict=True):
        assert torch.equal(optimizer.state[p]["z"], p), "c is 1"
        assert p.numel() == 0 or not torch.equal(p, was)


@EACH
def test_a_checkpoint_of_the_authors_code(name):
    """It has no number of steps but the group's, and other settings beside ours."""
    ours, other = parameters(), parameters()
    one, two = trained(name, ours, range(6)), trained(name, other, range(0))
    theirs = copy.deepcopy(one.state_dict())
    for entry in theirs["state"].values():
        del entry["step"]
    for group in theirs["param_groups"]:
        for key in ("maximize", "state_dtype", "master", "seed"):
            del group[key]
        group |= {"foreach": True, "scheduled_lr": 0.05}
    two.load_state_dict(theirs)
    with torch.no_grad():
        for p, q in zip(other, ours, strict=True):
            p.copy_(q)
    gradients(6, ours, other)
    one.step()
    two.step()
    assert all(torch.equal(p, q) for p, q in zip(ours, other, strict=True))


@EACH
def test_a_refused_step_does_not_count(name):
    ours = parameters()
    optimizer = trained(name, ours, range(2))
    gradients(2, ours)
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match=f"^{name}: lr must be finite and >= 0, got nan$"):
        optimizer.step()
    assert optimizer.param_groups[0]["k"] == 2
    for p in ours:
        p.grad = None
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step()
    assert optimizer.param_groups[0]["k"] == 2, "no parameter has a gradient"


@EACH
def test_a_step_that_overflows_does_not_count(name):
    ours, other = parameters(), parameters()
    one, two = trained(name, ours, range(0)), trained(name, other, range(0))
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for step in range(4):
        scaler.scale(torch.zeros(()))
        gradients(step, ours, scale=scaler.get_scale())
        if step == 2:
            ours[1].grad[0] = float("inf")
        scaler.step(one)
        scaler.update()
        if step != 2:
            gradients(step, other)
            two.step()
    assert one.param_groups[0]["k"] == 3
    for p, q in zip(ours, other, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-6)


def test_groups_and_parameters_without_a_gradient():
    """Each group has its average; a parameter that waits has its own number of steps."""
    ours = parameters()
    groups = [{"params": ours[:2], "lr": 0.1}, {"params": ours[2:], "warmup_steps": 3}]
    optimizer = boost.ScheduleFreeAdamW(groups, lr=0.01)
    for step in range(3):
        gradients(step, ours)
        if step == 1:
            ours[4].grad = None
        optimizer.step()
    assert [round(g["weight_sum"] / g["lr"] ** 2, 6) for g in optimizer.param_groups] == [3.0, round(14 / 9, 6)]
    assert float(optimizer.state[ours[4]]["step"]) == 2
    assert float(optimizer.state[ours[3]]["step"]) == 3


def test_refusals():
    [weight] = parameters()[1:2]
    for name in NAMES:
        make = getattr(boost, name)
        with pytest.raises(ValueError, match=f"^{name}: state_dtype must be 'float32' for this rule, got 'float8'$"):
            make([weight], state_dtype="float8")
        with pytest.raises(ValueError, match=f"^{name}: warmup_steps must be >= 0, got -1$"):
            make([weight], warmup_steps=-1)
    with pytest.raises(ValueError, match=r"^ScheduleFreeSGD: momentum must be in \(0, 1\), got 0.0$"):
        boost.ScheduleFreeSGD([weight], momentum=0.0)
    with pytest.raises(ValueError, match=r"^ScheduleFreeAdamW: beta1 must be in \(0, 1\), got 1.0$"):
        boost.ScheduleFreeAdamW([weight], betas=(1.0, 0.999))


@EACH
def test_a_switch_without_momentum_is_refused(name):
    """What would be divided by it. The first group is not switched either."""
    ours = parameters()
    optimizer = trained(name, ours, range(0))
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))]})
    gradients(0, ours)
    optimizer.step()
    before = [p.detach().clone() for p in ours]
    optimizer.param_groups[1].update({"momentum": 0.0, "betas": (0.0, 0.9)})
    with pytest.raises(ValueError, match=rf"^{name}: (momentum|beta1) must be in \(0, 1\), got 0.0$"):
        optimizer.eval()
    assert optimizer.param_groups[0]["train_mode"]
    assert all(torch.equal(p, was) for p, was in zip(ours, before, strict=True))
