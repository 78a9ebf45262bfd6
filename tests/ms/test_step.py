"""The training cells beside MindSpore's, in both modes."""

import importlib
import warnings
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Model, Parameter, Tensor, nn, ops
from tests.ms.networks import Weight
from tests.ms.tiers import in_graph_mode, in_pynative_mode, standard

from boost_ext import boost, optim


class Net(nn.Cell):
    """Conv, batch norm and Dense on 8x8 images, the same weights every time."""

    def __init__(self) -> None:
        super().__init__()
        # Without a bias: before a batch norm its gradient is a rounding error, which Adam divides by itself.
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.flatten = nn.Flatten()
        self.head = nn.Dense(4 * 64, 10)
        rng = np.random.default_rng(0)
        for p in self.trainable_params():
            if "norm" not in p.name:
                p.set_data(Tensor(0.1 * rng.standard_normal(p.shape).astype(np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return self.head(self.flatten(ops.relu(self.norm(self.conv(x)))))


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    images = rng.standard_normal((16, 1, 8, 8)).astype(np.float32)
    return Tensor(images), Tensor(rng.integers(0, 10, 16).astype(np.int32))


def with_loss(net: nn.Cell) -> nn.Cell:
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    return nn.WithLossCell(net, loss).set_train()


def momentum(net: nn.Cell, **kwargs) -> nn.Optimizer:
    return nn.Momentum(net.trainable_params(), 0.05, 0.9, **kwargs)


def snapshot(cell: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy().copy() for p in cell.get_parameters()}


def changed(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    return {n for n, v in before.items() if not np.array_equal(v, after[n], equal_nan=True)}


class Sum(nn.Cell):
    """The loss is a sum: the gradients of a, b and c are the loss scale itself, one piece of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.a = Parameter(Tensor(1.0, ms.float32), name="a")
        self.b = Parameter(Tensor(1.0, ms.float32), name="b")
        self.c = Parameter(Tensor([1.0], ms.float32), name="c")

    def construct(self, x: Tensor) -> Tensor:
        return self.a + self.b + ops.reshape(self.c, ()) + x.sum()


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize(
    "optimizer",
    [momentum, lambda net: nn.Adam(net.trainable_params(), 0.01)],
    ids=["momentum", "adam"],
)
@standard(lambda p: (p.compile == "step") == p.graph and (p.optimizer is momentum) == (p.compile == "off"))
def test_trains_like_mindspore(mode: int, compile: str, optimizer) -> None:
    ours, theirs = Net(), Net()
    cell = boost.BoostTrainOneStepCell(with_loss(ours), optimizer(ours), compile=compile)
    reference = nn.TrainOneStepCell(with_loss(theirs), optimizer(theirs)).set_train()
    for i in range(4):
        loss, overflow, scale = cell(*batch(i))
        expected = reference(*batch(i))
        np.testing.assert_allclose(loss.asnumpy(), expected.asnumpy(), rtol=2e-4)
        assert loss.shape == overflow.shape == scale.shape == ()
        assert (overflow.asnumpy(), scale.asnumpy()) == (False, 1.0)
    for p, q in zip(ours.get_parameters(), theirs.get_parameters(), strict=True):
        assert p.name == q.name
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("shape", [(), (1,)])
@standard(lambda p: p.graph == (p.shape == ()))
def test_a_loss_scale_changes_nothing(mode: int, shape: tuple[int, ...]) -> None:
    """Whichever it is at a step: one graph."""
    ours, theirs = Net(), Net()
    senses = [Tensor(np.full(shape, scale), ms.float32) for scale in (1.0, 1024.0, 65536.0)]
    cell = boost.BoostTrainOneStepWithLossScaleCell(with_loss(ours), momentum(ours), senses[0])
    plain = boost.BoostTrainOneStepCell(with_loss(theirs), momentum(theirs))
    for i, sense in enumerate(senses):
        cell.set_sense_scale(sense)
        loss, overflow, used = cell(*batch(i))
        np.testing.assert_allclose(loss.asnumpy(), plain(*batch(i))[0].asnumpy(), rtol=1e-5)
        assert (overflow.asnumpy(), used.asnumpy(), used.shape) == (False, sense.asnumpy().item(), ())
    for p, q in zip(ours.trainable_params(), theirs.trainable_params(), strict=True):
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_gradients_that_share_memory_with_the_scale(mode: int, compile: str) -> None:
    net = Sum()
    sense = Tensor(8.0, ms.float32)
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, nn.SGD(net.trainable_params(), 0.25), sense, compile=compile)
    for i in range(1, 3):
        _, _, used = cell(Tensor([0.0]))
        assert used.asnumpy() == cell.scale_sense.asnumpy() == 8.0
        for p in net.trainable_params():
            np.testing.assert_array_equal(p.asnumpy(), np.full(p.shape, 1 - 0.25 * i, np.float32))


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_overflow_moves_nothing_but_the_scale(mode: int, compile: str) -> None:
    net = Net()
    update = nn.DynamicLossScaleUpdateCell(2.0**10, 2, 2)
    cell = boost.BoostTrainOneStepWithLossScaleCell(with_loss(net), momentum(net), update, compile=compile)
    cell(*batch())
    before = snapshot(cell)
    x, y = batch()
    _, overflow, scale = cell(ops.mul(x, float("inf")), y)
    assert overflow.asnumpy()
    assert scale.asnumpy() == 2.0**10
    assert cell.scale_sense.asnumpy() == 2.0**9
    own = {"scale_sense", "current_iterator_step", "last_overflow_iterator_step", "guard.finiteness", "boost.steps"}
    forward = {"norm.moving_mean", "norm.moving_variance"}  # written by the forward pass
    assert changed(before, snapshot(cell)) - forward == own


@in_graph_mode
def test_overflow_in_the_plain_cell(mode: int) -> None:
    net = Net()
    cell = boost.BoostTrainOneStepCell(with_loss(net), momentum(net))
    cell(*batch())
    before = snapshot(cell)
    x, y = batch()
    assert cell(ops.mul(x, float("nan")), y)[1].asnumpy()
    own = {"norm.moving_mean", "norm.moving_variance", "guard.finiteness", "boost.steps"}
    assert changed(before, snapshot(cell)) <= own


@in_graph_mode
def test_sens_is_for_the_optimizer_to_take_out(mode: int) -> None:
    ours, theirs = Net(), Net()
    optimizer = momentum(ours, loss_scale=128.0)
    cell = boost.BoostTrainOneStepCell(with_loss(ours), optimizer, sens=128.0)
    plain = boost.BoostTrainOneStepCell(with_loss(theirs), momentum(theirs))
    assert cell(*batch())[2].asnumpy() == 128.0
    plain(*batch())
    for p, q in zip(ours.trainable_params(), theirs.trainable_params(), strict=True):
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=1e-4, atol=1e-6)


@in_graph_mode
def test_set_sense_scale(mode: int) -> None:
    net = Net()
    sense = Tensor([4.0], ms.float32)
    cell = boost.BoostTrainOneStepWithLossScaleCell(with_loss(net), momentum(net), sense)
    assert cell(*batch())[2].asnumpy() == 4.0
    cell.set_sense_scale(Tensor([16.0], ms.float32))
    assert cell(*batch())[2].asnumpy() == 16.0
    with pytest.raises(ValueError, match=r"sens must have shape \(1,\), got \(\)"):
        cell.set_sense_scale(Tensor(1.0, ms.float32))
    with pytest.raises(TypeError, match="sens must be a Tensor, got float"):
        cell.set_sense_scale(2.0)


@in_pynative_mode
def test_train_and_eval_flags_are_seen_by_the_compiled_step(mode: int) -> None:
    net = Net()
    loss = with_loss(net)
    cell = boost.BoostTrainOneStepCell(loss, nn.SGD(net.trainable_params(), 1e-30))
    cell(*batch())
    moved = net.norm.moving_mean.asnumpy().copy()
    cell.set_train(False)
    cell(*batch())
    np.testing.assert_array_equal(net.norm.moving_mean.asnumpy(), moved)
    cell.set_train(True)
    cell(*batch())
    assert np.any(net.norm.moving_mean.asnumpy() != moved)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_parameters_set_from_outside_are_seen(mode: int, compile: str) -> None:
    """A graph made by ms.jit would go on with the storage that the parameters had at its first call."""
    net = Net()
    cell = boost.BoostTrainOneStepCell(with_loss(net), nn.SGD(net.trainable_params(), 1e-30), compile=compile)
    first = cell(*batch())[0].asnumpy()
    saved = {p.name: Parameter(Tensor(p.asnumpy()), name=p.name) for p in net.get_parameters()}
    net.head.weight.set_data(ops.zeros_like(net.head.weight))
    net.head.bias.set_data(ops.zeros_like(net.head.bias))
    np.testing.assert_allclose(cell(*batch())[0].asnumpy(), np.log(10), rtol=1e-5)
    np.testing.assert_allclose(net.head.weight.asnumpy(), 0, atol=1e-25)
    ms.load_param_into_net(net, saved)
    np.testing.assert_allclose(cell(*batch())[0].asnumpy(), first, rtol=1e-5)


@in_graph_mode
def test_a_learning_rate_schedule_advances_once_a_step(mode: int) -> None:
    ours, theirs = Net(), Net()
    rates = [0.1, 0.05, 0.01, 0.001]
    cell = boost.BoostTrainOneStepCell(with_loss(ours), nn.Momentum(ours.trainable_params(), rates, 0.9))
    reference = nn.TrainOneStepCell(with_loss(theirs), nn.Momentum(theirs.trainable_params(), rates, 0.9))
    for i in range(3):
        cell(*batch(i))
        reference(*batch(i))
    assert cell.optimizer.global_step.asnumpy() == 3
    for p, q in zip(ours.trainable_params(), theirs.trainable_params(), strict=True):
        np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("sink", [False, True], ids=["no-sink", "sink"])
@standard(lambda p: p.sink == p.graph)
def test_inside_model_train(mode: int, sink: bool) -> None:
    net = Net()
    sense = nn.DynamicLossScaleUpdateCell(256.0, 2, 3)
    cell = boost.BoostTrainOneStepWithLossScaleCell(with_loss(net), momentum(net), sense)
    images, labels = batch()
    data = {"x": images.asnumpy(), "y": labels.asnumpy()}
    dataset = ms.dataset.NumpySlicesDataset(data, shuffle=False).batch(8)
    before = snapshot(net)
    Model(cell).train(2, dataset, dataset_sink_mode=sink)
    assert {p.name for p in net.trainable_params()} <= changed(before, snapshot(net))
    assert cell.scale_sense.asnumpy() == 512.0


@pytest.mark.parametrize("bad", ["1", None, True, [1.0]])
def test_sens_must_be_a_number(bad: object) -> None:
    net = Net()
    with pytest.raises(TypeError, match="BoostTrainOneStepCell: sens must be a number, got"):
        boost.BoostTrainOneStepCell(with_loss(net), momentum(net), bad)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_sens_must_be_finite_and_positive(bad: float) -> None:
    net = Net()
    with pytest.raises(ValueError, match="sens must be finite and > 0, got"):
        boost.BoostTrainOneStepCell(with_loss(net), momentum(net), bad)


def test_wrong_scale_sense() -> None:
    net = Net()
    loss, optimizer = with_loss(net), momentum(net)
    cls = boost.BoostTrainOneStepWithLossScaleCell
    with pytest.raises(TypeError, match="scale_sense must be a Cell or a Tensor, got float"):
        cls(loss, optimizer, 2.0)
    with pytest.raises(ValueError, match=r"scale_sense must have shape \(\) or \(1,\), got \(2,\)"):
        cls(loss, optimizer, Tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"optimizer.loss_scale must be 1, got 8.0"):
        cls(loss, momentum(net, loss_scale=8.0), Tensor(2.0))
    with pytest.raises(ValueError, match="compile must be 'step', 'network' or 'off', got 'all'"):
        cls(loss, optimizer, Tensor(2.0), compile="all")


class TwoOutputs(Weight):
    def construct(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.w * x
        return y.sum(), y


@pytest.mark.parametrize("compile", ["step", "off"])
def test_a_network_with_two_outputs_is_refused_in_plain_words(mode: int, compile: str) -> None:
    net = TwoOutputs()
    cell = boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1), compile=compile)
    with pytest.raises(TypeError, match="network must return one Tensor, the loss, got several outputs"):
        cell(Tensor([1.0, 2.0]))


def test_an_optimizer_that_was_made_too_early_is_warned_of() -> None:
    class Branch(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)
            self.conv2, self.bn2 = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)

        def construct(self, x: Tensor) -> Tensor:
            return x + self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))

    net = Branch()
    early = nn.SGD(net.trainable_params(), 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        boost.BoostTrainOneStepCell(net, early)
    boost.LessBN(net)
    with pytest.warns(UserWarning, match=r"optimizer has 2 parameters that network .*: bn1.gamma, bn1.beta;"):
        boost.BoostTrainOneStepCell(net, early)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))


SOURCE = """
class Unread(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(3, 2)

    def construct(self, x):
        return self.dense(x).mean()
"""


@pytest.mark.parametrize("module", [None, "__main__"])
@pytest.mark.parametrize("compile", ["step", "network", "off"])
@standard(lambda p: p.module is None or p.compile == "step")
def test_a_network_without_source(mode: int, compile: str, module: str | None) -> None:
    names: dict[str, Any] = {"nn": nn, "__name__": module}
    exec(SOURCE, names)
    net = names["Unread"]()
    cell = boost.BoostTrainOneStepCell(net, optim.SGD(net.trainable_params(), 0.1), compile=compile).set_train()
    x = Tensor(np.ones((2, 3), np.float32))
    if mode == ms.PYNATIVE_MODE and compile == "off":
        assert np.isfinite(cell(x)[0].asnumpy())
        return
    with pytest.raises(TypeError, match=r'source of Unread.construct must be in a file.*compile="off" trains it'):
        cell(x)


def test_the_cells_of_a_step_hear_of_a_new_graph_only() -> None:
    """MindSpore tells each of them in each call, which takes microseconds a cell."""
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Weight()
    cell = boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
    cell(Tensor([1.0, 2.0], ms.float32))
    guard = cell.pipelines[0].guard
    first = guard.compile_phase
    assert first == cell.pipelines[0].compile_phase
    guard.compile_phase = "seen"
    cell(Tensor([3.0, 4.0], ms.float32))
    assert guard.compile_phase == "seen"
    np.testing.assert_allclose(net.w.asnumpy(), [0.6, 1.4], rtol=1e-6)
    cell(Tensor([[1.0, 2.0], [1.0, 2.0]], ms.float32))  # another shape, another graph
    assert guard.compile_phase == cell.pipelines[0].compile_phase != first
    cell(Tensor([1.0, 1.0], ms.float32))
    assert guard.compile_phase == first
    np.testing.assert_allclose(net.w.asnumpy(), [0.3, 0.9], rtol=1e-6)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], ids=["graph"], indirect=True)
def test_the_graph_compiler_reads_few_functions(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes it some milliseconds; a product of tuples, a reshape or a "!=" takes it twenty."""
    parser = importlib.import_module("mindspore.graph._parse.parser").Parser
    parse, read = parser.parse, []
    monkeypatch.setattr(parser, "parse", lambda self: read.append(self.fn) or parse(self))

    def functions(make: Any) -> int:
        net = Weight()
        read.clear()
        make(net)(Tensor([1.0, 2.0], ms.float32))
        return len(read)

    theirs = functions(lambda net: nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9)))
    ours = functions(lambda net: boost.BoostTrainOneStepCell(net, optim.Momentum(net.trainable_params(), 0.1, 0.9)))
    assert 0 < theirs < ours <= theirs + 20
