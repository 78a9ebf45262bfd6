"""What thor refuses, also when it is made too late, and which layers it leaves alone."""

from __future__ import annotations

import re
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from tests.ms.networks import Mlp, classes, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import Model, boost, optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.config import DimReduceConfig
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.optim.rebuild import rebuild

REQUIRED: dict[str, Any] = {"learning_rate": Tensor(0.1), "damping": Tensor(0.1), "momentum": 0.9}


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (TypeError, "learning_rate must be a Tensor or a LearningRateSchedule, got float", {"learning_rate": 0.1}),
        (TypeError, "damping must be a number, a Tensor or a LearningRateSchedule, got str", {"damping": "much"}),
        (ValueError, "damping must be finite and > 0, got 0.0", {"damping": Tensor([0.1, 0.0])}),
        (ValueError, "damping must be finite and > 0, got nan", {"damping": float("nan")}),
        (ValueError, "damping must have at most one axis and one element at least, got (1, 2)",
         {"damping": Tensor([[0.1, 0.2]])}),
        (TypeError, "momentum must be a float, got int", {"momentum": 1}),
        (ValueError, "momentum must be finite and >= 0, got -0.1", {"momentum": -0.1}),
        (TypeError, "weight_decay must be a float or an int, got str", {"weight_decay": "0"}),
        (TypeError, "use_nesterov must be a bool, got int", {"use_nesterov": 1}),
        (TypeError, "enable_clip_grad must be a bool, got NoneType", {"enable_clip_grad": None}),
        (TypeError, "decay_filter must be a function, got NoneType", {"decay_filter": None}),
        (TypeError, "frequency must be an int, got float", {"frequency": 2.0}),
        (ValueError, "frequency must be >= 2, got 1", {"frequency": 1}),
        (TypeError, "batch_size must be an int, got float", {"batch_size": 8.0}),
        (ValueError, "batch_size must be >= 1, got 0", {"batch_size": 0}),
        (ValueError, "block_size must be >= 1, got 0", {"block_size": 0}),
        (TypeError, "split_indices must be a list of ints, got 2", {"split_indices": 2}),
        (ValueError, "split_indices must ascend to 2, the last of the network's layers, got [0, 1]",
         {"split_indices": [0, 1]}),
        (ValueError, "split_indices must ascend to 2, the last of the network's layers, got [1, 1, 2]",
         {"split_indices": [1, 1, 2]}),
    ],
)  # fmt: skip
def test_messages(error: type[Exception], message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=f"^{re.escape(f'thor: {message}')}$"):
        optim.thor(Mlp(), **{**REQUIRED, **arguments})


@pytest.mark.parametrize(
    ("error", "arguments"),
    [(ValueError, {"weight_decay": -1.0}), (ValueError, {"loss_scale": 0.0}), (TypeError, {"loss_scale": "1"})],
)
def test_errors_of_every_optimizer(error: type[Exception], arguments: dict[str, Any]) -> None:
    with pytest.raises(error):
        optim.thor(Mlp(), **REQUIRED, **arguments)


def test_signature() -> None:
    """Names, order and defaults of mindspore.nn.thor."""
    import inspect

    theirs, ours = inspect.signature(nn.thor).parameters, inspect.signature(optim.thor).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for name, parameter in theirs.items():
        if name != "decay_filter":
            assert ours[name].default == parameter.default, name
    assert optim.thor(Mlp(), **REQUIRED).decay_flags == (True,) * 6


class Odd(nn.Cell):
    """What thor leaves to Momentum: a grouped convolution, tied and frozen weights, one-hot, a Dense of one's own."""

    class Own(nn.Dense):
        def construct(self, x: Tensor) -> Tensor:
            return ops.matmul(x, self.weight.T)

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 4, 3, group=2)
        self.one_hot = nn.Embedding(5, 4, use_one_hot=True)
        self.own = self.Own(4, 4)
        self.frozen = nn.Dense(4, 4)
        self.frozen.weight.requires_grad = False
        self.first, self.second = nn.Dense(4, 4), nn.Dense(4, 4)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm((4,))


def test_layers_that_are_left_alone() -> None:
    text = "convert_to_thor_net: net must have a Dense, a Conv2d of one group or an Embedding with a weight that trains"
    with pytest.raises(ValueError, match=f"^{re.escape(text)} and belongs to no other layer, got none$"):
        optim.thor(Odd(), **REQUIRED)
    net = nn.SequentialCell(Odd(), nn.Dense(4, 2))
    assert optim.thor(net, **REQUIRED).layers == ("1.weight",)
    with pytest.raises(TypeError, match=r"^convert_to_thor_net: net must be a Cell, got list$"):
        optim.convert_to_thor_net([])


def test_a_network_that_is_a_layer(mode: int) -> None:
    net = nn.Dense(3, 2, has_bias=False)
    optimizer = optim.thor(net, **REQUIRED, frequency=2, batch_size=4)
    before = net.weight.asnumpy().copy()
    cell = BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer)
    cell(Tensor(np.eye(4, 3, dtype=np.float32)), Tensor(np.ones((4, 2), np.float32)))
    assert abs(net.weight.asnumpy() - before).max() > 0.01
    assert optimizer.layers == ("weight",)


def test_no_partners() -> None:
    net = Mlp()
    thor = optim.thor(net, **REQUIRED)
    with pytest.raises(TypeError, match=r"^LARS: optimizer must take gradients as they come, got Thor"):
        optim.LARS(thor)
    with pytest.raises(TypeError, match=r"^restrict: optimizer must not be thor"):
        boost.FreezeOpt(thor)
    with pytest.raises(TypeError, match=r"^restrict: optimizer must not be thor"):
        restrict(thor, thor.parameters[:2])
    with pytest.raises(TypeError, match=r"^rebuild: optimizer must not be thor, which belongs to the layers of its "):
        rebuild(thor, thor.parameters)
    text = r"^BoostTrainOneStepCell: thor must be the only algorithm, got .* or adaptive_clip with it$"
    with pytest.raises(ValueError, match=text):
        BoostTrainOneStepCell(classes(net), thor, accumulation_steps=2)
    with pytest.raises(ValueError, match=text):
        BoostTrainOneStepCell(classes(net), thor, dim_reduce=DimReduceConfig())
    with pytest.raises(ValueError, match=text):
        BoostTrainOneStepCell(classes(net), thor, clip_norm=1.0)
    with pytest.raises(ValueError, match=text):
        BoostTrainOneStepCell(classes(net), thor, adaptive_clip=0.01)


def test_no_groups_of_loss_scales() -> None:
    net = Mlp()
    net.manager = boost.GroupLossScaleManager(64, [net.first.trainable_params(), net.second.trainable_params()])
    thor = optim.thor(net, **REQUIRED)
    with pytest.raises(ValueError, match=r"^BoostTrainOneStepWithLossScaleCell: thor must have one loss scale, got a "):
        boost.BoostTrainOneStepWithLossScaleCell(classes(net), thor, net.manager)


def test_a_matrix_that_cannot_be_inverted_keeps_its_inverse(mode: int) -> None:
    """An input that is inf: the step is one along the gradients given, and finite."""
    net = Mlp()
    optimizer = optim.thor(net, **REQUIRED, frequency=2)
    x, y = mlp_batch(0, 8)
    x = Tensor(np.where(np.arange(48).reshape(8, 6) == 3, np.inf, x.asnumpy()).astype(np.float32))
    grads = ops.value_and_grad(classes(net), None, optimizer.parameters)(x, y)[1]
    before = net.first.weight.asnumpy().copy()
    optimizer(tuple(ops.ones_like(g) for g in grads))
    np.testing.assert_array_equal(optimizer.matrix_a_inv[0].asnumpy(), np.eye(6, dtype=np.float32)[None])
    assert np.isfinite(net.first.weight.asnumpy()).all()
    assert (net.first.weight.asnumpy() != before).all()


@in_graph_mode
def test_schedules(mode: int) -> None:
    """Of the rate and of the damping: the step's own number is what they are asked for."""
    results = []
    for schedule in (True, False):
        net = Mlp()
        rates = [0.1 * 0.5**i for i in range(3)]
        rate = nn.ExponentialDecayLR(0.1, 0.5, 1) if schedule else Tensor(rates, ms.float32)
        cell = BoostTrainOneStepCell(classes(net), optim.thor(net, rate, rate, 0.9, batch_size=8, frequency=2))
        for i in range(3):
            cell(*mlp_batch(i, 8))
        results.append([p.asnumpy() for p in net.trainable_params()])
    for one, two in zip(*results, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


@in_graph_mode
def test_half_precision(mode: int) -> None:
    """float16 weights have masters; the matrices are gathered from float16 inputs and gradients."""
    trained = []
    for dtype in (ms.float32, ms.float16):
        net = Mlp().to_float(dtype)
        for p in net.trainable_params():
            p.set_dtype(dtype)
        optimizer = optim.thor(net, Tensor(0.05), 0.1, 0.9, batch_size=8, frequency=2)
        cell = BoostTrainOneStepCell(classes(net), optimizer)
        for i in range(4):
            cell(*mlp_batch(i, 8))
        trained.append([p.asnumpy().astype(np.float32) for p in net.trainable_params()])
        assert all(p.dtype == dtype for p in net.trainable_params())
    for wide, half in zip(*trained, strict=True):
        np.testing.assert_allclose(half, wide, atol=2e-2)


@in_graph_mode
def test_mixed_precision_casts_no_matrix(mode: int) -> None:
    """to_float after the conversion: A and G stay what the op writes into, in float64."""
    net = Mlp()
    optimizer = optim.thor(net, Tensor(0.05), 0.1, 0.9, batch_size=8, frequency=2)
    net.to_float(ms.float16)
    cell = BoostTrainOneStepCell(classes(net), optimizer)
    cell(*mlp_batch(0, 8))
    x = mlp_batch(0, 8)[0].asnumpy().astype(np.float16).astype(np.float64)
    np.testing.assert_allclose(optimizer.gathered[0].asnumpy()[0], x.T @ x / 8, rtol=1e-5, atol=1e-6)


LATE = (
    r"^training step: optimizer must be the thor that the network gathers for, got another one: thor\(net, ...\) was "
    r"called for this network before or after, and converted its layers. Give what it returned to a new Model or "
    r"training cell, or train another network without it$"
)


def make_thor(net: nn.Cell) -> nn.Optimizer:
    return optim.thor(net, Tensor(0.1), 0.03, 0.9, batch_size=8, frequency=2)


@pytest.mark.parametrize("first", ["Momentum", "thor"])
@standard(lambda p: p.graph == (p.first == "thor"))
def test_a_thor_made_after_the_cell_is_noticed_at_the_first_step(mode: int, first: str) -> None:
    net = Mlp()
    optimizer = make_thor(net) if first == "thor" else nn.Momentum(net.trainable_params(), 0.1, 0.9)
    loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
    model = Model(net, loss, optimizer)
    late = make_thor(net)
    before = net.head.weight.asnumpy().copy()
    with pytest.raises(ValueError, match=LATE):
        model.train_network(*mlp_batch(0, 8))
    np.testing.assert_array_equal(net.head.weight.asnumpy(), before)
    with pytest.raises(ValueError, match=LATE):  # also where the network was converted before
        BoostTrainOneStepCell(classes(net), nn.SGD(net.trainable_params(), 0.1))(*mlp_batch(0, 8))
    # What the message asks for.
    Model(net, loss, late).train_network(*mlp_batch(0, 8))
    assert int(late.global_step.asnumpy()[0]) == 1
    assert np.any(net.head.weight.asnumpy() != before)
