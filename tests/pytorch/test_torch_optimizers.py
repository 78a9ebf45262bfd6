"""boost_ext.torch's optimizers beside those of torch.optim, step by step."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import beside_torch  # noqa: E402
from beside_torch import goes_over, gradients  # noqa: E402

from boost_ext import torch as boost  # noqa: E402

SHAPES = ((), (3,), (0,), (64, 80), (8, 4, 3, 3), (5000,))

RULES = [
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.01, "maximize": True}),
    ("Adam", {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "maximize": True}),
    ("Adam", {"lr": 0.01, "betas": (0.0, 0.9), "amsgrad": True, "eps": 1e-2}),
    ("AdamW", {"lr": 0.01, "betas": (0.0, 0.99)}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "eps": 1e-2}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5}),
    ("Adafactor", {"lr": 0.03}),
]
RULES = [r for r in RULES if r[1].keys() <= inspect.signature(getattr(torch.optim, r[0])).parameters.keys()]  # 2.5 on
EACH_RULE = pytest.mark.parametrize(("name", "settings"), RULES)
SHARED = [rule for rule in RULES if rule[0] != "Adafactor"]


def parameters(dtype: Any = None, shapes: Any = SHAPES) -> list[Any]:
    return beside_torch.parameters(shapes, dtype)


def close(ours: list[Any], theirs: list[Any], tolerance: float = 2e-6) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def both(name: str, settings: Any, dtype: Any = None) -> tuple[list[Any], list[Any], Any, Any]:
    shapes = [s for s in SHAPES if s != (0,)] if name == "Adafactor" else SHAPES  # theirs divides by the size
    ours, theirs = parameters(dtype, shapes), parameters(dtype, shapes)
    return ours, theirs, getattr(boost, name)(ours, **settings), getattr(torch.optim, name)(theirs, **settings)


@EACH_RULE
def test_steps_like_torch(name, settings):
    ours, theirs, optimizer, reference = both(name, settings)
    for step in range(8):
        gradients(step, ours)
        gradients(step, theirs)
        optimizer.step()
        reference.step()
        close(ours, theirs)


@pytest.mark.parametrize("change", ["swap", "replace", "clear", "order", "leave"])
def test_what_the_user_changes_between_steps_counts(change):
    """The optimizer keeps what it knows of ``state`` from step to step, for as long as it is so."""
    shapes = [(3, 4), (3, 4), (5,)]
    ours, theirs = parameters(shapes=shapes), parameters(shapes=shapes)
    optimizers = boost.AdamW(ours, lr=0.01), torch.optim.AdamW(theirs, lr=0.01)

    def apply(optimizer, weights):
        state, group = optimizer.state, optimizer.param_groups[0]
        if change == "swap":
            state[weights[0]], state[weights[1]] = state[weights[1]], state[weights[0]]
        elif change == "replace":
            state[weights[0]] = {k: 2 * v if k != "step" else v for k, v in state[weights[0]].items()}
        elif change == "clear":
            state.clear()
        elif change == "order":
            group["params"] = group["params"][::-1]
        else:
            del state[weights[1]]
            group["params"] = group["params"][1:]

    for step in range(6):
        for optimizer, weights in zip(optimizers, (ours, theirs), strict=True):
            gradients(step, weights)
            if step == 3:
                apply(optimizer, weights)
            optimizer.step()
        close(ours, theirs)


@EACH_RULE
def test_half_weights_are_rounded_once(name, settings):
    """The arithmetic and the state are float32: as torch in float32, whose weights are rounded after each step."""
    if name == "Adafactor":
        settings = {**settings, "eps": (1e-4, 1e-3)}  # of the dtype of the weights by default
    ours, _, optimizer, _ = both(name, settings, torch.bfloat16)
    theirs = [torch.nn.Parameter(p.detach().float()) for p in ours]
    reference = getattr(torch.optim, name)(theirs, **settings)
    for step in range(8):
        gradients(step, ours)
        for p, q in zip(ours, theirs, strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
        with torch.no_grad():
            for p, q in zip(ours, theirs, strict=True):
                torch.testing.assert_close(p.float(), q.bfloat16().float(), rtol=2**-7, atol=1e-6)
                q.copy_(p)


def test_a_master_keeps_what_rounding_loses():
    ours = parameters(torch.bfloat16)
    theirs = [torch.nn.Parameter(p.detach().float()) for p in ours]
    optimizer, reference = boost.AdamW(ours, lr=1e-4, master=True), torch.optim.AdamW(theirs, lr=1e-4)
    for step in range(8):
        gradients(step, ours)
        for p, q in zip(ours, theirs, strict=True):
            q.grad = p.grad.float()
        optimizer.step()
        reference.step()
    close([optimizer.state[p]["master"] for p in ours], [q.data for q in theirs])
    for p in ours:
        assert torch.equal(p.detach(), optimizer.state[p]["master"].bfloat16())


@pytest.mark.parametrize(("name", "settings"), SHARED)
@pytest.mark.parametrize("to_torch", [True, False])
def test_a_state_dict_goes_over_to_torch_and_back(name, settings, to_torch, tmp_path):
    ours, theirs, optimizer, reference = both(name, settings)
    first, second = (ours, theirs) if to_torch else (theirs, ours)
    one, two = (optimizer, reference) if to_torch else (reference, optimizer)
    goes_over(one, two, first, second, tmp_path, close, 3)


def test_rows_without_a_gradient_keep_state_and_count():
    ours, theirs, optimizer, reference = both("AdamW", {"lr": 0.01})
    for step, absent in enumerate([(1,), (), (1, 3), (3,), (0, 1, 2, 3, 4, 5), ()]):
        for params in (ours, theirs):
            gradients(step, params)
            for i in absent:
                params[i].grad = None
        optimizer.step()
        reference.step()
        close(ours, theirs)
    for p, q in zip(ours, theirs, strict=True):
        assert float(optimizer.state[p]["step"]) == float(reference.state[q]["step"])
    written = optimizer.state_dict()["state"]
    assert len({entry["step"].data_ptr() for entry in written.values()}) == len(SHAPES)


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_groups_and_schedulers(name):
    ours, theirs = parameters(), parameters()
    pairs = []
    for params, module in ((ours, boost), (theirs, torch.optim)):
        groups = [{"params": params[:2], "weight_decay": 0.5}, {"params": params[2:4], "lr": 0.02}]
        optimizer = getattr(module, name)(groups, lr=0.01)
        optimizer.add_param_group({"params": params[4:], "lr": 0.001})
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
        pairs.append((params, optimizer, scheduler))
    for step in range(5):
        for params, optimizer, scheduler in pairs:
            gradients(step, params)
            optimizer.step()
            scheduler.step()
        close(ours, theirs)
    assert [g["lr"] for g in pairs[0][1].param_groups] == [g["lr"] for g in pairs[1][1].param_groups]


def test_one_cycle_moves_betas():
    ours, theirs, optimizer, reference = both("AdamW", {"lr": 0.01})
    schedulers = [torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=10) for o in (optimizer, reference)]
    for step in range(8):
        gradients(step, ours)
        gradients(step, theirs)
        optimizer.step()
        reference.step()
        for scheduler in schedulers:
            scheduler.step()
        close(ours, theirs, 1e-5)


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16", "float8"])
@pytest.mark.parametrize("name", ["AdamW", "SGD", "Lamb"])
def test_five_and_five_steps_are_the_bits_of_ten(name, state_dtype, tmp_path):
    settings = {"lr": 0.01, "state_dtype": state_dtype, "master": True, **({"momentum": 0.9} if name == "SGD" else {})}
    whole = parameters(torch.bfloat16)
    optimizer = getattr(boost, name)(whole, **settings)
    for step in range(10):
        gradients(step, whole)
        optimizer.step()
    params = parameters(torch.bfloat16)
    part = getattr(boost, name)(params, **settings)
    for step in range(10):
        if step == 5:
            torch.save(part.state_dict(), tmp_path / "state.pt")
            part = getattr(boost, name)(params, **settings)
            part.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        gradients(step, params)
        part.step()
    for p, q in zip(params, whole, strict=True):
        assert torch.equal(p, q)
        for key, value in optimizer.state[q].items():
            assert torch.equal(part.state[p][key], value), key
    stored = part.state[params[3]]["momentum_buffer" if name == "SGD" else "exp_avg"].dtype
    assert stored == {"float32": torch.float32, "bfloat16": torch.bfloat16, "float8": torch.uint8}[state_dtype]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("saved", "loaded"), [("float8", "float32"), ("float32", "float8"), ("bfloat16", "float8")])
def test_state_of_another_storage_is_converted(saved, loaded, layout):
    weight = torch.nn.Parameter(torch.randn(32, 16, 3, 3))
    one = boost.AdamW([weight], lr=0.01, state_dtype=saved)
    gradients(0, [weight])
    one.step()
    other = torch.nn.Parameter(weight.detach().clone(memory_format=layout))
    two = boost.AdamW([other], lr=0.5, state_dtype=loaded)
    two.load_state_dict(one.state_dict())
    assert (two.param_groups[0]["lr"], two.param_groups[0]["state_dtype"]) == (0.01, loaded)
    gradients(0, [other])
    exact = boost.AdamW([copy.deepcopy(other)], lr=0.01)
    exact.load_state_dict(one.state_dict())
    for optimizer in (two, exact):
        gradients(1, optimizer.param_groups[0]["params"])
        optimizer.step()
    difference = (other - exact.param_groups[0]["params"][0]).abs().max()
    assert difference < 2e-3  # of a step of 0.01
    two.load_state_dict(two.state_dict())


@pytest.mark.parametrize("name", ["AdamW8bit", "Adam8bit", "SGD8bit", "Lamb8bit"])
def test_names_for_8_bits(name):
    [weight] = parameters(shapes=[(64, 80)])
    optimizer = getattr(boost, name)([weight], lr=0.01, **({"momentum": 0.9} if name == "SGD8bit" else {}))
    gradients(0, [weight])
    optimizer.step()
    state = {k: v for k, v in optimizer.state[weight].items() if k != "step" and not k.endswith("_scale")}
    assert {v.dtype for v in state.values()} == {torch.uint8}
    assert all(optimizer.state[weight][f"{k}_scale"].shape == (20,) for k in state)


def test_lamb_steps_by_a_part_of_the_norm():
    weight = torch.nn.Parameter(torch.randn(20, 30))
    optimizer = boost.Lamb([weight], lr=0.01, weight_decay=0.1)
    before = weight.detach().double()
    gradients(0, [weight])
    g = weight.grad.double()
    optimizer.step()
    update = g / (g.abs() + 1e-6) + 0.1 * before
    expected = before - 0.01 * before.norm() / update.norm() * update
    torch.testing.assert_close(weight.detach(), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("maximize", [False, True])
def test_lars_scales_the_gradient_to_the_weights(maximize):
    weight, bias = (torch.nn.Parameter(torch.randn(s)) for s in ((20, 30), (30,)))
    groups = [{"params": [weight]}, {"params": [bias], "adapt": False}]
    optimizer = boost.Lars(groups, lr=0.1, weight_decay=0.01, trust_coefficient=0.02, maximize=maximize)
    w, b = weight.detach().double(), bias.detach().double()
    sign = -1 if maximize else 1
    m = torch.zeros_like(w)
    for step in range(3):
        gradients(step, [weight, bias])
        g = sign * weight.grad.double()
        m = 0.9 * m + 0.02 * w.norm() / (g.norm() + 0.01 * w.norm() + 1e-8) * (g + 0.01 * w)
        w = w - 0.1 * m
        if step == 0:
            b = b - 0.1 * sign * bias.grad.double()
        optimizer.step()
        if step == 0:
            torch.testing.assert_close(bias.detach(), b.float())
    torch.testing.assert_close(weight.detach(), w.float(), rtol=1e-5, atol=1e-6)


def test_adam_without_bias_correction():
    [weight] = parameters(shapes=[(30,)])
    optimizer = boost.AdamWeightDecay([weight], lr=0.01, weight_decay=0.1)
    w = weight.detach().double()
    gradients(0, [weight])
    g = weight.grad.double()
    optimizer.step()
    expected = w - 0.01 * (0.1 * g / ((0.001 * g * g).sqrt() + 1e-6) + 0.1 * w)
    torch.testing.assert_close(weight.detach(), expected.float(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("state_dtype", ["float32", "float8"])
def test_any_dense_layout_and_a_change_of_it(state_dtype):
    ours = torch.nn.Parameter(torch.randn(32, 16, 3, 3).contiguous(memory_format=torch.channels_last))
    theirs = torch.nn.Parameter(ours.detach().clone(memory_format=torch.contiguous_format))
    optimizer = boost.AdamW([ours], lr=0.01, state_dtype=state_dtype)
    reference = torch.optim.AdamW([theirs], lr=0.01)
    for step in range(6):
        gradients(step, [ours])
        gradients(step, [theirs])
        if step == 2:
            ours.grad = ours.grad.contiguous()
        if step == 4:
            ours.data = ours.data.contiguous()
        optimizer.step()
        reference.step()
        close([ours], [theirs], 2e-6 if state_dtype == "float32" else 0.02)
    assert ours.is_contiguous()
    assert optimizer.state[ours]["exp_avg"].is_contiguous()


@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_grad_scaler_unscales_in_the_step_and_skips(name):
    settings = {"lr": 0.01, **({"momentum": 0.9, "dampening": 0.5} if name == "SGD" else {})}
    ours, theirs, optimizer, reference = both(name, settings)
    scalers = [torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3) for _ in range(2)]
    for step in range(8):
        for params, stepped, scaler in ((ours, optimizer, scalers[0]), (theirs, reference, scalers[1])):
            scaler.scale(torch.zeros(1))  # makes the scale
            gradients(step, params, scale=scaler.get_scale())
            if step in (0, 3):
                params[3].grad[5, 7] = torch.inf
            if step == 5:
                scaler.unscale_(stepped)
            scaler.step(stepped)
            scaler.update()
        close(ours, theirs)
        assert scalers[0].get_scale() == scalers[1].get_scale()
    assert float(optimizer.state[ours[3]]["step"]) == 6
    assert not hasattr(optimizer, "found_inf")


def test_closures_and_hooks():
    weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    optimizer = boost.SGD([weight], lr=0.25)
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append(weight.tolist()))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2
    assert seen == [[0.5, -0.5]]


def test_autograd_sees_the_write():
    weight = torch.nn.Parameter(torch.randn(5))
    loss = weight.exp().sum()
    kept = weight.square()
    weight.grad = torch.ones(5)
    boost.SGD([weight], lr=0.1).step()
    loss.backward()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copies_go_on_by_themselves(copied):
    params = parameters()
    optimizer = boost.AdamW8bit(params, lr=0.01)
    gradients(0, params)
    optimizer.step()
    other = copied(optimizer)
    for chosen in (optimizer, other):
        gradients(1, chosen.param_groups[0]["params"])
        chosen.step()
    for p, q in zip(params, other.param_groups[0]["params"], strict=True):
        assert torch.equal(p, q)
    assert other.state[other.param_groups[0]["params"][3]]["exp_avg"].dtype == torch.uint8


def test_what_is_refused():
    weight = torch.nn.Parameter(torch.ones(3))
    for text, kind, make in [
        ("AdamW: amsgrad must be False with decoupled decay", ValueError, lambda: boost.AdamW([weight], amsgrad=True)),
        (
            "Adam: state_dtype must be 'float32' with amsgrad, got 'float8'",
            ValueError,
            lambda: boost.Adam([weight], amsgrad=True, state_dtype="float8"),
        ),
        (
            "SGD: state_dtype must be 'float32' with dampening",
            ValueError,
            lambda: boost.SGD([weight], momentum=0.9, dampening=0.1, state_dtype="bfloat16"),
        ),
        ("SGD: nesterov must come with a momentum", ValueError, lambda: boost.SGD([weight], nesterov=True)),
        (
            "Adam: state_dtype must be one of float32, bfloat16, float8, got 'int4'",
            ValueError,
            lambda: boost.Adam([weight], state_dtype="int4"),
        ),
        (
            "Adafactor: state_dtype must be 'float32' for this rule",
            ValueError,
            lambda: boost.Adafactor([weight], state_dtype="float8"),
        ),
        ("Adafactor: weight_decay must be 0, got 0.1", ValueError, lambda: boost.Adafactor([weight], weight_decay=0.1)),
        ("Adam: got an unknown argument 'betas1'", TypeError, lambda: boost.Adam([weight], betas1=0.9)),
        ("Adam: differentiable must be False", ValueError, lambda: boost.Adam([weight], differentiable=True)),
    ]:
        with pytest.raises(kind, match=f"^{text}"):
            make()
    weight.grad = torch.eye(3)[0].to_sparse()
    with pytest.raises(RuntimeError, match=r"^AdamW: gradients must be dense, got a sparse one$"):
        boost.AdamW([weight]).step()
    weight.grad = torch.ones(3)
    optimizer = boost.AdamW([weight], fused=True)
    optimizer.param_groups[0]["lr"] = -1.0
    with pytest.raises(ValueError, match=r"^adamw_step: lr must be finite and >= 0, got -1$"):
        optimizer.step()
    assert float(optimizer.state[weight]["step"]) == 0
    broken = boost.AdamW8bit([torch.nn.Parameter(torch.ones(5000))])
    entry = {
        "step": torch.tensor(1.0),
        "exp_avg": torch.zeros(5000, dtype=torch.uint8),
        "exp_avg_sq": torch.zeros(5000),
    }
    with pytest.raises(ValueError, match=r"^load_state_dict: state of parameter 0 must hold exp_avg_scale, got "):
        broken.load_state_dict({**broken.state_dict(), "state": {0: entry}})


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_adaptive_clip_grad_is_that_of_each_unit(layout: torch.memory_format) -> None:
    generator = torch.Generator().manual_seed(5)
    shapes = [(7, 3, 3, 3), (4, 5, 1, 1), (1, 2, 3, 3)]
    weights = [torch.nn.Parameter(torch.randn(s, generator=generator).to(memory_format=layout)) for s in shapes]
    weights.append(torch.nn.Parameter(torch.randn(9, generator=generator)))
    weights.append(torch.nn.Parameter(torch.randn(3)))  # without a gradient
    expected = []
    for w in weights[:-1]:
        w.grad = torch.randn(w.shape, generator=generator).to(memory_format=layout) if w.ndim == 4 else torch.ones(9)
        axes = [*range(1, w.ndim)] or [0]
        norm, limit = (x.double().square().sum(axes, keepdim=True).sqrt() for x in (w.grad, w.detach()))
        limit = 0.2 * limit.clamp(min=1e-3)
        expected.append(w.grad.double() * torch.where(norm > limit, limit / norm, 1))
    boost.adaptive_clip_grad_(iter(weights), 0.2)
    for w, e in zip(weights, expected, strict=False):
        torch.testing.assert_close(w.grad.double(), e, rtol=1e-6, atol=0)


@pytest.mark.parametrize("shape", [(4, 6), (6, 3, 2, 2), (2, 0, 3)])
@pytest.mark.parametrize("of", ["weights", "gradients"])
def test_adaptive_clip_grad_where_gradients_lie_in_another_order(shape, of):
    [p], [q] = parameters(shapes=[shape]), parameters(shapes=[shape])
    gradients(0, [p], [q])
    other = (p.detach() if of == "weights" else p.grad).transpose(0, -1).contiguous().transpose(0, -1)
    if of == "weights":
        p.data = other
    else:
        p.grad = other
    for each in (p, q):
        boost.adaptive_clip_grad_([each], 0.1)
    assert torch.equal(p.grad, q.grad)
    q.data = q.data.to(memory_format=torch.channels_last) if q.ndim == 4 else q.data
    gradients(0, [p], [q])
    p.grad, q.grad = (g.clone(memory_format=torch.contiguous_format) for g in (p.grad, q.grad))
    for each in (p, q):
        boost.adaptive_clip_grad_([each], 0.1)
    torch.testing.assert_close(p.grad, q.grad)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_clip_grad_norm(scale):
    ours, theirs = parameters(), parameters()
    gradients(0, ours, scale=scale)
    gradients(0, theirs)
    ours[1].grad = theirs[1].grad = None
    norm = boost.clip_grad_norm_(ours, 2.0, scale=torch.tensor(scale))
    expected = torch.nn.utils.clip_grad_norm_(theirs, 2.0)
    torch.testing.assert_close(norm.float(), expected)
    close([p.grad / scale for p in ours if p.grad is not None], [p.grad for p in theirs if p.grad is not None])
    assert boost.clip_grad_norm_([ours[1]], 1.0).item() == 0


def test_unscale():
    params = parameters()
    gradients(0, params, scale=64.0)
    expected = [p.grad / 64 for p in params]
    found = boost.unscale_(params, torch.tensor(64.0))
    assert (found.item(), found.shape, found.dtype) == (0, (), torch.float32)
    for p, g in zip(params, expected, strict=True):
        assert torch.equal(p.grad, g)
    for wrong in (0.0, torch.tensor(0.0), -1, torch.nan, torch.inf):
        with pytest.raises(ValueError, match=r"^unscale_: scale must be finite and > 0, got "):
            boost.unscale_(params, wrong)
    params[3].grad[0, 0] = torch.nan
    assert boost.unscale_(params, 2.0).item() == 1
    assert boost.unscale_([torch.nn.Parameter(torch.ones(2))], 2.0).item() == 0


@pytest.mark.parametrize("max_norm", [0, 0.5, 1e3, torch.inf, torch.tensor(0.5), torch.tensor([2.0])])
@pytest.mark.parametrize("layout", ["dense", "strided", "expanded"])
def test_clip_grad_norm_takes_what_that_of_torch_takes(max_norm, layout):
    ours, theirs = parameters(), parameters()
    gradients(0, ours, theirs)
    held = []
    for p, q in zip(ours, theirs, strict=True):
        if layout == "expanded":
            p.grad = torch.full((1,) * p.ndim, 0.25).expand(p.shape)
            q.grad = p.grad.clone()
        elif layout == "strided" and p.ndim:
            p.grad = torch.stack([q.grad, q.grad], -1)[..., 0]
        held.append(p.grad)
    settings = {"norm_type": 2.0, "error_if_nonfinite": True, "foreach": False}
    norm = boost.clip_grad_norm_(ours, max_norm, **settings)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, **settings)
    torch.testing.assert_close(norm.float(), expected)
    close([p.grad for p in ours], [q.grad for q in theirs])
    if layout != "expanded":
        assert all(p.grad is g for p, g in zip(ours, held, strict=True))
    assert boost.clip_grad_norm_(ours, 1.0, 2).shape == ()


@pytest.mark.parametrize("max_norm", [0.0, 1.0, torch.inf])
def test_clip_grad_norm_of_what_is_not_finite(max_norm):
    """PyTorch's makes all of them nan."""
    [p] = parameters(shapes=[(3,)])
    p.grad = torch.tensor([1.0, torch.nan, 2.0])
    assert boost.clip_grad_norm_([p], max_norm).isnan()
    with pytest.raises(RuntimeError, match=r"norm must be finite with error_if_nonfinite, got nan$"):
        boost.clip_grad_norm_([p], max_norm, error_if_nonfinite=True)
    assert p.grad[[0, 2]].tolist() == [1.0, 2.0]


def test_clip_grad_norm_refuses_other_norms():
    [p] = parameters(shapes=[(3,)])
    with pytest.raises(ValueError, match=r"^clip_grad_norm_: norm_type must be 2, got inf$"):
        boost.clip_grad_norm_([p], 1.0, torch.inf)
    p.grad = torch.ones(3)
    with pytest.raises(ValueError, match=r"^clip_by_global_norm: clip_norm must be finite and > 0, got -1$"):
        boost.clip_grad_norm_([p], -1.0)


def test_unscale_of_strided_gradients():
    [p, q] = parameters(shapes=[(3, 4), (5,)])
    p.grad, q.grad = torch.full((3, 8), 8.0)[:, ::2], torch.tensor(8.0).expand(5)
    assert boost.unscale_([p, q], 4.0).item() == 0
    assert p.grad.unique().tolist() == q.grad.unique().tolist() == [2.0]


def test_unscale_of_dtensors():
    """By the part of this process, as the optimizers step them."""
    tensor: Any = pytest.importorskip("torch.distributed.tensor")
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    try:
        mesh = tensor.init_device_mesh("cpu", (1,))
        p = torch.nn.Parameter(tensor.distribute_tensor(torch.ones(4, 3), mesh, [tensor.Shard(0)]))
        p.grad = tensor.distribute_tensor(torch.full((4, 3), 8.0), mesh, [tensor.Shard(0)])
        assert boost.unscale_([p], 4.0).item() == 0
        assert p.grad.to_local().unique().tolist() == [2.0]
        with pytest.raises(TypeError, match=r"gradients must be tensors of this process alone, got DTensor$"):
            boost.clip_grad_norm_([p], 1.0)
    finally:
        torch.distributed.destroy_process_group()
