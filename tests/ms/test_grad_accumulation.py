"""Gradient accumulation: N micro-batches are one large batch, in every combination."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms.networks import Mlp, Weight, classes, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import boost, optim


def momentum(net: nn.Cell, **kwargs) -> nn.Optimizer:
    return nn.Momentum(net.trainable_params(), 0.1, 0.9, **kwargs)


def adam(net: nn.Cell, **kwargs) -> nn.Optimizer:
    return nn.Adam(net.trainable_params(), 0.01, **kwargs)


def weights(net: nn.Cell) -> dict[str, np.ndarray]:
    return {p.name: p.asnumpy().copy() for p in net.trainable_params()}


def assert_equal_weights(ours: nn.Cell, theirs: nn.Cell, **tolerance: float) -> None:
    expected = weights(theirs)
    for name, value in weights(ours).items():
        np.testing.assert_allclose(value, expected[name], err_msg=name, **tolerance)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
@pytest.mark.parametrize("optimizer", [momentum, adam], ids=["momentum", "adam"])
@pytest.mark.parametrize("scale", [None, 4096.0])
@standard(lambda p: p.graph == (p.compile == "step") and (p.optimizer is adam) == (p.scale is None))
def test_equals_the_large_batch(mode: int, compile: str, optimizer, scale: float | None) -> None:
    small, large = Mlp(), Mlp()
    kwargs = {"compile": compile, "accumulation_steps": 4}
    if scale is None:
        cell = boost.BoostTrainOneStepCell(classes(small), optimizer(small), **kwargs)
    else:
        sense = Tensor(scale, ms.float32)
        cell = boost.BoostTrainOneStepWithLossScaleCell(classes(small), optimizer(small), sense, **kwargs)
    reference = boost.BoostTrainOneStepCell(classes(large), optimizer(large), compile="network")
    for step in range(3):
        x, y = mlp_batch(step, 32)
        for m in range(4):
            before = weights(small)
            losses = cell(x[8 * m : 8 * m + 8], y[8 * m : 8 * m + 8])
            assert losses[0].shape == ()
            moved = any(np.any(v != before[n]) for n, v in weights(small).items())
            assert moved == (m == 3)
            assert cell.observe()["micro_batch"] == (m + 1) % 4
        reference(x, y)
        assert_equal_weights(small, large, rtol=2e-3, atol=2e-5)


@in_graph_mode
def test_a_scale_that_the_optimizer_takes_out(mode: int) -> None:
    small, large = Mlp(), Mlp()
    cell = boost.BoostTrainOneStepCell(classes(small), momentum(small, loss_scale=64.0), 64.0, accumulation_steps=2)
    reference = boost.BoostTrainOneStepCell(classes(large), momentum(large))
    x, y = mlp_batch(0, 32)
    cell(x[:16], y[:16])
    cell(x[16:], y[16:])
    reference(x, y)
    assert_equal_weights(small, large, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("compile", ["step", "network", "off"])
def test_a_micro_batch_that_overflows_counts_for_nothing(mode: int, compile: str) -> None:
    net = Weight()
    update = nn.DynamicLossScaleUpdateCell(2.0**8, 2, 1000)
    optimizer = nn.SGD(net.trainable_params(), 1.0)
    cell = boost.BoostTrainOneStepWithLossScaleCell(net, optimizer, update, compile=compile, accumulation_steps=2)
    cell(Tensor([1.0, 2.0]))
    held = [p.asnumpy().copy() for p in cell.accumulation.accumulators]
    _, overflow, _ = cell(Tensor([np.inf, 2.0]))
    assert overflow.asnumpy()
    assert cell.observe()["micro_batch"] == 1
    assert cell.scale_sense.asnumpy() == 2.0**7
    for before, now in zip(held, cell.accumulation.accumulators, strict=True):
        np.testing.assert_array_equal(now.asnumpy(), before)
    np.testing.assert_array_equal(net.w.asnumpy(), [1.0, 2.0])
    cell(Tensor([3.0, 4.0]))  # at half the scale: what is held is unscaled
    np.testing.assert_allclose(net.w.asnumpy(), [1.0 - 2.0, 2.0 - 3.0], rtol=1e-6)
    assert cell.observe()["micro_batch"] == 0


def test_nothing_of_an_old_window_survives(mode: int) -> None:
    net = Weight()
    cell = boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 1.0), accumulation_steps=2)
    for p in cell.accumulation.accumulators:
        p.set_data(Tensor(np.full(p.shape, np.nan, np.float32)))
    for x in ([2.0, 0.0], [0.0, 4.0]):
        cell(Tensor(x))
    np.testing.assert_allclose(net.w.asnumpy(), [0.0, 0.0], atol=1e-6)


class Half(nn.Cell):
    """A float16 weight: the accumulator is float32."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor([0.0], ms.float16), name="w")

    def construct(self, x: Tensor) -> Tensor:
        return (self.w * x).sum()


@in_graph_mode
def test_half_precision_is_held_in_float32(mode: int) -> None:
    net = Half()
    cell = boost.BoostTrainOneStepCell(net, nn.SGD(net.trainable_params(), 1.0), accumulation_steps=16)
    # Held in float16 it would stand still after the first, of which the others are half a unit in the last place.
    for gradient in [1.0] + 8 * [2.0**-11] + 7 * [0.0]:
        cell(Tensor([gradient], ms.float16))
    assert cell.accumulation.accumulators[0].dtype == ms.float32
    np.testing.assert_array_equal(net.w.asnumpy(), [-(1 + 2.0**-8) / 16])


class Tiny(Half):
    """Its gradient is below what float16 has."""

    def construct(self, x: Tensor) -> Tensor:
        return super().construct(x) * 2.0**-13 * 2.0**-13


@standard(lambda p: p.graph)
@pytest.mark.parametrize("compile", ["step", "off"])
def test_half_gradients_keep_what_the_loss_scale_has_saved(mode: int, compile: str) -> None:
    moved = []
    for steps in (1, 2):
        net, scale = Tiny(), Tensor(2.0**15, ms.float32)
        optimizer = optim.SGD(net.trainable_params(), 2.0**20)
        cell = boost.BoostTrainOneStepWithLossScaleCell(
            net, optimizer, scale, compile=compile, accumulation_steps=steps
        )
        for _ in range(steps):
            cell(Tensor([1.0], ms.float16))
        moved.append(net.w.asnumpy())
    np.testing.assert_array_equal(moved, [[-(2.0**-6)]] * 2)


def test_used_directly(mode: int) -> None:
    net = Weight()
    hold = boost.GradientAccumulation(2, nn.SGD(net.trainable_params(), 1.0))
    assert hold(Tensor(5.0), (Tensor([1.0, 0.0]),)).asnumpy() == 5.0
    np.testing.assert_array_equal(net.w.asnumpy(), [1.0, 2.0])
    hold(Tensor(5.0), (Tensor([1.0, 4.0]),))
    np.testing.assert_array_equal(net.w.asnumpy(), [0.0, 0.0])
    assert {p.name for p in hold.get_parameters()} >= {"grad_accumulation.w", "accumulation_step"}


@pytest.mark.parametrize(
    ("steps", "error", "message"),
    [
        (0, ValueError, "max_accumulation_step must be from 1 to 16777216, got 0"),
        (2.0, TypeError, "max_accumulation_step must be an int, got float"),
        (True, TypeError, "max_accumulation_step must be an int, got bool"),
    ],
)
def test_wrong_steps(steps: object, error: type[Exception], message: str) -> None:
    net = Weight()
    with pytest.raises(error, match=message):
        boost.GradientAccumulation(steps, nn.SGD(net.trainable_params(), 1.0))
