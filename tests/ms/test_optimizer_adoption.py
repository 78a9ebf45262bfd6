"""Optimizers of mindspore.nn that step natively on their own Parameters, beside themselves."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.networks import Mlp, classes, layers, mlp_batch

from boost_ext import amp, boost, optim
from boost_ext.ms.optimizer_adoption import decision, native_step
from boost_ext.ms.optimizer_rebuild import rebuild

RATES = np.linspace(0.1, 0.02, 8).astype(np.float32).tolist()


def groups(net: nn.Cell) -> list[dict]:
    """Two weight decays and two learning rates."""
    weights = net.trainable_params()
    return [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": 0.01},
        {"params": [w for w in weights if w.ndim < 2], "lr": 0.02},
        {"order_params": weights},
    ]


def centralized(name: str, *args, **kwargs):
    """An optimizer that AutoBoost has made centralize the gradients of the matrices."""

    def made(net: nn.Cell) -> nn.Optimizer:
        weights = net.trainable_params()
        matrices = {"params": [w for w in weights if w.ndim > 1], "weight_decay": 0.1, "grad_centralization": True}
        vectors = {"params": [w for w in weights if w.ndim < 2], "weight_decay": 0.1}
        optimizer = plain(name, *args, learning_rate=RATES, **kwargs)(net)
        return rebuild(optimizer, [matrices, vectors, {"order_params": weights}])

    return made


def grouped(name: str, *args, **kwargs):
    """An optimizer over groups, with a learning rate for each step."""
    return lambda net: getattr(nn, name)(groups(net), *args, learning_rate=RATES, **kwargs)


def plain(name: str, *args, **kwargs):
    return lambda net, **more: getattr(nn, name)(net.trainable_params(), *args, **kwargs, **more)


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


def train(optimizer, fused: bool, count: int = 6, **kwargs) -> tuple[nn.Cell, nn.Optimizer]:
    net = Mlp()
    made = optimizer(net)
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
def test_trains_as_the_optimizer_itself(mode: int, name: str) -> None:
    """And either goes on where the other stopped: they share the Parameters, as they would share a checkpoint."""
    compile = "step" if mode == ms.GRAPH_MODE or name == "momentum" else "off"
    net = classes(Mlp())
    ours = OPTIMIZERS[name](net)
    assert native_step(ours) is not None, decision(ours).reason
    itself, fused = (
        boost.BoostTrainOneStepCell(net, ours, fused_optimizer=fused, compile=compile) for fused in (False, True)
    )
    steps(fused, range(1))  # of SGD it is another one
    steps(itself, range(1, 3))
    steps(fused, range(3, 7))
    cell, theirs = train(OPTIMIZERS[name], False, 7, compile=compile)
    same(ours, theirs, name in TO_THE_BIT)
    assert [p.name for p in fused.get_parameters()] == [p.name for p in cell.get_parameters()]
    assert int(ours.global_step.asnumpy()[0]) == 7


@pytest.mark.parametrize("name", ["Lamb", "LARS"])
def test_what_does_not_run_in_mindspore_on_a_cpu(name: str) -> None:
    """As boost_ext's own, which tests/ms/test_optim.py compares with the equations."""

    def made(module, net: nn.Cell) -> nn.Optimizer:
        if name == "Lamb":
            return module.Lamb(groups(net), RATES, weight_decay=0.1)
        inner = module.Momentum(net.trainable_params(), RATES, 0.9, weight_decay=0.01, loss_scale=2.0)
        return module.LARS(inner, coefficient=0.01, lars_filter=lambda p: p.ndim > 1)

    cells = [train(lambda net, module=module: made(module, net), True) for module in (nn, optim)]
    weights = [[p.asnumpy() for p in cell.weights] for cell, _ in cells]
    for ours, theirs, before in zip(*weights, Mlp().trainable_params(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)
        assert np.abs(ours - before.asnumpy()).max() > 1e-3


def test_what_is_loaded_counts(mode: int) -> None:
    """The state is the optimizer's own: a checkpoint between two steps reaches the native step."""
    fused, ours = train(OPTIMIZERS["momentum"], True)
    plain, theirs = train(OPTIMIZERS["momentum"], False)
    for cell, optimizer in ((fused, ours), (plain, theirs)):
        for state in optimizer.moments:
            state.set_data(Tensor(np.full(state.shape, 0.5, np.float32)))
        cell(*mlp_batch(9, 8))
    # MindSpore's own state in a branch is not compared: this is the value that the equation gives.
    assert not any((state.asnumpy() == 0.5).any() for state in ours.moments)
    assert all(0.3 < state.asnumpy().mean() < 0.6 for state in ours.moments)


@pytest.mark.parametrize("name", ["momentum", "adam"])
def test_overflow_changes_nothing(mode: int, name: str) -> None:
    net = Mlp()
    optimizer = OPTIMIZERS[name](net)
    cell = boost.BoostTrainOneStepWithLossScaleCell(classes(net), optimizer, Tensor([1024.0], ms.float32))
    images, labels = mlp_batch(0, 8)
    cell(images, labels)
    before = {p.name: p.asnumpy().copy() for p in optimizer.get_parameters()}
    _, overflow, _ = cell(images * float("inf"), labels)
    assert overflow.asnumpy()
    for p in optimizer.get_parameters():
        np.testing.assert_array_equal(p.asnumpy(), before[p.name], err_msg=p.name)


def test_freezing_and_accumulation(mode: int) -> None:
    name = "momentum" if mode == ms.GRAPH_MODE else "adam"

    def frozen(net: nn.Cell) -> nn.Cell:
        return boost.FreezeOpt(OPTIMIZERS[name](net), layers(net), (0, 1, 2, 1))

    cells = [train(frozen, fused)[0] for fused in (True, False)]
    same(cells[0], cells[1], name in TO_THE_BIT)
    cells = [train(OPTIMIZERS[name], fused, accumulation_steps=2)[0] for fused in (True, False)]
    same(cells[0], cells[1], name in TO_THE_BIT)
    assert [hasattr(cell.accumulation.optimizer, "step_unless") for cell in cells] == [True, False]


def test_freeze_cells_that_accumulate(mode: int) -> None:
    name = "momentum" if mode == ms.GRAPH_MODE else "adam"
    made = []
    for fused in (None, False):
        net = Mlp()
        frozen = boost.FreezeOpt(OPTIMIZERS[name](net))
        grad = ops.GradOperation(get_by_list=True, sens_param=True)
        arguments = (False, classes(net), frozen, 1.0, grad, True)
        (cell,) = boost.freeze_cell(*arguments, max_accumulation_step=2, fused_optimizer=fused)
        steps(cell, range(6))
        made.append((cell, frozen.optimizer))
    holds = [cell.pipeline.apply_slot.accumulation.optimizer for cell, _ in made]
    assert [hasattr(hold, "step_unless") for hold in holds] == [True, False]
    assert made[0][1].global_step.asnumpy()[0] == 3
    same(made[0][1], made[1][1], name in TO_THE_BIT)


def test_an_accumulator_steps_natively() -> None:
    """One in a loop of one's own too."""
    net = Mlp()
    optimizer = OPTIMIZERS["momentum"](net)
    for fused in (True, False):
        hold = boost.GradientAccumulation(2, optimizer, fused_optimizer=fused)
        assert hasattr(hold.optimizer, "step_unless") == fused


class Mine(nn.Momentum):
    """Somebody's own optimizer: its construct may do anything."""


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (lambda net: Mine(net.trainable_params(), 0.1, 0.9), "Mine has no native step"),
        (lambda net: nn.Rprop(net.trainable_params()), "Rprop has no native step"),
        (lambda net: nn.Momentum(net.trainable_params(), 0.1, 0.9, use_nesterov=True), "use_nesterov"),
        (lambda net: nn.AdaFactor(net.trainable_params(), compression=True), "compression"),
        (lambda net: nn.AdaFactor(groups(net)), "groups"),
        (lambda net: nn.LARS(nn.Lamb(net.trainable_params(), 0.1)), "nn.Lamb inside"),
        (lambda net: nn.LARS(nn.Rprop(net.trainable_params(), 0.1)), "Rprop has no native step"),
        (lambda net: nn.FTRL(net.trainable_params(), l1=1e-4), "l1, which"),
        (lambda net: nn.ProximalAdagrad(net.trainable_params(), l1=1e-4), "l1 or l2"),
        (lambda net: nn.Momentum(net.to_float(ms.float16).trainable_params(), 0.1, 0.9), "not float32"),
    ],
)
def test_what_keeps_its_own_step(optimizer, reason: str) -> None:
    net = Mlp()
    if reason == "not float32":
        for p in net.trainable_params():
            p.set_dtype(ms.float16)
    made = optimizer(net)
    assert reason in decision(made).reason
    assert native_step(made) is None


def test_the_plan_says_who_steps() -> None:
    def plan(optimizer, **common):
        net = Mlp()
        config = {"common": common}
        cell = amp.build_train_network(
            net, optimizer(net), nn.SoftmaxCrossEntropyWithLogits(sparse=True), boost_config_dict=config
        )
        return cell.plan["fused_optimizer"]

    applied = plan(OPTIMIZERS["momentum"])
    assert (applied.status, applied.reason) == ("applied", "nn.Momentum steps as one native call, on its own state")
    off = plan(OPTIMIZERS["momentum"], fused_optimizer=False)
    assert (off.status, off.reason) == ("skipped", "fused_optimizer is False")
    kept = plan(lambda net: nn.Rprop(net.trainable_params()))
    assert (kept.status, kept.reason) == ("skipped", "Rprop has no native step")
