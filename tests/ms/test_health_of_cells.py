"""HealthMonitor in the training cells and under Model, in both modes."""

from __future__ import annotations

import math
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.monitored import batches, cell_of, model_of, quiet, records
from tests.ms.networks import Mlp, Weight, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import amp, boost, optim
from boost_ext.health import HealthMonitor
from boost_ext.report.log import Health


class Parts(nn.Cell):
    """mean(a x + b y): the gradient of a is x, that of b is y, over the number of elements."""

    def __init__(self, dtype: Any = ms.float32) -> None:
        super().__init__()
        self.a = Parameter(Tensor(np.arange(1, 7), dtype), name="first.a")
        self.b = Parameter(Tensor(np.arange(2, 8), dtype), name="second.b")

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ops.cast(self.a * ops.cast(x, self.a.dtype) + self.b * ops.cast(y, self.b.dtype), ms.float32).sum()


def looks() -> list[Health]:
    return [record for record in records() if isinstance(record, Health)]


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_statistics_of_the_gradients(mode: int, compile: str) -> None:
    cell = cell_of(Parts(), compile=compile)  # with a loss scale of 4
    assert cell.gradient_statistics() is None
    cell.watch()
    assert cell.gradient_statistics() is None
    inputs = np.float32([3, 0, 4, 0, 0, 0]), np.float32([1, 2, np.nan, 3, -np.inf, np.inf])
    cell(*map(Tensor, inputs))
    seen = cell.gradient_statistics()
    assert (seen.names, seen.elements) == (("first.a", "second.b"), (6, 6))
    assert seen.rows.tolist() == [[0, 0, -1, 4, 4, 25], [2, 1, 2, 3, 0, 14]]
    cell(*[Tensor(np.ones(6, np.float32))] * 2)
    assert cell.gradient_statistics().rows.tolist() == [[0, 0, -1, 1, 0, 6]] * 2
    assert cell.gradient_faults() == ()
    cell.watch(False)
    assert cell.gradient_statistics() is None


@in_graph_mode
def test_each_of_20_injected_faults_is_named(mode: int) -> None:
    cell = cell_of(Parts())
    cell.watch()
    for seed in range(20):
        rng = np.random.default_rng(seed)
        inputs = [rng.standard_normal(6).astype(np.float32) for _ in range(2)]
        which, place = int(rng.integers(2)), int(rng.integers(6))
        inputs[which][place] = rng.choice([np.inf, -np.inf, np.nan])
        overflow = bool(cell(*map(Tensor, inputs))[1].asnumpy())
        health = HealthMonitor(every=1000).check(1, gradients=cell.gradient_statistics(), overflow=overflow)
        assert (health.fault.name, health.fault.first_index) == (("first.a", "second.b")[which], place)


@in_graph_mode
def test_watching_moves_no_bit(mode: int) -> None:
    """And a state of a watched cell loads into one that is not."""

    def trained(watched: bool) -> tuple[Any, list[np.ndarray]]:
        ms.set_seed(1)
        net = Mlp()
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
        scale = amp.DynamicLossScaleManager(2.0**10).get_update_cell()
        cell = boost.BoostTrainOneStepWithLossScaleCell(nn.WithLossCell(net, loss), optimizer, scale, clip_norm=1.0)
        if watched:
            cell.watch()
            cell.instrument()
        for i in range(3):
            cell(*mlp_batch(i, 4))
        return cell, [p.asnumpy().copy() for p in net.trainable_params()]

    (plain, expected), (watched, got) = trained(False), trained(True)
    for one, two in zip(expected, got, strict=True):
        np.testing.assert_array_equal(one, two)
    assert watched.observe()["seconds"] is not None
    plain.load_state_dict(watched.state_dict())


@pytest.mark.parametrize("compile", ["step", "off"])
@standard(lambda p: p.graph == (p.compile == "step"))
def test_in_a_loop_of_ones_own(mode: int, compile: str) -> None:
    cell = cell_of(Parts(), compile=compile)
    before = [p.asnumpy().copy() for p in cell.network.trainable_params()]
    with quiet(health=HealthMonitor(every=2), every=100) as monitor:
        for step in range(1, 6):
            x, y = np.ones(6, np.float32), np.ones(6, np.float32)
            if step == 5:
                x[0] = 2e38  # 4 times that, with the loss scale, is inf
            monitor.record(cell, cell(Tensor(x), Tensor(y)))
    second, fourth, fault = looks()
    assert (second.step, fourth.step, fault.step) == (2, 4, 5)  # the last, since it overflowed
    assert str(fault.fault) == "step 5: the gradient of first.a holds 1 inf, 0 nan, first at 0"
    assert fourth.fault is None
    rows = {(t.of, t.name): t for t in fourth.tensors}
    assert rows["gradient", "first.a"].norm == pytest.approx(math.sqrt(6))
    weight = np.linalg.norm(before[0] - 0.03)  # after three steps of 0.01
    assert rows["weight", "first.a"].update_ratio == pytest.approx(0.01 * math.sqrt(6) / weight, rel=1e-4)


@in_graph_mode
def test_under_model(mode: int) -> None:
    manager = amp.DynamicLossScaleManager(2.0**10, 2, 1000)
    monitor = HealthMonitor(every=3, names="*.weight")
    model = model_of(loss_scale_manager=manager)
    model.train(2, batches(4, bad=(1,)), callbacks=[quiet(health=monitor)])
    assert [h.step for h in looks()] == [2, 3, 6]  # 2 and 6 have inf in their input
    assert [h.fault is not None for h in looks()] == [True, False, True]
    names = [p.name for p in model.train_network.network.trainable_params() if p.name.endswith(".weight")]
    assert [t.name for t in looks()[1].tensors] == names * 2
    assert monitor.first_fault.step == 2
    assert {t.of for t in looks()[1].tensors} == {"gradient", "weight"}


@in_graph_mode
def test_with_freezing_and_halves(mode: int) -> None:
    config = {"boost": {"mode": "manual", "grad_freeze": True}, "grad_freeze": {"total_steps": 64}}
    model = model_of(boost_config_dict=config)
    model.train(1, batches(8), callbacks=[quiet(health=HealthMonitor())])
    trained = [{t.name for t in h.tensors if t.of == "gradient"} for h in looks()]
    assert len({frozenset(names) for names in trained}) > 1  # a frozen step has fewer gradients


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
@in_graph_mode
def test_half_precision(mode: int, dtype: Any) -> None:
    net = Parts(dtype)
    optimizer = optim.SGD(net.trainable_params(), 0.01)
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, optimizer, Tensor(4.0))
    monitor = HealthMonitor()
    with quiet(health=monitor) as recorded:
        for _ in range(3):
            recorded.record(cell, cell(*[Tensor(np.ones(6, np.float32))] * 2))
    rows = {(t.of, t.name): t for t in monitor.last.tensors}
    assert rows["gradient", "first.a"].norm == pytest.approx(math.sqrt(6))
    assert rows["weight", "second.b"].update_ratio > 0


def test_another_cell_has_its_weights_looked_at() -> None:
    net = Weight()
    cell = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.01))
    monitor = HealthMonitor()
    with pytest.warns(UserWarning, match="no training cell of boost_ext"), quiet(health=monitor) as recorded:
        recorded.record(cell, cell(Tensor([1.0, 2.0])))
    assert [(t.of, t.name) for t in monitor.last.tensors] == [("weight", "w")]


def test_refusals() -> None:
    with pytest.raises(TypeError, match=r"^BoostMonitor: health must be a HealthMonitor, got bool$"):
        quiet(health=True)
