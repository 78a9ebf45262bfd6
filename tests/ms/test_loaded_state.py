"""State that is loaded into a cell whose graph exists: the steps that follow are those that followed it before.

MindSpore keeps the storage of what only a branch of a graph reads, and a step skips its update by a branch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Model, Parameter, Tensor, nn, ops
from tests.ms.optim.cases import CASES, CLASSES
from tests.ms.optimizers import OPTIMIZERS
from tests.ms.tiers import standard

from boost_ext import amp, boost, optim
from boost_ext.config import DimReduceConfig

Make = Callable[[list[Parameter]], nn.Cell]
WARM, STEPS = 3, 3
SHAPES = {"w": (5, 3), "b": (3,)}


class Regression(nn.Cell):
    """mean((x w + b - y)^2)."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        values = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
        self.w, self.b = (Parameter(Tensor(value), name=name) for name, value in values.items())

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ((ops.matmul(x, self.w) + self.b - y) ** 2).mean()


class Around(nn.Cell):
    """As a data sink stands around a cell: one graph, in which the step chooses."""

    def __init__(self, step: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.step = step

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.step(x, y)[0]


def arrays(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + step)
    return rng.standard_normal((8, 5)).astype(np.float32), rng.standard_normal((8, 3)).astype(np.float32)


def snapshot(cell: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy().copy() for p in cell.get_parameters()}


def load(cell: nn.Cell, state: dict[str, np.ndarray]) -> None:
    ms.load_param_into_net(cell, {name: Parameter(Tensor(value), name=name) for name, value in state.items()})


def set_each(cell: nn.Cell, state: dict[str, np.ndarray]) -> None:
    for p in cell.get_parameters():
        p.set_data(Tensor(state[p.name]))


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def assert_rewinds(cell: nn.Cell, *, around: bool = False, put: Callable[..., None] = load) -> None:
    called = Around(cell) if around else cell
    cell.set_train()

    def train(steps: range) -> None:
        for i in steps:
            called(*(Tensor(a) for a in arrays(i)))

    train(range(WARM))
    before = snapshot(cell)
    train(range(WARM, WARM + STEPS))
    after = snapshot(cell)
    assert any(not np.array_equal(before[p.name], after[p.name]) for p in cell.optimizer.get_parameters())
    put(cell, before)
    assert_same(snapshot(cell), before)
    train(range(WARM, WARM + STEPS))
    assert_same(snapshot(cell), after)


# Of mindspore.nn by name: a later release may not have it.
THEIRS = [
    pytest.param(make, id=f"nn-{name}") for name, make in OPTIMIZERS.items() if hasattr(nn, name.partition("-")[0])
]
OURS = [pytest.param(CASES[name].make, id=f"optim-{name}") for name in CLASSES if name != "SGD"]
OURS += [pytest.param(CASES["SGD-dampening"].make, id="optim-SGD-dampening")]
OURS += [pytest.param(lambda p: optim.LARS(optim.Momentum(p, 0.1, 0.9)), id="optim-LARS")]
# MindSpore's step and ours, with one state, two, and what is computed anew.
SOME = [OPTIMIZERS[name] for name in ("Rprop", "Momentum", "Adam") if name in OPTIMIZERS]
SOME += [p.values[0] for p in OURS if p.id in ("optim-Adam", "optim-AdaFactor", "optim-LARS")]
GRAPH = pytest.mark.parametrize("mode", [ms.GRAPH_MODE], ids=["graph"], indirect=True)


def test_every_optimizer_is_here() -> None:
    """But for those that wrap others, and those of mindspore.nn that do not run on a CPU."""
    classes = {n for n in dir(nn) if isinstance(getattr(nn, n), type) and issubclass(getattr(nn, n), nn.Optimizer)}
    assert (
        classes - {str(p.id).split("-")[1] for p in THEIRS} == {"LARS", "Lamb", "OptTFTWrapper", "Optimizer"} & classes
    )
    ours = {
        n for n in optim.__all__ if isinstance(getattr(optim, n), type) and issubclass(getattr(optim, n), nn.Optimizer)
    }
    assert ours - {"FusedOptimizer", "Thor"} == {str(p.id).split("-")[1] for p in OURS}


@GRAPH
@pytest.mark.parametrize("make", THEIRS + OURS)
def test_every_optimizer(mode: int, make: Make) -> None:
    net = Regression()
    assert_rewinds(boost.BoostTrainOneStepCell(net, make(net.trainable_params())))


def frozen(net: nn.Cell, optimizer: nn.Optimizer) -> nn.Cell:
    return boost.FreezeOpt(optimizer, [net.trainable_params(), net.trainable_params()[1:]], [0, 1, 1, 0, 1])


@GRAPH
@pytest.mark.parametrize("make", [p for p in THEIRS + OURS if str(p.id).count("-") == 1])
@standard(lambda p: p.make in SOME)
def test_with_freezing_and_accumulation(mode: int, make: Make) -> None:
    """In one graph, as inside a data sink."""
    net = Regression()
    optimizer = frozen(net, make(net.trainable_params()))
    assert_rewinds(boost.BoostTrainOneStepCell(net, optimizer, accumulation_steps=2), around=True)


def momentum(net: nn.Cell) -> nn.Optimizer:
    return getattr(nn, "Momentum", nn.SGD)(net.trainable_params(), 0.05, momentum=0.9)


def dim_reduced(net: nn.Cell, folder: Path) -> nn.Cell:
    q, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((18, 4)))
    np.save(folder / "P.npy", q.T.astype(np.float32))
    config = DimReduceConfig(n_components=4, pca_mat_path=str(folder / "P.npy"))
    return boost.BoostTrainOneStepCell(net, momentum(net), dim_reduce=config)


def averaged(net: nn.Cell, folder: Path) -> nn.Cell:
    rng = np.random.default_rng(0)
    found = [{n: rng.standard_normal(s).astype(np.float32) for n, s in SHAPES.items()} for _ in range(4)]
    optimizer = boost.TrainableWeightAveraging(net.trainable_params(), 0.05, 0.9, weight_load_dir=found)
    return boost.BoostTrainOneStepCell(net, optimizer)


def scaled(net: nn.Cell, manager: nn.Cell) -> nn.Cell:
    return boost.BoostTrainOneStepWithLossScaleCell(net, momentum(net), manager)


def second_order(*_: Any) -> nn.Cell:
    net = nn.WithLossCell(nn.Dense(5, 3), nn.MSELoss())
    return boost.BoostTrainOneStepCell(net, optim.thor(net, Tensor(0.05), 0.1, 0.9, batch_size=8, frequency=2))


CELLS: dict[str, Callable[[nn.Cell, Path], nn.Cell]] = {
    "plain": lambda net, _: boost.BoostTrainOneStepCell(net, momentum(net)),
    "freezing": lambda net, _: boost.BoostTrainOneStepCell(net, frozen(net, momentum(net))),
    "accumulation": lambda net, _: boost.BoostTrainOneStepCell(net, momentum(net), accumulation_steps=2),
    "clipping": lambda net, _: boost.BoostTrainOneStepCell(net, momentum(net), clip_norm=0.5),
    "dim_reduce": dim_reduced,
    "averaging": averaged,
    "thor": second_order,
    "loss scale": lambda net, _: scaled(net, amp.DynamicLossScaleManager(2.0**8, 2, 2).get_update_cell()),
    "loss scale of MindSpore": lambda net, _: scaled(net, nn.DynamicLossScaleUpdateCell(2.0**8, 2, 2)),
}


@pytest.mark.parametrize("name", CELLS)
@standard(lambda p: p.graph or p.name in ("dim_reduce", "loss scale"))
def test_every_cell(mode: int, name: str, tmp_path: Path) -> None:
    """In PYNATIVE_MODE a step is a graph, too."""
    assert_rewinds(CELLS[name](Regression(), tmp_path), put=set_each)


@GRAPH
@pytest.mark.parametrize("sink", [False, True], ids=["no-sink", "sink"])
@pytest.mark.parametrize("name", ["freezing", "accumulation", "dim_reduce"])
@standard(lambda p: p.sink == (p.name != "accumulation"))
def test_inside_model_train(mode: int, name: str, sink: bool, tmp_path: Path) -> None:
    """Three epochs on the same data; after the second one the state of the first is loaded."""
    cell = CELLS[name](Regression(), tmp_path).set_train()
    x, y = (np.concatenate(a) for a in zip(*(arrays(i) for i in range(STEPS)), strict=True))
    data = ms.dataset.NumpySlicesDataset({"x": x, "y": y}, shuffle=False).batch(8)
    states: list[dict[str, np.ndarray]] = []

    class Rewind(ms.Callback):
        def on_train_epoch_end(self, run_context: Any) -> None:
            states.append(snapshot(cell))
            if len(states) == 2:
                load(cell, states[0])

    Model(cell).train(3, data, callbacks=[Rewind()], dataset_sink_mode=sink)
    assert any(not np.array_equal(states[0][p.name], states[1][p.name]) for p in cell.optimizer.get_parameters())
    assert_same(states[2], states[1])


class Update(nn.Cell):
    """Gradient accumulation in a graph of its own."""

    def __init__(self, optimizer: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.optimizer = optimizer
        self.hold = boost.GradientAccumulation(2, optimizer)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return self.hold(x, (x[:5, :3], y[0]))


@GRAPH
def test_accumulation_alone(mode: int) -> None:
    assert_rewinds(Update(momentum(Regression())))
