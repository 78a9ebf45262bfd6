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
    natively,
    schedule,
    values,
)

from boost_ext.ms.core.optimizer_copy import restrict

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

    def __init__(self, full: nn.Cell, some: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.full, self.some = full, some

    def construct(self, step: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        if step[0] % 3 == 2:
            self.some((grads[2], grads[0]))
        else:
            self.full(grads)
        return step


DECAYED = (1, 0, 1, 1)  # gamma is not
# Every rate and both optimizers, in a graph and apart. A graph and the attributes do not care for one another.
ALTERNATING = [
    (ms.GRAPH_MODE, "Momentum", "list"),
    (ms.GRAPH_MODE, "Adam", "schedule"),
    (ms.PYNATIVE_MODE, "Momentum", "float"),
    (ms.PYNATIVE_MODE, "Momentum", "schedule"),
    (ms.PYNATIVE_MODE, "Adam", "tensor"),
    (ms.PYNATIVE_MODE, "Adam", "list"),
]


@pytest.mark.parametrize("native", [False, True], ids=["itself", "native"])
@pytest.mark.parametrize(("mode", "name", "rate"), ALTERNATING, indirect=["mode"])
def test_alternating_steps_match_the_equations(mode: int, name: str, rate: str, native: bool) -> None:
    parameters = make_parameters()
    optimizer = OPTIMIZERS[name](parameters, RATES[rate]())
    whole = natively(optimizer) if native else optimizer
    rates = {"list": RATES["list"](), "schedule": [0.1 * 0.5 ** (i // 2) for i in range(8)]}.get(rate, [0.1] * 8)
    oracle = {"Momentum": MomentumOracle, "Adam": AdamOracle}[name]
    expected = oracle(values(parameters), rates, [0.01 * d for d in DECAYED])
    some = restrict(whole, [parameters[i] for i in SOME])
    both = Alternating(whole, some)
    for step in range(8):
        grads = make_grads(step)
        partly = step % 3 == 2
        if mode == ms.GRAPH_MODE:
            both(Tensor([step], ms.int32), grads)
        elif partly:
            some((grads[2], grads[0]))
        else:
            whole(grads)
        expected(grads, SOME if partly else ALL)
        assert_close(values(parameters), expected.weights, rtol=2e-4, atol=2e-5)
    assert optimizer.global_step.asnumpy() == some.global_step.asnumpy() == [8]


def assert_steps_some(some: nn.Optimizer, ours: list[Parameter], reference: nn.Cell, theirs: list[Parameter]) -> None:
    """Beside an optimizer of all parameters: those that are trained move alike, the others do not."""
    frozen = values([ours[1], ours[3]])
    for step in range(2):
        grads = make_grads(step)
        some(tuple(grads[i] for i in SOME))
        reference(grads)
    assert_close(values(ours[i] for i in SOME), values(theirs[i] for i in SOME))
    assert_close(values([ours[1], ours[3]]), frozen, rtol=0, atol=0)
    assert some.global_step.asnumpy() == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    """By MindSpore's operators, and natively where it can."""
    theirs = make_parameters()
    reference = natively(OPTIMIZERS[name](theirs))
    ours = make_parameters()
    optimizer = OPTIMIZERS[name](ours)
    some = restrict(optimizer, [ours[i] for i in SOME])
    assert type(some) is type(optimizer)
    assert_steps_some(some, ours, reference, theirs)
    if natively(optimizer) is not optimizer:
        again, others = make_parameters(), make_parameters()
        native = restrict(natively(OPTIMIZERS[name](again)), [again[i] for i in SOME])
        assert_steps_some(native, again, natively(OPTIMIZERS[name](others)), others)
        assert type(native) is type(reference)


GROUPS = [
    ("float", "none"),
    ("float", "float"),
    ("float", "list"),
    ("list", "list"),
    ("list", "schedule"),
    ("schedule", "float"),
]


def assert_groups(rate: str, group_rate: str, name: str, native: bool) -> None:
    def make(parameters: list[Parameter]) -> nn.Optimizer:
        own = None if group_rate == "none" else RATES[group_rate]()
        return OPTIMIZERS[name](in_groups(parameters, own), RATES[rate]())

    ours, theirs = make_parameters(), make_parameters()
    optimizer, reference = make(ours), natively(make(theirs))
    some = restrict(natively(optimizer) if native else optimizer, [ours[i] for i in SOME])
    assert_steps_some(some, ours, reference, theirs)


@pytest.mark.parametrize(("rate", "group_rate"), GROUPS)
def test_groups(rate: str, group_rate: str) -> None:
    assert_groups(rate, group_rate, "Momentum", native=False)
    for name in ("Momentum", "AdamWeightDecay"):
        assert_groups(rate, group_rate, name, native=True)


def test_groups_in_a_graph() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        assert_groups("list", "schedule", "AdamWeightDecay", native=False)
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)


@pytest.mark.parametrize("native", [False, True], ids=["itself", "native"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_nothing_is_copied_and_the_given_optimizer_stays(name: str, native: bool) -> None:
    parameters = make_parameters()
    optimizer = OPTIMIZERS[name](parameters)
    optimizer = natively(optimizer) if native else optimizer
    before = {**vars(optimizer), **optimizer._params, **optimizer._cells}
    lists = {n: list(v) for n, v in before.items() if isinstance(v, (list, tuple))}
    some = restrict(optimizer, [parameters[2]])
    after = {**vars(optimizer), **optimizer._params, **optimizer._cells}
    assert {n: id(v) for n, v in before.items()} == {n: id(v) for n, v in after.items()}
    assert all(list(after[n]) == v for n, v in lists.items())

    shared = list(some.get_parameters())
    assert {id(p) for p in shared} <= {id(p) for p in optimizer.get_parameters()}
    state = [p for p in shared if p.shape != (1,)]  # not AdaFactor's placeholders
    assert not [p.name for p in state if any(n in p.name for n in ("conv.weight", "bn.gamma", "fc.bias"))]
    assert list(some.parameters) == [parameters[2]]
    if isinstance(some, nn.Optimizer):
        assert (some.param_length, some.loss_scale) == (1, optimizer.loss_scale)
    else:
        assert some.shared is optimizer.shared


@pytest.mark.parametrize("native", [False, True], ids=["itself", "native"])
def test_a_restricted_optimizer_can_be_restricted(native: bool) -> None:
    ours, theirs = make_parameters(), make_parameters()
    optimizer = OPTIMIZERS["Adam"](ours)
    once = restrict(natively(optimizer) if native else optimizer, [ours[3], ours[2], ours[0]])
    twice = restrict(once, [ours[2]])
    reference = natively(OPTIMIZERS["Adam"](theirs))
    grads = make_grads(0)
    twice((grads[2],))
    reference(grads)
    assert_close(values([ours[2]]), values([theirs[2]]))
    assert_close(values(ours[:2]), values(make_parameters()[:2]), rtol=0, atol=0)


@pytest.mark.parametrize("native", [False, True], ids=["itself", "native"])
def test_a_checkpoint_reaches_both(mode: int, native: bool) -> None:
    """After load_param_into_net the storage is another one; neither of the two may go on with the old."""
    ours, theirs = make_parameters(), make_parameters()
    optimizer, reference = OPTIMIZERS["Adam"](ours), OPTIMIZERS["Adam"](theirs)
    some = restrict(natively(optimizer) if native else optimizer, [ours[2]])
    some((make_grads(1)[2],))
    saved = {p.name: Parameter(Tensor(p.asnumpy() + 0.25), name=p.name) for p in reference.get_parameters()}
    for name in ("learning_rate", "global_step"):
        del saved[name]
    for cell in (optimizer, reference):
        ms.load_param_into_net(cell, saved)
        cell.global_step.set_data(Tensor([3], ms.int32))
    grads = make_grads(0)
    some((grads[2],))
    (natively(reference) if native else reference)(grads)
    assert_close(values([ours[2]]), values([theirs[2]]))


@pytest.mark.parametrize("native", [False, True], ids=["itself", "native"])
def test_lars_is_restricted_with_the_optimizer_inside(native: bool) -> None:
    parameters = make_parameters()
    lars = nn.LARS(OPTIMIZERS["Momentum"](in_groups(parameters, schedule())))
    whole = natively(lars) if native else lars
    some = restrict(whole, [parameters[3], parameters[0]])
    assert type(some) is type(whole)
    assert type(some.opt) is type(whole.opt)
    assert some.opt is not whole.opt
    assert list(some.parameters) == list(some.opt.parameters) == [parameters[3], parameters[0]]
    assert some.lars_flag == (False, True)
    assert some.global_step is lars.opt.global_step
    assert list(whole.opt.parameters) == parameters
    if native:
        assert some.apply_to.asnumpy().tolist() == [0, 1]
        assert some.opt.states[0] is lars.opt.moments[3]
    else:
        assert [float(w.asnumpy()) for w in some.weight_decay] == pytest.approx([0.01, 0.05])
        assert some.opt.moments[1] is lars.opt.moments[0]


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


def test_declared_attributes() -> None:
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
