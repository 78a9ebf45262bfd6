"""The line search of dimension-reduced training: how many step lengths it tries, and who hears that it fails."""

import warnings
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from scipy.optimize import minimize
from tests.ms.monitored import quiet, steps
from tests.ms.tiers import in_graph_mode, in_pynative_mode

from boost_ext import boost, pca
from boost_ext.config import DimReduceConfig

SAMPLES, FEATURES, HIDDEN, K = 256, 30, 154, 16
SHAPES = {"a": (FEATURES, HIDDEN), "b": (HIDDEN,), "c": (HIDDEN, 1), "d": (1,)}


def problem() -> tuple[np.ndarray, np.ndarray]:
    """A regression that a network of 4929 weights learns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((SAMPLES, FEATURES))
    y = np.tanh(2 * x @ rng.standard_normal((FEATURES, 8)) / np.sqrt(FEATURES)) @ rng.standard_normal((8, 1))
    return x, (y - y.mean()) / y.std()


X, Y = problem()


def start() -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal(s) / np.sqrt(s[0]) if len(s) > 1 else np.zeros(s) for s in SHAPES.values()]


def loss_and_gradients(weights: list[np.ndarray]) -> tuple[float, list[np.ndarray]]:
    a, b, c, d = weights
    hidden = np.tanh(X @ a + b)
    error = hidden @ c + d - Y
    back = 2 * error / SAMPLES
    inner = (back @ c.T) * (1 - hidden**2)
    return float(np.mean(error**2)), [X.T @ inner, inner.sum(0), hidden.T @ back, back.sum(0)]


def flat(arrays: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([a.ravel() for a in arrays])


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        for name, value in zip(SHAPES, start(), strict=True):
            setattr(self, name, Parameter(Tensor(value.astype(np.float32)), name=name))

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = ops.tanh(ops.matmul(x, self.a) + self.b)
        return ((ops.matmul(hidden, self.c) + self.d - y) ** 2).mean()


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From 20 checkpoints of a plain training."""
    weights, velocity, checkpoints = start(), [np.zeros(s) for s in SHAPES.values()], []
    for step in range(60):
        if step % 3 == 0:
            checkpoints.append({n: w.astype(np.float32) for n, w in zip(SHAPES, weights, strict=True)})
        _, grads = loss_and_gradients(weights)
        velocity = [0.9 * v + g for v, g in zip(velocity, grads, strict=True)]
        weights = [w - 0.1 * v for w, v in zip(weights, velocity, strict=True)]
    path = tmp_path_factory.mktemp("search") / "P.npy"
    pca.pca_matrix(checkpoints, SHAPES, K, path=path)
    return path


def cell_of(matrix: Path, lr: float = 1.0, compile: str = "step", **changes) -> nn.Cell:
    net = Net()
    config = DimReduceConfig(n_components=K, pca_mat_path=str(matrix), **changes)
    return boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), lr), dim_reduce=config, compile=compile)


def batch() -> tuple[Tensor, Tensor]:
    return Tensor(X.astype(np.float32)), Tensor(Y.astype(np.float32))


def train(cell: nn.Cell, count: int = 30) -> tuple[int, float]:
    """Accepted steps, and the loss afterwards."""
    losses, rhos = [], []
    for _ in range(count):
        losses.append(float(cell(*batch())[0].asnumpy()))
        rhos.append(float(cell.apply_slot.dim_reduce.accepted_rho.asnumpy()[0]))
    return sum(rho > 0 for rho in rhos), losses[-1]


def bfgs(P: np.ndarray) -> float:
    """SciPy's, with a line search of its own, from the same point in the same subspace."""
    origin = flat(start())

    def value(z: np.ndarray) -> tuple[float, np.ndarray]:
        moved = origin + P.T @ z
        ends = np.cumsum([np.prod(s) for s in SHAPES.values()])[:-1]
        weights = [w.reshape(s) for w, s in zip(np.split(moved, ends), SHAPES.values(), strict=True)]
        loss, grads = loss_and_gradients(weights)
        return loss, P @ flat(grads)

    return float(minimize(value, np.zeros(len(P)), jac=True, method="BFGS", options={"maxiter": 30}).fun)


@in_graph_mode
def test_a_regression_does_not_stall(mode: int, matrix: Path) -> None:
    """With the two points of mindspore.boost no step is accepted; with the default every one."""
    accepted, loss = train(cell_of(matrix))
    stalled, high = train(cell_of(matrix, max_search=2))
    assert sum(w.size for w in start()) == 4929
    assert (accepted, stalled) == (30, 0)
    assert loss < 0.01 < 1 < high
    P = pca.load_matrix(matrix, n_components=K, n_elements=4929)
    assert loss < 2 * bfgs(np.asarray(P, np.float64))


@in_graph_mode
def test_the_search_tries_as_many_points_as_it_is_told(mode: int, matrix: Path) -> None:
    """The first of rho^m that this first step takes is m = 3."""
    compile = "step" if mode == ms.GRAPH_MODE else "off"
    for points, rho in ((3, 0.0), (4, 0.55**3)):
        cell = cell_of(matrix, max_search=points, compile=compile)
        cell(*batch())
        np.testing.assert_allclose(cell.apply_slot.dim_reduce.accepted_rho.asnumpy(), [rho], rtol=1e-6)


def test_no_point_is_tried_twice(matrix: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    for points, lr in ((1, 1e4), (2, 1e4), (8, 1e4), (8, 1.0)):
        cell, calls = cell_of(matrix, lr, "off", max_search=points), []
        construct = cell.network.construct
        cell.network.construct = lambda *inputs, f=construct, c=calls: c.append(0) or f(*inputs)
        cell(*batch())
        assert len(calls) - 1 == (4 if lr == 1.0 else points)


def test_the_configuration_reaches_the_search(matrix: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    assert DimReduceConfig().max_search == 8
    sections = {"n_components": K, "pca_mat_path": str(matrix), "max_search": 5}
    auto = boost.AutoBoost("O0", {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": sections})
    net = Net()
    network, optimizer = auto.network_auto_process_train(net, nn.SGD(net.trainable_params(), 1.0))
    cell = boost.BoostTrainOneStepCell(network, optimizer, plan=auto.plan)
    assert cell.apply_slot.dim_reduce.max_search == 5
    assert cell.plan["dim_reduce"].details["max_search"] == 5
    assert "max_search=5" in str(cell.plan)


@pytest.mark.parametrize("bad", [0, -1, 101])
def test_max_search_is_validated(bad: int) -> None:
    with pytest.raises(ValueError, match=rf"dim_reduce\.max_search: must be from 1 to 100, got {bad}"):
        boost.AutoBoost("O0", {"dim_reduce": {"max_search": bad}})
    with pytest.raises(TypeError, match=r"dim_reduce\.max_search: must be an int, got float 2\.0"):
        boost.AutoBoost("O0", {"dim_reduce": {"max_search": 2.0}})


@in_pynative_mode
def test_failed_searches_are_counted_and_told_once(mode: int, matrix: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    cell = cell_of(matrix, max_search=2)
    with warnings.catch_warnings(record=True) as caught, quiet() as monitor:
        warnings.simplefilter("always")
        seen = []
        for _ in range(7):
            monitor.record(cell, cell(*batch()))
            seen.append(cell.observe()["line_search"])
    assert seen == [{"accepted": False, "rho": 0.0, "failed_in_a_row": i} for i in range(1, 8)]
    assert [s.line_search.failed_in_a_row for s in steps()] == list(range(1, 8))
    told = [str(w.message) for w in caught if "DimReduce" in str(w.message)]
    assert told == [
        "DimReduce: 5 line searches in a row have accepted no step; the weights follow the residual alone. "
        "Raise dim_reduce.max_search (2), or take a smaller learning rate or larger batches"
    ]


def test_an_accepted_step_ends_the_count(matrix: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cell = cell_of(matrix, compile="network", max_search=2)
    counts = []
    for lr in (1.0, 1.0, 0.05, 1.0):  # the small step is taken
        ops.assign(cell.optimizer.learning_rate, Tensor(lr, ms.float32))
        cell(*batch())
        counts.append(cell.observe()["line_search"]["failed_in_a_row"])
    assert counts[:3] == [1, 2, 0]


def test_a_state_from_before_the_count_still_loads(matrix: Path) -> None:
    """The count is none of the training: a state has no word of it."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    cell = cell_of(matrix, compile="network", max_search=2)
    train(cell, 2)
    state = cell.state_dict()
    assert not [name for name in state if "failed_searches" in name]
    other = cell_of(matrix, compile="network")
    other.load_state_dict(state)
    assert other.observe()["line_search"]["failed_in_a_row"] == 0
