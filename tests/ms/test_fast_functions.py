"""What compiled training cells take for MindSpore's functions: the same numbers, in the same places."""

from __future__ import annotations

from functools import partial
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn, ops
from residual_networks import Basic, ResNet, batch, fill
from tests.ms.fast_layers import Called, Gelu, Gradients, Layer, Once, Product, Shares, Sum, arrays, both, near

from boost_ext import amp, convolutions, optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.ms.core import fast_calls
from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted
from boost_ext.ms.native import conv2d, products

pytestmark = pytest.mark.usefixtures("graph_mode")
RNG = np.random.default_rng(5)
LABELS = Tensor(np.array([2, 0, 6, -100, 1, 6], np.int32))


def floats(*shape: int) -> Tensor:
    return Tensor(RNG.standard_normal(shape).astype(np.float32))


class CrossEntropy(nn.Cell):  # type: ignore[misc]
    def __init__(self, labels: Tensor = LABELS, **options: Any) -> None:
        super().__init__()
        self.labels, self.options = labels, options

    def construct(self, x: Tensor) -> Tensor:
        return ops.cross_entropy(x, self.labels, **self.options)


class Permuted(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Tensor) -> Tensor:
        y = ops.transpose(x, (2, 0, 1)) * x.transpose((2, 0, -2))
        z = x.swapaxes(0, -1) * ops.swapaxes(x, 2, 0)
        return y.sum() + (z * z).sum() + (x[0].T * x[0].swapaxes(1, 0)).sum()


CASES: dict[str, tuple[nn.Cell, tuple[Tensor, ...]]] = {
    "gelu": (Gelu("none"), (floats(5, 7),)),
    "gelu tanh": (Gelu("tanh"), (floats(40),)),
    "nn.GELU": (Layer(nn.GELU()), (floats(2, 3, 4),)),
    "cross_entropy": (CrossEntropy(), (floats(6, 7),)),
    "cross_entropy sum": (CrossEntropy(ops.abs(LABELS) % 7, reduction="sum", ignore_index=6), (floats(6, 7),)),
    "CrossEntropyLoss": (Layer(nn.CrossEntropyLoss()), (floats(6, 7), LABELS)),
    "softmax": (Shares(), (floats(2, 3, 7),)),
    "softmax of axis 1": (Shares(1), (floats(3, 40),)),
    "nn.Softmax": (Layer(nn.Softmax()), (floats(2, 3, 4, 5),)),
    "ops.Softmax": (Called(ops.Softmax(-1)), (floats(3, 7),)),
    "ops.Conv2D": (
        Called(ops.Conv2D(4, (3, 2), pad_mode="pad", pad=(1, 0, 2, 1), stride=(2, 1), dilation=(1, 2), group=2)),
        (floats(2, 6, 7, 6), floats(4, 3, 3, 2)),
    ),
    "ops.GeLU": (Called(ops.GeLU()), (floats(3, 7),)),
    "ops.L2Normalize": (Called(ops.L2Normalize(1, 1e-6)), (floats(3, 4, 5),)),
    "ops.LayerNorm": (Called(ops.LayerNorm(-1, -1)), (floats(3, 4, 5), floats(5), floats(5))),
    "LayerNorm": (Layer(nn.LayerNorm([8])), (floats(3, 5, 8),)),
    "LayerNorm of two axes": (Layer(nn.LayerNorm([5, 8], 1, 1, epsilon=1e-3)), (floats(3, 5, 8),)),
    "Dense": (Layer(nn.Dense(8, 5)), (floats(4, 8),)),
    "Dense without a bias": (Layer(nn.Dense(8, 5, has_bias=False)), (floats(4, 8),)),
    "Dense of three axes": (Layer(nn.Dense(8, 5, activation="relu")), (floats(2, 3, 8),)),
    "Conv2d": (Layer(nn.Conv2d(3, 4, 3)), (floats(2, 3, 7, 6),)),
    "Conv2d depthwise": (Layer(nn.Conv2d(4, 8, (3, 2), (2, 1), group=4, has_bias=True)), (floats(2, 4, 7, 6),)),
    "Conv2d padded": (Layer(nn.Conv2d(4, 6, 3, 2, "pad", (2, 1, 0, 3), 2, 2)), (floats(2, 4, 9, 8),)),
    "Conv2d valid": (Layer(nn.Conv2d(4, 4, 5, 1, "valid", group=4)), (floats(2, 4, 9, 8),)),
    "Conv2d in tiles": (Layer(nn.Conv2d(40, 32, 3, has_bias=True)), (floats(2, 40, 7, 6),)),
    "Conv2d of one element": (Layer(nn.Conv2d(3, 4, 1)), (floats(2, 3, 7, 6),)),
    "Conv2d of one element, strided": (Layer(nn.Conv2d(40, 36, 1, 2, "valid")), (floats(2, 40, 7, 6),)),
    "Conv2d of many channels": (Layer(nn.Conv2d(40, 40, 3, 2)), (floats(1, 40, 7, 6),)),
    "Conv1d": (Layer(nn.Conv1d(3, 4, 5, has_bias=True)), (floats(2, 3, 11),)),
    "Conv1d of many channels": (Layer(nn.Conv1d(40, 36, 3, 2, "pad", 2, 2)), (floats(2, 40, 12),)),
    "Conv2dTranspose": (Layer(nn.Conv2dTranspose(4, 3, 3, 2, has_bias=True)), (floats(2, 4, 5, 6),)),
    "Conv2dTranspose valid": (Layer(nn.Conv2dTranspose(4, 6, (2, 3), (3, 1), "valid", group=2)), (floats(2, 4, 5, 6),)),
    "Conv2dTranspose padded": (
        Layer(nn.Conv2dTranspose(40, 36, 4, 2, "pad", (1, 2, 1, 0), dilation=1)),
        (floats(2, 40, 5, 6),),
    ),
    "axes": (Permuted(), (floats(3, 4, 3),)),
    "matmul": (Product(), (floats(3, 4), floats(4, 5))),
    "matmul of a batch": (Product(), (floats(2, 3, 4, 5), floats(2, 3, 5, 4))),
    "matmul by a matrix": (Product(), (floats(2, 3, 4), floats(4, 5))),
}
LEFT: dict[str, tuple[nn.Cell, tuple[Tensor, ...]]] = {
    "Conv2dTranspose with more output": (
        Layer(nn.Conv2dTranspose(4, 3, 3, 2, "pad", 1, output_padding=1)),
        (floats(2, 4, 5, 6),),
    ),
    "cross_entropy none": (CrossEntropy(reduction="none"), (floats(6, 7),)),
    "cross_entropy weighted": (CrossEntropy(weight=Tensor(np.arange(1, 8, dtype=np.float32))), (floats(6, 7),)),
    "cross_entropy smoothed": (CrossEntropy(label_smoothing=0.1), (floats(6, 7),)),
    "cross_entropy of shares": (Layer(nn.CrossEntropyLoss()), (floats(6, 7), ops.softmax(floats(6, 7), 1))),
    "softmax of another axis": (Shares(1), (floats(2, 3, 7),)),
    "nn.Softmax of another axis": (Layer(nn.Softmax(0)), (floats(3, 7),)),
    "ops.Softmax of another axis": (Called(ops.Softmax(0)), (floats(3, 7),)),
    "ops.LayerNorm of other axes": (Called(ops.LayerNorm(1, 2)), (floats(3, 4, 5), floats(5), floats(5))),
    "matmul broadcast": (Product(), (floats(2, 3, 4), floats(1, 4, 5))),
    "matmul by a vector": (Product(), (floats(3, 4), floats(4))),
}


class Twice(nn.Cell):  # type: ignore[misc]
    """The gradient of the squares of a gradient."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.once = ms.grad(Sum(cell))

        def squares(*inputs: Tensor) -> Tensor:
            once = self.once(*inputs)
            return (once * once).sum()

        self.twice = ms.grad(squares)

    def construct(self, *inputs: Tensor) -> Tensor:
        return self.twice(*inputs)


def recorded(function: Any, calls: list[str]) -> Any:
    def call(*args: Any) -> Any:
        found = function(*args)
        calls.append(found.func.rpartition("boost_ext_")[2])
        return found

    return call


@pytest.fixture(params=["mindspores products", "native products"])
def whose_products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without AVX-512, and as with it where oneDNN does not see it."""
    isa = "avx512" if request.param == "native products" else "avx2"
    monkeypatch.setattr(products, "build_info", lambda: {"isa": isa})
    monkeypatch.setattr(convolutions, "are_slow", lambda: False)


@pytest.mark.usefixtures("whose_products")
@pytest.mark.parametrize("case", [*CASES, *LEFT])
def test_values_and_gradients_are_mindspores(case: str) -> None:
    cell, inputs = (CASES | LEFT)[case]
    near(*both(lambda: Once(cell), inputs), tolerance=1e-6)
    wanted = sum(t.dtype == ms.float32 for t in inputs)
    near(*both(lambda: Gradients(cell, 1 if "shares" in case else wanted), inputs), tolerance=1e-5)


@pytest.mark.usefixtures("whose_products")
@pytest.mark.parametrize(
    ("cell", "shapes"),
    [
        (Layer(nn.Dense(8, 5, has_bias=False)), ((4, 7),)),
        (Layer(nn.Dense(64, 64)), ((4, 65),)),
        (Product(), ((3, 4), (5, 4))),
        (Product(), ((2, 3, 4), (2, 5, 4))),
    ],
    ids=["Dense", "Dense of few rows", "matmul", "matmul of a batch"],
)
def test_factors_that_do_not_fit_are_refused_as_mindspore_does(cell: nn.Cell, shapes: Any) -> None:
    inputs = [floats(*shape) for shape in shapes]
    with pytest.raises((RuntimeError, ValueError), match="equal") as theirs:
        Once(cell)(*inputs)
    with substituted(SUBSTITUTES), pytest.raises(theirs.type) as ours:
        Once(cell)(*inputs)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


class PlainGelu(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1 + ops.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


class PlainCrossEntropy(nn.Cell):  # type: ignore[misc]
    def __init__(self, labels: Tensor, ignored: int, mean: bool) -> None:
        super().__init__()
        rows = np.flatnonzero(labels.asnumpy() != ignored)
        chosen = np.zeros((len(labels), 7), np.float32)
        chosen[rows, labels.asnumpy()[rows]] = 1 / len(rows) if mean else 1
        self.chosen = Tensor(chosen)

    def construct(self, x: Tensor, *others: Tensor) -> Tensor:
        return (self.chosen * (ops.log(ops.exp(x).sum(1, keepdims=True)) - x)).sum()


class PlainNorm(nn.Cell):  # type: ignore[misc]
    def __init__(self, layer: nn.LayerNorm) -> None:
        super().__init__()
        self.gamma, self.beta, self.epsilon = layer.gamma, layer.beta, layer.epsilon

    def construct(self, x: Tensor) -> Tensor:
        centered = x - x.mean((1, 2), keep_dims=True)
        factor = ops.rsqrt((centered * centered).mean((1, 2), keep_dims=True) + self.epsilon)
        return centered * factor * self.gamma + self.beta


class PlainUnit(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Tensor) -> Tensor:
        return x * ops.rsqrt((x * x).sum(1, keepdims=True))


DIFFERENTIABLE = {
    "ops.GeLU": PlainGelu(),
    "ops.L2Normalize": PlainUnit(),
    "LayerNorm of two axes": PlainNorm(CASES["LayerNorm of two axes"][0].layer),  # it forgets its epsilon there
    "gelu tanh": PlainGelu(),
    "nn.GELU": PlainGelu(),
    "cross_entropy": PlainCrossEntropy(LABELS, -100, True),
    "cross_entropy sum": PlainCrossEntropy(ops.abs(LABELS) % 7, 6, False),
    "CrossEntropyLoss": PlainCrossEntropy(LABELS, -100, True),
}
"""The same functions, where MindSpore cannot differentiate its own twice, or does it wrong."""


@pytest.mark.usefixtures("whose_products")
@pytest.mark.parametrize("case", CASES)
def test_gradients_of_gradients_are_mindspores(case: str) -> None:
    cell, inputs = CASES[case]
    theirs = arrays(Twice(DIFFERENTIABLE.get(case, cell))(*inputs))
    with substituted(SUBSTITUTES):
        near(theirs, arrays(Twice(cell)(*inputs)), tolerance=2e-5)


class Doubled(nn.Cell):  # type: ignore[misc]
    """In an operator's place, as thor puts one there."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator

    def construct(self, *inputs: Tensor) -> Any:
        found = self.operator(*inputs)
        return tuple(2 * t for t in found) if isinstance(found, tuple) else 2 * found


class OneOfTwo(nn.Cell):  # type: ignore[misc]
    """Two layers alike, one with an operator of its own."""

    def __init__(self, make: Any, name: str) -> None:
        super().__init__()
        self.one, self.other = make(), make()
        setattr(self.other, name, Doubled(getattr(self.other, name)))

    def construct(self, x: Tensor) -> Tensor:
        return self.one(x) + 3 * self.other(x)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Conv2d(3, 4, 3, weight_init="ones"), "conv2d"),
        (lambda: nn.Conv2dTranspose(3, 4, 3, weight_init="ones"), "conv2d_transpose"),
        (lambda: nn.Dense(5, 6, "ones", "ones"), "matmul"),
        (lambda: nn.BatchNorm2d(3), "bn_train"),
        (lambda: nn.LayerNorm([5]), "layer_norm"),
        (lambda: nn.MaxPool2d(2, 2), "max_pool"),
    ],
    ids=["Conv2d", "Conv2dTranspose", "Dense", "BatchNorm2d", "LayerNorm", "MaxPool2d"],
)
@pytest.mark.usefixtures("whose_products")
def test_a_layer_with_another_operator_keeps_it(make: Any, name: str) -> None:
    x = floats(2, 3, 4, 5)
    theirs = arrays(OneOfTwo(make, name).set_train()(x))
    net = OneOfTwo(make, name).set_train()
    with substituted(SUBSTITUTES) as met:
        near(theirs, arrays(net(x)), tolerance=1e-5)
    layers = [type(net.one).construct] if name != "conv2d" else []  # whose operator is found alone
    assert [f for f in met if f not in (ops.LayerNorm, ops.Conv2D)] == layers


class OddNorm(nn.Cell):  # type: ignore[misc]
    """Parameters of other axes than those that are normalized."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([4, 16], begin_norm_axis=2, begin_params_axis=1)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(x)


def test_parameters_of_other_axes_are_mindspores() -> None:
    (theirs,), (ours,) = both(OddNorm, (floats(3, 4, 16),))
    np.testing.assert_array_equal(theirs, ours)


class Block(nn.Cell):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.norm = nn.Dense(8, 8, "normal", "normal"), nn.LayerNorm([8])

    def construct(self, x: Tensor) -> Tensor:
        return ops.gelu(self.norm(self.dense(x))).swapaxes(0, 1)


class Loss(nn.Cell):  # type: ignore[misc]
    """A block, recomputed for the gradient or one sample at a time."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.block, self.by_sample = Block(), how == "vmap"
        if how == "recompute":
            self.block.recompute()

    def construct(self, x: Tensor) -> Tensor:
        y = ops.vmap(self.block)(x) if self.by_sample else self.block(x)
        return (y * y * y).sum()


def losses(cell: Any, x: Tensor) -> list[float]:
    return [float(cell(x)[0]) for _ in range(3)]


@pytest.mark.parametrize("how", ["", "recompute", "vmap"])
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def test_a_step_takes_the_substitutes_where_it_compiles_with_them(
    mode: int, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "boost_ext")
    ms.set_context(mode=mode)
    x = floats(3, 4, 8)
    found = []
    for table in (SUBSTITUTES, {}):
        ms.set_seed(1)
        net = Loss(how)
        cell = BoostTrainOneStepCell(net, optim.Momentum(net.trainable_params(), 0.01, 0.9)).set_train()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_calls, "substitutes", lambda table=table: table)
            found.append(losses(cell, x))
        pipeline = cell.pipelines[0]
        assert pipeline.__dict__.get("_slow", False) == (how == "vmap" and bool(table)), (
            "MindSpore has no rule to map a native function over samples"
        )
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    assert ("is compiled without faster layers" in caplog.text) == (how == "vmap")
    lists = [text for text in caplog.messages if "is compiled with faster layers" in text]
    met = [text.rpartition(": ")[2] for text in lists]
    assert met == ([] if how == "vmap" else ["1 Dense, 1 LayerNorm, 1 gelu, 1 swapaxes"])


class Signals(nn.Cell):  # type: ignore[misc]
    """A loss of a convolution, and of an operator of its own that takes a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv1d(4, 5, 3, has_bias=True), ops.LayerNorm(-1, -1)
        self.scale = Parameter(Tensor(np.full(8, 2, np.float32)))

    def construct(self, x: Tensor) -> Tensor:
        y = self.convolution(x)
        return (y * self.norm(y, self.scale, self.scale)[0]).sum()


@pytest.mark.parametrize("kind", [Loss, Signals])
@pytest.mark.parametrize("level", ["O2", "O3"])
def test_cells_in_half_precision_keep_their_own_functions(level: str, kind: type[nn.Cell]) -> None:
    """Their ``construct`` casts the parameters that it names, and no other function would."""
    x = floats(3, 4, 8)
    found = []
    for table in (SUBSTITUTES, {}):
        ms.set_seed(1)
        net = kind()
        step = amp.build_train_network(net, optim.Momentum(net.trainable_params(), 0.01, 0.9), level=level)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fast_calls, "substitutes", lambda table=table: table)
            found.append(losses(step, x))
        assert "_slow" not in step.pipelines[0].__dict__
    assert found[0] == pytest.approx(found[1], rel=2e-3)


def test_the_compiler_does_not_warn_of_batch_norms(capfd: pytest.CaptureFixture[str]) -> None:
    """It writes to the process's stderr."""
    net = nn.WithLossCell(nn.SequentialCell(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()), nn.MSELoss())
    cell = BoostTrainOneStepCell(net, optim.Momentum(net.trainable_params(), 0.01, 0.9)).set_train()
    cell(floats(2, 3, 5, 5), floats(2, 100))
    warnings = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert not [line for line in warnings if "batch_norm" in line]


def test_which_functions_are_met() -> None:
    with substituted(SUBSTITUTES) as met:
        ms.value_and_grad(Attending())(floats(4, 6, 8))
        Once(Loss())(floats(3, 4, 8))
    functions = {"_tensor_getitem_by_tuple", "gelu", "matmul", "softmax", "strided_slice", "swapaxes", "transpose"}
    assert {f.__qualname__ for f in met} == functions | {"Dense.construct", "LayerNorm.construct"}


class Statistics(nn.Cell):  # type: ignore[misc]
    """One operator under two names, and all that it answers; one that is no attribute, and one made here."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = self.same = ops.LayerNorm(1, 1)

    def construct(self, x: Tensor, gamma: Tensor) -> Any:
        y, mean, variance = self.norm(x, gamma, gamma)
        return y + mean * variance, self.same(y, gamma, gamma)[0], SHARES(x), ops.GeLU()(x)


SHARES = ops.Softmax()


def test_operators_by_any_name() -> None:
    inputs = floats(3, 8), floats(8)
    theirs = arrays(Statistics()(*inputs))
    with substituted(SUBSTITUTES) as met:
        ours = arrays(Statistics()(*inputs))
    assert met == [ops.LayerNorm, ops.LayerNorm, ops.Softmax, ops.GeLU]
    near(theirs, ours, 1e-5)


class Moved(nn.Cell):  # type: ignore[misc]
    def construct(self, x: Tensor) -> Tensor:
        return x[0].swapaxes(-1, -2)


def test_another_network_before_leaves_no_traces() -> None:
    """After a network with some of the same functions the compiler could not take a primitive out of a tuple."""
    fill(ResNet(Basic)).set_train(False)(batch()[0])
    x = floats(4, 6, 8)
    with substituted(SUBSTITUTES) as met:
        got = Moved()(x)
    assert {f.__qualname__ for f in met} == {"strided_slice", "swapaxes"}
    np.testing.assert_array_equal(got.asnumpy(), x.asnumpy()[0].T)


def test_an_error_of_a_run_is_no_reason_to_compile_again() -> None:
    class Wrong(nn.Cell):  # type: ignore[misc]
        def construct(self, x: Tensor, labels: Tensor) -> Tensor:
            return ops.cross_entropy(x, labels)

    cell = Wrong()
    with pytest.raises(RuntimeError, match=r"^cross_entropy: labels must be in 0\.\.2, got 3 in row 1$"):
        fast_calls.call_fast(cell, cell.compile_and_run, floats(2, 3), Tensor([0, 3], ms.int32))
    assert "_slow" not in cell.__dict__


@pytest.mark.parametrize("isa", ["avx2", "avx512"])
def test_what_is_native_depends_on_the_instruction_sets(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cell, inputs = CASES["Conv2d of many channels"]
    product, factors = CASES["matmul"]
    for hidden in (False, True):
        monkeypatch.setattr(products, "build_info", lambda: {"isa": isa})
        monkeypatch.setattr(convolutions, "are_slow", lambda hidden=hidden: isa == "avx512" and not hidden)
        made: list[str] = []
        monkeypatch.setattr(products, "_primitive", recorded(products._primitive, made))
        monkeypatch.setattr(conv2d, "_primitive", recorded(conv2d._primitive, made))
        with substituted(SUBSTITUTES):
            Once(cell)(*inputs)
            Once(product)(*factors)
        native = isa == "avx512"
        assert made == ["conv2d"] * native + ["matmul"] * (native and hidden)


@pytest.mark.parametrize("isa", ["baseline", "avx2"])
def test_products_of_few_rows_and_a_large_matrix_are_native(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "build_info", lambda: {"isa": isa})
    made: list[str] = []
    monkeypatch.setattr(products, "_primitive", recorded(products._primitive, made))
    fast = isa == "avx2"
    for rows, width, native in ((32, 64, fast), (36, 64, False), (32, 63, False)):
        for cell, inputs in (
            (Layer(nn.Dense(64, width)), (floats(rows, 64),)),
            (Layer(nn.Dense(64, width)), (floats(rows // 4, 4, 64),)),
            (Product(), (floats(rows, 64), floats(64, width))),
        ):
            made.clear()
            near(*both(partial(Once, cell), inputs), tolerance=1e-6)
            near(*both(partial(Gradients, cell, len(inputs)), inputs), tolerance=1e-5)
            assert bool(made) == native, (rows, width)


@pytest.mark.usefixtures("medium_precision")
@pytest.mark.parametrize(
    ("cell", "inputs"),
    [
        (Layer(nn.Dense(64, 48)), (floats(40, 64),)),
        (Product(), (floats(2, 40, 64), floats(2, 64, 9))),
        (Layer(nn.Conv2d(40, 32, 3)), (floats(2, 40, 7, 6),)),
        (Layer(nn.Conv2d(40, 36, 1)), (floats(2, 40, 7, 6),)),
    ],
    ids=["Dense", "matmul", "Conv2d in tiles", "Conv2d of one element"],
)
def test_products_of_medium_precision(cell: nn.Cell, inputs: tuple[Tensor, ...]) -> None:
    """Rounded to bfloat16, forwards and backwards, where the CPU multiplies that; float32 otherwise."""
    narrow = products.has_narrow_products()
    for make, error in ((partial(Once, cell), 1e-6), (partial(Gradients, cell, len(inputs)), 1e-5)):
        theirs, ours = both(make, inputs)
        near(theirs, ours, tolerance=2.0**-6 if narrow else error)
        far = [abs(a - b).max() / abs(a).max() for a, b in zip(theirs, ours, strict=True)]
        assert all(found > 1e-4 for found in far) == narrow, far


class Attending(nn.Cell):  # type: ignore[misc]
    """As transformers write it: queries, keys and values out of one product. But the axis is not the last one, whose
    softmax is native."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Dense(8, 24)

    def construct(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).reshape((4, 6, 3, 8)).transpose((2, 0, 1, 3))
        scores = ops.softmax(ops.matmul(qkv[0], qkv[1].swapaxes(-1, -2)), -2)
        return (ops.matmul(scores, qkv[2])[:, 0] ** 2).mean()


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def test_a_training_has_mindspores_bits(mode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its products, which native ones equal up to rounding errors."""
    monkeypatch.setattr(convolutions, "are_slow", lambda: True)
    x = Tensor(np.random.default_rng(0).standard_normal((4, 6, 8)).astype(np.float32))
    trained = {}
    for which in ("plain", "ours"):
        ms.set_context(mode=ms.GRAPH_MODE if which == "plain" else mode)
        ms.set_seed(0)
        net = Attending()
        if which == "plain":
            step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
            losses = [float(step(x)) for _ in range(3)]
        else:
            cell = BoostTrainOneStepCell(net, optim.Momentum(net.trainable_params(), 0.1, 0.9)).set_train()
            losses = [float(cell(x)[0]) for _ in range(3)]
        trained[which] = losses, [p.asnumpy() for p in net.trainable_params()]
    assert trained["ours"][0] == trained["plain"][0]
    for got, expected in zip(trained["ours"][1], trained["plain"][1], strict=True):
        np.testing.assert_array_equal(got, expected)
