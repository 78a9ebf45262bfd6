"""An optimizer over some of the parameters of another one, with one state for both."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from tests.ms.optimizers import (
    OPTIMIZERS,
    RATES,
    assert_close,
    in_groups,
    make_grads,
    make_parameters,
    schedule,
    values,
)

from boost_ext.ms.optimizer_copy import restrict

ALL = range(4)
SOME = (2, 0)  # in another order than the optimizer's


class MomentumOracle:
    """v = m v + (g + decay w); w = w - lr v. Frozen parameters are skipped."""

    def __init__(self, weights: list[np.ndarray], rates: list[float], decay: Sequence[float]) -> None:
        self.weights = [w.astype(np.float64) for w in weights]
        self.velocity = [np.zeros_like(w) for w in self.weights]
        self.rates, self.decay, self.step = rates, decay, 0

    def __call__(self, grads: Sequence[Tensor], trained: Sequence[int]) -> None:
        for i in trained:
            g = grads[i].asnumpy() + self.decay[i] * self.weights[i]
            self.velocity[i] = 0.9 * self.velocity[i] + g
            self.weights[i] = self.weights[i] - self.rates[self.step] * self.velocity[i]
        self.step += 1


class AdamOracle:
    """Adam as MindSpore has it (epsilon after the uncorrected root); t counts the steps of all parameters."""

    def __init__(self, weights: list[np.ndarray], rates: list[float], decay: Sequence[float]) -> None:
        self.weights = [w.astype(np.float64) for w in weights]
        self.m = [np.zeros_like(w) for w in self.weights]
        self.v = [np.zeros_like(w) for w in self.weights]
        self.rates, self.decay, self.step = rates, decay, 0

    def __call__(self, grads: Sequence[Tensor], trained: Sequence[int]) -> None:
        t = self.step + 1
        rate = self.rates[self.step] * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        for i in trained:
            g = grads[i].asnumpy() + self.decay[i] * self.weights[i]
            self.m[i] = 0.9 * self.m[i] + 0.1 * g
            self.v[i] = 0.999 * self.v[i] + 0.001 * g**2
            self.weights[i] = self.weights[i] - rate * self.m[i] / (np.sqrt(self.v[i]) + 1e-8)
        self.step += 1


class Alternating(nn.Cell):
    """The full and the restricted optimizer in one graph: every third step trains some parameters only."""

    def __init__(self, full: nn.Optimizer, some: nn.Optimizer) -> None:
        super().__init__(auto_prefix=False)
        self.full, self.some = full, some

    def construct(self, step: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        if step[0] % 3 == 2:
            self.some((grads[2], grads[0]))
        else:
            self.full(grads)
        return step


DECAYED = (1, 0, 1, 1)  # gamma is not


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(("name", "oracle"), [("Momentum", MomentumOracle), ("Adam", AdamOracle)])
@pytest.mark.parametrize("one_graph", [False, True], ids=["apart", "one cell"])
def test_alternating_steps_match_the_equations(mode: int, name: str, oracle: type, rate: str, one_graph: bool) -> None:
    parameters = make_parameters()
    optimizer = OPTIMIZERS[name](parameters, RATES[rate]())
    rates = {"list": RATES["list"](), "schedule": [0.1 * 0.5 ** (i // 2) for i in range(8)]}.get(rate, [0.1] * 8)
    expected = oracle(values(parameters), rates, [0.01 * d for d in DECAYED])
    some = restrict(optimizer, [parameters[i] for i in SOME])
    both = Alternating(optimizer, some)
    for step in range(8):
        grads = make_grads(step)
        partly = step % 3 == 2
        if one_graph:
            both(Tensor([step], ms.int32), grads)
        elif partly:
            some((grads[2], grads[0]))
        else:
            optimizer(grads)
        expected(grads, SOME if partly else ALL)
        assert_close(values(parameters), expected.weights, rtol=2e-4, atol=2e-5)
    assert optimizer.global_step.asnumpy() == some.global_step.asnumpy() == [8]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(mode: int, name: str) -> None:
    """Beside the same optimizer of all parameters: what is trained in every step moves alike, whoever runs."""
    ours, theirs = make_parameters(), make_parameters()
    optimizer, reference = OPTIMIZERS[name](ours), OPTIMIZERS[name](theirs)
    everything = restrict(optimizer, ours)
    some = restrict(optimizer, [ours[i] for i in SOME])
    assert type(some) is type(optimizer)
    for step in range(6):
        grads = make_grads(step)
        frozen = values([ours[1], ours[3]])
        if step % 3 == 2:
            some((grads[2], grads[0]))
            assert_close(values([ours[1], ours[3]]), frozen, rtol=0, atol=0)
        else:
            (optimizer, everything)[step % 2](grads)
        reference(grads)
        compared = ALL if step < 2 else SOME
        assert_close(values(ours[i] for i in compared), values(theirs[i] for i in compared))
    assert optimizer.global_step.asnumpy() == 6


@pytest.mark.parametrize(
    ("rate", "group_rate"),
    [
        ("float", "none"),
        ("float", "float"),
        ("float", "list"),
        ("list", "list"),
        ("list", "schedule"),
        ("schedule", "float"),
    ],
)
@pytest.mark.parametrize("name", ["Momentum", "AdamWeightDecay"])
def test_groups(mode: int, name: str, rate: str, group_rate: str) -> None:
    def make(parameters: list[Parameter]) -> nn.Optimizer:
        own = None if group_rate == "none" else RATES[group_rate]()
        groups = in_groups(parameters, 0.25 if group_rate == "float" else own)
        return OPTIMIZERS[name](groups, RATES[rate]())

    ours, theirs = make_parameters(), make_parameters()
    optimizer, reference = make(ours), make(theirs)
    some = restrict(optimizer, [ours[3], ours[0]])
    for step in range(5):
        grads = make_grads(step)
        if step % 2:
            some((grads[3], grads[0]))
        else:
            optimizer(grads)
        reference(grads)
        assert_close(values([ours[0], ours[3]]), values([theirs[0], theirs[3]]))
    assert optimizer.global_step.asnumpy() == 5


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_is_copied_and_the_given_optimizer_stays(name: str) -> None:
    parameters = make_parameters()
    optimizer = OPTIMIZERS[name](parameters)
    before = {**vars(optimizer), **optimizer._params, **optimizer._cells}
    lists = {n: list(v) for n, v in before.items() if isinstance(v, (list, tuple))}
    some = restrict(optimizer, [parameters[2]])
    after = {**vars(optimizer), **optimizer._params, **optimizer._cells}
    assert {n: id(v) for n, v in before.items()} == {n: id(v) for n, v in after.items()}
    assert all(list(after[n]) == v for n, v in lists.items())

    mine = {id(p) for p in optimizer.get_parameters()}
    shared = list(some.get_parameters())
    assert {id(p) for p in shared} <= mine
    assert not [p.name for p in shared if any(n in p.name for n in ("conv.weight", "bn.gamma", "fc.bias"))]
    assert list(some.parameters) == [parameters[2]]
    assert some.loss_scale == optimizer.loss_scale


def test_a_restricted_optimizer_can_be_restricted() -> None:
    ours, theirs = make_parameters(), make_parameters()
    optimizer = OPTIMIZERS["Adam"](ours)
    once = restrict(optimizer, [ours[3], ours[2], ours[0]])
    twice = restrict(once, [ours[2]])
    reference = OPTIMIZERS["Adam"](theirs)
    grads = make_grads(0)
    twice((grads[2],))
    reference(grads)
    assert_close(values([ours[2]]), values([theirs[2]]))
    assert_close(values(ours[:2]), values(make_parameters()[:2]), rtol=0, atol=0)


def test_a_checkpoint_reaches_both(mode: int) -> None:
    """After load_param_into_net the storage is another one; neither of the two may go on with the old."""
    ours, theirs = make_parameters(), make_parameters()
    optimizer, reference = OPTIMIZERS["Adam"](ours), OPTIMIZERS["Adam"](theirs)
    some = restrict(optimizer, [ours[2]])
    saved = {p.name: Parameter(Tensor(p.asnumpy() + 0.25), name=p.name) for p in optimizer.get_parameters()}
    saved.pop("learning_rate", None)
    for cell in (optimizer, reference):
        counter = {n: p for n, p in saved.items() if n != "global_step"}
        ms.load_param_into_net(cell, counter)
    grads = make_grads(0)
    some((grads[2],))
    reference(grads)
    assert_close(values([ours[2]]), values([theirs[2]]))


def test_recorded_groups_are_narrowed() -> None:
    parameters = make_parameters()
    some = restrict(OPTIMIZERS["Momentum"](in_groups(parameters)), [parameters[0], parameters[2]])
    assert some.init_params["params"] == [
        {"params": [parameters[2], parameters[0]], "weight_decay": 0.05},
        {"order_params": [parameters[0], parameters[2]]},
    ]


def test_lars_is_restricted_with_the_optimizer_inside() -> None:
    parameters = make_parameters()
    lars = nn.LARS(OPTIMIZERS["Momentum"](in_groups(parameters, schedule())))
    some = restrict(lars, [parameters[3], parameters[0]])
    assert type(some) is nn.LARS
    assert type(some.opt) is nn.Momentum
    assert some.opt is not lars.opt
    assert list(some.parameters) == list(some.opt.parameters) == [parameters[3], parameters[0]]
    assert some.lars_flag == (False, True)
    assert [float(w.asnumpy()) for w in some.weight_decay] == pytest.approx([0.01, 0.05])
    assert some.opt.moments[1] is lars.opt.moments[0]
    assert some.global_step is lars.opt.global_step
    assert list(lars.opt.parameters) == parameters


class PairwiseState(nn.Optimizer):
    """State that nobody can attribute: one Parameter for each pair of parameters."""

    def __init__(self, params) -> None:
        super().__init__(0.1, params)
        pairs = [Parameter(Tensor(0.0), name=f"pair{i}") for i in range(len(self.parameters) - 1)]
        self.pairs = ParameterTuple(pairs)


class Ambiguous(nn.Optimizer):
    def __init__(self, params) -> None:
        super().__init__(0.1, params)
        self.weights = (1.0, 2.0, 3.0, 4.0)


class Declared(Ambiguous):
    """The same, but it says which of its attributes go by parameter."""

    per_parameter_attributes = ("weights",)

    def construct(self, grads: tuple[Tensor, ...]) -> Tensor:
        done = True
        for i in range(len(self.weights)):
            p = self.parameters[i]
            done = ops.depend(done, ops.assign(p, p - self.weights[i] * grads[i]))
        return done


class Own(nn.Optimizer):
    """An optimizer of the user's own, with state named as ParameterTuple.clone names it, and betas."""

    def __init__(self, params) -> None:
        super().__init__(0.1, params)
        self.betas = (0.9, 0.99, 0.999, 0.9999)
        self.sums = self.parameters.clone(prefix="sums", init="zeros")

    def construct(self, grads: tuple[Tensor, ...]) -> Tensor:
        done = self.assignadd(self.global_step, self.global_step_increase_tensor)
        for i in range(len(self.parameters)):
            total = ops.assign_add(self.sums[i], grads[i])
            done = ops.depend(done, ops.assign_sub(self.parameters[i], self.get_lr() * total))
        return done


def test_an_optimizer_of_ones_own(mode: int) -> None:
    parameters = make_parameters()
    expected = values(parameters)
    optimizer = Own(parameters)
    some = restrict(optimizer, [parameters[i] for i in SOME])
    first, second = make_grads(0), make_grads(1)
    optimizer(first)
    some((second[2], second[0]))
    for i in ALL:
        expected[i] = expected[i] - 0.1 * first[i].asnumpy() - 0.1 * (i in SOME) * (first[i] + second[i]).asnumpy()
    assert_close(values(parameters), expected)


def test_declared_attributes(mode: int) -> None:
    parameters = make_parameters()
    expected = values(parameters)
    some = restrict(Declared(parameters), [parameters[i] for i in SOME])
    grads = make_grads(0)
    some((grads[2], grads[0]))
    for i in SOME:
        expected[i] = expected[i] - (i + 1) * grads[i].asnumpy()
    assert_close(values(parameters), expected)


@pytest.mark.parametrize(
    ("cls", "attribute"), [(PairwiseState, "pairs is a ParameterTuple of 3"), (Ambiguous, "weights is a tuple of 4")]
)
def test_state_that_cannot_be_attributed_is_refused(cls: type, attribute: str) -> None:
    parameters = make_parameters()
    expected = f"^restrict: {cls.__name__}.{attribute} for 4 parameters, .* define per_parameter_attributes"
    with pytest.raises(TypeError, match=expected):
        restrict(cls(parameters), parameters[:1])


def test_errors() -> None:
    parameters = make_parameters()
    optimizer = OPTIMIZERS["Momentum"](parameters)
    with pytest.raises(TypeError, match=r"^restrict: optimizer must be an Optimizer, got Dense$"):
        restrict(nn.Dense(2, 2), parameters)
    with pytest.raises(ValueError, match=r"^restrict: parameters must not be empty$"):
        restrict(optimizer, [])
    with pytest.raises(ValueError, match=r"^restrict: parameters must be among those of the optimizer, got fc.bias$"):
        restrict(optimizer, make_parameters()[3:])
    with pytest.raises(ValueError, match=r"^restrict: parameters must not repeat$"):
        restrict(optimizer, [parameters[0], parameters[0]])
    with pytest.raises(TypeError, match=r"^restrict: parameters must be Parameters, got str$"):
        restrict(optimizer, ["fc.bias"])
