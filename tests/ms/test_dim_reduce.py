"""Dimension-reduced training: against a float64 definition, against mindspore.boost, and its defects."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from mindspore.boost.dim_reduce import DimReduce as ReferenceDimReduce
from tests import oracle
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import boost, pca
from boost_ext.config import DimReduceConfig

K = 6
SHAPES = [(5, 3), (3,)]
N = sum(int(np.prod(s)) for s in SHAPES)


class Regression(nn.Cell):
    """mean((x w + b - y)^2); w and b start at fixed values."""

    def __init__(self) -> None:
        super().__init__()
        w, b = start()
        self.w = Parameter(Tensor(w.astype(np.float32)), name="w")
        self.b = Parameter(Tensor(b.astype(np.float32)), name="b")

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        return ((ops.matmul(x, self.w) + self.b - y) ** 2).mean()


def start() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [0.3 * rng.standard_normal(s) for s in SHAPES]


def data(step: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(100 + step % 2)
    return rng.standard_normal((32, 5)), rng.standard_normal((32, 3))


def loss_of(weights: list[np.ndarray], step: int) -> float:
    x, y = data(step)
    return float(np.mean((x @ weights[0] + weights[1] - y) ** 2))


def gradients(weights: list[np.ndarray], step: int) -> list[np.ndarray]:
    x, y = data(step)
    d = 2 * (x @ weights[0] + weights[1] - y) / y.size
    return [x.T @ d, d.sum(0)]


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pca") / "P.npy"
    q, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((N, K)))
    np.save(path, q.T.astype(np.float32))
    return path


def config(path: Path, **changes) -> DimReduceConfig:
    """With the two points of mindspore.boost, so that some searches fail."""
    return DimReduceConfig(n_components=K, pca_mat_path=str(path), **{"max_search": 2} | changes)


@dataclasses.dataclass
class Step:
    loss: float
    rho: float
    weights: list[np.ndarray]
    B: np.ndarray


def definition(
    P: np.ndarray, c: DimReduceConfig, lr: float, decay: float, steps: int, stored: Callable = lambda a: a
) -> list[Step]:
    """Dimension reduction with an optimizer v = decay v + delta, w -= lr v, in float64.

    ``stored``: what weights, gradients and delta are rounded to; the optimizer has master copies of the weights.
    """
    masters = start()
    weights = [stored(w) for w in masters]
    B, s, gk_last, started = np.eye(K), np.zeros(K), np.zeros(K), False
    momentum = [np.zeros_like(w) for w in weights]
    velocity = [np.zeros_like(w) for w in weights]
    done = []
    for t in range(steps):
        loss, grads = loss_of(weights, t), [stored(g) for g in gradients(weights, t)]
        gk, B_next, dk, slope = oracle.dim_reduce_direction(
            B, s, gk_last, started, oracle.pca_project(P, grads), 1.0, 1e-20
        )
        dn = oracle.pca_back_project(P, dk, weights)
        proj = oracle.pca_back_project(P, gk, weights)
        rho = 0.0
        for m in range(c.max_search):
            trial = [stored(oracle.dim_reduce_trial(w, d, lr * c.rho**m)) for w, d in zip(weights, dn, strict=True)]
            if loss_of(trial, t) < loss + c.sigma * lr * c.rho**m * slope:
                rho = c.rho**m
                break
        for i, g in enumerate(grads):
            momentum[i] = oracle.dim_reduce_momentum(momentum[i], g, proj[i], c.gamma, 1.0)
            delta = stored(oracle.dim_reduce_delta(momentum[i], dn[i], c.alpha, rho))
            velocity[i] = decay * velocity[i] + delta
            masters[i] = masters[i] - lr * velocity[i]
            weights[i] = stored(masters[i])
        if rho > 0:
            B, gk_last, s, started = B_next, gk, rho * dk, True
        done.append(Step(loss, rho, [w.copy() for w in weights], B.copy()))
    return done


def sgd(net: nn.Cell) -> nn.Optimizer:
    return nn.SGD(net.trainable_params(), 1.0)


def momentum(net: nn.Cell) -> nn.Optimizer:
    return nn.Momentum(net.trainable_params(), 0.3, 0.5)


def tensors(step: int) -> tuple[Tensor, Tensor]:
    x, y = data(step)
    return Tensor(x.astype(np.float32)), Tensor(y.astype(np.float32))


def state(cell: nn.Cell) -> boost.DimReduce:
    return cell.apply_slot.dim_reduce


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize(
    ("optimizer", "lr", "decay", "points"),
    [(sgd, 1.0, 0.0, 2), (momentum, 0.3, 0.5, 2), (sgd, 4.0, 0.0, 8)],
    ids=["sgd", "momentum", "eight points"],
)
@standard(lambda p: (p.compile == "step") == p.graph and (p.compile != "network" or p.points > 2))
def test_matches_the_definition_step_by_step(
    mode: int, compile: str, optimizer: Callable, lr: float, decay: float, points: int, matrix: Path
) -> None:
    net = Regression()
    if points > 2:
        optimizer = lambda net: nn.SGD(net.trainable_params(), lr)  # noqa: E731
    c = config(matrix, alpha=0.05 / lr, max_search=points)
    cell = boost.BoostTrainOneStepCell(net, optimizer(net), dim_reduce=c, compile=compile)
    expected = definition(np.load(matrix).astype(np.float64), c, lr, decay, 12)
    if points == 2:
        assert {s.rho > 0 for s in expected} == {True, False}, "both outcomes of the line search occur"
    else:
        assert len({s.rho for s in expected}) > 3, "different points are accepted"
    for t, want in enumerate(expected):
        loss, overflow, _ = cell(*tensors(t))
        assert not overflow.asnumpy()
        np.testing.assert_allclose(loss.asnumpy(), want.loss, rtol=1e-4)
        np.testing.assert_allclose(state(cell).accepted_rho.asnumpy(), [want.rho], rtol=1e-6)
        np.testing.assert_allclose(state(cell).bk.asnumpy(), want.B, rtol=2e-3, atol=2e-4)
        for p, w in zip(net.trainable_params(), want.weights, strict=True):
            np.testing.assert_allclose(p.asnumpy(), w, rtol=1e-3, atol=1e-4)
    assert cell.optimizer.get_lr().asnumpy() == np.float32(lr)
    B = state(cell).bk.asnumpy()
    np.testing.assert_array_equal(B, B.T)


class ReferenceStep(nn.Cell):
    """mindspore.boost's DimReduce around the same network."""

    def __init__(self, net: nn.Cell, optimizer: nn.Cell, P: np.ndarray, c: DimReduceConfig) -> None:
        super().__init__()
        self.net = net
        self.weights = ParameterTuple(optimizer.parameters)
        self.clone = self.weights.clone(prefix="clone", init="same")
        self.grad = ops.GradOperation(get_by_list=True)
        self.dim_reduce = ReferenceDimReduce(net, optimizer, self.weights, P, K, c.rho, c.gamma, c.alpha, c.sigma, 0, 1)

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        loss = self.net(x, y)
        grads = self.grad(self.net, self.weights)(x, y)
        one = ops.ones_like(loss)
        return ops.depend(loss, self.dim_reduce(loss, grads, one, self.weights, self.clone, x, y))


def test_matches_mindspore_boost_at_loss_scale_1(matrix: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    c = config(matrix, alpha=0.05)
    ours, theirs = Regression(), Regression()
    cell = boost.BoostTrainOneStepCell(ours, sgd(ours), dim_reduce=c)
    reference = ReferenceStep(theirs, sgd(theirs), np.load(matrix), c)
    for t in range(6):
        loss = cell(*tensors(t))[0].asnumpy()
        np.testing.assert_allclose(loss, reference(*tensors(t)).asnumpy(), rtol=1e-4)
        for p, q in zip(ours.trainable_params(), theirs.trainable_params(), strict=True):
            np.testing.assert_allclose(p.asnumpy(), q.asnumpy(), rtol=1e-3, atol=1e-5)


@in_graph_mode
def test_h6_h7_the_loss_scale_changes_nothing(mode: int, matrix: Path) -> None:
    """One graph, which begins again from its state for each loss scale."""
    net = Regression()
    cell = boost.BoostTrainOneStepWithLossScaleCell(
        net, momentum(net), Tensor(1.0, ms.float32), dim_reduce=config(matrix, alpha=0.05)
    )
    start = cell.state_dict()

    def run_with_scale(scale: float) -> tuple[list[float], list[np.ndarray]]:
        cell.load_state_dict(start)
        cell.set_sense_scale(Tensor(scale, ms.float32))
        losses = [float(cell(*tensors(t))[0].asnumpy()) for t in range(8)]
        return losses, [p.asnumpy().copy() for p in net.trainable_params()]

    losses, weights = run_with_scale(1.0)
    for scale in (32.0, 1024.0, 65536.0, 1000.0):
        other_losses, other_weights = run_with_scale(scale)
        np.testing.assert_allclose(other_losses, losses, rtol=1e-5)
        for a, b in zip(other_weights, weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@in_graph_mode
def test_h8_the_line_search_does_not_step_the_optimizer(mode: int, matrix: Path) -> None:
    net = Regression()
    optimizer = nn.Momentum(net.trainable_params(), [1.0, 0.1, 0.01, 0.001], 0.9)
    cell = boost.BoostTrainOneStepCell(net, optimizer, dim_reduce=config(matrix))
    cell(*tensors(0))
    assert optimizer.global_step.asnumpy().tolist() == [1]
    for v, delta in zip(optimizer.moments, state(cell).grad_proj, strict=True):
        np.testing.assert_array_equal(v.asnumpy(), delta.asnumpy())


@in_graph_mode
def test_h9_a_failed_first_search_leaves_no_trace(mode: int, matrix: Path) -> None:
    net = Regression()
    far = nn.SGD(net.trainable_params(), 1e4)
    cell = boost.BoostTrainOneStepCell(net, far, dim_reduce=config(matrix, alpha=0.0))
    cell(*tensors(0))
    d = state(cell)
    assert d.accepted_rho.asnumpy().tolist() == [0.0]
    assert d.started.asnumpy().tolist() == [False]
    np.testing.assert_array_equal(d.bk.asnumpy(), np.eye(K))
    np.testing.assert_array_equal(d.gk_last.asnumpy(), np.zeros(K))
    for p, w in zip(net.trainable_params(), start(), strict=True):  # alpha = 0: nothing else moves
        np.testing.assert_array_equal(p.asnumpy(), w.astype(np.float32))


@in_graph_mode
def test_overflow_moves_no_state(mode: int, matrix: Path) -> None:
    net = Regression()
    cell = boost.BoostTrainOneStepWithLossScaleCell(
        net, momentum(net), Tensor(64.0, ms.float32), dim_reduce=config(matrix)
    )
    cell(*tensors(0))
    before = {p.name: p.asnumpy().copy() for p in cell.get_parameters()}
    x, y = tensors(1)
    assert cell(x * float("inf"), y)[1].asnumpy()
    for p in cell.get_parameters():
        if p.name not in ("guard.finiteness", "boost.steps"):
            np.testing.assert_array_equal(p.asnumpy(), before[p.name], err_msg=p.name)
    assert any("dim_reduce.bk" in name for name in before)


class Normalised(nn.Cell):
    """A network whose forward pass writes statistics and draws random numbers."""

    def __init__(self, dropout: bool) -> None:
        super().__init__()
        self.dense = nn.Dense(5, 3, weight_init="ones", bias_init="zeros")
        self.norm = nn.BatchNorm1d(3)
        self.drop = nn.Dropout(p=0.5) if dropout else None

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        if self.drop is not None:
            x = self.drop(x)
        return ((self.norm(self.dense(x)) - y) ** 2).mean()


def normalised_config(net: nn.Cell, tmp_path: Path, **changes) -> DimReduceConfig:
    n = sum(p.size for p in net.trainable_params())
    q, _ = np.linalg.qr(np.random.default_rng(3).standard_normal((n, K)))
    np.save(tmp_path / "P.npy", q.T.astype(np.float32))
    return config(tmp_path / "P.npy", **changes)


@pytest.mark.parametrize("compile", ["step", "off"])
def test_statistics_see_one_forward_pass_a_step(mode: int, compile: str, tmp_path: Path) -> None:
    ours, theirs = Normalised(False).set_train(), Normalised(False).set_train()
    c = normalised_config(ours, tmp_path)
    cell = boost.BoostTrainOneStepCell(ours, sgd(ours), dim_reduce=c, compile=compile)
    cell(*tensors(0))
    theirs(*tensors(0))
    for name in ("moving_mean", "moving_variance"):
        got, want = getattr(ours.norm, name).asnumpy(), getattr(theirs.norm, name).asnumpy()
        np.testing.assert_allclose(got, want, rtol=1e-6)
    assert np.any(ours.norm.moving_mean.asnumpy() != 0)


@in_graph_mode
def test_the_line_search_draws_from_a_stream_of_its_own(mode: int, tmp_path: Path) -> None:
    """With steps that are all refused and alpha = 0 the weights rest: the losses show the training masks alone."""

    def losses(with_search: bool) -> list[float]:
        ms.set_seed(7)
        net = Normalised(True).set_train()
        c = normalised_config(net, tmp_path, alpha=0.0, sigma=0.999)
        optimizer = nn.SGD(net.trainable_params(), 1e-12)
        cell = boost.BoostTrainOneStepCell(net, optimizer, dim_reduce=c if with_search else None)
        return [float(cell(*tensors(0))[0].asnumpy()) for _ in range(5)]

    plain = losses(False)
    assert len(set(plain)) == 5
    np.testing.assert_allclose(losses(True), plain, rtol=1e-6)


def test_parameters_keep_their_names(mode: int, matrix: Path) -> None:
    net = Regression()
    cell = boost.BoostTrainOneStepCell(net, sgd(net), dim_reduce=config(matrix))
    assert (cell.check_dim_reduce_enable(), cell.check_adasum_enable()) == (True, False)
    assert [p.name for p in net.get_parameters()] == ["w", "b"]


@in_graph_mode
def test_groups_with_their_own_learning_rate(mode: int, matrix: Path) -> None:
    net = Regression()
    groups = [{"params": [net.w], "lr": 0.5}, {"params": [net.b], "lr": 0.25}]
    c = config(matrix, alpha=0.0)
    cell = boost.BoostTrainOneStepCell(net, nn.SGD(groups, 0.1), dim_reduce=c)
    cell(*tensors(0))
    assert state(cell).accepted_rho.asnumpy() == 1.0
    for p, w, d, lr in zip(net.trainable_params(), start(), state(cell).dn, (0.5, 0.25), strict=True):
        np.testing.assert_allclose(p.asnumpy(), w + lr * d.asnumpy(), rtol=1e-5, atol=1e-6)


def test_matrix_from_mindspore_checkpoints(tmp_path: Path) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = Regression()
    plain = boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
    for t in range(8):
        plain(*tensors(t))
        order = list(net.trainable_params())[:: 1 if t % 2 else -1]  # H15: columns follow names
        ms.save_checkpoint([{"name": p.name, "data": p} for p in order], str(tmp_path / f"c-{t}.ckpt"))
    c = DimReduceConfig(n_components=K, weight_load_dir=str(tmp_path), pca_mat_path=str(tmp_path / "P.npy"))
    cell = boost.BoostTrainOneStepCell(net, sgd(net), dim_reduce=c)
    P = pca.load_matrix(tmp_path / "P.npy", n_components=K, n_elements=N)
    np.testing.assert_allclose(P @ P.T, np.eye(K), atol=1e-5)
    first = float(cell(*tensors(0))[0].asnumpy())
    for t in range(1, 10):
        cell(*tensors(t))
    assert float(cell(*tensors(0))[0].asnumpy()) < first


def test_errors(matrix: Path) -> None:
    net = Regression()
    cls = boost.BoostTrainOneStepCell
    with pytest.raises(ValueError, match=r"set weight_load_dir .* or pca_mat_path .*, got neither"):
        cls(net, sgd(net), dim_reduce=DimReduceConfig())
    P = np.load(matrix)
    args = (0.5, 0.9, 0.1, 0.4)
    with pytest.raises(ValueError, match=rf"must have shape \(4, {N}\).*got \({K}, {N}\)"):
        boost.DimReduce(net, sgd(net), net.trainable_params(), P, 4, *args, 0, 1)
    with pytest.raises(ValueError, match=rf"shape \(3, {N}\): the components 3 to 5 of rank 1 by .*got \({K}, {N}\)"):
        boost.DimReduce(net, sgd(net), net.trainable_params(), P, K, *args, 1, 2)
    for rank, size in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match=f"rank must be from 0 to rank_size - 1, got rank {rank} of {size}"):
            boost.DimReduce(net, sgd(net), net.trainable_params(), P, K, *args, rank, size)
    scaled = nn.SGD(net.trainable_params(), 1.0, loss_scale=8.0)
    with pytest.raises(ValueError, match=r"optimizer\.loss_scale must be 1, got 8\.0"):
        boost.DimReduce(net, scaled, net.trainable_params(), P, K, *args, 0, 1)
    silent = nn.AdaFactor(net.trainable_params())
    with pytest.raises(
        ValueError, match=r"^DimReduce: optimizer must tell its learning rate.*got nn\.AdaFactor with rel"
    ):
        boost.DimReduce(net, silent, net.trainable_params(), P, K, *args, 0, 1)


@pytest.mark.parametrize(
    "bad", [{"rho": 0.0}, {"rho": 1.0}, {"sigma": -1.0}, {"n_components": 0}, {"rhoo": 0.5}, {"alpha": "1"}]
)
def test_configuration_is_validated_and_frozen(bad: dict) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        DimReduceConfig(**bad)
    with pytest.raises(ValueError, match="frozen"):
        DimReduceConfig().rho = 0.3
