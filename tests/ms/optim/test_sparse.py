"""Gradients that hold some rows only, in calls from Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor
from mindspore.common.sparse_tensor import RowTensorInner

from boost_ext import optim

SHAPE = (6, 3)
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "Adam": lambda p, **k: optim.Adam(p, 0.1, **k),
    "LazyAdam": lambda p, **k: optim.LazyAdam(p, 0.1, **k),
    "AdamOffload": lambda p, **k: optim.AdamOffload(p, 0.1, **k),
    "FTRL": lambda p, **k: optim.FTRL(p, learning_rate=0.1, l1=0.01, **k),
    "ProximalAdagrad": lambda p, **k: optim.ProximalAdagrad(p, learning_rate=0.1, l1=0.01, **k),
}


@pytest.fixture(autouse=True)
def _pynative() -> None:
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


def test_who_takes_none_says_so() -> None:
    optimizer = optim.Momentum(parameters(), 0.1, 0.9)
    indices, values = rows(0)
    with pytest.raises(TypeError, match="Momentum: gradients must be Tensors, got a RowTensor at 0"):
        optimizer((RowTensorInner(Tensor(indices), Tensor(values), SHAPE), Tensor(np.ones((1, 3), np.float32))))


def test_a_row_that_does_not_exist() -> None:
    params = parameters()
    before = params[0].asnumpy().copy()
    optimizer = optim.LazyAdam(params, 0.1)
    values = Tensor(np.ones((1, 3), np.float32))
    with pytest.raises(ValueError, match=r"indices\[0\] must be in \[0, 6\), got 6"):
        optimizer((RowTensorInner(Tensor([6], ms.int32), values, SHAPE), values))
    np.testing.assert_array_equal(params[0].asnumpy(), before)
