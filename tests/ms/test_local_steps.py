"""Local steps in a training cell, in Model and in a loop, on one rank: the simulator's weights to the bit, resumed, and
what they refuse. tests/distributed/test_local_steps_ranks.py has two ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests.ms.networks import Mlp, classes

from boost_ext import Model, amp, boost, optim
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.config import DimReduceConfig
from boost_ext.distributed import LocalSteps
from boost_ext.local_steps import LocalStepsSimulator

FEATURES, HIDDEN, OUTPUTS, BATCH = 4, 8, 2, 16
NAME = "LocalSteps"


class Net(nn.Cell):
    """Two layers, a batch norm, and a parameter that is not trained."""

    def __init__(self, dtype: Any = ms.float32) -> None:
        super().__init__()
        rng = np.random.default_rng(3)

        def weight(*shape: int) -> Tensor:
            return Tensor((0.3 * rng.standard_normal(shape)).astype(np.float32))

        self.dense1 = nn.Dense(FEATURES, HIDDEN, weight(HIDDEN, FEATURES), weight(HIDDEN))
        self.norm = nn.BatchNorm1d(HIDDEN)
        self.half = Parameter(weight(HIDDEN, OUTPUTS).astype(dtype), name="half")
        self.frozen = Parameter(Tensor([2.0], ms.float32), name="frozen", requires_grad=False)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = ops.relu(self.norm(self.dense1(x)))
        return ((ops.matmul(hidden, ops.cast(self.half, ms.float32)) - y) ** 2).mean() * self.frozen.sum()


def batch(step: int, bad: bool = False) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(100 + step)
    x, y = rng.standard_normal((BATCH, FEATURES)), rng.standard_normal((BATCH, OUTPUTS))
    if bad:
        y[0, 0] = np.inf
    return Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32))


def values(parameters: Any) -> list[np.ndarray]:
    return [p.asnumpy().copy() for p in parameters]


def made(net: nn.Cell | None = None, cell_options: Any = None, **options: Any) -> Any:
    net = net or Net()
    local = LocalSteps(**({"every": 3} | options))
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    return boost.BoostTrainOneStepCell(net, optimizer, local_steps=local, **(cell_options or {})).set_train()


def plain(net: nn.Cell) -> Any:
    return boost.BoostTrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.05, 0.9)).set_train()


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def followed(cell: Any, rule: dict[str, Any]) -> list[list[np.ndarray]]:
    """The weights after each of seven plain steps with the simulator around them."""
    weights, found = [values(cell.network.trainable_params())], []
    simulator = LocalStepsSimulator(weights, **rule)
    for step in range(7):
        cell(*batch(step))
        for array, p in zip(weights[0], cell.network.trainable_params(), strict=True):
            array[...] = p.asnumpy()
        if simulator.step():
            for array, p in zip(weights[0], cell.network.trainable_params(), strict=True):
                ops.assign(p, Tensor(array))
        found.append([array.copy() for array in weights[0]])
    return found


def test_is_the_simulator_around_the_same_steps(mode):
    """In a loop of its own, for all arguments, and in a training cell."""
    cell = plain(Net())
    start = cell.state_dict()
    for outer in ("nesterov", "mean", "adasum", "adacons"):
        for compress in (None, "int8", "topk"):
            rule: Any = {"every": 3, "outer": outer, "compress": compress, "learning_rate": 0.5}
            cell.load_state_dict(start)
            expected = followed(cell, rule)
            cell.load_state_dict(start)
            local = LocalSteps(**rule)
            local.attach(cell.network)
            for step in range(7):
                cell(*batch(step))
                assert local.step() == (step % 3 == 2)
                assert same(values(cell.network.trainable_params()), expected[step]), (rule, step)
    own = made(**rule)
    for step in range(7):
        own(*batch(step))
        assert same(values(own.network.trainable_params()), expected[step]), step
        assert own.local_steps.steps == step + 1
    assert own.local_steps.sent_bytes == own.local_steps.rule.sent_bytes(sum(p.size for p in own.local_steps.weights))
    assert own.network.frozen.asnumpy().tolist() == [2.0]


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_an_overflow_is_a_step_without_a_move(compile):
    cell = made(cell_options={"compile": compile}, outer="mean", every=2)
    for step in range(4):
        before = values(cell.network.trainable_params())
        _, overflow, _ = cell(*batch(step, bad=step == 2))
        assert bool(overflow.asnumpy()) == (step == 2)
        assert same(before, values(cell.network.trainable_params())) == (step == 2)
    assert cell.local_steps.steps == 4


def test_with_loss_scale_accumulation_and_freezing(mode):
    net = Net()
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    groups = [net.trainable_params(), [net.half]]
    local = LocalSteps(every=4, outer="mean", learning_rate=0.5)
    scale = amp.DynamicLossScaleManager(2**10).get_update_cell()
    cell = boost.BoostTrainOneStepWithLossScaleCell(
        net, boost.FreezeOpt(optimizer, groups, (0, 1, 0)), scale, accumulation_steps=2, local_steps=local
    ).set_train()
    anchor = values(local.weights)
    for step in range(8):
        cell(*batch(step))
        if step % 4 == 3:
            got = np.concatenate([p.asnumpy().ravel() for p in local.weights])
            np.testing.assert_array_equal(got, local.slots["anchor"].asnumpy()[: got.size])
    assert not same(anchor, values(local.weights))


def test_a_resumed_training_has_the_bits_of_one_that_was_not(mode, tmp_path):
    """Within a window, and between two."""
    cell = made(compress="int8", error_decay=0.9)
    start = cell.state_dict()

    def run(first: int, last: int) -> Any:
        for step in range(first, last):
            cell(*batch(step))
        return {p.name: p.asnumpy().copy() for p in cell.get_parameters() if not p.name.startswith("guard")}

    whole = run(0, 10)
    for made_before in (4, 6):
        cell.load_state_dict(start)
        run(0, made_before)
        save_training_state(cell, tmp_path / "state.ckpt")
        run(77, 79)  # something else
        load_training_state(cell, tmp_path / "state.ckpt")
        for name, array in run(made_before, 10).items():
            assert np.array_equal(array, whole[name]), name


def test_in_a_loop_with_a_cell_of_mindspore_and_resumed(mode):
    def trained(first: int, last: int, state: Any = None) -> tuple[Any, Any, Any]:
        net = Net()
        optimizer = nn.SGD(net.trainable_params(), 0.05)
        cell, local = nn.TrainOneStepCell(net, optimizer).set_train(), LocalSteps(every=3)
        if state is None:
            local.attach(net)
        else:
            ms.load_param_into_net(net, state[0])
            local.attach(net, start=False)
            local.load_state_dict(state[1])
            local.start()
        for step in range(first, last):
            cell(*batch(step))
            assert local.step() == (step % 3 == 2)
        return net, {p.name: Parameter(p.value().copy()) for p in net.get_parameters()}, local.state_dict()

    whole, _, _ = trained(0, 8)
    _, weights, local_state = trained(0, 4)
    second, _, _ = trained(4, 8, (weights, local_state))
    assert same(values(whole.get_parameters()), values(second.get_parameters()))


def data() -> Any:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64, FEATURES)).astype(np.float32)
    y = (x @ rng.standard_normal((FEATURES, OUTPUTS))).astype(np.float32)
    return ms.dataset.NumpySlicesDataset((x, y), ["x", "y"], shuffle=False).batch(16)


def dense() -> nn.Cell:
    return nn.Dense(FEATURES, OUTPUTS, Tensor(np.ones((OUTPUTS, FEATURES), np.float32)), "zeros")


def test_model_of_both(mode):
    local = [LocalSteps(every=3, learning_rate=0.5) for _ in range(2)]
    nets = [dense(), dense()]
    ours = Model(nets[0], nn.MSELoss(), nn.SGD(nets[0].trainable_params(), 0.1), local_steps=local[0])
    ours.train(2, data(), dataset_sink_mode=False)
    theirs = ms.Model(nets[1], nn.MSELoss(), nn.SGD(nets[1].trainable_params(), 0.1))
    theirs.train(2, data(), callbacks=[local[1].callback()], dataset_sink_mode=False)
    assert [x.steps for x in local] == [8, 8]
    for a, b in zip(*(values(net.trainable_params()) for net in nets), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_graph_around_it_is_refused():
    """As a data sink makes one, which many steps run in. On the CPU Model has none."""

    class Around(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.cell = made()

        def construct(self, x: Tensor, y: Tensor) -> Any:
            return self.cell(x, y)

    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        with pytest.raises(Exception, match=r"training step: local_steps needs a call for each step"):
            Around()(*batch(0))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    params = SimpleNamespace(dataset_sink_mode=True)
    context = SimpleNamespace(original_args=lambda: params)
    with pytest.raises(ValueError, match=f"^{NAME}: dataset_sink_mode must be False"):
        LocalSteps(every=3).callback().on_train_begin(context)


def test_weights_that_are_not_finite():
    net, local = Net(), LocalSteps(every=1)
    local.attach(net)
    net.half.set_data(Tensor(np.full(net.half.shape, np.nan, np.float32)))
    anchor = local.slots["anchor"].asnumpy().copy()
    with pytest.raises(
        FloatingPointError, match=f"^{NAME}: weights must be finite at an exchange, got others on rank 0"
    ):
        local.step()
    assert local.steps == 0
    assert np.array_equal(anchor, local.slots["anchor"].asnumpy())


def test_what_it_refuses(tmp_path):
    with pytest.raises(ValueError, match=f"^{NAME}: every must be >= 1, got 0"):
        LocalSteps(every=0)
    with pytest.raises(TypeError, match=f"^{NAME}: unknown argument 'compression', did you mean 'compress'"):
        LocalSteps(every=2, compression="int8")  # type: ignore[call-arg]
    local = LocalSteps(every=2)
    for call in (local.step, local.start):
        with pytest.raises(ValueError, match=f"^{NAME}: network must be attached first, got none"):
            call()
    with pytest.raises(TypeError, match=f"^{NAME}: network must be a Cell, got list"):
        local.attach([])
    with pytest.raises(ValueError, match=f"^{NAME}: network must have Parameters that are trained, got none"):
        local.attach(nn.ReLU())
    with pytest.raises(TypeError, match=f"^{NAME}: weights must be float32, got Float16 for half"):
        local.attach(Net(ms.float16))
    ms.set_auto_parallel_context(parallel_mode="data_parallel")
    try:
        with pytest.raises(ValueError, match=f"^{NAME}: parallel_mode must be stand_alone.*, got data_parallel"):
            local.attach(Net())
    finally:
        ms.reset_auto_parallel_context()
    net = Net()
    local.attach(net, start=False)
    with pytest.raises(ValueError, match=rf"^{NAME}: start\(\) must be called before the first step"):
        local.step()
    with pytest.raises(ValueError, match=f"^{NAME}: network must be attached once"):
        local.attach(net)
    with pytest.raises(ValueError, match=f"^{NAME}: state must be of local steps with the same arguments and network"):
        local.load_state_dict({})

    cell, optimizer = "BoostTrainOneStepCell", nn.SGD(net.trainable_params(), 0.1)

    def refused(text: str, kind: Any = boost.BoostTrainOneStepCell, opt: Any = optimizer, **options: Any) -> None:
        with pytest.raises(ValueError, match=f"^{kind.__name__}: local_steps must be None with {text}"):
            kind(net, opt, **({"local_steps": LocalSteps(every=2)} | options))

    with pytest.raises(TypeError, match=f"^{cell}: local_steps must be a LocalSteps, got int"):
        boost.BoostTrainOneStepCell(net, optimizer, local_steps=3)
    np.savez(tmp_path / "a-1.npz", **{p.name: p.asnumpy() for p in net.get_parameters()})
    np.savez(tmp_path / "a-2.npz", **{p.name: p.asnumpy() + 1 for p in net.get_parameters()})
    refused("weight_average", weight_average=boost.ExponentialMovingAverage())
    average = boost.TrainableWeightAveraging(net.trainable_params(), 0.1, weight_load_dir=tmp_path)
    refused("TrainableWeightAveraging", opt=average)

    class Own(boost.BoostTrainOneStepCell):
        def construct(self, *inputs: Tensor) -> Any:
            return self.network(*inputs)

    refused("a construct of its own", kind=Own)
    matrix = np.linalg.qr(np.random.default_rng(0).standard_normal((sum(p.size for p in net.trainable_params()), 2)))[
        0
    ].T
    np.save(tmp_path / "p.npy", matrix.astype(np.float32))
    config = DimReduceConfig(n_components=2, pca_mat_path=str(tmp_path / "p.npy"))
    refused("dim_reduce", dim_reduce=config)


def test_a_frozen_schedule_free_optimizer_is_refused() -> None:
    net = Mlp()
    optimizer = boost.FreezeOpt(optim.ScheduleFreeSGD(net.trainable_params()), [net.trainable_params()])
    with pytest.raises(ValueError, match=r"local_steps must be None with a Schedule-Free optimizer"):
        boost.BoostTrainOneStepCell(classes(net), optimizer, local_steps=LocalSteps(2))
