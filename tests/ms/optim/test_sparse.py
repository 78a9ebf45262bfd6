"""Gradients that hold some rows only: in calls from Python, and where the graph compiler makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.common.sparse_tensor import RowTensorInner
from tests import oracle

from boost_ext import boost, optim

SHAPE = (6, 3)
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "Adam": lambda p, **k: optim.Adam(p, 0.1, **k),
    "LazyAdam": lambda p, **k: optim.LazyAdam(p, 0.1, **k),
    "AdamOffload": lambda p, **k: optim.AdamOffload(p, 0.1, **k),
    "FTRL": lambda p, **k: optim.FTRL(p, learning_rate=0.1, l1=0.01, **k),
    "ProximalAdagrad": lambda p, **k: optim.ProximalAdagrad(p, learning_rate=0.1, l1=0.01, **k),
}


@pytest.fixture(autouse=True)
def _pynative() -> Iterator[None]:
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=ms.PYNATIVE_MODE)


def parameters(dtype: ms.Type = ms.float32) -> list[Parameter]:
    rng = np.random.default_rng(1)
    return [
        Parameter(Tensor(rng.standard_normal(shape), dtype), name=name)
        for name, shape in (("table", SHAPE), ("weight", (1, 3)))
    ]


def rows(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices, one of them twice, and the values of these rows."""
    rng = np.random.default_rng(step)
    return np.array([4, 1, 4], np.int32), rng.standard_normal((3, 3)).astype(np.float32)


@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_only_these_rows_are_stepped(name: str, dtype: ms.Type) -> None:
    """They are stepped as the whole gradient would step them; the others keep weights and state."""
    sparse, dense = parameters(dtype), parameters(dtype)
    one, other = (OPTIMIZERS[name](p, weight_decay=0.01, loss_scale=2.0) for p in (sparse, dense))
    before = sparse[0].asnumpy().copy()
    state = one.states0[0].asnumpy().copy()
    for step in range(5):
        indices, values = rows(step)
        whole = np.zeros(SHAPE, np.float32)
        np.add.at(whole, indices, values)
        rest = Tensor(np.full((1, 3), step + 1.0, np.float32))
        one((RowTensorInner(Tensor(indices), Tensor(values), SHAPE), rest))
        other((Tensor(whole), rest))
    touched, untouched = [1, 4], [0, 2, 3, 5]
    np.testing.assert_array_equal(sparse[0].asnumpy()[touched], dense[0].asnumpy()[touched])
    np.testing.assert_array_equal(sparse[1].asnumpy(), dense[1].asnumpy())
    np.testing.assert_array_equal(sparse[0].asnumpy()[untouched], before[untouched])
    np.testing.assert_array_equal(one.states0[0].asnumpy()[untouched], state[untouched])
    np.testing.assert_array_equal(one.states0[0].asnumpy()[touched], other.states0[0].asnumpy()[touched])
    assert one.global_step.asnumpy().tolist() == [5]


def test_whole_gradients_again_after_sparse_ones() -> None:
    params, expected = parameters(), parameters()
    one, other = optim.Adam(params, 0.1), optim.Adam(expected, 0.1)
    everything = np.arange(6, dtype=np.int32)
    for step in range(4):
        rng = np.random.default_rng(step)
        table, rest = (Tensor(rng.standard_normal(s).astype(np.float32)) for s in (SHAPE, (1, 3)))
        one((RowTensorInner(Tensor(everything), table, SHAPE) if step % 2 else table, rest))
        other((table, rest))
    for a, b in zip(params, expected, strict=True):
        np.testing.assert_array_equal(a.asnumpy(), b.asnumpy())


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE])
@pytest.mark.parametrize(
    ("owner", "make"),
    [
        ("Momentum", lambda p: optim.Momentum(p, 0.1, 0.9)),
        ("AdaFactor", optim.AdaFactor),
        ("Muon", optim.Muon),
        ("Apollo", optim.Apollo),
        ("GaLore", optim.GaLore),
        ("LARS", lambda p: optim.LARS(optim.Adam(p, 0.1))),
    ],
)
def test_who_takes_none_says_so(owner: str, make: Callable[..., Any], mode: int) -> None:
    ms.set_context(mode=mode)
    optimizer = make(parameters())
    indices, values = rows(0)
    with pytest.raises(TypeError, match=f"^{owner}: gradients must be Tensors, got a RowTensor for table$"):
        optimizer((RowTensorInner(Tensor(indices), Tensor(values), SHAPE), Tensor(np.ones((1, 3), np.float32))))


def test_a_row_that_does_not_exist() -> None:
    params = parameters()
    before = params[0].asnumpy().copy()
    optimizer = optim.LazyAdam(params, 0.1)
    values = Tensor(np.ones((1, 3), np.float32))
    with pytest.raises(ValueError, match=r"indices\[0\] must be in \[0, 6\), got 6"):
        optimizer((RowTensorInner(Tensor([6], ms.int32), values, SHAPE), values))
    np.testing.assert_array_equal(params[0].asnumpy(), before)


@pytest.mark.parametrize("far", [2**32 + 1, -(2**32) + 1])
def test_int64_rows(far: int) -> None:
    """As int32; one beyond is none, not the row that its lower half would be."""
    params, expected = parameters()[:1], parameters()[:1]
    one, other = optim.LazyAdam(params, 0.1), optim.LazyAdam(expected, 0.1)
    indices, values = rows(0)
    one((RowTensorInner(Tensor(indices.astype(np.int64)), Tensor(values), SHAPE),))
    other((RowTensorInner(Tensor(indices), Tensor(values), SHAPE),))
    np.testing.assert_array_equal(params[0].asnumpy(), expected[0].asnumpy())
    with pytest.raises(ValueError, match=r"indices\[0\] must be in \[0, 6\), got"):
        one((RowTensorInner(Tensor([far, 1, 1], ms.int64), Tensor(values), SHAPE),))
    np.testing.assert_array_equal(params[0].asnumpy(), expected[0].asnumpy())


def test_step_unless_by_pointer() -> None:
    params, expected = parameters()[:1], parameters()[:1]
    one, other = optim.LazyAdam(params, 0.1), optim.LazyAdam(expected, 0.1)
    indices, values = rows(0)
    gradient = RowTensorInner(Tensor(indices), Tensor(4 * values), SHAPE)
    one.step_unless(Tensor([True]), Tensor([4.0]), (gradient,))
    np.testing.assert_array_equal(params[0].asnumpy(), expected[0].asnumpy())
    one.step_unless(Tensor([False]), Tensor([4.0]), (gradient,))
    other((RowTensorInner(Tensor(indices), Tensor(values), SHAPE),))
    np.testing.assert_array_equal(params[0].asnumpy(), expected[0].asnumpy())


class Looked(nn.Cell):
    """The sum of the rows that were looked up, times `values`, and of a weight: so all gradients are known."""

    def __init__(self) -> None:
        super().__init__()
        table, weight = parameters()
        self.lookup = nn.EmbeddingLookup(*SHAPE, param_init=table.value(), target="CPU")
        self.weight = Parameter(weight.value(), name="weight")

    def construct(self, indices: Tensor, values: Tensor) -> Tensor:
        return (self.lookup(indices) * values).sum() + 2 * self.weight.sum()


BATCHES = [([4, 1, 4], 0), ([1, 3, 3], 1), ([0, 4, 1], 2)]


def expected_table(name: str) -> np.ndarray:
    """Of float64: each row by itself, its parts summed; a row that a step does not name stays, and its state."""
    rule, states = {
        "LazyAdam": (lambda w, u, s, t: oracle.adam_step(w, u, *s, None, 0.1, t, 0.9, 0.999, 1e-8, False), (0, 0)),
        "FTRL": (lambda w, u, s, t: oracle.ftrl_step(w, u, *s, 0.1, 0.01, 0.0, -0.5), (0.1, 0)),
    }[name]
    w = parameters()[0].asnumpy().astype(np.float64)
    state = [np.full(SHAPE, s, np.float64) for s in states]
    for step, (indices, seed) in enumerate(BATCHES, 1):
        whole = np.zeros(SHAPE)
        np.add.at(whole, indices, rows(seed)[1].astype(np.float64))
        for row in set(indices):
            result = rule(w[row], whole[row], [s[row] for s in state], step)
            w[row] = result.w
            for s, new in zip(state, result.state, strict=True):
                s[row] = new
    return w


CELLS: dict[str, Callable[..., Any]] = {
    "mindspore": lambda n, o: nn.TrainOneStepCell(n, o).set_train(),
    "step": lambda n, o: boost.BoostTrainOneStepCell(n, o),
    "scale": lambda n, o: boost.BoostTrainOneStepWithLossScaleCell(n, o, Tensor(1024.0)),
    "network": lambda n, o: boost.BoostTrainOneStepWithLossScaleCell(n, o, Tensor(1024.0), compile="network"),
}


@pytest.mark.parametrize(
    ("mode", "cell", "name", "dtype"),
    [
        (ms.GRAPH_MODE, "mindspore", "LazyAdam", ms.int32),
        (ms.GRAPH_MODE, "mindspore", "FTRL", ms.int64),
        (ms.GRAPH_MODE, "scale", "LazyAdam", ms.int32),
        (ms.PYNATIVE_MODE, "step", "LazyAdam", ms.int32),
        (ms.PYNATIVE_MODE, "network", "LazyAdam", ms.int64),
    ],
)
def test_gradients_that_the_compiler_makes(mode: int, cell: str, name: str, dtype: ms.Type) -> None:
    ms.set_context(mode=mode)
    net = Looked()
    optimizer = OPTIMIZERS[name](net.trainable_params())
    step = CELLS[cell](net, optimizer)
    for indices, seed in BATCHES:
        step(Tensor(indices, dtype), Tensor(rows(seed)[1]))
    table = net.lookup.embedding_table.asnumpy()
    np.testing.assert_allclose(table, expected_table(name), rtol=2e-5, atol=2e-6)
    np.testing.assert_array_equal(table[[2, 5]], parameters()[0].asnumpy()[[2, 5]])
    assert np.all(net.weight.asnumpy() != parameters()[1].asnumpy())
    if cell in ("scale", "network"):
        values = np.full((3, 3), 1e37, np.float32)
        _, overflow, _ = step(Tensor([4, 1, 4], dtype), Tensor(values))
        assert bool(overflow.asnumpy())
        np.testing.assert_array_equal(net.lookup.embedding_table.asnumpy(), table)
        assert optimizer.global_step.asnumpy().tolist() == [3]


def test_python_calls_in_graph_mode() -> None:
    """With what ``value_and_grad`` returns there: indices, values and shape in the place of a RowTensor."""
    ms.set_context(mode=ms.GRAPH_MODE)
    net = Looked()
    optimizer = optim.LazyAdam(net.trainable_params(), 0.1)
    gradients_of = ms.value_and_grad(net, None, optimizer.parameters)
    for indices, seed in BATCHES:
        _, gradients = gradients_of(Tensor(indices, ms.int32), Tensor(rows(seed)[1]))
        if seed == 1:
            gradients = (gradients[0], RowTensorInner(*gradients[1]))
        optimizer(gradients)
    expected = expected_table("LazyAdam")
    np.testing.assert_allclose(net.lookup.embedding_table.asnumpy(), expected, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("what", "make"),
    [
        ("for nn.LazyAdam", lambda n, p: boost.BoostTrainOneStepCell(n, nn.LazyAdam(p, 0.1))),
        ("with clip_norm", lambda n, p: boost.BoostTrainOneStepCell(n, optim.Adam(p, 0.1), clip_norm=1.0)),
        ("with adaptive_clip", lambda n, p: boost.BoostTrainOneStepCell(n, optim.Adam(p, 0.1), adaptive_clip=0.01)),
        (
            "with accumulation_steps",
            lambda n, p: boost.BoostTrainOneStepCell(n, optim.Adam(p, 0.1), accumulation_steps=2),
        ),
    ],
)
def test_cells_that_take_none_say_so(what: str, make: Callable[..., Any]) -> None:
    net = Looked()
    step = make(net, net.trainable_params())
    message = f"BoostTrainOneStepCell: gradients must be Tensors {what}, got a RowTensor for lookup.embedding_table"
    with pytest.raises(TypeError, match=message):
        step(Tensor([4, 1, 4], ms.int32), Tensor(rows(0)[1]))
