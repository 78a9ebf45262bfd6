"""Schedule-Free: the switch between y and x, what it refuses, and what a checkpoint knows of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests import oracle
from tests.ms.optim.cases import CASES, array, arrays, gradients, parameters, tensor

from boost_ext import distributed, optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.config import DimReduceConfig

NAMES = ["ScheduleFreeSGD", "ScheduleFreeAdamW"]
MIXED = (ms.float16, ms.float32, ms.bfloat16)
EACH = pytest.mark.parametrize("name", NAMES)


def averages(name: str, params: list[Parameter], steps: int, rate: float) -> list[np.ndarray]:
    """x after these steps by the oracle, which has it as a state, on masters."""
    case, found = CASES[name], []
    for i, p in enumerate(params):
        w, state = array(p), []
        for step in range(steps):
            w, state = case.rule(w, array(gradients(step, params)[i]), state, rate, step + 1, 0.0)
        found.append(state[0])
    return found


@EACH
@pytest.mark.parametrize("dtypes", [(ms.float32,), MIXED], ids=["float32", "mixed"])
def test_eval_and_train(mode: int, name: str, dtypes: tuple[Any, ...]) -> None:
    params = parameters(dtypes=dtypes)
    expected = averages(name, params, 12, 0.05)
    optimizer = CASES[name].make(params, 0.05)
    for step in range(12):
        optimizer(gradients(step, params))
    masters = [optimizer.masters[i] for i in range(len(params))]
    trained = arrays(masters)
    optimizer.train()  # which they are
    for before, p in zip(trained, arrays(masters), strict=True):
        np.testing.assert_array_equal(p, before)
    for _ in range(2):  # the second one changes nothing
        optimizer.eval()
        for p, m, x in zip(params, masters, expected, strict=True):
            np.testing.assert_allclose(array(m), x, rtol=2e-5, atol=2e-6)
            np.testing.assert_array_equal(array(p), array(tensor(array(m), p.dtype)))
    assert any(np.abs(x - y).max() > 1e-2 for x, y in zip(arrays(masters), trained, strict=True) if x.size)
    optimizer.train()
    for before, p in zip(trained, arrays(masters), strict=True):
        np.testing.assert_allclose(p, before, rtol=3e-7, atol=1e-7)


@EACH
def test_z_begins_where_the_weights_are_in_the_first_step(mode: int, name: str) -> None:
    """And not where they were when the optimizer was made."""
    params, loaded = parameters(), parameters()
    optimizer, expected = CASES[name].make(params, 0.05), CASES[name]
    for p, q in zip(params, loaded, strict=True):
        q.set_data(tensor(array(p) + 3, p.dtype))
        p.set_data(q.value())
    before = arrays(params)
    optimizer.eval()
    for p, was in zip(arrays(params), before, strict=True):
        np.testing.assert_array_equal(p, was)
    optimizer.train()
    other = expected.make(loaded, 0.05)
    for each, of in ((optimizer, params), (other, loaded)):
        for step in range(2):
            each(gradients(step, of))
    for p, q in zip(arrays([*params, *optimizer.z]), arrays([*loaded, *other.z]), strict=True):
        np.testing.assert_array_equal(p, q)


@EACH
def test_a_step_in_eval_mode_is_refused(mode: int, name: str) -> None:
    params = parameters()
    optimizer = CASES[name].make(params, 0.05)
    optimizer(gradients(0, params))
    optimizer.eval()
    everything = list(optimizer.get_parameters())
    before = arrays(everything)
    with pytest.raises(ValueError, match=rf"^{name}: train_mode must be True for a step, got False; call train\(\)$"):
        optimizer(gradients(1, params))
    for p, was in zip(arrays(everything), before, strict=True):
        np.testing.assert_array_equal(p, was)
    optimizer.train()
    optimizer(gradients(1, params))
    assert optimizer.global_step.asnumpy().tolist() == [2]


def test_a_training_cell_in_eval_mode_is_refused(mode: int, capfd: pytest.CaptureFixture[str]) -> None:
    """Before its graph runs; a step that another graph runs is refused by the native call."""
    net = nn.WithLossCell(nn.Dense(3, 2), nn.MSELoss())
    optimizer = optim.ScheduleFreeAdamW(net.trainable_params())
    cell, batch = BoostTrainOneStepCell(net, optimizer), (Tensor(np.ones((4, 3), np.float32)), Tensor([[1.0, 2.0]] * 4))
    cell(*batch)
    optimizer.eval()
    before = arrays(optimizer.get_parameters())
    with pytest.raises(ValueError, match=r"^ScheduleFreeAdamW: train_mode must be True for a step, got False; call"):
        cell(*batch)
    step, grads = ms.jit(optimizer.step_unless), gradients(0, optimizer.parameters)
    with pytest.raises(RuntimeError):
        step(Tensor([False]), Tensor([1.0], ms.float32), grads)
    message = "optimizer_step: train_mode must be true for a step, got false: call train() of the optimizer"
    assert message in capfd.readouterr().err
    for p, was in zip(arrays(optimizer.get_parameters()), before, strict=True):
        np.testing.assert_array_equal(p, was)
    optimizer.train()
    cell(*batch)
    assert optimizer.global_step.asnumpy().tolist() == [2]


@EACH
@pytest.mark.parametrize("evaluated", [False, True], ids=["train", "eval"])
def test_a_checkpoint_knows_what_the_weights_hold(mode: int, name: str, evaluated: bool, tmp_path: Path) -> None:
    """Five steps and five of another process are the bits of ten, with an evaluation between them or without."""
    path = str(tmp_path / "half.ckpt")
    whole, resumed = parameters(dtypes=MIXED), parameters(dtypes=MIXED)
    one, two = (CASES[name].make(p, 0.05, warmup_steps=7) for p in (whole, resumed))
    for step in range(5):
        one(gradients(step, whole))
    if evaluated:
        one.eval()
    ms.save_checkpoint(one, path)
    ms.load_param_into_net(two, ms.load_checkpoint(path), strict_load=True)
    assert bool(two.train_mode.asnumpy()[0]) != evaluated
    for each, of in ((one, whole), (two, resumed)):
        each.train()
        for step in range(5, 10):
            each(gradients(step, of))
        each.eval()
    for p, q in zip(one.get_parameters(), two.get_parameters(), strict=True):
        np.testing.assert_array_equal(array(p), array(q), err_msg=p.name)


def test_a_skipped_step_does_not_count(mode: int) -> None:
    params = parameters()
    optimizer = CASES["ScheduleFreeAdamW"].make(params, 0.05)
    everything = list(optimizer.get_parameters())
    before = arrays(everything)
    optimizer.step_unless(Tensor([True]), Tensor([1.0], ms.float32), gradients(0, params))
    for p, was in zip(arrays(everything), before, strict=True):
        np.testing.assert_array_equal(p, was)


@pytest.mark.parametrize(("r", "power"), [(0.0, 2.0), (0.5, 1.0), (1.0, 0.0)])
def test_the_sum_of_the_weights(r: float, power: float) -> None:
    """In float64, of the largest rate so far; a rate of 0 in the beginning weighs nothing."""
    params, rates = parameters({"w": (3,)}), [0.0, 0.1, 0.3, 0.2, 0.0, 0.4]
    optimizer = optim.ScheduleFreeSGD(params, rates, r=r, weight_lr_power=power)
    weights = []
    for step, rate in enumerate(np.maximum.accumulate(np.float32(rates)).astype(np.float64)):
        optimizer(gradients(step, params))
        weights.append((step + 1) ** r * rate**power)
        np.testing.assert_allclose(optimizer.weight_sum.asnumpy(), [sum(weights)], rtol=1e-14)
        assert optimizer.lr_max.asnumpy()[0] == rate
    expected = np.array(weights) / np.maximum(np.cumsum(weights), 1e-300)
    np.testing.assert_allclose(oracle.averaging_weights(np.float32(rates), r, power), expected, rtol=1e-12)


def test_groups_have_the_average_of_the_largest_rate() -> None:
    params = parameters({"a": (3,), "b": (3,)})
    groups = [{"params": params[:1], "lr": 0.5}, {"params": params[1:], "lr": [0.25, 1.0]}]
    optimizer = optim.ScheduleFreeSGD(groups, 0.1)
    for step in range(2):
        optimizer(gradients(step, params))
    assert optimizer.weight_sum.asnumpy()[0] == 0.5**2 + 1.0**2


def test_what_it_refuses() -> None:
    for warmup, error, text in (
        (1.0, TypeError, "warmup_steps must be an int, got float"),
        (True, TypeError, "warmup_steps must be an int, got bool"),
        (-1, ValueError, "warmup_steps must be >= 0, got -1"),
    ):
        with pytest.raises(error, match=f"^ScheduleFreeAdamW: {text}$"):
            optim.ScheduleFreeAdamW(parameters(), warmup_steps=warmup)
    with pytest.raises(ValueError, match=r"^ScheduleFreeSGD: momentum must be in \(0, 1\), got 0.0$"):
        optim.ScheduleFreeSGD(parameters(), momentum=0.0)


def test_a_rate_that_is_not_finite() -> None:
    params = parameters({"w": (3,)})
    optimizer = optim.ScheduleFreeSGD(params, [0.1, np.inf])
    optimizer(gradients(0, params))
    before = arrays(optimizer.get_parameters())
    with pytest.raises(ValueError, match=r"^optimizer_step: lr must be finite and >= 0, got inf$"):
        optimizer(gradients(1, params))
    for p, was in zip(arrays(optimizer.get_parameters()), before, strict=True):
        np.testing.assert_array_equal(p, was)


def test_algorithms_that_move_the_weights() -> None:
    net = nn.WithLossCell(nn.Dense(3, 2), nn.MSELoss())
    optimizer = optim.ScheduleFreeSGD(net.trainable_params())
    with pytest.raises(ValueError, match="ScheduleFreeSGD must be alone in moving the weights, got dim_reduce or adas"):
        BoostTrainOneStepCell(net, optimizer, dim_reduce=DimReduceConfig())
    with pytest.raises(ValueError, match="local_steps must be None with a Schedule-Free optimizer"):
        BoostTrainOneStepCell(net, optimizer, local_steps=distributed.LocalSteps(2))


@EACH
def test_a_compiled_function_goes_on_after_the_switch(name: str) -> None:
    """It keeps the memory that it has seen: the switch must not exchange it."""
    net = nn.Dense(2, 1)
    optimizer = getattr(optim, name)(net.trainable_params(), 0.1)
    x, y = Tensor(np.ones((4, 2), np.float32)), Tensor(np.zeros((4, 1), np.float32))
    grad = ms.value_and_grad(nn.WithLossCell(net, nn.MSELoss()), None, optimizer.parameters)

    @ms.jit
    def step(a: Tensor, b: Tensor) -> Tensor:
        loss, grads = grad(a, b)
        return ops.depend(loss, optimizer(grads))

    step(x, y)
    step(x, y)
    optimizer.eval()
    optimizer.train()
    before = net.weight.asnumpy().copy()
    step(x, y)
    assert np.abs(net.weight.asnumpy() - before).max() > 1e-4
