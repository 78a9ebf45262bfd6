"""boost.Dropout: the masks of ops.dropout, in both modes, forward and backward."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from residual_networks import INNER, Basic, ResNet
from tests.ms.networks import Mlp, classes, mlp_batch
from tests.ms.tiers import in_graph_mode

import masks
from boost_ext import amp, boost
from boost_ext.config import DimReduceConfig
from boost_ext.ms.surgery.less_bn import LessBN
from boost_ext.ops import dropout
from dtypes import assert_close

SEED = 2**40 + 5
P = 0.3


class Scaled(nn.Cell):
    """drop(x * w) * 2, for as many passes as asked for."""

    def __init__(self, drop: nn.Cell, passes: int = 1, rows: int = 50) -> None:
        super().__init__()
        self.drop, self.passes = drop, passes
        self.w = Parameter(Tensor(np.linspace(1, 2, 3 * rows).reshape(rows, 3), ms.float32), name="w")

    def construct(self, x: Tensor) -> Tensor:
        x = x * self.w
        for _ in range(self.passes):
            x = self.drop(x)
        return x * 2


def of_state(layer: boost.Dropout) -> tuple[int, int]:
    low, high, draw, last = layer.dropout_state.asnumpy().view(np.uint32).tolist()
    assert last == 0
    return low | high << 32, draw


def arange(*shape: int) -> np.ndarray:
    return np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.bfloat16])
def test_values_and_gradients_have_the_masks_of_the_op(mode: int, dtype) -> None:
    layer = boost.Dropout(P, seed=SEED)
    net = Scaled(layer, rows=200).set_train()
    net.w.set_dtype(dtype)
    x = Tensor(np.linspace(1, 9, 600).reshape(200, 3), dtype)
    gradient = ms.grad(net, 0, net.trainable_params())
    for draw in range(0, 6, 2):
        y = net(x).astype(ms.float32).asnumpy()
        product = (x * net.w).astype(ms.float32).asnumpy()
        expected, kept = masks.dropout(product, P, SEED, draw)
        np.testing.assert_array_equal(y != 0, kept)
        assert abs(y - 2 * expected).max() <= (1e-6 if dtype == ms.float32 else 1e-2) * abs(expected).max()
        of_x, (of_w,) = gradient(x)
        mask, _ = masks.dropout(np.ones((200, 3)), P, SEED, draw + 1)
        wide = [t.astype(ms.float32).asnumpy() for t in (x, net.w, of_x, of_w)]
        np.testing.assert_allclose(wide[2], 2 * mask * wide[1], rtol=1e-5 if dtype == ms.float32 else 1e-2)
        np.testing.assert_allclose(wide[3], 2 * mask * wide[0], rtol=1e-5 if dtype == ms.float32 else 2e-2)
    assert of_state(layer) == (SEED, 6)


def test_each_pass_draws_anew_also_where_a_layer_is_called_twice(mode: int) -> None:
    layer = boost.Dropout(P, seed=SEED)
    net = Scaled(layer, passes=2).set_train()
    net.w.set_data(Tensor(np.ones((50, 3)), ms.float32))
    x = Tensor(np.ones((50, 3), np.float32))
    product = np.prod([masks.dropout(np.ones((50, 3)), P, SEED, draw)[0] for draw in (0, 1)], axis=0)
    np.testing.assert_allclose(ms.grad(net)(x).asnumpy(), 2 * product, rtol=1e-6)
    assert of_state(layer) == (SEED, 2)


@pytest.mark.parametrize("shared_axes", [1, 2, 3])
def test_channels_drop_as_one(mode: int, shared_axes: int) -> None:
    layer = boost.Dropout(P, shared_axes=shared_axes, seed=3).set_train()
    x = arange(6, 5, *(4, 3, 2)[:shared_axes])
    y = layer(Tensor(x)).asnumpy()
    expected, _ = masks.dropout(x, P, 3, shared=int(np.prod(x.shape[2:])))
    assert_close(y, expected, abs(expected), roundings=2)

    def doubled(x: Tensor) -> Tensor:
        return (layer(x) * 2).sum()

    gradient = ms.grad(doubled)(Tensor(x)).asnumpy()
    mask, _ = masks.dropout(np.ones(x.shape), P, 3, draw=1, shared=int(np.prod(x.shape[2:])))
    np.testing.assert_allclose(gradient, 2 * mask, rtol=1e-6)


def test_without_training_it_does_nothing(mode: int) -> None:
    layer = boost.Dropout(P, seed=3).set_train(False)
    x = Tensor(arange(4, 5))
    np.testing.assert_array_equal(layer(x).asnumpy(), x.asnumpy())
    np.testing.assert_array_equal(boost.Dropout(0.0).set_train()(x).asnumpy(), x.asnumpy())
    assert of_state(layer) == (3, 0)


def test_views_are_taken(mode: int) -> None:
    """A gradient or an activation may be a view of another tensor in PYNATIVE_MODE."""
    layer = boost.Dropout(P, seed=3).set_train()
    x = arange(6, 8)
    y = layer(ops.transpose(Tensor(x), (1, 0))).asnumpy()
    assert_close(y, masks.dropout(x.T, P, 3)[0], abs(2 * x.T), roundings=2)


def test_the_seed_is_that_of_set_seed() -> None:
    drawn = []
    for _ in range(2):
        ms.set_seed(5)
        drawn.append([of_state(boost.Dropout(P))[0] for _ in range(3)])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


def test_each_rank_draws_masks_of_its_own(mode: int, monkeypatch) -> None:
    monkeypatch.setattr("boost_ext.ms.surgery.dropout.rank_count", lambda: 3)
    monkeypatch.setattr("boost_ext.ms.surgery.dropout.get_rank", lambda: 2)
    layer = boost.Dropout(P, seed=SEED).set_train()
    x = arange(300)
    expected, kept = masks.dropout(x, P, SEED, stream=2)
    y = layer(Tensor(x)).asnumpy()
    assert_close(y, expected, abs(expected), roundings=2)
    assert np.any(kept != masks.dropout(x, P, SEED)[1])


class Layers(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        shared = nn.Dropout(p=0.3)
        self.body = nn.SequentialCell(nn.Dense(6, 16), nn.Dropout(p=0.25), nn.Dropout(0.75), shared)
        self.by_channel = nn.CellList([nn.Dropout1d(p=0.5), nn.Dropout2d(p=0.5), nn.Dropout3d(p=0.5)])
        self.again, self.head = shared, nn.Dense(16, 4)
        self.off = nn.Dropout(p=0.0)

    def construct(self, x: Tensor) -> Tensor:
        x = self.body(x)
        for i, axes in enumerate(((4, 4), (2, 2, 4), (1, 2, 2, 4))):
            x = self.by_channel[i](x.reshape((x.shape[0], *axes))).reshape((-1, 16))
        return self.head(self.off(self.again(x)))


def test_replacing_the_layers_of_mindspore(mode: int) -> None:
    net = Layers().set_train()
    names = [p.name for p in net.get_parameters()]
    replaced = boost.replace_dropout(net)
    assert replaced == ("body.1", "body.2", "body.3", "by_channel.0", "by_channel.1", "by_channel.2")
    states = [f"{name}.dropout_state" for name in replaced]
    assert sorted(p.name for p in net.get_parameters()) == sorted(names + states)
    assert [p.name for p in net.trainable_params()] == names
    layers = [net.body[1], net.body[2], net.body[3], *net.by_channel]
    assert all(isinstance(layer, boost.Dropout) for layer in layers)
    np.testing.assert_allclose([layer.p for layer in layers], [0.25, 0.25, 0.3, 0.5, 0.5, 0.5])
    assert [layer.shared_axes for layer in layers] == [0, 0, 0, 1, 2, 3]
    assert net.again is net.body[3]
    assert isinstance(net.off, nn.Dropout)
    assert boost.replace_dropout(net) == ()
    step = boost.BoostTrainOneStepCell(classes(net), nn.Momentum(net.trainable_params(), 0.1, 0.9))
    for i in range(3):
        step(*mlp_batch(i, 8))
    assert [of_state(layer)[1] for layer in layers] == [3, 3, 6, 3, 3, 3]


def steps(mode: int, **kwargs) -> list[bytes]:
    ms.set_context(mode=mode)
    ms.set_seed(3)
    net = nn.SequentialCell(nn.Dense(6, 16), nn.ReLU(), boost.Dropout(0.5, seed=9), nn.Dense(16, 4))
    step = amp.build_train_network(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), loss_of(), **kwargs)
    step.set_train()
    losses = [step(*mlp_batch(i, 16))[0].asnumpy() for i in range(6)]
    return [loss.tobytes() for loss in losses] + [net[2].dropout_state.asnumpy().tobytes()]


def loss_of() -> nn.Cell:
    return nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
def test_both_modes_draw_the_same_masks_at_every_level(level: str) -> None:
    """And mixed precision casts neither the state nor the settings."""
    try:
        first, second = (steps(mode, level=level) for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE))
    finally:
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert first[-1] == second[-1]
    losses = [np.frombuffer(b"".join(run[:-1]), run_dtype(run)) for run in (first, second)]
    np.testing.assert_allclose(losses[0].astype(np.float64), losses[1].astype(np.float64), rtol=2e-2, atol=1e-3)


def run_dtype(run: list[bytes]) -> type:
    return np.float32 if len(run[0]) == 4 else np.float16


@in_graph_mode
def test_the_line_search_leaves_its_state_alone(mode: int, tmp_path) -> None:
    net = Mlp()
    net.first = nn.SequentialCell(net.first, boost.Dropout(0.5, seed=9))
    elements = sum(p.size for p in net.trainable_params())
    rows = np.linalg.qr(np.random.default_rng(0).standard_normal((elements, 4)))[0].T
    np.save(tmp_path / "P.npy", rows.astype(np.float32))
    config = DimReduceConfig(n_components=4, pca_mat_path=str(tmp_path / "P.npy"))
    optimizer = nn.Momentum(net.trainable_params(), 0.5, 0.9)
    step = boost.BoostTrainOneStepCell(classes(net), optimizer, dim_reduce=config)
    for i in range(4):
        step(*mlp_batch(i, 16))
    assert of_state(net.first[1]) == (9, 4)


def test_less_bn_sees_through_it() -> None:
    network = ResNet(Basic)
    for _, cell in list(network.cells_and_names()):
        if isinstance(cell, Basic):
            cell.bn1 = nn.SequentialCell(cell.bn1, boost.Dropout(0.1))
    names = [name.replace("bn1", "bn1.0") for name in INNER[Basic]]
    assert list(LessBN(network).removed) == names


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"p": 1.0}, ValueError, "p must be >= 0 and < 1, got 1.0"),
        ({"p": -0.1}, ValueError, "p must be >= 0 and < 1, got -0.1"),
        ({"p": "1"}, TypeError, "p must be a number, got str"),
        ({"seed": 2**64}, ValueError, "seed must be >= 0 and < 18446744073709551616, got"),
        ({"seed": 1.5}, TypeError, "seed must be an int, got float"),
        ({"shared_axes": -1}, ValueError, "shared_axes must be >= 0 and < 8, got -1"),
        ({"shared_axes": True}, TypeError, "shared_axes must be an int, got bool"),
    ],
)
def test_errors(arguments, error, text) -> None:
    with pytest.raises(error, match=f"^Dropout: {text}"):
        boost.Dropout(**arguments)


def test_errors_of_replacing() -> None:
    with pytest.raises(TypeError, match=r"^replace_dropout: network must be a Cell, got list"):
        boost.replace_dropout([])
    with pytest.raises(ValueError, match=r"^replace_dropout: network must hold its dropout layers, got one alone"):
        boost.replace_dropout(nn.Dropout(p=0.5))


def test_mindspore_tensors_by_the_op() -> None:
    x = Tensor(arange(40))
    out = Tensor(np.zeros(40, np.float32))
    assert dropout(x, 0.5, 1, out=out) is out
    np.testing.assert_array_equal(out.asnumpy(), dropout(x.asnumpy(), 0.5, 1))
    with pytest.raises(
        ValueError, match=r"^dropout: out must be given unless x holds NumPy or PyTorch arrays, got Tensor"
    ):
        dropout(x, 0.5, 1)
