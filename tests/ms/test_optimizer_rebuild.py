"""An optimizer constructed again over other parameters or groups goes on where the first one was."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.optimizers import (
    OPTIMIZERS,
    RATES,
    assert_close,
    in_groups,
    make_grads,
    make_parameters,
    natively,
    schedule,
    values,
)

from boost_ext.ms.optim.rebuild import parameter_groups, rebuild


def assert_goes_on(make: Callable[[list[Parameter]], nn.Optimizer], steps: int = 3) -> nn.Optimizer:
    """Some steps of one and two of what is rebuilt from it, beside an optimizer that makes all of them."""
    ours, theirs = make_parameters(), make_parameters()
    first, reference = make(ours), natively(make(theirs))
    step_first = natively(first)
    for step in range(steps):
        step_first(make_grads(step))
        reference(make_grads(step))
    second = rebuild(first, parameter_groups(first))
    assert type(second) is type(first)
    assert [id(p) for p in second.parameters] == [id(p) for p in ours]
    step_second = natively(second)
    for step in range(steps, steps + 2):
        step_second(make_grads(step))
        reference(make_grads(step))
    assert_close(values(ours), values(theirs))
    assert second.global_step.asnumpy() == steps + 2
    assert first.global_step.asnumpy() == steps
    return second


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rebuilt_optimizer_goes_on(name: str) -> None:
    """Stepped natively where it can: nothing is compiled for that."""
    second = assert_goes_on(lambda p: OPTIMIZERS[name](in_groups(p)))
    if natively(second) is not second:
        assert_goes_on(OPTIMIZERS[name])


@pytest.mark.parametrize("name", ["Adadelta", "Momentum-scale"])
def test_a_list_of_parameters(name: str) -> None:
    """Of optimizers that have no native step."""
    assert_goes_on(OPTIMIZERS[name], 1)


def test_by_its_own_operators_in_a_graph() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        ours, theirs = make_parameters(), make_parameters()
        first, reference = (OPTIMIZERS["Adam"](in_groups(p, schedule())) for p in (ours, theirs))
        first(make_grads(0))
        second = rebuild(first, parameter_groups(first))
        second(make_grads(1))
        for step in range(2):
            reference(make_grads(step))
        assert_close(values(ours), values(theirs))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.mark.parametrize(("rate", "group_rate"), [("float", "list"), ("list", "schedule"), ("schedule", "float")])
@pytest.mark.parametrize("name", ["Adam", "AdamWeightDecay", "AdamOffload"])
def test_learning_rates_go_on(name: str, rate: str, group_rate: str) -> None:
    assert_goes_on(lambda p: OPTIMIZERS[name](in_groups(p, RATES[group_rate]()), RATES[rate]()), 1)


def test_a_learning_rate_that_was_changed_is_the_one_of_now() -> None:
    optimizer = OPTIMIZERS["Momentum"](make_parameters())
    ops.assign(optimizer.learning_rate, Tensor(0.025, ms.float32))
    assert rebuild(optimizer, parameter_groups(optimizer)).learning_rate.asnumpy() == np.float32(0.025)
    optimizer = OPTIMIZERS["Momentum"](in_groups(make_parameters(), 0.5))
    ops.assign(optimizer.learning_rate[0], Tensor(0.125, ms.float32))
    again = rebuild(optimizer, parameter_groups(optimizer))
    assert [r.asnumpy() for r in again.learning_rate] == [r.asnumpy() for r in optimizer.learning_rate]
    assert again.learning_rate[0].asnumpy() == 0.125
    groups = parameter_groups(optimizer)
    groups[0]["lr"] = 0.75  # under the name that the other one has
    assert rebuild(optimizer, groups).learning_rate[0].asnumpy() == 0.75


def test_state_follows_the_object_not_the_name() -> None:
    """A parameter that took the place of another one of its name starts anew, whatever its shape."""
    parameters = make_parameters()
    optimizer = OPTIMIZERS["Momentum"](parameters)
    natively(optimizer)(make_grads(0))
    replaced = Parameter(Tensor(np.ones((5, 3), np.float32)), name="fc.weight")
    new = rebuild(optimizer, [parameters[0], replaced, parameters[3]])
    old = {p.name: p.asnumpy() for p in optimizer.moments}
    assert_close(values(new.moments), [old["moments.conv.weight"], np.zeros((5, 3)), old["moments.fc.bias"]], rtol=0)
    assert new.global_step.asnumpy() == 1
    assert not {id(p) for p in new.moments} & {id(p) for p in optimizer.moments}


def test_a_name_that_ends_like_another() -> None:
    """The state of se.fc.weight is its own, though fc.weight is new."""
    shape = (5, 7)
    inner, outer = (Parameter(Tensor(np.ones(shape, np.float32)), name=name) for name in ("se.fc.weight", "fc.weight"))
    optimizer = OPTIMIZERS["Momentum"]([inner, outer])
    natively(optimizer)((Tensor(np.ones(shape, np.float32)),) * 2)
    new = rebuild(optimizer, [inner, Parameter(Tensor(np.ones(shape, np.float32)), name="fc.weight")])
    assert_close(values(new.moments), [optimizer.moments[0].asnumpy(), np.zeros(shape)], rtol=0)


def test_dynamic_weight_decay() -> None:
    decay = nn.ExponentialDecayLR(0.1, 0.5, 1)
    assert_goes_on(lambda p: nn.AdamWeightDecay(in_groups(p), 0.1, weight_decay=decay), 1)


def test_rebuild_takes_optimizers_only() -> None:
    with pytest.raises(TypeError, match=r"^rebuild: optimizer must be an Optimizer, got Dense$"):
        rebuild(nn.Dense(2, 2), [])


def test_a_new_group_needs_a_learning_rate_that_is_known() -> None:
    parameters = make_parameters()
    groups = [{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:], "lr": schedule()}]
    optimizer = nn.AdamWeightDecay(groups)
    assert len(rebuild(optimizer, parameter_groups(optimizer)).parameters) == 4
    with pytest.raises(ValueError, match=r"^rebuild: every group must have lr"):
        rebuild(optimizer, [groups[0], {"params": parameters[2:]}])


def test_a_new_group_needs_a_weight_decay_that_is_known() -> None:
    parameters = make_parameters()
    optimizer = nn.AdamWeightDecay([{"params": parameters[:2]}, {"params": parameters[2:]}], weight_decay=0.5)
    assert [float(w.asnumpy()) for w in rebuild(optimizer, [{"params": parameters}]).weight_decay] == [0.5] * 4
    optimizer = nn.AdamWeightDecay([{"params": parameters[:2], "weight_decay": 0.1}, {"params": parameters[2:]}])
    with pytest.raises(ValueError, match=r"^rebuild: every group must have weight_decay"):
        rebuild(optimizer, [{"params": parameters}])


class Unregistered(nn.Optimizer):
    def __init__(self, params) -> None:
        super().__init__(0.1, params)


class WithArguments(nn.Optimizer):
    def __init__(self, params, learning_rate, power) -> None:
        super().__init__(learning_rate, params)
        self.power = power
        self.init_args = {"power": power}


def test_classes_of_ones_own() -> None:
    parameters = make_parameters()
    new = rebuild(WithArguments(parameters, schedule(), 3), parameters[:2])
    assert (new.power, len(new.parameters), new.dynamic_lr) == (3, 2, True)
    with pytest.raises(TypeError, match=r"^rebuild: Unregistered does not say .* define init_args"):
        rebuild(Unregistered(parameters), parameters)

    class Subclass(nn.Momentum):
        def __init__(self, params) -> None:
            super().__init__(params, 0.1, 0.9)

    with pytest.raises(TypeError, match=r"^rebuild: Subclass cannot be constructed from params and \['learning_rate'"):
        rebuild(Subclass(parameters), parameters)
