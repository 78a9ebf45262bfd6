"""build_train_network: what it assembles, in which precision, that it trains, what it refuses, the boost arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms.group_networks import example
from tests.ms.networks import Weight
from tests.ms.residual_networks import Basic, ResNet, fill
from tests.ms.residual_networks import batch as residual_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import amp, optim
from boost_ext.ms.step.cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell


class ConvNet(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, pad_mode="same", has_bias=True)
        self.norm = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.flatten = nn.Flatten()
        self.dense = nn.Dense(4 * 6 * 6, 3)

    def construct(self, x: Tensor) -> Tensor:
        return self.dense(self.flatten(self.relu(self.norm(self.conv(x)))))


def momentum(network: nn.Cell, rate: float = 0.05, **kwargs: Any) -> nn.Optimizer:
    return nn.Momentum(network.trainable_params(), rate, 0.9, **kwargs)


@pytest.fixture
def batch(rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    x = rng.normal(size=(12, 1, 6, 6)).astype(np.float32)
    return Tensor(x), Tensor(np.arange(12) % 3, ms.int32)


X = Tensor([1.0, 1.0], ms.float32)


class TestLevels:
    @pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3", "auto"])
    @standard(lambda p: p.graph == (p.level in ("O1", "O3")))
    def test_trains(self, mode: int, level: str, batch: tuple[Tensor, Tensor]) -> None:
        ms.set_seed(1)
        network = ConvNet()
        loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        cell = amp.build_train_network(network, momentum(network), loss, level)
        scaled = level == "O2"
        assert type(cell) is (BoostTrainOneStepWithLossScaleCell if scaled else BoostTrainOneStepCell)
        assert cell.training
        assert {p.dtype for p in cell.network.get_parameters()} == {ms.float32}

        losses, steps = [], 0
        while steps < 15:
            value, overflow, scale = cell(*batch)
            assert value.dtype == ms.float32
            assert float(scale.asnumpy()) == 1 or scaled
            steps += not bool(overflow.asnumpy())
            losses.append(float(value.asnumpy()))
            assert len(losses) < 40
        assert np.isfinite(losses).all()
        assert losses[-1] < 0.1 * losses[0]
        # Dynamic scaling starts at 2**24, where float16 gradients overflow, and finds its way down.
        assert (len(losses) > 15) is scaled

    def test_new_manager_for_each_call(self) -> None:
        """MindSpore keeps one DynamicLossScaleManager for the whole process."""
        scales = []
        for _ in range(2):
            network = Weight()
            cell = amp.build_train_network(network, momentum(network), level="O2")
            scales.append(cell.scale_sense)
        assert scales[0] is not scales[1]

    @in_graph_mode
    def test_network_with_its_own_loss(self, mode: int) -> None:
        for level in ("O0", "O3"):
            network = Weight()
            value, _, _ = amp.build_train_network(network, momentum(network), level=level)(X)
            assert (value.dtype, float(value.asnumpy())) == (ms.float32, 3)
            np.testing.assert_allclose(network.w.asnumpy(), [0.95, 1.95], rtol=1e-6)


SEEN: dict[str, Any] = {}


class Probe(nn.Cell):  # type: ignore[misc]
    seen = SEEN

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def construct(self, x: Tensor) -> Tensor:
        self.seen[self.name] = str(x.dtype)
        return x


class ProbedNorm(nn.BatchNorm2d):  # type: ignore[misc]
    seen = SEEN

    def construct(self, x: Tensor) -> Tensor:
        y = super().construct(x)
        self.seen["norm"] = str(y.dtype)
        return y


class ProbedNet(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.probe, self.norm = nn.Conv2d(1, 2, 3), Probe("conv"), ProbedNorm(2)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(self.probe(self.conv(x)))


class ProbedLoss(nn.Cell):  # type: ignore[misc]
    def construct(self, out: Tensor, label: Tensor) -> Tensor:
        SEEN["loss"] = str(out.dtype), str(label.dtype)
        return (out - label).mean()


F16, F32 = "Float16", "Float32"


@pytest.mark.parametrize(
    ("arguments", "conv", "norm", "label"),
    [
        ({"level": "O0"}, F32, F32, F16),
        ({"level": "O1"}, F32, F32, F32),  # the cast to float16 and back is inside the conv
        ({"level": "O2"}, F16, F32, F32),
        ({"level": "O3"}, F16, F16, F32),
        ({"level": "auto"}, F32, F32, F16),
        ({"level": "O2", "keep_batchnorm_fp32": False}, F16, F16, F32),
        ({"level": "O3", "keep_batchnorm_fp32": True}, F16, F32, F32),
        ({"cast_model_type": ms.float16}, F16, F16, F32),
        ({"cast_model_type": ms.float16, "keep_batchnorm_fp32": True}, F16, F32, F32),
        ({"level": "O1", "cast_model_type": ms.float16}, F16, F16, F32),
        ({"level": "O2", "cast_model_type": ms.float16}, F16, F32, F32),
        ({"level": "O1", "cast_model_type": ms.float32}, F32, F32, F32),
        ({"level": "O3", "cast_model_type": ms.float32}, F32, F32, F32),
        # MindSpore converts this one to float16.
        ({"level": "O2", "cast_model_type": ms.float32, "keep_batchnorm_fp32": False}, F32, F32, F32),
    ],
)
def test_precision(arguments: dict[str, Any], conv: str, norm: str, label: str, rng: np.random.Generator) -> None:
    """Which part computes in what; in PYNATIVE_MODE, where the probes run."""
    network = ProbedNet()
    cell = amp.build_train_network(network, momentum(network), ProbedLoss(), **arguments)
    SEEN.clear()
    x = Tensor(rng.normal(size=(2, 1, 4, 4)).astype(np.float32))
    loss = cell.network(x, Tensor(np.ones((2, 2, 4, 4)), ms.float16))
    assert {"conv": conv, "norm": norm, "loss": (F32, label)} == SEEN
    assert loss.dtype == ms.float32
    parameters = cell.network.trainable_params()
    assert {str(p.dtype) for p in parameters} == {F32}
    assert [p.name for p in parameters] == ["conv.weight", "norm.gamma", "norm.beta"]


def test_h18_reference_trains_1000_times_too_fast_without_a_word() -> None:
    network = Weight()
    manager = ms.amp.FixedLossScaleManager(1000.0, False)
    ms.amp.build_train_network(network, momentum(network), loss_scale_manager=manager)(X)
    np.testing.assert_allclose(network.w.asnumpy(), [-49.0, -48.0])


class TestH18:
    """A fixed scale that the optimizer does not know of."""

    @pytest.mark.parametrize("manager", [amp.FixedLossScaleManager, ms.amp.FixedLossScaleManager])
    def test_refused(self, manager: Any) -> None:
        network = Weight()
        with pytest.raises(ValueError, match=r"optimizer.loss_scale must be 1000, .*got 1; .*1000 times too large"):
            amp.build_train_network(network, momentum(network), level="O3", loss_scale_manager=manager(1000.0, False))
        assert not network.get_flags().get("fp16")  # refused before anything was converted

    def test_equal_scales_cancel_out(self, mode: int) -> None:
        network = Weight()
        optimizer = momentum(network, loss_scale=1000.0)
        manager = amp.FixedLossScaleManager(1000.0, False)
        cell = amp.build_train_network(network, optimizer, loss_scale_manager=manager)
        loss, _, scale = cell(X)
        assert (float(loss.asnumpy()), float(scale.asnumpy())) == (3, 1000)
        np.testing.assert_allclose(network.w.asnumpy(), [0.95, 1.95], rtol=1e-6)

    @pytest.mark.parametrize("manager", [amp.DynamicLossScaleManager(8), amp.FixedLossScaleManager(8)])
    def test_unscaled_twice(self, manager: Any) -> None:
        network = Weight()
        with pytest.raises(ValueError, match=r"loss_scale must be 1, .*got 8; .*8 times too small"):
            amp.build_train_network(network, momentum(network, loss_scale=8.0), loss_scale_manager=manager)

    def test_optimizer_that_unscales_what_nobody_scaled(self) -> None:
        network = Weight()
        with pytest.warns(UserWarning, match="8 times too small"):
            amp.build_train_network(network, momentum(network, loss_scale=8.0))

    def test_thor_keeps_another_number_under_that_name(self) -> None:
        network = Weight()
        optimizer = momentum(network, loss_scale=128.0)
        optimizer.loss_scale = Tensor(1 / 128**2, ms.float32)  # as nn.thor does
        manager = amp.FixedLossScaleManager(128.0, False)
        amp.build_train_network(network, optimizer, loss_scale_manager=manager)


class TestH19:
    """Any loss scale cell fails on the CPU."""

    def test_reference_refuses(self) -> None:
        network = Weight()
        with pytest.raises(ValueError, match="CPU"):
            ms.amp.build_train_network(network, momentum(network), loss_scale_manager=ms.amp.DynamicLossScaleManager())

    @pytest.mark.parametrize(
        "manager",
        [
            amp.DynamicLossScaleManager,
            amp.FixedLossScaleManager,
            ms.amp.DynamicLossScaleManager,
            ms.amp.FixedLossScaleManager,
        ],
    )
    @standard(lambda p: p.graph == (p.manager in (amp.DynamicLossScaleManager, ms.amp.FixedLossScaleManager)))
    def test_trains_and_skips_overflow(self, mode: int, manager: Any) -> None:
        network = Weight()
        cell = amp.build_train_network(network, momentum(network), loss_scale_manager=manager(1024))
        cell(X)
        np.testing.assert_allclose(network.w.asnumpy(), [0.95, 1.95], rtol=1e-6)
        _, overflow, scale = cell(Tensor([np.nan, 1.0], ms.float32))
        assert (bool(overflow.asnumpy()), float(scale.asnumpy())) == (True, 1024)
        np.testing.assert_allclose(network.w.asnumpy(), [0.95, 1.95], rtol=1e-6)
        _, _, scale = cell(X)
        assert float(scale.asnumpy()) == (512 if "Dynamic" in manager.__name__ else 1024)


def test_h16_set_sense_scale_reaches_the_manager(mode: int) -> None:
    network, manager = Weight(), amp.FixedLossScaleManager(1024.0)
    cell = amp.build_train_network(network, momentum(network), loss_scale_manager=manager)
    cell.set_sense_scale(Tensor(64.0, ms.float32))
    assert manager.get_loss_scale() == 64
    assert float(cell(X)[2].asnumpy()) == 64


def test_scale_1_without_an_update_cell_is_no_scaling() -> None:
    network = Weight()
    manager = amp.FixedLossScaleManager(1.0, False)
    cell = amp.build_train_network(network, momentum(network), loss_scale_manager=manager)
    assert type(cell) is BoostTrainOneStepCell


def test_namespace_stands_where_mindspores_stood() -> None:
    for name in amp.__all__:
        assert hasattr(ms.amp, name), name
    assert amp.auto_mixed_precision is ms.amp.auto_mixed_precision


class Net(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor([1.0, 2.0, 3.0], ms.float32), name="w")
        self.norm = nn.BatchNorm1d(3)

    def construct(self, x: Tensor) -> Tensor:
        return (self.w * x + self.norm(x)).sum()


def build(network: nn.Cell | None = None, **arguments: Any) -> nn.Cell:
    network = network or Net()
    return amp.build_train_network(network, nn.SGD([network.w], 0.1), **arguments)


class HalfManager(ms.amp.LossScaleManager):  # type: ignore[misc]
    def get_loss_scale(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"level": "O4"}, ValueError, r"level must be one of \['O0', .*'auto'\], got 'O4'"),
        ({"level": 2}, TypeError, "level must be a str, got int"),
        ({"loss_scale_manger": None}, ValueError, "'loss_scale_manger', did you mean 'loss_scale_manager'"),
        ({"keep_bn": True}, ValueError, "unknown argument 'keep_bn', did you mean 'keep_batchnorm_fp32'"),
        ({"keep_batchnorm_fp32": 1}, TypeError, "keep_batchnorm_fp32 must be a bool, got int"),
        ({"cast_model_type": ms.int8}, TypeError, "cast_model_type must be mindspore.float16 or .*got .*nt8"),
        ({"cast_model_type": None}, TypeError, "cast_model_type must be .*got None"),
        ({"loss_scale_manager": 1024.0}, TypeError, "must be a LossScaleManager, got float"),
        ({"loss_scale_manager": HalfManager()}, ValueError, r"get_loss_scale\(\) must be finite, >= 1 .*got 0.5"),
        ({"loss_fn": max}, TypeError, "loss_fn must be a Cell, got builtin_function"),
    ],
)
def test_arguments_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    network = Net()
    with pytest.raises(error, match=f"^build_train_network: .*{message}"):
        build(network, **({"level": "O3"} | arguments))
    assert not network.get_flags().get("fp16")  # nothing was converted


def test_types_refused() -> None:
    with pytest.raises(TypeError, match="network must be a Cell, got function"):
        amp.build_train_network(lambda x: x, nn.SGD([Net().w], 0.1))
    with pytest.raises(TypeError, match=r"optimizer must be a mindspore.nn.Optimizer, got Net"):
        amp.build_train_network(Net(), Net())


class TestTwice:
    """S2: a converted network is trained with level O0."""

    @pytest.mark.parametrize("level", ["O1", "O2", "O3", "auto"])
    def test_after_auto_mixed_precision(self, level: str) -> None:
        converted = amp.auto_mixed_precision(nn.SequentialCell(nn.Dense(3, 3), nn.BatchNorm1d(3)), level)
        optimizer = nn.SGD(converted.trainable_params(), 0.1)
        for again in ({"level": "O2"}, {"cast_model_type": ms.float16}):
            with pytest.raises(ValueError, match="converted to mixed precision already; use level 'O0'"):
                amp.build_train_network(converted, optimizer, nn.MSELoss(), **again)
        amp.build_train_network(converted, optimizer, nn.MSELoss())

    def test_after_custom_mixed_precision(self) -> None:
        converted = amp.custom_mixed_precision(Net(), black_list=amp.get_black_list())
        with pytest.raises(ValueError, match="converted twice"):
            amp.build_train_network(converted, nn.SGD(converted.trainable_params(), 0.1), level="O3")

    def test_after_itself(self) -> None:
        network = Net()
        build(network, level="O2")
        with pytest.raises(ValueError, match="converted twice"):
            build(network, level="O2")
        build(network)

    def test_loss_of_a_converted_network_is_float32(self, mode: int) -> None:
        network = nn.Dense(3, 1).to_float(ms.float16)
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        cell = amp.build_train_network(network, optimizer, nn.MSELoss())
        loss, _, _ = cell(Tensor(np.ones((2, 3)), ms.float32), Tensor(np.full((2, 1), 300.0), ms.float16))
        assert loss.dtype == ms.float32
        assert 65504 < float(loss.asnumpy()) < 1e5  # beyond float16


def config(**sections: Any) -> dict[str, Any]:
    return {"boost": {"mode": "manual", "dim_reduce": True}, "dim_reduce": {"n_components": 2}} | sections


class TestBoost:
    @pytest.fixture
    def matrix(self, tmp_path: Path) -> str:
        np.save(tmp_path / "pca.npy", np.eye(2, 3, dtype=np.float32))
        return str(tmp_path / "pca.npy")

    @pytest.mark.parametrize("scaled", [False, True])
    @standard(lambda p: p.graph == p.scaled)
    def test_dim_reduce(self, mode: int, matrix: str, scaled: bool) -> None:
        settings = {"n_components": 2, "pca_mat_path": matrix, "alpha": 0.0}
        manager = amp.FixedLossScaleManager(64.0, scaled)
        cell = build(boost_config_dict=config(dim_reduce=settings), loss_scale_manager=manager)
        assert cell.check_dim_reduce_enable()
        before = cell.weights[0].asnumpy().copy()
        loss, overflow, _ = cell(Tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 0.0]], ms.float32))
        assert np.isfinite(loss.asnumpy())
        assert not overflow.asnumpy()
        change = cell.weights[0].asnumpy() - before
        assert (change[:2] < 0).all()
        assert change[2] == 0  # outside the subspace, and alpha is 0

    def test_json(self, matrix: str, tmp_path: Path) -> None:
        path = tmp_path / "boost.json"
        path.write_text(json.dumps(config(dim_reduce={"n_components": 2, "pca_mat_path": matrix})))
        assert build(boost_config_dict=str(path)).check_dim_reduce_enable()

    @pytest.mark.parametrize(
        "off",
        [
            "",
            None,
            {},
            {"boost": {"mode": "auto", "dim_reduce": True}},
            {"boost": {"mode": "manual", "dim_reduce": False, "less_bn": False}, "dim_reduce": {"rho": 0.5}},
            {"boost": {"mode": "disable_all", "less_bn": True}, "less_bn": {"fn_flag": True}},
        ],
    )
    def test_off(self, off: Any) -> None:
        cell = build(boost_config_dict=off)
        assert not cell.check_dim_reduce_enable()
        assert [name for name in cell.plan.features if cell.plan.applies(name)] == ["fused_optimizer", "check_overflow"]

    @pytest.mark.parametrize(
        ("asked", "error", "message"),
        [
            ({"boost": {"mode": "enable_all"}}, ValueError, "enable_all needs a subspace.*dim_reduce.pca_mat_path"),
            (config(boost={"mode": "manuel"}), ValueError, "boost.mode: must be one of .* got 'manuel'"),
            (config(boost={"mode": "manual", "dim_reduced": True}), ValueError, "did you mean 'dim_reduce'"),
            (config(boost={"mode": "manual", "dim_reduce": 1}), TypeError, "boost.dim_reduce: must be a bool, got int"),
            (config(dim_reduce={"roh": 0.5}), ValueError, "dim_reduce: unknown key 'roh', did you mean 'rho'"),
            (config(dim_reduce={"rho": 2.0}), ValueError, "dim_reduce.rho: must be > 0 and < 1, got 2.0"),
            (config(dim_reduce=3), TypeError, "dim_reduce: must be a dict, got int"),
            (config(dimreduce={}), ValueError, "unknown section 'dimreduce', did you mean 'dim_reduce'"),
            ([1], TypeError, "must be a dict or the path of a JSON file, got list"),
            ("no.json", OSError, "no.json: must be a readable JSON file"),
        ],
    )
    def test_refused(self, asked: Any, error: type[Exception], message: str) -> None:
        network = Net()
        with pytest.raises(error, match=message):
            build(network, boost_config_dict=asked, level="O3")
        assert not network.get_flags().get("fp16")

    @pytest.mark.parametrize("level", ["O3", "auto", ""])
    def test_unknown_level(self, level: str) -> None:
        with pytest.raises(ValueError, match=r"level must be one of \['O0', 'O1', 'O2'\], got"):
            build(boost_level=level)


class TestBoostLevels:
    """boost_level applies the algorithms, not only the cell."""

    @pytest.mark.parametrize(
        ("level", "boost_level"),
        [("O0", "O0"), ("O0", "O1"), ("O0", "O2"), ("O1", "O1"), ("O2", "O1"), ("O3", "O1")],
    )
    @standard(lambda p: p.graph == ((p.level, p.boost_level) in (("O0", "O1"), ("O1", "O1"), ("O2", "O1"))))
    def test_plan_and_training(self, mode: int, level: str, boost_level: str) -> None:
        network = fill(ResNet(Basic, width=2))
        loss_fn = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        optimizer = nn.Momentum(network.trainable_params(), 0.05, 0.9)
        manager = amp.DynamicLossScaleManager(1024)
        # Each group is a graph to compile; O1 leaves out the other two.
        groups = {"grad_freeze": {"param_groups": 2}, "less_bn": {"bn_flag": True, "fn_flag": True}}
        cell = amp.build_train_network(
            network, optimizer, loss_fn, level, boost_level, loss_scale_manager=manager, boost_config_dict=groups
        )
        boosted = boost_level != "O0"
        assert cell.plan.level == boost_level
        for feature in ("less_bn", "fn_head", "grad_centralization", "grad_freeze"):
            assert cell.plan.applies(feature) is boosted
        assert (len(cell.plan["less_bn"].details.get("removed", ())) == 4) is boosted
        names = {p.name for p in cell.network.get_parameters()}
        assert ("fc.multiplier" in names) is boosted
        x, y = residual_batch()
        losses = [float(cell(x, y)[0].asnumpy()) for _ in range(6)]
        assert np.isfinite(losses).all()
        assert min(losses[-2:]) < losses[0]

    def test_a_network_that_was_converted_before_keeps_its_batch_norms_and_the_plan_says_so(self) -> None:
        network = amp.auto_mixed_precision(fill(ResNet(Basic, width=2)), "O2")
        optimizer = nn.SGD(network.trainable_params(), 0.1)
        plan = amp.build_train_network(network, optimizer, nn.MSELoss(), boost_level="O2").plan
        assert plan["less_bn"].details["removed"] or plan["less_bn"].status == "skipped"

    def test_accumulation(self, mode: int) -> None:
        network = Weight()
        optimizer = nn.SGD([network.w], 0.5)
        asked = {"boost": {"mode": "manual", "grad_accumulation": True}} | {
            "grad_accumulation": {"grad_accumulation_step": 2}
        }
        cell = amp.build_train_network(network, optimizer, boost_config_dict=asked)
        cell(Tensor([1.0, 1.0]))
        np.testing.assert_array_equal(network.w.asnumpy(), [1.0, 2.0])
        cell(Tensor([3.0, 1.0]))
        np.testing.assert_array_equal(network.w.asnumpy(), [0.0, 1.5])


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (
            {"level": "O2", "clip_norm": 1.0, "adaptive_clip": 0.01},
            ValueError,
            "build_train_network: adaptive_clip must be None with clip_norm, got both",
        ),
        (
            {"level": "O2", "boost_config_dict": {"common": {"check_overflow": False}}},
            ValueError,
            "build_train_network: check_overflow must be True with a loss scale that it moves, got False",
        ),
        ({"boost_level": "O2"}, TypeError, "rebuild: optimizer must not be thor, which belongs to the layers"),
    ],
)
def test_a_refused_combination_leaves_the_network_as_it_is(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    net = ResNet(Basic)
    optimizer: Any = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    if "boost_level" in options:
        optimizer = optim.thor(net, Tensor(0.1, ms.float32), 0.03, 0.9)
    before = str(net)
    with pytest.raises(error, match=f"^{message}"):
        amp.build_train_network(net, optimizer, nn.MSELoss(), **options)
    assert str(net) == before


def test_a_network_with_groups_of_loss_scales_is_refused_before_it_is_converted() -> None:
    _, net = example()
    before = str(net)
    with pytest.raises(
        ValueError, match=r"^build_train_network: network calls a GroupLossScaleManager, so the scale_s"
    ):
        amp.build_train_network(net, nn.SGD(net.trainable_params(), 0.1), nn.MSELoss(), level="O2")
    assert str(net) == before
