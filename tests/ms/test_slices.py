"""Slices of what our training cells compile: MindSpore's bits, by the kernel that is fast."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from boost_ext import optim
from boost_ext.boost import BoostTrainOneStepCell
from boost_ext.ms.core import slices

SHAPE = (5, 6, 7, 4)
INDICES = (
    *("t[0]", "t[-1]", "t[4]", "t[2:]", "t[:-2]", "t[-3:-1]", "t[1:100]", "t[:]", "t[0:1]", "t[2][3]", "t[1, 2, 3, 0]"),
    *("t[:, 0]", "t[:, 2:5]", "t[1:3, -2:]", "t[1:, 1:, 1:, 1:]", "t[:, :, -1]", "t[3, :, 1:2]", "t[:, 1, :, 2:3]"),
    *("t[..., 1:3]", "t[None, 1]", "t[::2]", "t[1:4:3, ::2]", "t[:, None, 2:]", "t[0, ..., 1]"),
)
SLICES = 18
"""The first ones, without steps, an ellipsis or a new axis."""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The compiler reads source."""
    lines = [f"def index_{i}(t):\n    return {index}\n" for i, index in enumerate(INDICES)]
    lines += [f"def squares_{i}(t):\n    y = {index}\n    return (y * y).sum()\n" for i, index in enumerate(INDICES)]
    (tmp_path / "indices.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "indices", raising=False)
    return importlib.import_module("indices")


def compiled(function: Any, *inputs: Tensor) -> np.ndarray:
    with slices.fast_slices(compiles=True):
        return ms.jit(function)(*inputs).asnumpy()


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
def test_the_elements_are_numpys(functions: ModuleType, dtype: Any) -> None:
    x = np.arange(np.prod(SHAPE)).reshape(SHAPE).astype(dtype)
    for i, index in enumerate(INDICES):
        expected = eval(index, {"t": x})
        got = compiled(getattr(functions, f"index_{i}"), Tensor(x))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, expected, err_msg=index, strict=True)


def test_gradients_go_where_the_elements_came_from(functions: ModuleType) -> None:
    x = np.arange(1, 1 + np.prod(SHAPE), dtype=np.float32).reshape(SHAPE)
    for i, index in enumerate(INDICES[:SLICES]):
        taken = np.zeros(SHAPE, np.float32)
        exec(f"{index} = 1", {"t": taken})
        got = compiled(ms.grad(getattr(functions, f"squares_{i}")), Tensor(x))
        np.testing.assert_array_equal(got, 2 * x * taken, err_msg=index)


def test_where_a_slice_begins_and_its_size() -> None:
    assert slices.as_slice(SHAPE, (1,), (2,), (1,), 0, 0, 1) == ((1, 0, 0, 0), (1, 6, 7, 4), (6, 7, 4))
    assert slices.as_slice(SHAPE, (-2, 0), (5, -1), (1, 1), 0, 0, 0) == ((3, 0, 0, 0), (2, 5, 7, 4), (2, 5, 7, 4))
    assert slices.as_slice(SHAPE, (9, 2), (9, 9), (1, 1), 1, 3, 0) == ((0, 2, 0, 0), (5, 4, 7, 4), (5, 4, 7, 4))
    for begin, end, step in ((0, 4, 2), (3, 3, 1), (4, 0, -1)):
        assert slices.as_slice(SHAPE, (begin,), (end,), (step,), 0, 0, 0) == ((), (), ()), (
            "MindSpore's kernel, or error"
        )


def test_an_index_out_of_range_is_refused_as_mindspore_does() -> None:
    def beyond(t: Tensor) -> Tensor:
        return t[5]

    with pytest.raises(Exception, match="5") as theirs:
        ms.jit(beyond)(ops.ones(SHAPE))
    with slices.fast_slices(compiles=True), pytest.raises(type(theirs.value), match="5"):
        ms.jit(beyond)(ops.ones(SHAPE))


class Attending(nn.Cell):  # type: ignore[misc]
    """As transformers write it: queries, keys and values out of one product."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Dense(8, 24)

    def construct(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).reshape((4, 6, 3, 8)).transpose((2, 0, 1, 3))
        scores = ops.softmax(ops.matmul(qkv[0], qkv[1].swapaxes(-1, -2)), -1)
        return (ops.matmul(scores, qkv[2])[:, 0] ** 2).mean()


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "pynative"])
def test_a_training_has_mindspores_bits(mode: int) -> None:
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
