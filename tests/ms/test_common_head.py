"""The full-normalization head, alone and in place of a network's last Dense, in both modes."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops
from residual_networks import Basic, ResNet, batch, fill, with_loss

from boost_ext.ms.surgery.less_bn import HEAD_MULTIPLIER, CommonHeadLastFN, LessBN, replace_head


def oracle(x: np.ndarray, weight: np.ndarray, bias: np.ndarray | float, multiplier: float) -> np.ndarray:
    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.sqrt(np.maximum((v.astype(np.float64) ** 2).sum(-1, keepdims=True), 1e-4))

    return multiplier * (unit(x) @ unit(weight).T + bias)


def numbers(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(5).standard_normal(shape)).astype(np.float32)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("shape", [(5, 8), (2, 3, 8), (2, 1, 3, 8), (8,)])
def test_the_formula(mode: int, shape: tuple[int, ...], has_bias: bool) -> None:
    bias = numbers(4)
    head = CommonHeadLastFN(8, 4, Tensor(numbers(4, 8)), Tensor(bias), has_bias)
    head.multiplier.set_data(Tensor([3.0], ms.float32))
    x = numbers(*shape, scale=10)
    y = head(Tensor(x))
    assert y.shape == (*shape[:-1], 4)
    expected = oracle(x, numbers(4, 8), bias if has_bias else 0.0, 3.0)
    np.testing.assert_allclose(y.asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_same_as_mindspore_boost(mode: int) -> None:
    from mindspore.boost.less_batch_normalization import CommonHeadLastFN as Reference

    ours, theirs = (cls(8, 4, Tensor(numbers(4, 8)), Tensor(numbers(4))) for cls in (CommonHeadLastFN, Reference))
    assert {p.name: p.shape for p in ours.get_parameters()} == {p.name: p.shape for p in theirs.get_parameters()}
    for scale in (1e-4, 1.0, 100.0):
        x = Tensor(numbers(5, 8, scale=scale))
        np.testing.assert_allclose(ours(x).asnumpy(), theirs(x).asnumpy(), rtol=1e-5, atol=1e-6)


class SumOfSquares(nn.Cell):
    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.network = network

    def construct(self, x):
        return (self.network(x) ** 2).sum()


def test_gradients(mode: int) -> None:
    """Of the weight: orthogonal to it, since its length does not matter. Of the multiplier: the logits without it."""
    head = CommonHeadLastFN(8, 4, Tensor(numbers(4, 8)), Tensor(numbers(4)))
    x = Tensor(numbers(5, 8))
    parameters = ms.ParameterTuple(head.trainable_params())
    names = [p.name for p in parameters]
    _, grads = ms.value_and_grad(SumOfSquares(head), None, parameters)(x)
    grad = dict(zip(names, grads, strict=True))
    assert sorted(names) == ["bias", "multiplier", "weight"]
    np.testing.assert_allclose((grad["weight"].asnumpy() * numbers(4, 8)).sum(1), 0, atol=1e-4)
    np.testing.assert_allclose(grad["multiplier"].asnumpy(), [2 * (head(x).asnumpy() ** 2).sum()], rtol=1e-4)


def test_half_precision_does_not_overflow(mode: int) -> None:
    head = CommonHeadLastFN(512, 4, Tensor(numbers(4, 512))).to_float(ms.float16)
    x = numbers(3, 512, scale=100)  # the sum of the squares is beyond float16
    y = head(Tensor(x.astype(np.float16)))
    assert y.dtype == ms.float16
    np.testing.assert_allclose(y.asnumpy(), oracle(x, numbers(4, 512), 0.0, 1.0), atol=1e-2)


@pytest.mark.parametrize("channels", [0, -1, 2.0, True])
def test_refuses_channels(channels) -> None:
    with pytest.raises(ValueError, match=f"CommonHeadLastFN: out_channels must be a positive int, got {channels}"):
        CommonHeadLastFN(3, channels)


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_keeps_what_the_dense_had(mode: int, has_bias: bool, activation: str | None) -> None:
    net = nn.SequentialCell(nn.Dense(8, 6), nn.ReLU(), nn.Dense(6, 4, has_bias=has_bias, activation=activation))
    dense, old = net[2], list(net.get_parameters())
    report = replace_head(net, multiplier=2.0)
    assert report.head == "2"
    assert net[2] is net.cell_list[2]
    assert isinstance(net[2], CommonHeadLastFN)
    assert isinstance(net[0], nn.Dense)
    assert net[2].weight is dense.weight
    assert net[2].bias is dense.bias
    new = list(net.get_parameters())
    assert [p.name for p in new if not any(p is q for q in old)] == ["2.multiplier"]
    assert [p.name for p in old] == [f"{i}.{k}" for i in (0, 2) for k in ("weight", "bias")][: len(old)]
    x = numbers(5, 8)
    hidden = np.maximum(x @ net[0].weight.asnumpy().T + net[0].bias.asnumpy(), 0)
    bias = dense.bias.asnumpy() if has_bias else 0.0
    expected = oracle(hidden, dense.weight.asnumpy(), bias, 2.0)
    expected = np.maximum(expected, 0) if activation else expected
    np.testing.assert_allclose(net(Tensor(x)).asnumpy(), expected, rtol=1e-4, atol=1e-5)


def test_the_live_layer_is_trained(mode: int) -> None:
    net = nn.SequentialCell(nn.Flatten(), nn.Dense(64, 8), nn.ReLU(), nn.Dense(8, 10))
    cell = LessBN(with_loss(fill(net)), fn_flag=True)
    assert net[3].multiplier.asnumpy() == [HEAD_MULTIPLIER]
    before = {p.name: p.asnumpy().copy() for p in cell.trainable_params()}
    assert set(before) == {"1.weight", "1.bias", "3.weight", "3.bias", "3.multiplier"}
    step = nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.05, 0.9)).set_train()
    losses = [float(step(*batch()).asnumpy()) for _ in range(10)]
    assert losses[-1] < 0.8 * losses[0]
    assert all(not np.array_equal(p.asnumpy(), before[p.name]) for p in cell.trainable_params())


class TwoHeads(nn.Cell):
    """The Dense that runs last is the first one that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first = nn.Dense(6, 4), nn.Dense(8, 6)

    def construct(self, x):
        return self.last(ops.relu(self.first(x)))


class Opaque(TwoHeads):
    def construct(self, x):
        self.seen = x
        return self.last(ops.relu(self.first(x)))


def test_the_last_is_the_one_that_runs_last() -> None:
    assert replace_head(TwoHeads()).head == "last"
    report = replace_head(Opaque())
    assert report.head == "first"
    assert "the order of the Dense layers is not known: the last in the order of the cells is the head" in report.notes


@pytest.mark.parametrize("network", [TwoHeads, Opaque, lambda: ResNet(Basic)])
def test_again_replaces_nothing_more(network) -> None:
    net = network()
    report, cells = replace_head(net), dict(net.cells_and_names())
    assert replace_head(net) == report
    assert all(cell is cells[name] for name, cell in net.cells_and_names())


def test_without_a_dense() -> None:
    report = replace_head(nn.SequentialCell(nn.Conv2d(1, 1, 1)))
    assert (report.head, report.notes) == (None, ("no Dense found: no head replaced",))


def test_a_dense_alone() -> None:
    report = replace_head(nn.Dense(3, 4))
    assert report.head is None
    assert report.notes == ("the network is itself a Dense: there is no cell to replace it in",)


@pytest.mark.parametrize("multiplier", [0, -1.0, float("nan")])
def test_refuses_a_multiplier(multiplier: float) -> None:
    with pytest.raises(ValueError, match=f"replace_head: multiplier must be > 0, got {multiplier}"):
        replace_head(TwoHeads(), multiplier)


def test_checkpoint_of_the_dense_fits(mode: int) -> None:
    original, rewritten = fill(ResNet(Basic)), fill(ResNet(Basic), 1)
    LessBN(rewritten, fn_flag=True)
    ms.save_checkpoint(original, "original.ckpt")
    missing, _ = ms.load_param_into_net(rewritten, ms.load_checkpoint("original.ckpt"))
    assert missing == ["fc.multiplier"]
    np.testing.assert_array_equal(rewritten.fc.weight.asnumpy(), original.fc.weight.asnumpy())
