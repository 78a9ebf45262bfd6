"""50 + 50 steps are 100 steps, bit for bit."""

import warnings
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from tests.ms.networks import Mlp, mlp_batch
from tests.ms.tiers import in_graph_mode, standard

from boost_ext import amp, boost, optim
from boost_ext.checkpoint import load_training_state, save_training_state
from boost_ext.config import DimReduceConfig
from boost_ext.distributed import load_rank_state, save_rank_state

STEPS = 50


class Residual(nn.Cell):
    """A residual block with batch norms, for O1."""

    def __init__(self) -> None:
        super().__init__()
        ms.set_seed(0)
        self.conv0, self.bn0 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Dense(4, 4)

    def construct(self, x: Tensor) -> Tensor:
        x = ops.relu(self.bn0(self.conv0(x)))
        y = self.bn2(self.conv2(ops.relu(self.bn1(self.conv1(x)))))
        return self.head(ops.relu(x + y).mean((2, 3)))


class Weighted(nn.Cell):
    """The mean cross entropy times a weight: an infinite one makes every gradient inf or nan."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return self.loss(self.net(x), y) * weight


def images(seed: int, size: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, 1, 6, 6)).astype(np.float32)
    return Tensor(x), Tensor(rng.integers(0, 4, size).astype(np.int32))


def dynamic(net: nn.Cell, optimizer: nn.Cell, **kwargs) -> nn.Cell:
    """A loss scale that grows every third step."""
    manager = amp.DynamicLossScaleManager(2.0**8, 2, 3)
    cell = manager.get_update_cell()
    return boost.BoostTrainOneStepWithLossScaleCell(Weighted(net).set_train(), optimizer, cell, **kwargs)


def plain(matrix: Path) -> nn.Cell:
    net = Mlp()
    return boost.BoostTrainOneStepCell(Weighted(net).set_train(), nn.Momentum(net.trainable_params(), 0.1, 0.9))


def loss_scale(matrix: Path) -> nn.Cell:
    net = Mlp()
    return dynamic(net, nn.Adam(net.trainable_params(), nn.ExponentialDecayLR(0.01, 0.9, 10)))


def freezing(matrix: Path) -> nn.Cell:
    net = Mlp()
    freeze = boost.GradientFreeze(2, 1, 0.5, 30)
    return dynamic(net, freeze.freeze_generate(net, nn.Adam(net.trainable_params(), 0.01))[1])


def accumulation(matrix: Path) -> nn.Cell:
    """50 is no multiple of 4: the window is cut in the middle."""
    net = Mlp()
    return dynamic(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), accumulation_steps=4)


def dim_reduce(matrix: Path) -> nn.Cell:
    net = Mlp()
    config = DimReduceConfig(n_components=4, pca_mat_path=str(matrix))
    optimizer = nn.Momentum(net.trainable_params(), 0.5, 0.9)
    return boost.BoostTrainOneStepWithLossScaleCell(
        Weighted(net).set_train(), optimizer, Tensor(8.0), dim_reduce=config
    )


def o1(matrix: Path) -> nn.Cell:
    net = Residual()
    config = {
        "boost": {"mode": "manual", "grad_accumulation": True},
        "grad_accumulation": {"grad_accumulation_step": 3},
    }
    config["grad_freeze"] = {"param_groups": 2, "freeze_p": 0.5, "total_steps": 20}
    optimizer = nn.Momentum(net.trainable_params(), 0.05, 0.9)
    manager = amp.DynamicLossScaleManager(2.0**8, 2, 3)
    return amp.build_train_network(
        Weighted(net), optimizer, boost_level="O1", boost_config_dict=config, loss_scale_manager=manager
    )


def dropout(matrix: Path) -> nn.Cell:
    """Layers whose seeds are others in each process: they come with the state."""
    net = Mlp()
    net.second = nn.SequentialCell(nn.Dropout(p=0.3), net.second, nn.Dropout(p=0.5))
    assert boost.replace_dropout(net) == ("second.0", "second.2")
    return dynamic(net, nn.Momentum(net.trainable_params(), 0.1, 0.9), accumulation_steps=4)


ALGORITHMS = [plain, loss_scale, freezing, accumulation, dim_reduce, o1, dropout]


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    elements = sum(p.size for p in Mlp().trainable_params())
    rows = np.linalg.qr(np.random.default_rng(0).standard_normal((elements, 4)))[0].T
    np.save(tmp_path / "P.npy", rows.astype(np.float32))
    return tmp_path / "P.npy"


def train(cell: nn.Cell, steps: range) -> list[tuple[np.ndarray, ...]]:
    """Every seventh batch overflows."""
    draw = mlp_batch if any(p.name.startswith("first") for p in cell.get_parameters()) else images
    outputs = []
    for i in steps:
        x, y = draw(i, 16)
        outputs.append(cell(x, y, Tensor(np.inf if i % 7 == 5 else 1.0, ms.float32)))
    return [tuple(np.array(t.asnumpy()) for t in output) for output in outputs]


def state(cell: nn.Cell) -> dict[str, np.ndarray]:
    return {name: value.asnumpy() for name, value in cell.state_dict().items()}


@pytest.mark.parametrize("make", ALGORITHMS, ids=lambda f: f.__name__)
@standard(lambda p: (not p.graph) == (p.make in (freezing, dim_reduce, dropout, o1)) and p.make is not plain)
def test_resumed_training_is_bit_for_bit(mode: int, make, matrix: Path, tmp_path: Path) -> None:
    whole = make(matrix)
    first_half = train(whole, range(STEPS))
    save_training_state(whole, tmp_path / "half.ckpt")
    expected = train(whole, range(STEPS, 2 * STEPS))
    end = state(whole)

    resumed = make(matrix)
    train(resumed, range(3))  # it may have moved before
    load_training_state(resumed, tmp_path / "half.ckpt")
    for ours, theirs in zip(train(resumed, range(STEPS, 2 * STEPS)), expected, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.tobytes() == b.tobytes()
    for name, value in state(resumed).items():
        assert value.tobytes() == end[name].tobytes(), name
    assert resumed.observe()["step"] == 2 * STEPS
    assert sum(bool(overflow) for _, overflow, _ in first_half + expected) == len(range(5, 2 * STEPS, 7))


@in_graph_mode
def test_a_checkpoint_of_mindspore_holds_the_state_too(mode: int, matrix: Path, tmp_path: Path) -> None:
    whole = freezing(matrix)
    train(whole, range(10))
    ms.save_checkpoint(whole, str(tmp_path / "all.ckpt"))
    expected = train(whole, range(10, 20))
    resumed = freezing(matrix)
    ms.load_param_into_net(resumed, ms.load_checkpoint(str(tmp_path / "all.ckpt")), strict_load=True)
    for ours, theirs in zip(train(resumed, range(10, 20)), expected, strict=True):
        assert [a.tobytes() for a in ours] == [b.tobytes() for b in theirs]


def test_the_random_state_of_mindspore(matrix: Path) -> None:
    cell = plain(matrix)
    saved = cell.state_dict()
    first = ms.get_rng_state().asnumpy()
    ms.manual_seed(17)
    assert np.any(ms.get_rng_state().asnumpy() != first)
    cell.load_state_dict(saved)
    np.testing.assert_array_equal(ms.get_rng_state().asnumpy(), first)


class Noise(nn.Cell):
    """Draws with what it is given: a cell, or a function of its input."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.dense, self.draw = nn.Dense(6, 4), draw

    def construct(self, x: Tensor) -> Tensor:
        return self.draw(self.dense(x))


class RandLike(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rand_like(x)


class MintRand(nn.Cell):
    """From the generator whose state is saved."""

    def construct(self, x: Tensor) -> Tensor:
        return x * mint.rand_like(x)


class Functional(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return self.masked(x)

    def masked(self, x: Tensor) -> Tensor:
        return ops.dropout(x, 0.5, self.training)


@pytest.mark.parametrize(
    ("draw", "named"),
    [
        (nn.Dropout(p=0.5), "net.draw"),
        (nn.Dropout1d(p=0.5), "net.draw"),
        (nn.Dropout2d(p=0.5), "net.draw"),
        (nn.Dropout3d(p=0.5), "net.draw"),
        (nn.MultiheadAttention(4, 2, dropout=0.5), "net.draw"),
        (RandLike(), "net.draw (ops.rand_like)"),
        (Functional(), "net.draw (ops.dropout)"),
        (ops.StandardNormal(), "net (StandardNormal)"),
        (nn.Dropout(p=0.0), None),
        (boost.Dropout(0.5), None),
        (nn.Dropout2d(p=0.0), None),
        (mint.nn.Dropout(0.5), None),
        (MintRand(), None),
        (nn.MultiheadAttention(4, 2), None),
        (ops.ReLU(), None),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_draws_random_numbers_is_warned_of(draw, named: str | None) -> None:
    net = Noise(draw)
    cell = boost.BoostTrainOneStepCell(Weighted(net).set_train(), nn.SGD(net.trainable_params(), 0.1))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cell.state_dict()
    said = [str(w.message) for w in caught if "random state" in str(w.message)]
    if named is None:
        assert not said
    else:
        (message,) = said
        assert message.startswith(f"state_dict: {named} draws from a random state that MindSpore keeps inside")


def test_a_state_of_another_training_is_refused(matrix: Path, tmp_path: Path) -> None:
    cell = freezing(matrix)
    before = state(cell)
    with pytest.raises(ValueError, match=r"must be of a cell made with the same arguments; missing: .*freeze.position"):
        cell.load_state_dict(plain(matrix).state_dict())
    other = Mlp()
    optimizer = boost.GradientFreeze(2, 1, 0.1, 30).freeze_generate(other, nn.Adam(other.trainable_params(), 0.01))[1]
    with pytest.raises(ValueError, match="the freeze schedule must be that of the state"):
        cell.load_state_dict(dynamic(other, optimizer).state_dict())
    wrong = cell.state_dict()
    wrong["head.weight"] = Tensor(np.zeros((3, 3), np.float32))
    with pytest.raises(ValueError, match=r"head.weight must be Float32 \(4, 12\), got Float32 \(3, 3\)"):
        cell.load_state_dict(wrong)
    wrong["head.weight"] = Tensor(np.zeros((4, 12), np.float16))
    with pytest.raises(ValueError, match=r"head.weight must be Float32 \(4, 12\), got Float16 \(4, 12\)"):
        cell.load_state_dict(wrong)
    with pytest.raises(TypeError, match="state must be a dict, got list"):
        cell.load_state_dict([])
    assert {k: v.tobytes() for k, v in state(cell).items()} == {k: v.tobytes() for k, v in before.items()}
    with pytest.raises(ValueError, match=r"path must end in \.ckpt, got"):
        save_training_state(cell, tmp_path / "state.npz")
    with pytest.raises(ValueError, match="path must be a file, got"):
        load_training_state(cell, tmp_path / "nothing.ckpt")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_checkpoint_cut_short_is_refused_and_the_one_before_still_loads(
    matrix: Path, tmp_path: Path, share: float
) -> None:
    cell = plain(matrix)
    before, path = tmp_path / "before.ckpt", tmp_path / "state.ckpt"
    save_training_state(cell, before)
    save_training_state(cell, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    was = state(cell)
    with pytest.raises(ValueError, match=r"load_training_state: path must end in the checksum .*state\.ckpt"):
        load_training_state(cell, path)
    assert {k: v.tobytes() for k, v in state(cell).items()} == {k: v.tobytes() for k, v in was.items()}
    load_training_state(cell, before)


def test_one_rank_keeps_two_files_and_loads_the_newest_whole_one(matrix: Path, tmp_path: Path) -> None:
    """tests/distributed has several ranks."""
    cell, folder = plain(matrix), tmp_path / "new" / "states"

    def steps() -> list[str]:
        return sorted(path.name for path in folder.iterdir())

    assert load_rank_state(cell, folder) == 0
    states = []
    for i in range(3):
        train(cell, range(i, i + 1))
        save_rank_state(cell, folder)
        states.append(state(cell))
    assert steps() == ["rank0-2.ckpt", "rank0-3.ckpt"]
    newest = bytearray((folder / "rank0-3.ckpt").read_bytes())
    newest[len(newest) // 2] ^= 1
    (folder / "rank0-3.ckpt").write_bytes(newest)
    again = plain(matrix)
    assert load_rank_state(again, folder) == again.steps_made == 2
    assert {k: v.tobytes() for k, v in state(again).items()} == {k: v.tobytes() for k, v in states[1].items()}
    assert steps() == ["rank0-2.ckpt"]
    with pytest.raises(ValueError, match=r"^load_rank_state: folder must hold .*; step 2 failed on rank 0, here: "):
        load_rank_state(freezing(matrix), folder)
    assert steps() == ["rank0-2.ckpt"]


def test_another_matrix_is_refused(matrix: Path) -> None:
    saved = dim_reduce(matrix).state_dict()
    np.save(matrix, -np.load(matrix))
    with pytest.raises(ValueError, match="the pca matrix must be that of the state"):
        dim_reduce(matrix).load_state_dict(saved)


def test_an_interrupted_write_leaves_the_old_file(matrix: Path, tmp_path: Path, monkeypatch) -> None:
    cell = plain(matrix)
    path = tmp_path / "state.ckpt"
    save_training_state(cell, path)
    old = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="No space left"):
        save_training_state(cell, path)
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir() if "state" in p.name] == ["state.ckpt"]


@pytest.mark.parametrize("make", [loss_scale, freezing], ids=lambda f: f.__name__)
@standard(lambda p: p.graph == (p.make is loss_scale))
def test_the_number_of_steps_is_in_a_checkpoint_of_mindspore(mode: int, make, matrix: Path, tmp_path: Path) -> None:
    cell = make(matrix)
    train(cell, range(7))  # the sixth overflows, and is a step
    ms.save_checkpoint(cell, str(tmp_path / "all.ckpt"))
    entries = ms.load_checkpoint(str(tmp_path / "all.ckpt"))
    again = make(matrix)
    train(again, range(2))
    ms.load_param_into_net(again, dict(entries), strict_load=True)
    assert again.steps_made == again.observe()["step"] == 7
    train(again, range(7, 10))
    assert again.steps_made == int(again.state_dict()["boost.steps"].asnumpy()[0]) == 10
    # One from before steps were counted in a Parameter.
    old = {name: value for name, value in entries.items() if name != "boost.steps"}
    missing, _ = ms.load_param_into_net(again, old)
    assert missing == ["boost.steps"]
    assert again.steps_made == 10


def test_a_state_from_before_the_steps_were_a_parameter(matrix: Path) -> None:
    cell = plain(matrix)
    train(cell, range(3))
    old = cell.state_dict()
    old["boost_ext.step"] = Tensor(int(old.pop("boost.steps").asnumpy()[0]), ms.int64)
    again = plain(matrix)
    again.load_state_dict(old)
    assert again.steps_made == 3
    assert "boost.steps" not in old


def test_a_state_from_when_the_count_of_micro_batches_had_an_axis(matrix: Path) -> None:
    cell = accumulation(matrix)
    train(cell, range(1))
    old = cell.state_dict()
    old["accumulation_step"] = old["accumulation_step"].reshape(1)
    again = accumulation(matrix)
    again.load_state_dict(old)
    assert again.observe()["micro_batch"] == cell.observe()["micro_batch"] == 1


class Scaled(nn.Cell):
    """A layer with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones(3, np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        return x * self.w


@pytest.mark.parametrize("name", ["statistics", "finiteness", "stamps", "faults"])
def test_weights_of_any_name_are_saved(name: str) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), Scaled())
    net[1].w.name = f"1.{name}"  # as Parameters of the step are called
    optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
    cell = boost.BoostTrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), optimizer).set_train()
    cell.watch(True)
    state = cell.state_dict()
    assert {f"1.{name}", f"moments.1.{name}"} <= state.keys()
    assert not [key for key in state if key.startswith("guard")]


def test_a_loaded_state_stays_the_callers() -> None:
    """A bfloat16 weight cannot be assigned: its memory is exchanged, and the next steps write into it."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(np.ones(4), ms.bfloat16), name="w")

        def construct(self, x: Tensor) -> Tensor:
            return (ops.cast(self.w, ms.float32) * x).sum()

    net, x = Net(), Tensor(np.ones(4, np.float32))
    cell = boost.BoostTrainOneStepCell(net, optim.SGD(net.trainable_params(), 0.5))
    state = cell.state_dict()
    for _ in range(2):
        cell.load_state_dict(state)
        cell(x)
        np.testing.assert_array_equal(net.w.astype(ms.float32).asnumpy(), 0.5)
        np.testing.assert_array_equal(state["w"].astype(ms.float32).asnumpy(), 1.0)
