"""The exponential moving average beside its definition in float64, swapped in and out, resumed, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests import oracle
from tests.ms.tiers import standard

from boost_ext import Model, boost, optim
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.config import DimReduceConfig

Array = np.ndarray
FEATURES, HIDDEN, OUTPUTS, BATCH = 4, 8, 2, 16


class Net(nn.Cell):
    """Three layers, one of them of `dtype`, a batch norm, and a parameter that nobody trains."""

    def __init__(self, dtype: Any = ms.float32) -> None:
        super().__init__()
        ms.set_seed(0)  # of the biases
        rng = np.random.default_rng(3)
        self.dense1 = nn.Dense(FEATURES, HIDDEN, rng_tensor(rng, HIDDEN, FEATURES))
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.half = Parameter(rng_tensor(rng, HIDDEN, HIDDEN).astype(dtype), name="half")
        self.dense2 = nn.Dense(HIDDEN, OUTPUTS, rng_tensor(rng, OUTPUTS, HIDDEN))
        self.frozen = Parameter(Tensor([2.0], ms.float32), name="frozen", requires_grad=False)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = ops.relu(self.norm(self.dense1(x)))
        out = self.dense2(ops.matmul(hidden, ops.cast(self.half, ms.float32)))
        return ((out - y) ** 2).mean() * self.frozen.sum()


def rng_tensor(rng: np.random.Generator, *shape: int) -> Tensor:
    return Tensor((0.3 * rng.standard_normal(shape)).astype(np.float32))


def batch(step: int, bad: bool = False) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(100 + step)
    x, y = rng.standard_normal((BATCH, FEATURES)), rng.standard_normal((BATCH, OUTPUTS))
    if bad:
        y[0, 0] = np.inf  # the statistics of the batch norm stay finite
    return Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32))


def values(parameters: Any) -> list[Array]:
    return [p.astype(ms.float32).asnumpy().astype(np.float64) for p in parameters]


class Definition:
    """a <- d a + (1 - d) w after each update, d = min(decay, t / (t + 9))."""

    def __init__(self, average: boost.ExponentialMovingAverage, decay: float, warm_up: bool = True) -> None:
        self.average, self.decay, self.warm_up = average, decay, warm_up
        self.expected, self.t = values(average.weights), 0

    def follow(self, moved: bool = True) -> None:
        if moved:
            decay = min(self.decay, self.t / (self.t + 9)) if self.warm_up else self.decay
            new = values(self.average.weights)
            self.expected = [oracle.ema_update(a, w, decay) for a, w in zip(self.expected, new, strict=True)]
            self.t += 1
        assert self.average.updates.asnumpy().tolist() == [self.t]
        for got, expected in zip(self.average.averages, self.expected, strict=True):
            np.testing.assert_allclose(got.asnumpy(), expected, rtol=3e-6, atol=3e-7, err_msg=got.name)


def made(net: nn.Cell, decay: float = 0.8, warm_up: bool = True, **options: Any) -> tuple[Any, Definition]:
    average = boost.ExponentialMovingAverage(decay, warm_up=warm_up)
    optimizer = options.pop("optimizer", None) or nn.Momentum(net.trainable_params(), 0.05, 0.9)
    cell = boost.BoostTrainOneStepCell(net, optimizer, weight_average=average, **options)
    return cell.set_train(), Definition(average, decay, warm_up)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize("dtype", [ms.float32, ms.float16], ids=str)
@standard(lambda p: p.graph == (p.compile == "step"))
def test_follows_the_weights_and_leaves_out_a_step_that_overflows(mode, compile, dtype):
    net = Net(dtype)
    cell, definition = made(net, compile=compile)
    names = [p.name for p in definition.average.averages]
    assert "ema.frozen" not in names
    assert {"ema.half", "ema.norm.moving_mean", "ema.dense1.weight"} <= set(names)
    for step in range(9):
        bad = step == 4
        _, overflow, _ = cell(*batch(step, bad))
        assert bool(overflow.asnumpy()) == bad
        definition.follow(not bad)


def test_without_warm_up_it_begins_at_the_weights_of_the_start():
    cell, definition = made(Net(), 0.5, warm_up=False)
    for step in range(4):
        cell(*batch(step))
        definition.follow()


def test_accumulation_averages_once_a_window(mode):
    cell, definition = made(Net(), accumulation_steps=3)
    for step in range(7):
        cell(*batch(step, bad=step == 1))  # which is not among the three
        definition.follow(step in (3, 6))


def test_freezing_averages_what_stays_too():
    net = Net()
    opt = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    groups = [net.trainable_params(), list(net.dense2.trainable_params())]
    cell, definition = made(net, optimizer=boost.FreezeOpt(opt, groups, (0, 1, 0)))
    for step in range(6):
        cell(*batch(step))
        definition.follow()


def test_beside_thor():
    net = nn.SequentialCell(nn.Dense(FEATURES, HIDDEN), nn.ReLU(), nn.Dense(HIDDEN, OUTPUTS))
    opt = optim.thor(net, Tensor(0.05), Tensor(0.1), 0.9, batch_size=BATCH, frequency=2)
    cell, definition = made(nn.WithLossCell(net, nn.MSELoss()), optimizer=opt)
    for step in range(4):
        cell(*batch(step))
        definition.follow()


def test_swapped_in_and_out_to_the_bit(mode):
    net = Net(ms.float16)
    cell, definition = made(net)
    average = definition.average
    for step in range(3):
        cell(*batch(step))
    own, averages = values(average.weights), values(average.averages)
    with average.swapped_in():
        for weight, now, mean in zip(average.weights, values(average.weights), averages, strict=True):
            rounded = mean.astype(np.float16).astype(np.float64) if weight.dtype == ms.float16 else mean
            assert np.array_equal(now, rounded)
        with pytest.raises(RuntimeError, match=r"^training step: the network must hold its own weights"):
            cell(*batch(3))
        with pytest.raises(RuntimeError, match=r"swap_out\(\) comes first$"):
            average.swap_in()
    average.swap_out()  # a second time
    for before, after in zip(own, values(average.weights), strict=True):
        assert np.array_equal(before, after)
    definition.expected, definition.t = averages, 3
    cell(*batch(3))
    definition.follow()


def test_a_resumed_training_has_the_bits_of_one_that_was_not(mode, tmp_path):
    whole, _ = made(Net())
    for step in range(6):
        whole(*batch(step))
    first, _ = made(Net())
    for step in range(3):
        first(*batch(step))
    save_training_state(first, tmp_path / "state.ckpt")
    second, definition = made(Net())
    load_training_state(second, tmp_path / "state.ckpt")
    for step in range(3, 6):
        second(*batch(step))
    assert definition.average.updates.asnumpy().tolist() == [6]
    for a, b in zip(whole.weight_average.averages, second.weight_average.averages, strict=True):
        assert np.array_equal(a.asnumpy(), b.asnumpy()), a.name


def test_model_evaluates_the_averages(mode):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, FEATURES)).astype(np.float32)
    y = (x @ rng.standard_normal((FEATURES, OUTPUTS))).astype(np.float32)
    data = ms.dataset.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(16)
    net = nn.Dense(FEATURES, OUTPUTS)
    average = boost.ExponentialMovingAverage(0.9)
    opt = optim.Momentum(net.trainable_params(), 0.1, 0.9)
    model = Model(net, nn.MSELoss(), opt, metrics={"loss"}, boost_level="O1", weight_average=average)
    model.train(3, data, dataset_sink_mode=False)

    def loss_of(parameters: Any) -> float:
        weight, bias = values(parameters)
        return float(((x @ weight.T + bias - y) ** 2).mean())

    own = loss_of(average.weights)
    found = model.eval(data, callbacks=[average.during_evaluation()], dataset_sink_mode=False)
    assert found["loss"] == pytest.approx(loss_of(average.averages), rel=1e-5)
    assert model.eval(data, dataset_sink_mode=False)["loss"] == pytest.approx(own, rel=1e-5)
    assert own != pytest.approx(loss_of(average.averages), rel=1e-3)


def test_alone_in_a_loop_of_ones_own(mode):
    net = Net()
    average = boost.ExponentialMovingAverage(0.5)
    average.attach(net)
    definition = Definition(average, 0.5)
    for weight in average.weights:
        ops.assign(weight, weight + 1)
    average()
    definition.follow()
    average(Tensor([True]))
    definition.follow(moved=False)


def test_what_it_refuses():
    name = "ExponentialMovingAverage"
    for decay in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match=f"^{name}: decay must be from 0 to 1, got"):
            boost.ExponentialMovingAverage(decay)
    with pytest.raises(TypeError, match=f"^{name}: decay must be a number, got str$"):
        boost.ExponentialMovingAverage("0.9")
    with pytest.raises(TypeError, match=f"^{name}: warm_up must be a bool, got int$"):
        boost.ExponentialMovingAverage(0.9, warm_up=1)
    average = boost.ExponentialMovingAverage()
    with pytest.raises(RuntimeError, match=r"no network is attached$"):
        average.swap_in()
    with pytest.raises(TypeError, match=f"^{name}: network must be a Cell, got list$"):
        average.attach([])
    with pytest.raises(ValueError, match=f"^{name}: network must have floating point Parameters that are trained"):
        average.attach(nn.ReLU())
    net = Net()
    average.attach(net)
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    with pytest.raises(ValueError, match=f"^{name}: network must be attached once"):
        boost.BoostTrainOneStepCell(net, optimizer, weight_average=average)
    with pytest.raises(TypeError, match=r"^BoostTrainOneStepCell: weight_average must be an Exponential.*, got float$"):
        boost.BoostTrainOneStepCell(net, optimizer, weight_average=0.9)

    config = DimReduceConfig(n_components=2)
    with pytest.raises(ValueError, match=r"^BoostTrainOneStepCell: weight_average must be None with dim_reduce"):
        boost.BoostTrainOneStepCell(net, optimizer, dim_reduce=config, weight_average=boost.ExponentialMovingAverage())

    class Own(boost.BoostTrainOneStepCell):
        def construct(self, *inputs: Tensor) -> Any:
            return self.network(*inputs)

    with pytest.raises(ValueError, match=r"^Own: weight_average must be None with a construct of its own"):
        Own(net, optimizer, weight_average=boost.ExponentialMovingAverage())


def test_the_path_of_a_checkpoint_has_the_averages(tmp_path: Path):
    cell, definition = made(Net())
    cell(*batch(0))
    ms.save_checkpoint(cell, str(tmp_path / "cell.ckpt"))
    saved = ms.load_checkpoint(str(tmp_path / "cell.ckpt"))
    for average in definition.average.averages:
        assert np.array_equal(saved[average.name].asnumpy(), average.asnumpy())


def test_no_state_while_the_averages_are_swapped_in() -> None:
    net = Net()
    average = boost.ExponentialMovingAverage(0.5)
    cell = boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1), weight_average=average).set_train()
    cell(*batch(0))
    state = cell.state_dict()
    with average.swapped_in():
        for refused in (cell.state_dict, lambda: cell.load_state_dict(state)):
            with pytest.raises(RuntimeError, match=r"must hold its own weights, got the averages"):
                refused()
    cell.load_state_dict(state)
