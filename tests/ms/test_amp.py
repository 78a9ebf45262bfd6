"""build_train_network: what it assembles, in which precision, and that it trains."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn
from tests.ms.networks import Weight

from boost_ext import amp
from boost_ext.ms.step import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell


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
