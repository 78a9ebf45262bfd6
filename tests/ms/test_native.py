"""The ops as MindSpore primitives: what a graph compiler must not do to an op that writes, in both modes."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, ParameterTuple, Tensor, nn, ops
from tests import oracle
from tests.ms.native_cells import BfgsUpdate

from boost_ext.ms import native
from boost_ext.ms.native.cell import as_first, custom

SIZES = [(3, 4), (5,), (), (64, 33)]


def arrays(seed: int, sizes=SIZES, scale=1.0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(s) * scale, np.float32) for s in sizes]


def parameters(prefix: str, values: list[np.ndarray]) -> ParameterTuple:
    return ParameterTuple([Parameter(Tensor(v), name=f"{prefix}{i}") for i, v in enumerate(values)])


def new_report(rows: int) -> Parameter:
    return Parameter(Tensor(np.zeros((rows, 4))), name="report")


def numpy_of(tensors) -> list[np.ndarray]:
    return [t.asnumpy().copy() for t in tensors]


def assert_same(got, expected, rtol=1e-6, atol=1e-7) -> None:
    for g, e in zip(got, expected, strict=True):
        np.testing.assert_allclose(g, np.asarray(e).reshape(np.shape(g)), rtol=rtol, atol=atol)


class Call(nn.Cell):
    """An op on parameters, as a cell that owns them would call it."""

    def __init__(self, op: nn.Cell, *args) -> None:
        super().__init__(auto_prefix=False)
        self.op = op
        self.args = args

    def construct(self) -> Tensor:
        return self.op(*self.args)


class Writer(nn.Cell):
    """Each construct is one thing that a compiler likes to do to a call without a used result."""

    def __init__(self, weights: ParameterTuple, what: str) -> None:
        super().__init__(auto_prefix=False)
        self.weights = weights
        self.scale = Parameter(Tensor(2.0, ms.float32), name="scale")
        self.report = new_report(len(weights))
        self.unscale = native.UnscaleAndCheckReport()
        self.what = what

    def construct(self, flag: Tensor) -> Tensor:
        before = self.weights[0] * 1.0
        if self.what == "unused":
            self.unscale(self.weights, self.scale, self.report)
        elif self.what == "twice":
            self.unscale(self.weights, self.scale, self.report)
            self.unscale(self.weights, self.scale, self.report)
        elif self.what == "branch":
            if flag > 0:
                self.unscale(self.weights, self.scale, self.report)
        else:
            i = flag
            while i > 0:
                self.unscale(self.weights, self.scale, self.report)
                i = i - 1
        after = self.weights[0] * 1.0
        return before - after


@pytest.mark.parametrize(
    ("what", "flag", "divisions"),
    [
        ("unused", 0, 1),
        ("twice", 0, 2),
        ("branch", 1, 1),
        ("branch", 0, 0),
        ("loop", 3, 3),
        ("loop", 0, 0),
    ],
)
def test_a_write_is_neither_dropped_nor_merged_nor_moved(mode: int, what: str, flag: int, divisions: int) -> None:
    values = arrays(0)
    weights = parameters("w", values)
    difference = Writer(weights, what)(Tensor(flag, ms.int32))
    factor = 0.5**divisions
    assert_same(numpy_of(weights), [v * factor for v in values])
    np.testing.assert_allclose(difference.asnumpy(), values[0] * (1 - factor), rtol=1e-6)


class AroundGradients(nn.Cell):
    """Gradients are read before and after the op that changes them.

    For the graph compiler a gradient is a value: the same expression of it, before and after, is computed once. The
    second read therefore goes through ``depend``, as native.py asks.
    """

    def __init__(self, network: nn.Cell) -> None:
        super().__init__(auto_prefix=False)
        weights = ParameterTuple(network.trainable_params())
        self.grad = ms.value_and_grad(network, None, weights)
        self.scale = Parameter(Tensor(4.0, ms.float32), name="scale")
        self.report = new_report(len(weights))
        self.unscale = native.UnscaleAndCheckReport()

    def construct(self, x: Tensor) -> tuple:
        _, grads = self.grad(x)
        before = grads[0] * 1.0
        found = self.unscale(grads, self.scale, self.report)
        grads = ops.depend(grads, found)
        return before, grads[0] * 1.0, found


class Cubic(nn.Cell):
    def __init__(self, value: np.ndarray) -> None:
        super().__init__()
        self.w = Parameter(Tensor(value), name="w")

    def construct(self, x: Tensor) -> Tensor:
        return (self.w**3 * x).sum()


def test_gradients_before_and_after(mode: int) -> None:
    value = arrays(1, [(6, 7)])[0]
    before, after, found = AroundGradients(Cubic(value))(Tensor(np.ones((6, 7), np.float32)))
    np.testing.assert_allclose(before.asnumpy(), 3 * value**2, rtol=1e-5)
    np.testing.assert_allclose(after.asnumpy(), 3 * value**2 / 4, rtol=1e-5)
    assert not found.asnumpy().item()


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_unscale_and_check_finds(mode: int, bad: float) -> None:
    values = arrays(2)
    values[-1][-1, -1] = bad
    weights = parameters("w", values)
    scale, report = Parameter(Tensor(8.0, ms.float32), name="s"), new_report(len(weights))
    found = Call(native.UnscaleAndCheckReport(), weights, scale, report)()
    assert found.asnumpy().tolist() == [True]
    assert_same(numpy_of(weights)[:-1], [v / 8 for v in values[:-1]])


def test_pynative_waits_for_unfinished_ops() -> None:
    """A pointer is only fetched when whatever writes the tensor is done."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    unscale, scale, report = native.UnscaleAndCheckReport(), Tensor([2.0], ms.float32), new_report(1)
    big = Tensor(np.full((700, 700), 1 / 700, np.float32))
    for _ in range(20):
        g = big
        for _ in range(3):
            g = ops.matmul(g, big)
        unscale((g,), scale, report)
        np.testing.assert_allclose(g.asnumpy(), 1 / 1400, rtol=1e-4)


def test_projections(mode: int) -> None:
    grads, k = arrays(3), 5
    n = sum(g.size for g in grads)
    P = np.random.default_rng(4).standard_normal((k, n)).astype(np.float32)
    matrix = Parameter(Tensor(P), name="P")
    gk = Parameter(Tensor(np.zeros(k, np.float32)), name="gk")
    Call(native.PcaProject(), matrix, parameters("g", grads), gk, native.absent)()
    expected = oracle.pca_project(P, grads)
    np.testing.assert_allclose(gk.asnumpy(), expected, rtol=1e-5, atol=1e-5)

    other = Parameter(Tensor(np.arange(k, dtype=np.float32)), name="v")
    zeros = [np.zeros_like(g) for g in grads]
    a, b = parameters("a", zeros), parameters("b", zeros)
    Call(native.PcaBackProject(), matrix, gk, other, a, b, native.absent)()
    for out, vector in ((a, gk), (b, other)):
        expected = oracle.pca_back_project(P, vector.asnumpy(), grads)
        assert_same(numpy_of(out), expected, rtol=1e-5, atol=1e-4)


def test_subspace_point(mode: int) -> None:
    """origin[0] + P^T v in the weights, whatever their dtype; exactly origin[0] at v = 0."""
    like, k = arrays(5), 4
    n = sum(a.size for a in like)
    rng = np.random.default_rng(6)
    P, average = rng.standard_normal((k, n)).astype(np.float32), rng.standard_normal(n).astype(np.float32)
    matrix = Parameter(Tensor(P), name="P")
    origin = Parameter(Tensor(np.stack([average, np.full(n, 9, np.float32)])), name="origin")
    v = Parameter(Tensor(np.zeros(k, np.float32)), name="v")
    weights = parameters("w", like)
    halves = ParameterTuple([Parameter(w.astype(ms.float16), name=f"h{i}") for i, w in enumerate(weights)])
    point, half_point = (Call(native.SubspacePoint(), matrix, v, origin, out) for out in (weights, halves))
    point()
    np.testing.assert_array_equal(oracle.flat(numpy_of(weights)), average)
    v.set_data(Tensor(rng.standard_normal(k).astype(np.float32)))
    point()
    half_point()
    moved = oracle.pca_back_project(P, v.asnumpy(), like)
    expected = average + oracle.flat(moved)
    np.testing.assert_allclose(oracle.flat(numpy_of(weights)), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(oracle.flat(numpy_of(halves)), expected, rtol=6e-4, atol=1e-5)
    np.testing.assert_array_equal(origin.asnumpy()[0], average)


def test_bfgs_update(mode: int) -> None:
    s, y = arrays(5, [(6,), (6,)])
    y = y + 3 * s
    B = Parameter(Tensor(np.eye(6, dtype=np.float32)), name="B")
    eps = Tensor([1e-20], ms.float32)
    updated = Call(BfgsUpdate(), B, Tensor(s), Tensor(y), eps)()
    expected = oracle.bfgs_update(np.eye(6), s, y)
    assert updated.asnumpy().tolist() == [True]
    np.testing.assert_allclose(B.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    refused = Call(BfgsUpdate(), B, Tensor(s), Tensor(-y), eps)()
    assert refused.asnumpy().tolist() == [False]


@pytest.mark.parametrize("write", [True, False])
def test_who_only_checks_reports_the_same_and_writes_nothing(mode: int, write: bool) -> None:
    values = arrays(8)
    values[1].flat[0] = np.inf
    weights = parameters("w", values)
    report = new_report(len(values))
    found = Call(native.UnscaleAndCheckReport(write), weights, Parameter(Tensor(8.0, ms.float32), name="s"), report)()
    assert found.asnumpy().tolist() == [True]
    assert_same(numpy_of(weights), [v / 8 if write else v for v in values])
    largest = [np.max(np.abs(v), where=np.isfinite(v), initial=0) / 8 for v in values]
    np.testing.assert_allclose(report.asnumpy()[:, 3], largest, rtol=1e-6)
    assert report.asnumpy()[:, 0].tolist() == [0, 1] + [0] * (len(values) - 2)


def test_an_error_in_a_graph_is_an_exception_and_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    a, b = parameters("a", arrays(9)), parameters("b", arrays(9, [(2, 2)] * 4))
    with pytest.raises(RuntimeError):
        Call(native.EmaUpdate(), a, b, Tensor([0.5], ms.float64))()
    assert "boost_ext: ema_update: averages[0] must have 4 elements, got 12" in capfd.readouterr().err


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
def test_half_precision(mode: int, dtype: ms.dtype) -> None:
    values = arrays(10)
    tensors = ParameterTuple([Parameter(Tensor(v).astype(dtype), name=f"h{i}") for i, v in enumerate(values)])
    stored = [t.astype(ms.float32).asnumpy() for t in tensors]
    scale, report = Parameter(Tensor(4.0, ms.float32), name="s"), new_report(len(tensors))
    Call(native.UnscaleAndCheckReport(), tensors, scale, report)()
    assert_same([t.astype(ms.float32).asnumpy() for t in tensors], [s / 4 for s in stored])


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_unscale_and_check_report(mode: int, bad: float) -> None:
    values = arrays(11)
    values[3][2, 5] = bad
    values[3][63, 32] = np.nan
    weights = parameters("w", values)
    report = Parameter(Tensor(np.full((4, 4), -7.0)), name="report")
    cell = Call(native.UnscaleAndCheckReport(), weights, Parameter(Tensor(8.0, ms.float32), name="s"), report)
    assert cell().asnumpy().tolist() == [True]
    for scale in (8, 64):
        with np.errstate(invalid="ignore"):
            divided = [(v / np.float32(scale)).astype(np.float64) for v in values]
        seen = [oracle.check(v) for v in divided]
        rows = [(s.inf, s.nan, -1 if s.first is None else s.first, s.max_abs) for s in seen]
        np.testing.assert_array_equal(report.asnumpy(), rows)
        assert rows[3][2] == 2 * 33 + 5
        assert cell().asnumpy().tolist() == [True]

    clean = parameters("c", arrays(12))
    cell = Call(native.UnscaleAndCheckReport(), clean, Parameter(Tensor(8.0, ms.float32), name="s"), report)
    assert cell().asnumpy().tolist() == [False]
    assert report.asnumpy()[:, :3].tolist() == [[0, 0, -1]] * 4


def test_graphs_keep_subnormal_numbers(mode: int) -> None:
    """MindSpore runs a graph for the first time in a thread that flushes them to zero."""
    tiny = {ms.float16: 2.0**-20, ms.bfloat16: 2.0**-130, ms.float32: 2.0**-130}
    weights = parameters("w", [np.zeros(100_001, np.float32)] * 3)
    weights = ParameterTuple([Parameter(w.astype(d), name=w.name) for w, d in zip(weights, tiny, strict=True)])
    values = [np.full(100_001, t) for t in tiny.values()]
    for weight, value in zip(weights, values, strict=True):
        weight.set_data(Tensor(value.astype(np.float32)).astype(weight.dtype))
    scale = Parameter(Tensor(0.5, ms.float32), name="scale")
    Call(native.UnscaleAndCheckReport(), weights, scale, new_report(3))()
    for weight, value in zip(weights, values, strict=True):
        np.testing.assert_array_equal(weight.astype(ms.float32).asnumpy(), (2 * value).astype(np.float32))


def test_the_report_must_have_a_row_for_each_gradient(capfd: pytest.CaptureFixture[str]) -> None:
    weights = parameters("w", arrays(13))
    scale, report = Tensor([2.0], ms.float32), new_report(3)
    expected = "unscale_and_check: report must have 16 elements, got 12"
    ms.set_context(mode=ms.GRAPH_MODE)
    with pytest.raises(RuntimeError):
        Call(native.UnscaleAndCheckReport(), weights, scale, report)()
    assert f"boost_ext: {expected}" in capfd.readouterr().err
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with pytest.raises(ValueError, match=f"^{expected}$"):
        native.UnscaleAndCheckReport()(weights, scale, report)
    assert_same(numpy_of(weights), arrays(13), rtol=0, atol=0)


class Accumulation(nn.Cell):
    def __init__(self, scale: float, steps: int, old: list[np.ndarray]) -> None:
        super().__init__(auto_prefix=False)
        self.scale = Parameter(Tensor(scale, ms.float32), name="scale")
        self.steps = Tensor([steps], ms.float32)
        self.accumulators = parameters("a", old)
        self.accumulate = native.Accumulate()

    def construct(self, count: Tensor, grads: tuple) -> Tensor:
        return self.accumulate(self.scale, self.steps, count, self.accumulators, grads)


def accumulated(mode: int, dtype: ms.dtype, scale: float = 24.0, steps: int = 3) -> list[np.ndarray]:
    ms.set_context(mode=mode)
    cell = Accumulation(scale, steps, [np.full(s, np.nan, np.float32) for s in SIZES])
    for i in range(steps):
        cell(Tensor([i], ms.int32), tuple(Tensor(v).astype(dtype) for v in arrays(20 + i, scale=scale)))
    return numpy_of(cell.accumulators)


@pytest.mark.parametrize("dtype", [ms.float32, ms.float16, ms.bfloat16])
def test_accumulate(dtype: ms.dtype) -> None:
    """The mean over micro-batches, over whatever the accumulators held; the same bits in both modes."""
    graph, eager = accumulated(ms.GRAPH_MODE, dtype), accumulated(ms.PYNATIVE_MODE, dtype)
    for one, other in zip(graph, eager, strict=True):
        np.testing.assert_array_equal(one, other)
    batches = [
        [Tensor(v).astype(dtype).astype(ms.float32).asnumpy() for v in arrays(20 + i, scale=24)] for i in (0, 1, 2)
    ]
    assert_same(graph, [np.mean(b, axis=0) / 24 for b in zip(*batches, strict=True)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("scale", "steps"), [(3.0, 7), (65536.0, 10), (1e-3, 3), (1234567.0, 16777215)])
def test_accumulate_divides_alike_in_both_modes(scale: float, steps: int) -> None:
    results = []
    for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
        ms.set_context(mode=mode)
        cell = Accumulation(scale, steps, arrays(30))
        cell(Tensor([1], ms.int32), tuple(Tensor(v) for v in arrays(31, scale=scale * steps)))
        results.append(numpy_of(cell.accumulators))
    for one, other, before, added in zip(*results, arrays(30), arrays(31), strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, before + added, rtol=1e-5, atol=1e-5)


def test_accumulate_refuses_a_scale_of_zero(mode: int, capfd: pytest.CaptureFixture[str]) -> None:
    cell = Accumulation(0.0, 1, arrays(32))
    with pytest.raises((ValueError, RuntimeError)) as caught:
        cell(Tensor([0], ms.int32), tuple(Tensor(v) for v in arrays(33)))
    said = str(caught.value) + capfd.readouterr().err
    assert "accumulate: factor must be finite, got inf" in said
    assert_same(numpy_of(cell.accumulators), arrays(32), rtol=0, atol=0)


def test_a_function_has_one_primitive() -> None:
    """Each would be compiled for itself."""
    arguments = ("gelu", as_first, as_first)
    assert custom(*arguments) is custom(*arguments)
