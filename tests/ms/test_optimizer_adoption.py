"""Optimizers of mindspore.nn that step natively on their own Parameters, beside themselves."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.networks import Mlp, Weight, classes, mlp_batch
from tests.ms.optimizers import assert_close, make_grads, make_parameters, values

from boost_ext import amp, boost, optim
from boost_ext.config import BoostConfig, DimReduceConfig
from boost_ext.ms.optim.adoption import decision, native_step
from boost_ext.ms.optim.rebuild import rebuild
from boost_ext.ms.step.options import StepOptions, step_options, what_trains
from boost_ext.plan import plan as decided

RATES = np.linspace(0.1, 0.02, 8).astype(np.float32).tolist()


def groups(weights: list[Parameter]) -> list[dict]:
    """Two weight decays and two learning rates."""
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": 0.01},
        {"params": [w for w in weights if w.ndim < 2], "lr": 0.02},
        {"order_params": weights},
    ]


def plain(name: str, *args, **kwargs):
    return lambda weights, **more: getattr(nn, name)(weights, *args, **kwargs, **more)


def grouped(name: str, *args, **kwargs):
    """An optimizer over groups, with a learning rate for each step."""
    return lambda weights: getattr(nn, name)(groups(weights), *args, learning_rate=RATES, **kwargs)


def centralized(name: str, *args, **kwargs):
    """An optimizer that AutoBoost has made centralize the gradients of the matrices."""

    def made(weights: list[Parameter]) -> nn.Optimizer:
        matrices = {"params": [w for w in weights if w.ndim > 1], "weight_decay": 0.1, "grad_centralization": True}
        vectors = {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.1}
        optimizer = plain(name, *args, learning_rate=RATES, **kwargs)(weights)
        return rebuild(optimizer, [matrices, vectors, {"order_params": weights}])

    return made


DECAYED = {"weight_decay": 0.01}
OPTIMIZERS = {
    "momentum": plain("Momentum", 0.1, 0.9, **DECAYED),
    "momentum-groups": grouped("Momentum", momentum=0.9),
    "momentum-centralized": centralized("Momentum", momentum=0.9),
    "sgd": plain("SGD", RATES, **DECAYED),
    "sgd-momentum": plain("SGD", RATES, 0.9, **DECAYED),
    "sgd-dampening": grouped("SGD", momentum=0.9, dampening=0.5),
    "sgd-nesterov": grouped("SGD", momentum=0.9, nesterov=True),
    "adam": grouped("Adam"),
    "adam-nesterov": plain("Adam", 0.01, use_nesterov=True),
    "adam-amsgrad": grouped("Adam", use_amsgrad=True),
    "adam-lazy": grouped("Adam", use_lazy=True),
    "adam-offload": plain("Adam", RATES, use_offload=True, **DECAYED),
    "lazy_adam": plain("LazyAdam", RATES, **DECAYED),
    "adam_offload": grouped("AdamOffload", use_nesterov=True),
    "adam_weight_decay": grouped("AdamWeightDecay", weight_decay=0.1),
    "adam_weight_decay-centralized": centralized("AdamWeightDecay"),
    "adagrad": grouped("Adagrad", 0.2),
    "proximal_adagrad": grouped("ProximalAdagrad"),
    "ftrl": plain("FTRL", 0.1, 0.05, -0.6, l2=1e-3, **DECAYED),
    "rmsprop": grouped("RMSProp", decay=0.8, momentum=0.5),
    "rmsprop-centered": plain("RMSProp", RATES, centered=True, epsilon=1e-3, **DECAYED),
    "adafactor": plain("AdaFactor", **DECAYED),
    "adafactor-rate": plain("AdaFactor", RATES, relative_step=False, scale_parameter=False, beta1=0.0),
}
TO_THE_BIT = ("momentum", "momentum-groups", "sgd", "sgd-momentum", "sgd-dampening", "sgd-nesterov")


def steps(cell: nn.Cell, numbers: range) -> None:
    for i in numbers:
        cell(*mlp_batch(i, 8))


def train(name: str, fused: bool, count: int = 3, **kwargs) -> tuple[nn.Cell, nn.Optimizer]:
    net = Mlp()
    made = OPTIMIZERS[name](net.trainable_params())
    cell = boost.BoostTrainOneStepCell(classes(net), made, fused_optimizer=fused, **kwargs)
    steps(cell, range(count))
    return cell, made


def same(ours: nn.Cell, theirs: nn.Cell, exact: bool) -> None:
    found = {p.name: p.asnumpy() for p in ours.get_parameters()}
    for p in theirs.get_parameters():
        if exact or p.dtype == ms.int32:
            np.testing.assert_array_equal(found[p.name], p.asnumpy(), err_msg=p.name)
        else:
            np.testing.assert_allclose(found[p.name], p.asnumpy(), rtol=1e-4, atol=1e-6, err_msg=p.name)
    assert set(found) == {p.name for p in theirs.get_parameters()}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_as_the_optimizer_itself(name: str) -> None:
    """One that steps natively beside one that steps by itself; the state is the optimizer's own."""
    ours, theirs = (OPTIMIZERS[name](make_parameters()) for _ in range(2))
    native = native_step(ours)
    assert native is not None, decision(ours).reason
    assert [id(p) for p in native.parameters] == [id(p) for p in ours.parameters]
    assert {p.name: id(p) for p in native.get_parameters()} == {p.name: id(p) for p in ours.get_parameters()}
    for step in range(5):
        native(make_grads(step))
        theirs(make_grads(step))
    same(ours, theirs, name in TO_THE_BIT)


@pytest.mark.parametrize("name", ["momentum-groups", "sgd-dampening", "adam-amsgrad", "adafactor"])
def test_either_continues_where_the_other_stopped(name: str) -> None:
    """They share the Parameters, as they would share a checkpoint."""
    ours, theirs = (OPTIMIZERS[name](make_parameters()) for _ in range(2))
    native = native_step(ours)
    for step in range(6):
        (ours if step in (1, 2) else native)(make_grads(step))  # the first step of SGD is another one
        theirs(make_grads(step))
    same(ours, theirs, name in TO_THE_BIT)


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (ms.PYNATIVE_MODE, "momentum"),
        (ms.GRAPH_MODE, "momentum-groups"),
        (ms.GRAPH_MODE, "adam"),
        (ms.GRAPH_MODE, "adafactor"),
    ],
    indirect=["mode"],
)
def test_trains_as_the_optimizer_itself(mode: int, name: str) -> None:
    """In a compiled step."""
    (cell, ours), (other, theirs) = (train(name, fused) for fused in (True, False))
    same(ours, theirs, name in TO_THE_BIT)
    assert [p.name for p in cell.get_parameters()] == [p.name for p in other.get_parameters()]
    assert hasattr(cell.apply_slot.optimizer, "step_unless")
    assert not hasattr(other.apply_slot.optimizer, "step_unless")


@pytest.mark.parametrize("name", ["Lamb", "LARS"])
def test_what_does_not_run_in_mindspore_on_a_cpu(name: str) -> None:
    """As boost_ext's own, which tests/ms/optim compares with the equations."""

    def made(module, weights: list[Parameter]) -> nn.Optimizer:
        if name == "Lamb":
            return module.Lamb(groups(weights), RATES, weight_decay=0.1)
        inner = module.Momentum(weights, RATES, 0.9, weight_decay=0.01, loss_scale=2.0)
        return module.LARS(inner, coefficient=0.01, lars_filter=lambda p: p.ndim > 1)

    ours, theirs = make_parameters(), make_parameters()
    native, reference = native_step(made(nn, ours)), made(optim, theirs)
    for step in range(3):
        native(make_grads(step))
        reference(make_grads(step))
    for a, b, before in zip(values(ours), values(theirs), values(make_parameters()), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7)
        assert np.abs(a - before).max() > 1e-3


def test_what_is_loaded_counts(mode: int) -> None:
    """The state is the optimizer's own: a checkpoint between two steps reaches the native step."""
    cell, optimizer = train("momentum", True)
    for state in optimizer.moments:
        state.set_data(Tensor(np.full(state.shape, 0.5, np.float32)))
    cell(*mlp_batch(9, 8))
    # MindSpore's own state in a branch is not compared: this is the value that the equation gives.
    assert not any((state.asnumpy() == 0.5).any() for state in optimizer.moments)
    assert all(0.3 < state.asnumpy().mean() < 0.6 for state in optimizer.moments)


@pytest.mark.parametrize(("mode", "name"), [(ms.PYNATIVE_MODE, "adam"), (ms.GRAPH_MODE, "momentum")], indirect=["mode"])
def test_overflow_changes_nothing(mode: int, name: str) -> None:
    net = Mlp()
    optimizer = OPTIMIZERS[name](net.trainable_params())
    cell = boost.BoostTrainOneStepWithLossScaleCell(classes(net), optimizer, Tensor([1024.0], ms.float32))
    images, labels = mlp_batch(0, 8)
    cell(images, labels)
    before = {p.name: p.asnumpy().copy() for p in optimizer.get_parameters()}
    _, overflow, _ = cell(images * float("inf"), labels)
    assert overflow.asnumpy()
    for p in optimizer.get_parameters():
        np.testing.assert_array_equal(p.asnumpy(), before[p.name], err_msg=p.name)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_freezing(name: str) -> None:
    """A group steps natively, as the whole does, and the position moves."""
    ours, theirs = make_parameters(), make_parameters()
    frozen = boost.FreezeOpt(OPTIMIZERS[name](ours), [ours, ours[2:]])
    reference = native_step(OPTIMIZERS[name](theirs))
    assert all(hasattr(step, "step_unless") for step in frozen.opts)
    before = values(ours[:2])
    for step in range(2):
        frozen.opts[1](make_grads(step)[2:])
        reference(make_grads(step))
    assert_close(values(ours[2:]), values(theirs[2:]), rtol=0, atol=0)
    assert_close(values(ours[:2]), before, rtol=0, atol=0)
    assert frozen.position.asnumpy() == frozen.optimizer.global_step.asnumpy() == 2


@pytest.mark.parametrize(("mode", "name"), [(ms.PYNATIVE_MODE, "adam"), (ms.GRAPH_MODE, "momentum")], indirect=["mode"])
def test_freezing_in_a_training_cell(mode: int, name: str) -> None:
    found = []
    for fused in (True, False):
        net = Mlp()
        weights = net.trainable_params()
        frozen = boost.FreezeOpt(OPTIMIZERS[name](weights), [weights, weights[4:]], (0, 1, 1))
        cell = boost.BoostTrainOneStepCell(classes(net), frozen, fused_optimizer=fused)
        steps(cell, range(4))
        assert [hasattr(slot.optimizer, "step_unless") for _, _, slot, _ in cell.slots] == [fused] * 2
        found.append(cell)
    same(found[0], found[1], name in TO_THE_BIT)


def test_accumulation() -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        cells = [train("momentum", fused, 4, accumulation_steps=2)[0] for fused in (True, False)]
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    same(cells[0], cells[1], True)
    assert [hasattr(cell.accumulation.step, "step_unless") for cell in cells] == [True, False]


def test_freeze_cells_that_accumulate() -> None:
    made = []
    for fused in (None, False):
        net = Mlp()
        frozen = boost.FreezeOpt(OPTIMIZERS["adam"](net.trainable_params()))
        grad = ops.GradOperation(get_by_list=True, sens_param=True)
        arguments = (False, classes(net), frozen, 1.0, grad, True)
        (cell,) = boost.freeze_cell(*arguments, max_accumulation_step=2, fused_optimizer=fused)
        steps(cell, range(4))
        made.append((cell, frozen.optimizer))
    holds = [cell.pipeline.apply_slot.accumulation.step for cell, _ in made]
    assert [hasattr(hold, "step_unless") for hold in holds] == [True, False]
    assert made[0][1].global_step.asnumpy()[0] == 2
    same(made[0][1], made[1][1], False)


def test_an_accumulator_steps_natively() -> None:
    """One in a loop of one's own too."""
    optimizer = OPTIMIZERS["momentum"](make_parameters())
    for fused in (True, False):
        hold = boost.GradientAccumulation(2, optimizer, fused_optimizer=fused)
        assert hasattr(hold.step, "step_unless") == fused


class Mine(nn.Momentum):
    """Somebody's own optimizer: its construct may do anything."""


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda p: Mine(p, 0.1, 0.9), "Mine has no native step"),
        (lambda p: nn.Rprop(p), "Rprop has no native step"),
        (lambda p: nn.Momentum(p, 0.1, 0.9, use_nesterov=True), "use_nesterov"),
        (lambda p: nn.AdaFactor(p, compression=True), "compression"),
        (lambda p: nn.AdaFactor(groups(p)), "groups"),
        (lambda p: nn.LARS(nn.Lamb(p, 0.1)), "nn.Lamb inside"),
        (lambda p: nn.LARS(nn.Rprop(p, 0.1)), "Rprop has no native step"),
        (lambda p: nn.FTRL(p, l1=1e-4), "l1, which"),
        (lambda p: nn.ProximalAdagrad(p, l1=1e-4), "l1 or l2"),
        (lambda p: nn.Adagrad(p, update_slots=False), "update_slots=False, which it ignores on a CPU"),
        (
            lambda p: nn.Adam(p, use_nesterov=True, use_amsgrad=True),
            "use_nesterov with use_amsgrad, whose operator igno",
        ),
        (lambda p: nn.Momentum(p, 0.1, 0.9), "not float32"),
    ],
)
def test_what_keeps_its_own_step(optimizer, reason: str) -> None:
    weights = make_parameters()
    if reason == "not float32":
        for p in weights:
            p.set_dtype(ms.float16)
    made = optimizer(weights)
    assert reason in decision(made).reason
    assert native_step(made) is None
    frozen = boost.FreezeOpt(made, [weights, weights[2:]])
    assert not hasattr(frozen.opts[1], "step_unless")
    assert type(frozen.opts[1].optimizer) is type(made)


def test_what_freezing_excludes() -> None:
    frozen = boost.FreezeOpt(OPTIMIZERS["momentum"](make_parameters()))
    with pytest.raises(ValueError, match=r"^cell: dim_reduce must be the only algorithm, got freezing or accumulation"):
        step_options("cell", frozen, DimReduceConfig(), None, None)
    with pytest.raises(ValueError, match=r"^cell: dim_reduce must be the only algorithm, got freezing or accumulation"):
        step_options("cell", frozen.optimizer, DimReduceConfig(), 2, None)
    frozen.boost_options = StepOptions(adasum_devices=2)
    with pytest.raises(ValueError, match=r"^cell: adasum must not be combined with freezing, got a FreezeOpt$"):
        step_options("cell", frozen, None, None, None)


def test_the_plan_says_who_steps() -> None:
    def plan(optimizer, **common):
        net = Mlp()
        config = {"common": common}
        cell = amp.build_train_network(
            net,
            optimizer(net.trainable_params()),
            nn.SoftmaxCrossEntropyWithLogits(sparse=True),
            boost_config_dict=config,
        )
        return cell.plan["fused_optimizer"]

    applied = plan(OPTIMIZERS["momentum"])
    assert (applied.status, applied.reason) == ("applied", "nn.Momentum steps as one native call, on its own state")
    off = plan(OPTIMIZERS["momentum"], fused_optimizer=False)
    assert (off.status, off.reason) == ("skipped", "fused_optimizer is False")
    momentum, options = OPTIMIZERS["momentum"](make_parameters()), StepOptions(adasum_devices=2)
    moved = what_trains(decided("O0", BoostConfig()), momentum, options)
    assert moved["fused_optimizer"].reason == "another algorithm moves the weights"
    kept = plan(nn.Rprop)
    assert (kept.status, kept.reason) == ("skipped", "Rprop has no native step")


class Clipped(optim.SGD):
    """A step of a user's own around ours."""

    def construct(self, gradients: tuple[Tensor, ...]) -> Tensor:
        return super().construct(tuple(ops.clamp(g, -0.25, 0.25) for g in gradients))


@pytest.mark.parametrize("use", ["call", "cell", "accumulation"])
def test_a_construct_of_a_users_own_makes_the_step(mode: int, use: str) -> None:
    net = Weight()  # its gradient is its input
    optimizer = Clipped(net.trainable_params(), 1.0)
    before = net.w.asnumpy().copy()
    if use == "call":
        optimizer((Tensor([1.0, -1.0]),))
    else:
        steps = 2 if use == "accumulation" else 1
        cell = boost.BoostTrainOneStepCell(net, optimizer, accumulation_steps=steps)
        for _ in range(steps):
            cell(Tensor([1.0, -1.0]))
        cell(Tensor([np.inf, 1.0]))  # changes nothing
    np.testing.assert_array_equal(net.w.asnumpy() - before, [-0.25, 0.25])


def test_what_cannot_call_a_construct_of_a_users_own_refuses_it() -> None:
    parameters = Weight().trainable_params()
    with pytest.raises(TypeError, match=r"must not have a construct of its own, got Clipped"):
        boost.FreezeOpt(Clipped(parameters, 1.0), [parameters])
    with pytest.raises(TypeError, match=r"^LARS: optimizer must not have a construct of its own, got Clipped"):
        optim.LARS(Clipped(parameters, 1.0))


def test_get_lr_of_a_users_own_is_warned_of() -> None:
    with pytest.warns(UserWarning, match=r"^Slower: get_lr is for reports here"):

        class Slower(optim.SGD):
            def get_lr(self) -> Tensor:
                return 0.5 * super().get_lr()
