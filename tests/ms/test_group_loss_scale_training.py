"""A loss scale for each group of layers in training: the guard, the rule, and whole steps."""

from __future__ import annotations

import doctest

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from tests import oracle
from tests.ms.group_networks import Half, HalfLoss, batch, example, scales_of, with_loss
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import boost
from boost_ext.model import Model
from boost_ext.ms.loss_scale.group_loss_scale import (
    GroupLossScaleManager,
    GroupLossScaleUpdateCell,
    GroupUnscaleAndCheck,
)


class Step(nn.Cell):
    """The slots of a training cell that the manager has a part in."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell, manager: GroupLossScaleManager) -> None:
        super().__init__(auto_prefix=False)
        self.source = ms.value_and_grad(network, None, optimizer.parameters)
        self.guard = GroupUnscaleAndCheck(manager, optimizer.parameters)
        self.update_scale = GroupLossScaleUpdateCell(manager)
        self.optimizer = optimizer
        self.report = Parameter(Tensor(np.zeros((len(optimizer.parameters), 4))), name="report", requires_grad=False)
        self.one = Tensor([1.0], ms.float32)

    def construct(self, *inputs):
        loss, grads = self.source(*inputs)
        found = self.guard(self.one, self.report, grads)
        grads = ops.depend(grads, found)
        overflow = ops.reshape(found, ())
        if not overflow:
            loss = ops.depend(loss, self.optimizer(grads))
        return loss, self.update_scale(self.one, ops.depend(overflow, loss))


def guarded(values: list[np.ndarray], groups: list[list[str]], scales: list[float]):
    parameters = [Parameter(Tensor(v), name=f"w{i}") for i, v in enumerate(values)]
    manager = GroupLossScaleManager(1, groups)
    manager.set_loss_scale_status(len(groups), scales)
    report = Parameter(Tensor(np.zeros((len(values), 4))), name="report")
    guard = GroupUnscaleAndCheck(manager, parameters)

    class Call(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.guard, self.report, self.grads = guard, report, ParameterTuple(parameters)
            self.update_scale, self.one = GroupLossScaleUpdateCell(manager), Tensor([1.0], ms.float32)

        def construct(self):
            return self.update_scale(self.one, self.guard(self.one, self.report, self.grads))

    return manager, parameters, report, Call()


def test_guard_and_update(mode: int) -> None:
    rng = np.random.default_rng(3)
    values = [rng.standard_normal(s).astype(np.float32) for s in ((3, 4), (5,), (), (64, 33))]
    values[1][2] = np.nan
    groups, before = [["w2", "w0"], ["w1"], ["w3"]], [3.0, 2.0**12, 100.0]
    manager, parameters, report, call = guarded([v.copy() for v in values], groups, before)
    assert call().asnumpy().tolist() == [True]
    for i, group in enumerate((0, 1, 0, 2)):
        expected = values[i] * (np.float32(1) / np.float32(before[group]))
        np.testing.assert_array_equal(parameters[i].asnumpy(), expected)
        assert report.asnumpy()[i, 3] == np.nanmax(abs(expected))
    assert report.asnumpy()[:, :3].tolist() == [[0, 0, -1], [0, 1, 2], [0, 0, -1], [0, 0, -1]]
    assert manager.found.asnumpy().tolist() == [0, 1, 0]
    assert manager.overflows.asnumpy().tolist() == [1]
    after = [oracle.group_loss_scale_update(s, f, 2.0**64) for s, f in zip(before, (0, 1, 0), strict=True)]
    np.testing.assert_array_equal(scales_of(manager), np.float32(after))

    parameters[1].set_data(Tensor(np.ones(5, np.float32)))
    assert call().asnumpy().tolist() == [False]
    assert manager.found.asnumpy().tolist() == [0, 0, 0]
    assert manager.overflows.asnumpy().tolist() == [0]


def test_a_guard_of_some_parameters_leaves_the_other_groups_alone(mode: int) -> None:
    """With gradient freezing a step trains some groups only."""
    values = [np.ones(3, np.float32), np.ones(2, np.float32)]
    manager, _, _, call = guarded(values, [["frozen"], ["w0", "w1"]], [64.0, 64.0])
    assert call().asnumpy().tolist() == [False]
    assert manager.found.asnumpy().tolist() == [-1, 0]
    assert scales_of(manager) == [64.0, float(np.float32(64 * 2**0.001))]


def trained(manager: GroupLossScaleManager, net: nn.Cell) -> Step:
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    return Step(with_loss(net).set_train(), optimizer, manager).set_train()


@in_graph_mode
def test_training_beside_the_plain_step(mode: int) -> None:
    """Powers of two change nothing but exponents: at first all bits are those of an unscaled training."""
    manager, net = example(2.0**14)
    _, plain = example(2.0**14)
    plain.enhanced_amp = GroupLossScaleManager(1, [])
    step = trained(manager, net)
    reference = nn.TrainOneStepCell(with_loss(plain), nn.Momentum(plain.trainable_params(), 0.02, 0.9)).set_train()
    losses = []
    for i in range(12):
        loss, overflow = step(*batch(i % 3))
        expected = reference(*batch(i % 3))
        assert not overflow.asnumpy()
        np.testing.assert_allclose(loss.asnumpy(), expected.asnumpy(), rtol=1e-7 if i < 2 else 2e-4)
        losses.append(float(loss.asnumpy()))
    assert losses[-1] < 0.9 * losses[0]
    np.testing.assert_allclose(scales_of(manager), 2.0**14 * 2 ** (12 / 1000), rtol=1e-6)


def test_overflow_of_one_group_skips_the_step(mode: int) -> None:
    manager, net = example()
    step = trained(manager, net)
    step(*batch())
    state = {p.name: p.asnumpy().copy() for p in step.get_parameters() if "loss_scale" not in p.name}
    before = scales_of(manager)
    manager.set_loss_scale_status(2, [2.0**64, before[1]])
    images, labels = batch()
    _, overflow = step(Tensor(images.asnumpy() * 1e25), labels)  # gradients of conv1 beyond float32, at that scale
    assert overflow.asnumpy()
    assert manager.found.asnumpy()[0] == 1
    for p in step.get_parameters():
        if p.name in state and p.name != "report":
            np.testing.assert_array_equal(p.asnumpy(), state[p.name], err_msg=p.name)
    assert scales_of(manager)[0] == float(np.float32(2.0**64 / np.sqrt(2)))


@in_graph_mode
def test_too_large_a_scale_comes_down_by_itself(mode: int) -> None:
    """The first group overflows float16 until its scale fits; the second is not held back by it."""
    manager = GroupLossScaleManager(2.0**40, [["first.weight"], ["second.weight"]])
    half = Half(manager).to_float(ms.float16)
    manager.set_loss_scale_status(2, [2.0**45, 2.0**6])
    step = Step(HalfLoss(half), nn.SGD(half.trainable_params(), 2.0**-10), manager)
    x = Tensor(np.full((2, 4), 0.25, np.float32))
    overflows = [bool(step(x)[1].asnumpy()) for _ in range(12)]
    skipped = sum(overflows)
    assert 1 <= skipped <= 6  # 2**45 * 2**-27 = 2**18; how much of it float16 gets to see is the compiler's choice
    assert overflows == [True] * skipped + [False] * (12 - skipped)
    first, second = scales_of(manager)
    np.testing.assert_allclose(first, 2.0 ** (45 - skipped / 2 + (12 - skipped) / 1000), rtol=1e-6)
    np.testing.assert_allclose(second, 2.0 ** (6 + 12 / 1000), rtol=1e-6)


def test_both_modes_give_the_same_bits() -> None:
    results = []
    for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
        ms.set_context(mode=mode)
        manager, parameters, _, call = guarded([np.float32([1, 2, 3]), np.float32([5])], [["w0"], ["w1"]], [3.0, 7.0])
        for _ in range(5):
            call()
        results.append((scales_of(manager), [p.asnumpy().tolist() for p in parameters]))
    assert results[0] == results[1]


@in_graph_mode
def test_the_documented_example(mode: int) -> None:
    loss_scale_manager, net = example(4096)
    loss = nn.SoftmaxCrossEntropyWithLogits(reduction="mean")
    optim = nn.Momentum(params=net.trainable_params(), learning_rate=0.02, momentum=0.9)
    boost_config_dict = {
        "boost": {
            "mode": "manual",
            "less_bn": False,
            "grad_freeze": False,
            "adasum": False,
            "grad_accumulation": False,
            "dim_reduce": False,
            "loss_scale_group": True,
        }
    }
    model = Model(
        net,
        loss_fn=loss,
        optimizer=optim,
        metrics=None,
        loss_scale_manager=loss_scale_manager,
        boost_level="O1",
        boost_config_dict=boost_config_dict,
    )
    images, labels = (x.asnumpy() for x in batch(size=40))
    dataset = ms.dataset.NumpySlicesDataset((images, labels), shuffle=False).batch(8)
    before = float(model.train_network.network(Tensor(images), Tensor(labels)).asnumpy())
    model.train(4, dataset, dataset_sink_mode=False)
    assert float(model.train_network.network(Tensor(images), Tensor(labels)).asnumpy()) < 0.9 * before
    np.testing.assert_allclose(scales_of(loss_scale_manager), 4096 * 2 ** (20 / 1000), rtol=1e-5)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_the_training_cell(mode: int, compile: str) -> None:
    """Its loss scale is 1: the boundaries scale. An overflow of the first group is named, and moves its scale alone."""
    manager, net = example(2.0**10)
    optimizer = nn.Momentum(net.trainable_params(), 0.02, 0.9)
    cell = boost.BoostTrainOneStepWithLossScaleCell(with_loss(net), optimizer, manager, compile=compile).set_train()
    _, overflow, scale = cell(*batch())
    assert (bool(overflow.asnumpy()), float(scale.asnumpy())) == (False, 1.0)
    _, second = scales_of(manager)
    before = {p.name: p.asnumpy().copy() for p in optimizer.parameters}
    manager.set_loss_scale_status(2, [2.0**64, second])
    images, labels = batch()
    _, overflow, _ = cell(Tensor(1e25 * images.asnumpy()), labels)
    assert overflow.asnumpy()
    assert manager.found.asnumpy()[0] == 1
    for p in optimizer.parameters:
        np.testing.assert_array_equal(p.asnumpy(), before[p.name])
    assert scales_of(manager)[0] == float(np.float32(2.0**64 / np.sqrt(2)))


@in_graph_mode
def test_accumulation(mode: int) -> None:
    """Two micro-batches are one batch; one that overflows in between counts for nothing, and moves its scale alone."""
    (manager, net), (_, plain) = example(2.0**10), example()
    plain.enhanced_amp = GroupLossScaleManager(1, [])
    optimizer, loss = nn.Momentum(net.trainable_params(), 0.02, 0.9), with_loss(net).set_train()
    cell = boost.BoostTrainOneStepWithLossScaleCell(loss, optimizer, manager, accumulation_steps=2)
    reference = nn.TrainOneStepCell(with_loss(plain), nn.Momentum(plain.trainable_params(), 0.02, 0.9)).set_train()
    for step in range(2):
        images, labels = batch(step, 8)
        cell(images[:4], labels[:4])
        if step:
            _, second = scales_of(manager)
            manager.set_loss_scale_status(2, [2.0**64, second])
            _, overflow, _ = cell(Tensor(1e25 * images[4:].asnumpy()), labels[4:])
            assert overflow.asnumpy()
            manager.set_loss_scale_status(2, [2.0**12, second])
            assert cell.observe()["micro_batch"] == 1
        cell(images[4:], labels[4:])
        reference(images, labels)
        assert cell.observe()["micro_batch"] == 0
    for ours, theirs in zip(net.trainable_params(), plain.trainable_params(), strict=True):
        np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=2e-3, atol=2e-5, err_msg=ours.name)


def test_the_example_of_the_docstring() -> None:
    examples = doctest.DocTestParser().get_examples(boost.GroupLossScaleManager.__doc__)
    names = {"boost": boost, "nn": nn, "ops": ops}
    exec("".join(example.source for example in examples), names)
    assert names["net"](Tensor(np.ones((2, 1, 28, 28), np.float32))).shape == (2, 10)
    assert scales_of(names["manager"]) == [4096, 4096]
