"""Split masters: the bits of float32 ones, checkpoints of each form, and what goes around them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from mindspore.common.sparse_tensor import RowTensorInner
from tests.ms.optim.cases import CASES, CLASSES, arrays, gradients, parameters
from tests.ms.test_dim_reduce import config, matrix, tensors
from tests.ms.test_dim_reduce_bfloat16 import Narrow
from tests.ops.narrow_state import join_master, split_master

from boost_ext import boost, checkpoint, optim
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.optim.rebuild import parameter_groups, rebuild
from boost_ext.ms.step.options import StepOptions

__all__ = ["matrix"]  # the fixture

WITHOUT = ("AdaFactor", "Muon", "Apollo", "GaLore")
KINDS = ("float32", "split16", "split8")
DTYPES = {"float32": ms.float32, "split16": ms.int16, "split8": ms.uint8}
SHAPES = {"conv.weight": (4, 3, 3, 3), "conv.bias": (4,), "fc.weight": (64, 70), "scale": (), "nothing": (0, 3)}
HALVES = (ms.bfloat16,)
MIXED = (ms.bfloat16, ms.bfloat16, ms.float32)
EACH_SPLIT = pytest.mark.parametrize("kind", KINDS[1:])


def wide(optimizer: Any) -> list[np.ndarray]:
    """The masters, put together by the oracle."""
    found = []
    for p, m in zip(optimizer.parameters, optimizer.masters, strict=True):
        kept = m.asnumpy()
        if m.dtype in (ms.int16, ms.uint8):
            kept = join_master(p.asnumpy().view(np.uint16), kept.view(np.int8) if m.dtype == ms.uint8 else kept)
        found.append(np.array(kept, np.float32).reshape(p.shape))
    return found


def assert_bits(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype == np.float32
        np.testing.assert_array_equal(a.reshape(-1).view(np.uint32), b.reshape(-1).view(np.uint32))


def assert_rounded(optimizer: Any, masters: Any, bits: int) -> None:
    """Each half weight and its residual are those of a master; float32 weights are their own."""
    for p, m, w in zip(optimizer.parameters, optimizer.masters, masters, strict=True):
        assert (m is p) == (p.dtype == ms.float32)
        if m is not p:
            half, residual = split_master(w, bits)
            assert m.shape == p.shape
            np.testing.assert_array_equal(p.asnumpy().reshape(-1).view(np.uint16), half.reshape(-1))
            np.testing.assert_array_equal(m.asnumpy().reshape(-1).view(residual.dtype), residual.reshape(-1))


def run(optimizer: Any, steps: Any) -> None:
    for step in steps:
        optimizer(gradients(step, optimizer.parameters))


@pytest.mark.parametrize("name", [name for name in CLASSES if name not in WITHOUT])
def test_each_class(name: str) -> None:
    """split16 has the bits of float32; the first step of split8 is that of float32, rounded. Also if rebuilt."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    made = {kind: CASES[name].make(parameters(SHAPES, MIXED), 0.01, master=kind, weight_decay=0.1) for kind in KINDS}
    for optimizer in made.values():
        run(optimizer, range(1))
    assert_rounded(made["split8"], wide(made["float32"]), 8)
    for kind in KINDS[1:]:
        first = made[kind]
        made[kind] = rebuild(first, parameter_groups(first))
        assert made[kind].master == kind
        assert f"master={kind}" in repr(made[kind])
        assert_bits(wide(made[kind]), wide(first))
    for kind in KINDS[:2]:
        run(made[kind], range(1, 6))
    assert_bits(wide(made["split16"]), wide(made["float32"]))
    assert_rounded(made["split16"], wide(made["float32"]), 16)


def test_200_steps(mode: int) -> None:
    """Of groups, with learning rates below the spacing of the weights. split8 rounds by 2^-16 of a weight a step."""
    made = []
    for name in ("AdamW", "Momentum"):
        for kind in KINDS:
            params = parameters(SHAPES, HALVES)
            groups = [{"params": params[:2], "lr": 1e-4}, {"params": params[2:]}, {"order_params": params}]
            made.append(CASES[name].make(groups, 1e-3, master=kind, weight_decay=0.1))
    for step in range(200):
        grads = gradients(step, params)
        for optimizer in made:
            optimizer(grads)
    for one, two, three in (made[:3], made[3:]):
        assert_bits(wide(two), wide(one))
        for a, b in zip(wide(three), wide(one), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=200 * 2.0**-16 * np.abs(b).max(initial=0))
        assert any((a != b).any() for a, b in zip(wide(three), wide(one), strict=True))


class Net(nn.Cell):
    """A regression with bfloat16 weights, for state of 8 bits large enough."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        for name, shape in (("first", (8, 600)), ("second", (600, 2))):
            values = (shape[0] ** -0.5 * rng.standard_normal(shape)).astype(np.float32)
            setattr(self, name, Parameter(Tensor(values).astype(ms.bfloat16), name=name))

    def construct(self, x: Tensor, y: Tensor) -> Tensor:
        hidden = ops.tanh(ops.matmul(x, ops.cast(self.first, ms.float32)))
        return ((ops.matmul(hidden, ops.cast(self.second, ms.float32)) - y) ** 2).mean()


def cell_of(kind: str) -> nn.Cell:
    net = Net()
    optimizer = optim.AdamW(net.trainable_params(), 1e-3, master=kind, state_dtype="float8")
    manager = nn.DynamicLossScaleUpdateCell(2.0**8, 2, 50)
    average = boost.ExponentialMovingAverage(0.9)
    return boost.BoostTrainOneStepWithLossScaleCell(net, optimizer, manager, weight_average=average)


def train(cell: nn.Cell, steps: Any) -> None:
    for step in steps:
        x = np.random.default_rng(step).standard_normal((16, 8)).astype(np.float32)
        y = np.full((16, 2), np.inf if step == 3 else 1.0, np.float32)
        cell(Tensor(x), Tensor(y))


MODES = [(ms.PYNATIVE_MODE, "split16"), (ms.GRAPH_MODE, "split8")]


@pytest.mark.parametrize(("mode", "kind"), MODES, indirect=["mode"])
def test_5_and_5_steps_in_a_cell_are_10(mode: int, kind: str, tmp_path: Path) -> None:
    """With an overflow, and an average of the weights that takes their place for a while."""
    cell = cell_of(kind)
    start = cell.state_dict()
    train(cell, range(5))
    checkpoint.save_training_state(cell, tmp_path / "state.ckpt")
    train(cell, range(5, 10))
    whole = cell.state_dict()
    assert whole["master.first"].dtype == DTYPES[kind]
    cell.load_state_dict(start)
    train(cell, range(2))
    checkpoint.load_training_state(cell, tmp_path / "state.ckpt")
    train(cell, range(5, 7))
    with cell.weight_average.swapped_in():
        pass
    train(cell, range(7, 10))
    assert cell.optimizer.global_step.asnumpy() == [9]
    for key, value in cell.state_dict().items():
        if key != "boost_ext.random_state":
            assert value.asnumpy().tobytes() == whole[key].asnumpy().tobytes(), key
    other = cell_of("float32")
    text = rf"^load_state_dict: master.first must be Float32 \(8, 600\), got {DTYPES[kind]} \(8, 600\)"
    with pytest.raises(ValueError, match=text):
        other.load_state_dict(whole)
    other.load_state_dict(optim.convert_state(whole, other.optimizer))
    assert_bits(wide(other.optimizer), wide(cell.optimizer))


def halfway(params: list[Parameter]) -> list[np.ndarray]:
    """Masters halfway between two weights, the lower of them even or odd, and others around, of either sign."""
    lower = np.array([0x8000, 0x7FFF, 0x8001, 0, 0x7F80, 0x7F7F, 0x8000], np.uint32)
    bits = [p.asnumpy().astype(np.float32).view(np.uint32) & 0xFFFF0000 for p in params]
    return [np.asarray(b | np.resize(lower, b.shape), np.uint32).view(np.float32) for b in bits]


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("of", KINDS)
def test_checkpoints_go_over(of: str, to: str, tmp_path: Path) -> None:
    """To the bit but from more digits into split8. Without convert_state MindSpore refuses the masters."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    one, two = (optim.AdamW(parameters(SHAPES, HALVES), 1e-4, master=kind) for kind in (of, to))
    run(two, range(1))
    masters = halfway(one.parameters)
    start = {f"master.{p.name}": Parameter(Tensor(m)) for p, m in zip(one.parameters, masters, strict=True)}
    ms.load_param_into_net(one, optim.convert_state(start, one))
    if of == "float32":
        for p in one.parameters:  # which its master would follow
            p.set_data(start[f"master.{p.name}"].value().astype(ms.bfloat16))
    ms.save_checkpoint(one, str(tmp_path / "one.ckpt"))
    saved = ms.load_checkpoint(str(tmp_path / "one.ckpt"))
    if of != to:
        with pytest.raises(RuntimeError, match=r"master.conv.weight .* should have the same type"):
            ms.load_param_into_net(two, dict(saved))
    missing, unused = ms.load_param_into_net(two, optim.convert_state(saved, two))
    assert not [name for name in missing if not name.endswith("nothing")]  # MindSpore saves no empty ones
    assert not unused
    if to == "split8":
        for a, b in zip(wide(two), masters, strict=True):
            np.testing.assert_allclose(a, b, rtol=2.0**-16)
    if to != "float32":
        assert_rounded(two, wide(one), 16 if to == "split16" else 8)
    if "split8" in (of, to) and of != to:
        return
    assert_bits(wide(two), wide(one))
    run(one, range(3))
    run(two, range(3))
    assert_bits(wide(two), wide(one))


def test_checkpoints_without_masters_or_weights() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    optimizer = optim.AdamW(parameters(SHAPES, HALVES), 0.1, master="split16")
    run(optimizer, range(2))
    weights = {p.name: p for p in parameters(SHAPES)}
    ms.load_param_into_net(optimizer, optim.convert_state(weights, optimizer))
    assert_bits(wide(optimizer), [p.asnumpy() for p in weights.values()])  # float32 weights, to the last bit
    text = r"^convert_state: checkpoint must hold fc.weight in bfloat16 with master.fc.weight$"
    with pytest.raises(ValueError, match=text):
        optim.convert_state({"master.fc.weight": optimizer.masters[2]}, optim.AdamW(parameters(SHAPES, HALVES)))


def test_every_kind_of_float() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    values = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 3.4e38, 1e-45, -1e-40], np.float32)
    ones = np.ones(values.shape, np.float32)
    one, two = (optim.SGD([Parameter(Tensor(ones).astype(ms.bfloat16), name="w")], master=k) for k in KINDS[:2])
    ms.load_param_into_net(two, optim.convert_state({"master.w": Parameter(Tensor(values))}, two))
    back = optim.convert_state({p.name: p for p in two.get_parameters()}, one)["master.w"].asnumpy()
    np.testing.assert_array_equal(back, values)
    np.testing.assert_array_equal(np.signbit(back)[3:], np.signbit(values)[3:])


@EACH_SPLIT
def test_a_weight_that_is_set_keeps_its_residual(mode: int, kind: str) -> None:
    """The next step begins within half a spacing of it, or at it, if the residual is set to 0."""
    params = parameters({"kept": (64, 70), "zeroed": (5,)}, HALVES)
    optimizer = optim.SGD(params, 0.01, master=kind)
    run(optimizer, range(2))
    residuals = [np.array(m.asnumpy()) for m in optimizer.masters]
    assert all(r.any() for r in residuals)
    for p in params:
        p.set_data(Tensor(np.full(p.shape, 0.5, np.float32)).astype(ms.bfloat16))
    optimizer.masters[1].set_data(Tensor(np.zeros_like(residuals[1])))
    begun = wide(optimizer)
    run(optimizer, range(2, 3))
    np.testing.assert_array_equal(begun[1], 0.5)
    assert 0 < np.abs(begun[0] - 0.5).max() <= 0.5 * 2.0**-8
    for got, w, g in zip(wide(optimizer), begun, gradients(2, params), strict=True):
        np.testing.assert_allclose(got, w - np.float32(0.01) * g.asnumpy().astype(np.float32), rtol=2.0**-16)


def test_memory() -> None:
    """Bytes beside the weights: AdamW's state of 8 bits and a residual of 8 bits are 3 and a little."""
    size, bytes_of = 64 * 70, {}
    for kind in KINDS:
        optimizer = optim.AdamW(parameters({"w": (64, 70)}, HALVES), master=kind, state_dtype="float8")
        bytes_of[kind] = sum(p.nbytes for p in optimizer.get_parameters() if p.name.endswith(".w"))
    scales = 2 * 4 * -(-size // 256)
    assert bytes_of == {"float32": 6 * size + scales, "split16": 4 * size + scales, "split8": 3 * size + scales}


def test_narrowed_and_frozen(mode: int) -> None:
    made = []
    for kind in KINDS[:2]:
        optimizer = optim.Adam(parameters(SHAPES, HALVES), 0.01, master=kind)
        some = restrict(optimizer, [optimizer.parameters[i] for i in (2, 0)])
        for step in range(4):
            run(some if step % 2 else optimizer, [step])
        assert some.half_masters[0] is optimizer.masters[2]
        made.append(optimizer)
    assert_bits(wide(made[1]), wide(made[0]))
    freeze = boost.FreezeOpt(optimizer, train_parameter_groups=[optimizer.parameters, optimizer.parameters[2:]])
    before = arrays(optimizer.masters)
    run(freeze.opts[1], range(1))
    for i, (a, b) in enumerate(zip(arrays(optimizer.masters), before, strict=True)):
        assert np.array_equal(a, b) == (i < 2 or not a.size)


def test_lars_and_rows() -> None:
    """What else the native step takes: a factor for each gradient, and rows that a sparse one names."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    found = []
    for kind in KINDS[:2]:
        around = optim.LARS(optim.Momentum(parameters(SHAPES, HALVES), 0.1, 0.9, master=kind), coefficient=0.1)
        run(around, range(1))
        lazy = optim.LazyAdam(parameters({"table": (6, 3)}, HALVES), 0.01, master=kind)
        for step in range(3):
            values = gradients(step, parameters({"rows": (3, 3)}))[0]
            lazy((RowTensorInner(Tensor(np.array([4, 1, 4], np.int32)), values, (6, 3)),))
        found.append(wide(around.opt) + wide(lazy))
    assert_bits(*found)


@EACH_SPLIT
def test_the_average_of_schedule_free(kind: str) -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    one, two = (optim.ScheduleFreeSGD(parameters(SHAPES, HALVES), 0.05, master=k) for k in ("float32", kind))
    error = 1e-6 if kind == "split16" else 2.0**-13
    for optimizer in (one, two):
        run(optimizer, range(5))
    for switch in ("eval", "train"):
        for optimizer in (one, two):
            getattr(optimizer, switch)()
        for a, b in zip(wide(two), wide(one), strict=True):
            np.testing.assert_allclose(a, b, rtol=error, atol=error)


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], indirect=True)
def test_dim_reduce(mode: int, matrix: Path) -> None:
    """The search moves the weights and puts them back; the residuals fit them again."""
    found = []
    for kind in KINDS[:2]:
        net = Narrow()
        optimizer = optim.Momentum(net.trainable_params(), 0.3, 0.5, master=kind)
        cell = boost.BoostTrainOneStepCell(net, optimizer, dim_reduce=config(matrix, alpha=0.05, max_search=8))
        for step in range(8):
            cell(*tensors(step))
        found.append(wide(optimizer))
    assert_bits(*found)


def test_adasum_is_refused() -> None:
    optimizer = optim.Momentum(parameters(SHAPES, HALVES), 0.1, 0.9, master="split8")
    text = r"^cell: Momentum must have master='float32' with adasum, which adds up .* the masters, got 'split8'$"
    for each in (optimizer, optim.LARS(optimizer)):
        each.require_options("cell", StepOptions(clip_norm=1.0))
        with pytest.raises(ValueError, match=text):
            each.require_options("cell", StepOptions(adasum_devices=2))
    optim.Momentum(parameters(SHAPES), 0.1, 0.9).require_options("cell", StepOptions(adasum_devices=2))


@pytest.mark.parametrize(
    ("dtype", "master", "error", "text"),
    [
        (ms.bfloat16, True, TypeError, "master must be a str, got bool"),
        (ms.bfloat16, "half", ValueError, "master must be one of float32, split16, split8, got 'half'"),
        (ms.float16, "split16", TypeError, "master must be 'float32' for float16 parameters, got 'split16'"),
    ],
)
def test_what_is_refused(dtype: Any, master: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^AdamW: {text}$"):
        optim.AdamW(parameters(SHAPES, (ms.bfloat16, dtype)), master=master)


@pytest.mark.parametrize("name", WITHOUT)
def test_rules_without_split_masters(name: str) -> None:
    with pytest.raises(TypeError, match=rf"^{name}\b.*master"):
        CASES[name].make(parameters(SHAPES, HALVES), master="split16")
