"""Trainable weight averaging beside a float64 definition, across resuming and other cells, and what it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from tests import oracle
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import Model, amp, boost, optim
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.config import DimReduceConfig

SHAPES = {"w": (5, 3), "b": (3,)}
N, C = 18, 6
Array = np.ndarray


class Regression(nn.Cell):
    """mean((x w + b - y)^2) * weight, and a parameter that nobody trains."""

    def __init__(self, dtype: Any = ms.float32) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones(SHAPES["w"], np.float32)).astype(dtype), name="w")
        self.frozen = Parameter(Tensor([7.0], ms.float32), name="frozen", requires_grad=False)
        self.b = Parameter(Tensor(np.ones(SHAPES["b"], np.float32)).astype(dtype), name="b")

    def construct(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return ((ops.matmul(x, self.w) + self.b - y) ** 2).mean() * weight


def checkpoints(spread: float = 0.3) -> list[dict[str, Array]]:
    rng = np.random.default_rng(0)
    mean = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    return [
        {name: (w + spread * rng.standard_normal(w.shape)).astype(np.float32) for name, w in mean.items()}
        for _ in range(C)
    ]


def data(step: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(100 + step)
    return rng.standard_normal((32, 5)), rng.standard_normal((32, 3))


def batch(step: int, weight: float = 1.0) -> tuple[Tensor, ...]:
    return (*(Tensor(a.astype(np.float32)) for a in data(step)), Tensor(weight, ms.float32))


def gradients(weights: list[Array], step: int) -> list[Array]:
    x, y = data(step)
    d = 2 * (x @ weights[0] + weights[1] - y) / y.size
    return [x.T @ d, d.sum(0)]


def made(net: nn.Cell, *args: Any, **kwargs: Any) -> boost.TrainableWeightAveraging:
    if not args and "optimizer" not in kwargs:
        args = (0.1, 0.9)
    parameters = list(net.get_parameters())  # the frozen one, too
    return boost.TrainableWeightAveraging(parameters, *args, **{"weight_load_dir": checkpoints(), **kwargs})


def sgd(rate: float) -> Callable[..., Any]:
    return lambda w, u, s, t: oracle.sgd_step(w, u, s[0], rate, 0.9, 0.0, False, t == 1)


def adam(rate: float) -> Callable[..., Any]:
    return lambda w, u, s, t: oracle.adam_step(w, u, s[0], s[1], None, rate, t, 0.9, 0.999, 1e-8, False)


class Definition:
    """g~ = P g, beta by the rule, w = w_0 + P^T beta, in float64."""

    def __init__(self, basis: Array, rule: Callable[..., Any]) -> None:
        self.P, self.rule, self.t = basis.astype(np.float64), rule, 0
        self.average = np.mean([oracle.flat(list(c.values())) for c in checkpoints()], axis=0, dtype=np.float64)
        self.beta = np.zeros(len(basis))
        self.state: Any = [np.zeros_like(self.beta)] * 2

    def weights(self) -> list[Array]:
        w = self.average + self.P.T @ self.beta
        return [w[:15].reshape(5, 3), w[15:]]

    def step(self, step: int) -> None:
        self.apply(gradients(self.weights(), step))

    def apply(self, grads: list[Array]) -> None:
        self.t += 1
        self.beta, self.state = self.rule(self.beta, oracle.pca_project(self.P, grads), self.state, self.t)


def basis_of(twa: boost.TrainableWeightAveraging) -> Array:
    return twa.basis.asnumpy().astype(np.float64)


def close(net: nn.Cell, definition: Definition, rtol: float = 1e-5, atol: float = 3e-6) -> None:
    for p, w in zip((net.w, net.b), definition.weights(), strict=True):
        np.testing.assert_allclose(p.asnumpy().astype(np.float64), w, rtol=rtol, atol=atol)


def everything(cell: nn.Cell) -> dict[str, Array]:
    return {name: value.asnumpy().copy() for name, value in cell.state_dict().items()}


def scaled(net: nn.Cell, optimizer: nn.Cell, **kwargs: Any) -> nn.Cell:
    manager = amp.DynamicLossScaleManager(2.0**10, 2, 2).get_update_cell()
    return boost.BoostTrainOneStepWithLossScaleCell(net.set_train(), optimizer, manager, **kwargs)


def schedule_of(rate: float) -> nn.Cell:
    return nn.ExponentialDecayLR(rate, 1.0, 10)


INNER = {
    "SGD": ((0.1, 0.9), {}, sgd(0.1)),
    "Adam": ((), {"optimizer": lambda beta: optim.Adam(beta, schedule_of(0.05))}, adam(0.05)),
    "nn.Adam": ((), {"optimizer": lambda beta: nn.Adam(beta, 0.05)}, adam(0.05)),
}


@pytest.mark.parametrize(("inner", "compile"), [("SGD", "step"), ("Adam", "step"), ("SGD", "off"), ("nn.Adam", "step")])
@standard(lambda p: not p.graph or p.inner == "Adam")
def test_steps_and_a_resumed_training(mode: int, inner: str, compile: Any, tmp_path: Path) -> None:
    """With a dynamic loss scale and an overflow; saved after two steps, and gone on elsewhere with the same bits."""
    args, kwargs, rule = INNER[inner]

    def start() -> tuple[Regression, boost.TrainableWeightAveraging, nn.Cell]:
        net = Regression()
        twa = made(net, *args, **kwargs)
        return net, twa, scaled(net, twa, compile=compile)

    net, twa, cell = start()
    definition = Definition(basis_of(twa), rule)
    assert twa.n_components == C
    average = definition.average.astype(np.float32)
    np.testing.assert_array_equal(oracle.flat([net.w.asnumpy(), net.b.asnumpy()]), average)
    for step in range(4):
        loss, overflow, _ = cell(*batch(step))
        assert not overflow.asnumpy()
        x, y = data(step)
        w, b = definition.weights()
        np.testing.assert_allclose(loss.asnumpy(), np.mean((x @ w + b - y) ** 2), rtol=1e-5)
        definition.step(step)
        close(net, definition)
        np.testing.assert_allclose(twa.coordinates.asnumpy(), definition.beta, rtol=1e-4, atol=1e-5)
        moved = oracle.flat([net.w.asnumpy(), net.b.asnumpy()]) - average
        assert np.abs(moved).max() > 1e-3
        np.testing.assert_allclose(definition.P.T @ (definition.P @ moved), moved, atol=1e-6)
        if step == 1:
            save_training_state(cell, tmp_path / "state.ckpt")
            before = {p.name: p.asnumpy().copy() for p in cell.get_parameters()}
            assert cell(*batch(9, float("inf")))[1].asnumpy()
            for p in cell.get_parameters():
                if p.name in (*SHAPES, "frozen", "global_step") or "weight_averaging" in p.name:
                    np.testing.assert_array_equal(p.asnumpy(), before[p.name], err_msg=p.name)
            load_training_state(cell, tmp_path / "state.ckpt")
    np.testing.assert_array_equal(net.frozen.asnumpy(), [7.0])
    assert not [p.name for p in cell.get_parameters() if p.size >= 2 * N], (
        "neither basis nor average is in a checkpoint"
    )
    if inner == "SGD" and (mode == ms.PYNATIVE_MODE or compile == "step"):
        _, _, again = start()
        load_training_state(again, tmp_path / "state.ckpt")
        for step in (2, 3):
            again(*batch(step))
        for (name, one), two in zip(everything(cell).items(), everything(again).values(), strict=True):
            np.testing.assert_array_equal(one, two, err_msg=name)


def test_a_loss_scale_of_its_own() -> None:
    net = Regression()
    twa = made(net, 0.1, 0.9, loss_scale=128.0)
    assert twa.loss_scale == 128.0
    definition = Definition(basis_of(twa), sgd(0.1))
    for i in range(2):
        twa(tuple(Tensor(128 * g, ms.float32) for g in gradients(definition.weights(), i)))
        definition.step(i)
    close(net, definition)


def test_mindspores_cell(mode: int) -> None:
    net = Regression()
    twa = made(net, nn.ExponentialDecayLR(0.1, 0.5, 1), 0.9)
    step = nn.TrainOneStepCell(net.set_train(), twa)
    definition = Definition(basis_of(twa), lambda w, u, s, t: sgd(0.1 * 0.5 ** (t - 1))(w, u, s, t))
    for i in range(3):
        step(*batch(i))
        definition.step(i)
    close(net, definition)
    np.testing.assert_allclose(twa.get_lr().asnumpy(), 0.1 * 0.5**3, rtol=1e-6)


@in_graph_mode
def test_accumulation_and_clipping(mode: int) -> None:
    net = Regression()
    twa = made(net)
    cell = scaled(net, twa, accumulation_steps=2, clip_norm=0.5, compile="off" if mode else "step")
    definition = Definition(basis_of(twa), sgd(0.1))
    for i in (0, 2):
        cell(*batch(i))
        cell(*batch(i + 1))
        both = [gradients(definition.weights(), j) for j in (i, i + 1)]
        mean = [(a + b) / 2 for a, b in zip(*both, strict=True)]
        clipped, norm = oracle.clip_by_global_norm(mean, 0.5)
        assert norm > 0.5
        definition.apply(clipped)
    close(net, definition)


def test_clipping_is_part_of_the_check() -> None:
    net = Regression()
    twa = made(net)
    cell = scaled(net, twa, clip_norm=0.5, compile="off")
    definition = Definition(basis_of(twa), sgd(0.1))
    for i in range(2):
        cell(*batch(i))
        definition.apply(oracle.clip_by_global_norm(gradients(definition.weights(), i), 0.5)[0])
    close(net, definition)


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(mode: int, dtype: Any) -> None:
    """Weights, gradients and basis in 16 bits: rounding does not add up, since the average and beta are float32."""
    net = Regression(dtype)
    twa = made(net, dtype=str(dtype).lower())
    definition = Definition(basis_of(twa), sgd(0.1))
    spacing = 2.0 ** (-10 if dtype == ms.float16 else -7)
    close(net, definition, rtol=spacing / 2, atol=1e-6)
    for i in range(20):
        grads = [Tensor(g.astype(np.float32)).astype(dtype) for g in gradients(definition.weights(), i % 5)]
        definition.apply([g.asnumpy().astype(np.float64) for g in grads])
        twa(tuple(grads))
    np.testing.assert_allclose(twa.coordinates.asnumpy(), definition.beta, rtol=1e-4, atol=1e-5)
    close(net, definition, rtol=spacing / 2, atol=1e-4)


def test_reaches_the_optimum_of_the_subspace() -> None:
    """A quadratic: 1/2 (w - t)^T H (w - t) has its minimum over w_0 + span P at beta = (P H P^T)^-1 P H (t - w_0)."""
    rng = np.random.default_rng(5)
    root = rng.standard_normal((N, N)) / np.sqrt(N)
    H, target = root @ root.T + 0.3 * np.eye(N), rng.standard_normal(N)
    net = Regression()
    twa = made(net, 0.3, 0.8)
    P, average = basis_of(twa), Definition(basis_of(twa), sgd(0.1)).average
    best = np.linalg.solve(P @ H @ P.T, P @ H @ (target - average))
    for _ in range(150):
        g = H @ (oracle.flat([net.w.asnumpy(), net.b.asnumpy()]) - target)
        twa((Tensor(g[:15].reshape(5, 3), ms.float32), Tensor(g[15:], ms.float32)))
    np.testing.assert_allclose(twa.coordinates.asnumpy(), best, atol=2e-5)
    np.testing.assert_allclose(oracle.flat([net.w.asnumpy(), net.b.asnumpy()]), average + P.T @ best, atol=2e-5)


def test_dependent_checkpoints_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    some = checkpoints()[:3]
    mixed = {name: (some[0][name] + some[1][name]) / 2 for name in SHAPES}
    net = Regression()
    with caplog.at_level(logging.INFO, "boost_ext"):
        twa = made(net, weight_load_dir=[*some, mixed])
        assert (twa.n_components, made(net).n_components) == (3, C)
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        (
            "WARNING",
            "TrainableWeightAveraging: 4 checkpoints span 3 directions: 1 of them depend linearly on the others",
        ),
        ("INFO", "TrainableWeightAveraging: 6 checkpoints span 6 directions"),
    ]
    np.testing.assert_allclose(
        net.w.asnumpy(), np.mean([c["w"] for c in checkpoints()], axis=0, dtype=np.float64), rtol=1e-7
    )


def test_files(tmp_path: Path) -> None:
    """A folder of MindSpore checkpoints, then the files made of them alone, in a Model."""
    net = Regression()
    for i, values in enumerate(checkpoints()):
        ms.save_checkpoint([{"name": n, "data": Tensor(v)} for n, v in values.items()], str(tmp_path / f"net-{i}.ckpt"))
    path = tmp_path / "twa.npy"
    first = made(net, weight_load_dir=tmp_path, pca_mat_path=path)
    ms.ops.assign(net.b, Tensor(np.zeros(3, np.float32)))
    second = made(net, weight_load_dir=None, pca_mat_path=str(path))
    for twa in (first, second):
        np.testing.assert_allclose(basis_of(twa), basis_of(made(net)), atol=1e-6)
    assert first.constants == second.constants
    definition = Definition(basis_of(second), sgd(0.1))
    close(net, definition, rtol=1e-7)
    rows = [tuple(t.asnumpy() for t in batch(i)) for i in range(2)]
    model = Model(net, optimizer=second, amp_level="O0", loss_scale_manager=amp.DynamicLossScaleManager(2.0**8))
    dataset = ms.dataset.GeneratorDataset(rows, ["x", "y", "weight"], shuffle=False)
    model.train(1, dataset, callbacks=[ms.LearningRateScheduler(lambda rate, step: rate)])
    definition.step(0)
    definition.step(1)
    close(net, definition)


def test_another_basis_is_not_resumed() -> None:
    net = Regression()
    cell = boost.BoostTrainOneStepCell(net, made(net))
    other = boost.BoostTrainOneStepCell(net, made(net, weight_load_dir=checkpoints(0.2)))
    with pytest.raises(ValueError, match="the weight averaging basis must be that of the state"):
        other.load_state_dict(cell.state_dict())


def a_tuple(beta: list[Parameter]) -> Any:
    return tuple(beta)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"args": ()}, ValueError, "one of learning_rate and optimizer must be given, got neither"),
        ({"args": (0.1,), "optimizer": nn.SGD}, ValueError, "one of learning_rate and optimizer .* got both"),
        ({"args": (), "optimizer": nn.SGD, "loss_scale": 2.0}, ValueError, "must be left out with optimizer"),
        ({"args": (), "optimizer": a_tuple}, TypeError, r"optimizer must return a mindspore\.nn\.Optimizer, got tuple"),
        ({"args": (-1.0,)}, ValueError, "'learning rate' must be float and must >= 0"),
        ({"params": [1]}, TypeError, r"params\[0\] must be a Parameter, got int"),
        (
            {"params": [Parameter(Tensor([1.0], ms.float64), name="wide")]},
            TypeError,
            "wide must be float32, float16 or bfloat16, got float64",
        ),
        ({"params": []}, ValueError, "params must hold a floating point Parameter that is trained, got 0 others"),
        ({"weight_load_dir": None}, ValueError, r"weight_load_dir .* or pca_mat_path .* must be given, got neither"),
        ({"weight_load_dir": "/nope"}, ValueError, "directory must be an existing directory"),
        ({"weight_load_dir": checkpoints()[:1]}, ValueError, "checkpoints must be two at least, got 1"),
        (
            {"weight_load_dir": [{"w": c["w"]} for c in checkpoints()]},
            ValueError,
            r"must hold all 2 parameters, got none of these 1: 'b'",
        ),
        ({"weight_load_dir": None, "pca_mat_path": "/nope.npy"}, FileNotFoundError, r"/nope\.npy"),
        ({"dtype": "float64"}, ValueError, "dtype must be float32, float16 or bfloat16, got float64"),
    ],
)
def test_arguments(change: dict[str, Any], error: type[Exception], message: str) -> None:
    net = Regression()
    given = {"weight_load_dir": checkpoints(), **change}
    args, params = given.pop("args", (0.1,)), given.pop("params", net.trainable_params())
    with pytest.raises(error, match=message):
        boost.TrainableWeightAveraging(params, *args, **given)
    np.testing.assert_array_equal(net.w.asnumpy(), 1.0)


def test_accumulation_that_autoboost_brings() -> None:
    """With an optimizer of its own, on the state of the given one."""
    ends = []
    for by_optimizer in (True, False):
        net = Regression()
        twa, options = made(net), {"accumulation_steps": 2}
        if by_optimizer:
            config = {"boost": {"mode": "manual", "grad_accumulation": True}}
            config["grad_accumulation"] = {"grad_accumulation_step": options.pop("accumulation_steps")}
            _, twa = boost.AutoBoost("O0", config).network_auto_process_train(net, twa)
        cell = boost.BoostTrainOneStepCell(net, twa, **options)
        for step in range(4):
            cell(*batch(step))
        ends.append(net.w.asnumpy())
    np.testing.assert_array_equal(*ends)


def test_who_may_not_take_it() -> None:
    net = Regression()
    twa = made(net)
    other = Parameter(Tensor([1.0], ms.float32), name="other")
    with pytest.raises(
        ValueError, match=r"optimizer must step the parameter that it gets, and no other, got \['other'\]"
    ):
        made(net, optimizer=lambda beta: optim.SGD([other], 0.1))
    with pytest.raises(TypeError, match="restrict: optimizer must not be TrainableWeightAveraging"):
        boost.FreezeOpt(twa, [net.trainable_params()], [0])
    with pytest.raises(TypeError, match="rebuild: optimizer must not be TrainableWeightAveraging"):
        boost.OptimizerProcess(twa).generate_new_optimizer()
    with pytest.raises(ValueError, match="must be alone in moving the weights, got dim_reduce or adasum too"):
        boost.BoostTrainOneStepCell(net, twa, dim_reduce=DimReduceConfig(n_components=2, pca_mat_path="P.npy"))
    with pytest.raises(ValueError, match="TrainableWeightAveraging: gradients must be 2, one a parameter, got 1"):
        twa((Tensor(np.ones((5, 3), np.float32)),))
    with pytest.raises(ValueError, match=r"gradients\[1\] must have the shape of b, \(3,\), got \(4,\)"):
        twa((Tensor(np.ones((5, 3), np.float32)), Tensor(np.ones(4, np.float32))))
