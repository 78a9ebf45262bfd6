"""What a user changes between two steps, and what hooks see."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from boost_ext import torch as boost  # noqa: E402


def weights(number: int = 2) -> list[Any]:
    return [torch.nn.Parameter(torch.ones(4)) for _ in range(number)]


def with_gradients(params: list[Any], value: float = 1.0) -> None:
    for p in params:
        p.grad = torch.full_like(p, value)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD"])
def test_a_parameter_that_moves_to_another_group_counts_its_steps_once(name):
    states = []
    for module in (boost, torch.optim):
        params = weights(3)
        settings = {"momentum": 0.9} if name == "SGD" else {}
        optimizer = getattr(module, name)(params, lr=0.1, **settings)
        with_gradients(params)
        optimizer.step()
        moved = optimizer.param_groups[0]["params"].pop(1)
        optimizer.add_param_group({"params": [moved], "lr": 0.01})
        optimizer.step()
        params[0].grad = params[2].grad = None  # the first group waits
        optimizer.step()
        states.append((params, optimizer))
    (ours, optimizer), (theirs, reference) = states
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)
    if name != "SGD":
        counts = [[float(o.state[p]["step"]) for p in ps] for o, ps in ((optimizer, ours), (reference, theirs))]
        assert counts == [[2.0, 3.0, 2.0]] * 2


@pytest.mark.parametrize(
    ("name", "key", "value", "settings"),
    [
        ("Muon", "use_muon", False, {}),
        ("Apollo", "use_apollo", False, {"rank": 2}),
        ("Apollo", "rank", 1, {"rank": 2}),
        ("GaLore", "use_galore", False, {"rank": 2}),
        ("AdamW", "state_dtype", "float8", {}),
    ],
)
def test_what_decides_on_the_state_stays(name, key, value, settings):
    weight = torch.nn.Parameter(torch.randn(64, 80))
    optimizer = getattr(boost, name)([weight], lr=0.01, **settings)
    group = optimizer.param_groups[0]
    before = group[key]
    group[key] = value
    group[key] = before  # nothing has begun
    with_gradients([weight])
    optimizer.step()
    group[key] = value
    was = weight.detach().clone()
    with pytest.raises(ValueError, match=rf"^{name}: {key} must stay .* once there is state, got {value!r}$"):
        optimizer.step()
    assert torch.equal(weight, was)
    group[key] = before
    optimizer.step()
    getattr(boost, name)([weight], lr=0.01, **settings).load_state_dict(optimizer.state_dict())


def test_before_the_first_step_it_may_change():
    weight = torch.nn.Parameter(torch.randn(64, 80))
    optimizer = boost.Muon([weight], lr=0.01)
    optimizer.param_groups[0]["use_muon"] = False
    with_gradients([weight])
    optimizer.step()
    assert set(optimizer.state[weight]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("name", ["AdamW", "NAdamW"])
def test_hooks_of_state_dict_see_it_as_torch_has_it(name):
    params = [torch.nn.Parameter(torch.ones(64).bfloat16()) for _ in range(2)]
    optimizer = getattr(boost, name)(params, lr=0.01, master="split16")
    with_gradients(params)
    optimizer.step()
    seen: list[Any] = []

    def renamed(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        seen.append(copy.deepcopy(state))
        return {**state, "state": {f"weight {k}": v for k, v in state["state"].items()}}

    optimizer.register_state_dict_post_hook(renamed)
    saved = optimizer.state_dict()
    assert list(saved["state"]) == ["weight 0", "weight 1"]
    (state,) = seen
    assert state["state"][0]["master"].dtype == torch.float32
    assert ("mu_product" in state["state"][1]) == (name == "NAdamW")
    assert saved["state"]["weight 0"]["step"] is not saved["state"]["weight 1"]["step"]


def test_other_entries_of_the_state_are_saved():
    params = weights()
    optimizer = boost.Adam(params)
    with_gradients(params)
    optimizer.step()
    optimizer.state["meta"] = {"epoch": 3}
    saved = optimizer.state_dict()
    assert saved["state"]["meta"] == {"epoch": 3}
    fresh = boost.Adam(weights())
    fresh.load_state_dict(saved)
    assert fresh.state["meta"] == {"epoch": 3}


def test_hooks_run_once_where_a_compiled_function_steps():
    params, calls = weights(), []
    optimizer = boost.AdamW(params, lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    with_gradients(params)

    @torch.compile(backend="eager")
    def step() -> None:
        optimizer.step()

    step()
    assert calls == ["before", "after"]
    assert float(optimizer.state[params[0]]["step"]) == 1


@pytest.mark.parametrize("name", ["ScheduleFreeSGD", "ScheduleFreeAdamW"])
def test_schedule_free_counts_no_step_that_found_inf(name):
    params = weights(1)
    optimizer = getattr(boost, name)(params, lr=0.5)
    with_gradients(params)
    optimizer.step()
    before = {k: optimizer.param_groups[0][k] for k in ("k", "lr_max", "weight_sum")}
    with_gradients(params, float("inf"))
    optimizer.found_inf = boost.unscale_(params, 8.0)
    was = params[0].detach().clone()
    optimizer.step()
    assert torch.equal(params[0], was)
    assert before == {k: optimizer.param_groups[0][k] for k in before}
    with_gradients(params)
    optimizer.found_inf = boost.unscale_(params, 1.0)
    optimizer.step()
    assert optimizer.param_groups[0]["k"] == 2


def test_a_nan_reaches_the_weights_of_lars():
    params = weights()
    optimizer = boost.Lars(params, lr=1.0, weight_decay=1e-4)
    with_gradients(params)
    params[0].grad[1] = float("nan")
    optimizer.step()
    assert torch.isnan(params[0]).any()
    assert torch.isfinite(params[1]).all()


def test_nadamw_takes_the_argument_of_torch():
    boost.NAdamW(weights(), decoupled_weight_decay=True)
    with pytest.raises(ValueError, match=r"decoupled_weight_decay must be True, got False"):
        boost.NAdamW(weights(), decoupled_weight_decay=False)


@pytest.mark.parametrize("first", [False, True])
def test_steps_in_inference_mode_and_outside(first):
    """PyTorch's state that was made there can be written nowhere else."""
    ours, theirs = weights(), weights()
    optimizer, reference = boost.AdamW(ours, lr=0.1), torch.optim.AdamW(theirs, lr=0.1)
    for step in range(5):
        with_gradients([*ours, *theirs])
        if step == 2:
            ours[0].grad = theirs[0].grad = None
        with torch.inference_mode((step % 2 == 0) == first):
            optimizer.step()
        reference.step()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["ScheduleFreeSGD", "ScheduleFreeAdamW"])
@pytest.mark.parametrize("how", ["skipped", "refused"])
def test_schedule_free_begins_where_the_weights_are(name, how):
    """Also where a first step has written nothing, and the weights were loaded after it."""
    params, others = weights(), weights()
    one, two = (getattr(boost, name)(ps, lr=0.5) for ps in (params, others))
    with_gradients([*params, *others])
    if how == "skipped":
        one.found_inf = torch.ones(())
        one.step()
        del one.found_inf
    else:
        params[1].grad = params[1].grad.to_sparse()
        with pytest.raises(RuntimeError, match="must be dense"):
            one.step()
        with_gradients(params)
    with torch.no_grad():
        for p in (*params, *others):
            p.fill_(3.0)
    for optimizer in (one, two):
        optimizer.step()
        optimizer.eval()
    for p, q in zip(params, others, strict=True):
        assert torch.equal(p, q)


def test_bits_do_not_depend_on_which_step_was_the_first():
    """Parameters with as many steps are rounded at random alike, as after a checkpoint."""
    pairs = []
    for resumed in (False, True):
        params = [torch.nn.Parameter(torch.ones(64, 80)) for _ in range(2)]
        optimizer = boost.AdamW8bit(params, lr=0.1)
        for step in range(5):
            with_gradients(params, 0.1 + step)
            if step in (0, 1):
                params[step].grad = None
            optimizer.step()
            if resumed and step == 2:
                saved = optimizer.state_dict()
                optimizer = boost.AdamW8bit(params, lr=0.1)
                optimizer.load_state_dict(saved)
        pairs.append((params, optimizer))
    (ours, one), (theirs, two) = pairs
    for p, q in zip(ours, theirs, strict=True):
        assert torch.equal(p, q)
        assert all(torch.equal(v, two.state[q][k]) for k, v in one.state[p].items())


def test_a_buffer_is_kept_while_momentum_is_zero():
    pairs = []
    for module in (boost, torch.optim):
        params = weights()
        optimizer = module.SGD(params, lr=0.1, momentum=0.9)
        with_gradients(params)
        optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0.0
        saved = optimizer.state_dict()
        optimizer = module.SGD(params, lr=0.1)
        optimizer.load_state_dict(saved)
        optimizer.step()
        optimizer.param_groups[0]["momentum"] = 0.9
        optimizer.step()
        pairs.append(params)
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ["AdamW", "NAdamW", "ScheduleFreeSGD"])
def test_who_looks_at_the_state_makes_none(name):
    """``state`` makes an entry for each key that is read."""
    params = weights()
    optimizer = getattr(boost, name)(params)
    with_gradients(params[:1])
    optimizer.step()
    assert "step" not in optimizer.state[params[1]]
    for _ in range(2):
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        optimizer = getattr(boost, name)(params)
        optimizer.load_state_dict(torch.load(file, weights_only=True))
    assert "step" not in optimizer.state[params[1]]


@pytest.mark.parametrize("name", ["Muon", "Apollo", "Adafactor"])
def test_a_sparse_gradient_is_refused_beside_another_order_of_elements(name):
    p = torch.nn.Parameter(torch.ones(6, 4).t())
    optimizer = getattr(boost, name)([p])
    p.grad = torch.eye(4, 6).to_sparse()
    with pytest.raises(RuntimeError, match=rf"^{name}: gradients must be dense, got a sparse one$"):
        optimizer.step()
    assert float(optimizer.state[p]["step"]) == 0


@pytest.mark.parametrize("turned", [False, True])
def test_each_dtype_of_a_group_has_its_own_eps_of_adafactor(turned):
    """By default it is that of the dtype: a bfloat16 weight must not lend its own to a float32 one."""
    wide, alone = weights()
    narrow = torch.nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    params = [wide, narrow] if turned else [narrow, wide]
    optimizers = boost.Adafactor(params, lr=0.1), boost.Adafactor([alone], lr=0.1)
    for step in range(3):
        with_gradients([wide, narrow, alone], 1e-3)
        if step == 1:
            params[0].grad = None
            alone.grad = wide.grad
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(wide, alone)
    assert float(optimizers[0].state[params[1]]["step"]) == 3
    assert float(optimizers[0].state[params[0]]["step"]) == 2


@pytest.mark.parametrize("to", ["float32", "bfloat16"])
def test_state_of_8_bits_that_moves_to_another_group_is_converted(to):
    params = [torch.nn.Parameter(torch.ones(64, 80)) for _ in range(3)]
    optimizer = boost.AdamW(
        [{"params": params[:2], "state_dtype": "float8"}, {"params": params[2:], "state_dtype": to}]
    )
    for _ in range(2):
        with_gradients(params)
        optimizer.step()
        if optimizer.state[params[1]]["exp_avg"].dtype == torch.uint8:
            optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop())
    assert sorted(optimizer.state[params[1]]) == ["exp_avg", "exp_avg_sq", "step"]
    assert optimizer.state[params[1]]["exp_avg"].dtype == getattr(torch, to)
    torch.testing.assert_close(params[1], params[2], rtol=1e-4, atol=1e-4)
