"""State in 8 and 16 bits: the bits of the op on arrays, checkpoints, narrowed and rebuilt optimizers, a training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from tests.ms.optim.cases import CASES, arrays, gradients, parameters
from tests.ms.tiers import standard

from boost_ext import boost, checkpoint, optim
from boost_ext import ops as array_ops
from boost_ext.ms.core.optimizer_copy import restrict
from boost_ext.ms.optim.rebuild import parameter_groups, rebuild

NAMES = ["Momentum", "Adam", "AdamWeightDecay", "AdamW", "Lamb", "Lion", "NAdamW"]
FUNCTIONS = {"AdamWeightDecay": "adam_weight_decay_step"}
PREFIXES = {"Momentum": ["moments"], "Adam": ["moment1", "moment2"], "Lion": ["exp_avg"]}
# Coded, small, half with a master, coded with a last block of one element.
SHAPES = {"conv.weight": (16, 30, 3, 3), "conv.bias": (16,), "fc.weight": (64, 70), "last.weight": (4097,)}
DTYPES = (ms.float32, ms.float32, ms.float16, ms.float32)
EACH_NAME = pytest.mark.parametrize("name", NAMES)
EACH_DTYPE = pytest.mark.parametrize("dtype", ["bfloat16", "float8"])


def make(name: str, params: Any, dtype: str, **more: Any) -> optim.FusedOptimizer:
    return CASES[name].make(params, 0.01, state_dtype=dtype, **more)


def number_of_scales(optimizer: optim.FusedOptimizer) -> int:
    return sum(hasattr(optimizer, f"scales{k}") for k in range(optimizer.number_of_states))


def states(optimizer: optim.FusedOptimizer) -> list[np.ndarray]:
    """With their scales; the bits."""
    lists = [getattr(optimizer, f"states{k}") for k in range(optimizer.number_of_states)]
    lists += [getattr(optimizer, f"scales{k}") for k in range(number_of_scales(optimizer))]
    return [np.array(p.asnumpy()) for states in lists for p in states]


def on_arrays(name: str, weights: list[Any], state: Any, scales: Any, grads: Any, step: int, **more: Any) -> None:
    function = getattr(array_ops, FUNCTIONS.get(name, f"{name.lower()}_step"))
    masters = [None if w.dtype == np.float32 else m for w, m in weights]
    function([w for w, _ in weights], grads, *state, lr=0.01, step=step, scales=scales, masters=masters, **more)


def assert_equal(got: Any, expected: Any) -> None:
    for a, b in zip(got, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@EACH_DTYPE
@EACH_NAME
@standard(lambda p: not p.graph or p.dtype == "float8")
def test_as_on_arrays(mode: int, name: str, dtype: str) -> None:
    """Bit for bit, which tests/ops compares with NumPy; small parameters keep float32."""
    params = parameters(SHAPES, DTYPES)
    optimizer = make(name, params, dtype, state_seed=7)
    count = optimizer.number_of_states
    small = [p.size < 4096 for p in params]
    kinds = {"bfloat16": ms.bfloat16, "float8": ms.uint8}
    for k in range(count):
        assert [s.dtype for s in getattr(optimizer, f"states{k}")] == [ms.float32 if x else kinds[dtype] for x in small]
    weights = [(np.array(p.asnumpy()), p.asnumpy().astype(np.float32)) for p in params]
    state = [[np.array(s.asnumpy()) for s in getattr(optimizer, f"states{k}")] for k in range(count)]
    coded = dtype == "float8"
    scales = [[np.zeros(-(-s.size // 256), np.float32) if s.dtype == np.uint8 else None for s in x] for x in state]
    assert number_of_scales(optimizer) == coded * count
    for step in range(1, 6):
        grads = gradients(step, params)
        optimizer(grads)
        on_arrays(
            name,
            weights,
            state,
            scales if coded else None,
            [g.asnumpy() for g in grads],
            step,
            seed=7,
            **({"momentum": 0.9} if name == "Momentum" else {}),
        )
    assert_equal([p.asnumpy() for p in params], [w for w, _ in weights])
    listed = [s for x in state for s in x]
    if coded:
        pairs = zip(state, scales, strict=True)
        listed += [s if c is None else c for x, y in pairs for s, c in zip(x, y, strict=True)]
    assert_equal(states(optimizer), listed)


@EACH_DTYPE
@EACH_NAME
@standard(lambda p: not p.graph or (p.name, p.dtype) in (("Adam", "float8"), ("Lamb", "bfloat16")))
def test_a_skipped_step_writes_nothing(mode: int, name: str, dtype: str) -> None:
    """No state, no scale, and the random bits of the next step are those of its number."""
    params, others = parameters(SHAPES, DTYPES), parameters(SHAPES, DTYPES)
    optimizer, other = make(name, params, dtype), make(name, others, dtype)
    unit = Tensor([1.0], ms.float32)
    for step in range(3):
        grads = gradients(step, params)
        optimizer(grads)
        other(grads)
        before = states(optimizer)
        bad = tuple(g * float("inf") for g in grads)
        optimizer.step_unless(Tensor([True]), unit, bad)
        assert_equal(states(optimizer), before)
    assert_equal(states(optimizer), states(other))
    assert_equal(arrays(params), arrays(others))
    assert optimizer.global_step.asnumpy() == [3]


def test_seeds_differ() -> None:
    results = []
    for seed in (0, 1):
        params = parameters(SHAPES)
        optimizer = make("Adam", params, "float8", state_seed=seed)
        for step in range(3):
            optimizer(gradients(step, params))
        results.append(states(optimizer)[0])
    assert (results[0] != results[1]).any()


def test_500_parameters(mode: int) -> None:
    """Of which every fifth has narrow state."""
    shapes = {f"p{i}.w": (4100,) if i % 5 == 0 else (3,) for i in range(500)}
    params, wide = parameters(shapes), parameters(shapes)
    optimizer, other = make("Adam", params, "float8"), make("Adam", wide, "float32")
    for step in range(2):
        optimizer(gradients(step, params))
        other(gradients(step, params))
    for i, (a, b) in enumerate(zip(arrays(params), arrays(wide), strict=True)):
        if i % 5:
            np.testing.assert_array_equal(a, b)
        else:
            assert 0 < np.abs(a - b).max() < 0.01


@EACH_DTYPE
@EACH_NAME
def test_names_in_a_checkpoint(name: str, dtype: str) -> None:
    optimizer = make(name, parameters(SHAPES), dtype)
    wide = {p.name for p in make(name, parameters(SHAPES), "float32").get_parameters()}
    found = {p.name for p in optimizer.get_parameters()}
    prefixes = PREFIXES.get(name) or [s[0].name.split(".")[0] for s in (optimizer.moments1, optimizer.moments2)]
    big = [n for n, shape in SHAPES.items() if np.prod(shape) >= 4096]
    assert found - wide == ({f"{p}_scale.{n}" for p in prefixes for n in big} if dtype == "float8" else set())
    assert wide <= found


@pytest.mark.parametrize("target", ["float32", "bfloat16", "float8"])
@pytest.mark.parametrize("source", ["mindspore", "float32", "bfloat16", "float8"])
def test_from_another_storage(source: str, target: str, tmp_path: Path) -> None:
    """convert_state rounds to the nearest; without it, MindSpore refuses codes for floats and floats for codes."""
    params, others = parameters(SHAPES), parameters(SHAPES)
    first = CASES["Adam"].make_theirs(params, 0.01) if source == "mindspore" else make("Adam", params, source)
    second = make("Adam", others, target)
    for step in range(3):
        first(gradients(step, params))
    ms.save_checkpoint(first, str(tmp_path / "first.ckpt"))
    loaded = ms.load_checkpoint(str(tmp_path / "first.ckpt"))
    if (source == "float8") != (target == "float8"):
        with pytest.raises(RuntimeError, match="should have the same type"):
            ms.load_param_into_net(second, dict(loaded))
    converted = optim.convert_state(loaded, second)
    missing, unused = ms.load_param_into_net(second, converted)
    assert not missing
    assert not unused
    assert second.global_step.asnumpy() == [3]
    for k, (one, two) in enumerate([(first.moment1, second.moment1), (first.moment2, second.moment2)]):
        for i, (a, b) in enumerate(zip(one, two, strict=True)):
            x, y = floats(first, k, i, a), floats(second, k, i, b)
            narrow = target if a.size >= 4096 and target != source else "float32"
            largest = np.abs(x).max()
            bound = {"float32": 0 * x, "bfloat16": 2.0**-8 * np.abs(x), "float8": np.full(x.shape, 2 / 31 * largest)}
            assert (np.abs(x - y) <= bound[narrow]).all()
    second(gradients(3, others))
    if source == "float8":
        for name in [n for n in loaded if "scale" in n]:
            loaded.pop(name)
        if target != "float8":
            with pytest.raises(ValueError, match=r"^convert_state: checkpoint must hold moment1_scale\.\S+ with "):
                optim.convert_state(loaded, second)


def floats(optimizer: Any, k: int, i: int, state: Parameter) -> np.ndarray:
    if state.dtype != ms.uint8:
        return state.asnumpy().astype(np.float32)
    scales = getattr(optimizer, f"scales{k}")[i].asnumpy()
    return array_ops.dequantize_state(state.asnumpy(), scales, non_negative=k == 1)


class Net(nn.Cell):
    """Two wide layers, and the loss times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Dense(20, 210), nn.Dense(210, 20)
        rng = np.random.default_rng(0)
        for p in self.trainable_params():
            p.set_data(Tensor((0.1 * rng.standard_normal(p.shape)).astype(np.float32)))

    def construct(self, x: Tensor, weight: Tensor) -> Tensor:
        return ((self.second(self.first(x).tanh()) - x) ** 2).mean() * weight


TRAININGS = [(ms.PYNATIVE_MODE, "Adam", "bfloat16"), (ms.PYNATIVE_MODE, "Adam", "float8")]
TRAININGS += [(ms.GRAPH_MODE, "Adam", "float8"), (ms.PYNATIVE_MODE, "Lamb", "float8")]


@pytest.mark.parametrize(("mode", "name", "dtype"), TRAININGS, indirect=["mode"])
@standard(lambda p: p.graph == (p.dtype == "float8"))
def test_a_training_goes_on(mode: int, name: str, dtype: str, tmp_path: Path) -> None:
    """From a file, bit for bit, with a step that overflows; and it learns as it does with float32."""

    def cell(kind: str) -> nn.Cell:
        net = Net()
        manager = nn.DynamicLossScaleUpdateCell(2.0**8, 2, 3)
        return boost.BoostTrainOneStepWithLossScaleCell(net, make(name, net.trainable_params(), kind), manager)

    def train(step: nn.Cell, which: range) -> list[float]:
        losses = []
        for i in which:
            x = Tensor(np.random.default_rng(i).standard_normal((8, 20)).astype(np.float32))
            losses.append(float(step(x, Tensor(np.inf if i == 4 else 1.0, ms.float32))[0].asnumpy()))
        return losses

    whole, resumed, wide = cell(dtype), cell(dtype), cell("float32")
    train(whole, range(3))
    checkpoint.save_training_state(whole, str(tmp_path / "half.ckpt"))
    expected = train(whole, range(3, 12))
    train(resumed, range(1))
    checkpoint.load_training_state(resumed, str(tmp_path / "half.ckpt"))
    got = train(resumed, range(3, 12))
    np.testing.assert_array_equal(got, expected)
    assert_equal(states(resumed.optimizer), states(whole.optimizer))
    reference = train(wide, range(12))[3:]
    np.testing.assert_allclose(got[5:], reference[5:], rtol=0.02)
    with pytest.raises(ValueError, match=r"^load_state_dict: (state must be of a cell made with the same|\S+ must be)"):
        wide.load_state_dict(whole.state_dict())


@EACH_DTYPE
@standard(lambda p: not p.graph or p.dtype == "float8")
def test_narrowed(mode: int, dtype: str) -> None:
    """The narrowed optimizer has the states and scales of its parameters, and both count the same steps."""
    params = parameters(SHAPES, DTYPES)
    optimizer = make("Adam", params, dtype)
    some = restrict(optimizer, [params[3], params[0]])
    for step in range(4):
        grads = gradients(step, params)
        before = states(optimizer)
        if step % 2:
            some((grads[3], grads[0]))
            for i, (a, b) in enumerate(zip(states(optimizer), before, strict=True)):
                assert np.array_equal(a, b) == (i % 4 in (1, 2))
        else:
            optimizer(grads)
    assert optimizer.global_step.asnumpy() == [4]
    assert some.states[0] is optimizer.states0[3]
    if dtype == "float8":
        scales = some.states[4:]
        assert scales[0] is optimizer.scales0[3]
        assert len(scales) == 4


@EACH_DTYPE
@standard(lambda p: not p.graph or p.dtype == "float8")
def test_freeze_opt(mode: int, dtype: str) -> None:
    params = parameters(SHAPES)
    freeze = boost.FreezeOpt(make("Adam", params, dtype), train_parameter_groups=[params, params[2:]])
    for step in range(2):
        freeze.opts[0](gradients(step, params))
    frozen = arrays(params)
    freeze.opts[1](gradients(2, params[2:]))
    for i, (a, b) in enumerate(zip(arrays(params), frozen, strict=True)):
        assert np.array_equal(a, b) == (i < 2)


@EACH_DTYPE
@EACH_NAME
def test_rebuilt(name: str, dtype: str) -> None:
    """With centralization, too: rows end within blocks. State and scales come along."""
    params, others = parameters(SHAPES, DTYPES), parameters(SHAPES, DTYPES)
    first, other = make(name, params, dtype, state_seed=3), make(name, others, dtype, state_seed=3)
    for optimizer, of in ((first, params), (other, others)):
        optimizer(gradients(0, of))
    second = rebuild(first, parameter_groups(first))
    assert second.init_args["state_dtype"] == dtype
    assert_equal(states(second), states(first))
    second(gradients(1, params))
    other(gradients(1, others))
    assert_equal(states(second), states(other))
    assert_equal(arrays(params), arrays(others))
    groups = [{"params": params, "grad_centralization": True}]
    third = rebuild(second, groups)
    third(gradients(2, params))
    assert all(np.isfinite(p).all() for p in arrays(params))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"state_dtype": 8}, TypeError, "state_dtype must be a str, got int"),
        ({"state_dtype": "int8"}, ValueError, "state_dtype must be one of float32, bfloat16, float8, got 'int8'"),
        ({"state_seed": 1.0}, TypeError, "state_seed must be an int, got float"),
        ({"state_seed": -1}, ValueError, r"state_seed must be in \[0, 2\*\*31\), got -1"),
        ({"state_seed": 2**31}, ValueError, r"state_seed must be in \[0, 2\*\*31\), got 2147483648"),
    ],
)
@EACH_NAME
def test_what_is_refused(name: str, arguments: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=f"^{name}: {text}$"):
        CASES[name].make(parameters(SHAPES), **arguments)


def test_amsgrad_keeps_float32() -> None:
    with pytest.raises(ValueError, match=r"^Adam: state_dtype must be 'float32' with use_amsgrad, got 'float8'$"):
        optim.Adam(parameters(SHAPES), use_amsgrad=True, state_dtype="float8")
