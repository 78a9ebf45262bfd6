"""Slices in compiled training cells: the elements, their gradients, and what is left to MindSpore."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, ops

from boost_ext.ms.core import fast_slices
from boost_ext.ms.core.fast_functions import SUBSTITUTES
from boost_ext.ms.core.substitutes import substituted
from boost_ext.ms.native.shapes import Shape

pytestmark = pytest.mark.usefixtures("graph_mode")
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
    with substituted(SUBSTITUTES):
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
    assert fast_slices.as_slice(SHAPE, (1,), (2,), (1,), 0, 0, 1) == ((1, 0, 0, 0), (1, 6, 7, 4), (6, 7, 4))
    assert fast_slices.as_slice(SHAPE, (-2, 0), (5, -1), (1, 1), 0, 0, 0) == (
        (3, 0, 0, 0),
        (2, 5, 7, 4),
        (2, 5, 7, 4),
    )
    assert fast_slices.as_slice(SHAPE, (9, 2), (9, 9), (1, 1), 1, 3, 0) == ((0, 2, 0, 0), (5, 4, 7, 4), (5, 4, 7, 4))
    for begin, end, step in ((0, 4, 2), (3, 3, 1), (4, 0, -1)):
        assert fast_slices.as_slice(SHAPE, (begin,), (end,), (step,), 0, 0, 0) == ((), (), ()), (
            "MindSpore's kernel, or error"
        )


@pytest.mark.parametrize(
    "index",
    [
        *((5,), (-6,), (0, 6), (slice(2, 2),), (slice(None, None, 2),), (slice(None, None, -1),), (slice(0, 4, 0),)),
        *((0, 0, 0, 0, 0), (None, 0), (..., 0), (True,), (slice(0.5),), (slice(0, np.int64(2)),), 0, [0, 1]),
    ],
    ids=str,
)
def test_an_index_that_is_left_to_mindspore(index: Any) -> None:
    """For its kernel, or its error."""
    assert fast_slices.as_item(Shape(SHAPE), index) == ((), (), ())


def test_an_index_out_of_range_is_refused_as_mindspore_does() -> None:
    def beyond(t: Tensor) -> Tensor:
        return t[5]

    with pytest.raises(Exception, match="5") as theirs:
        ms.jit(beyond)(ops.ones(SHAPE))
    with substituted(SUBSTITUTES), pytest.raises(type(theirs.value), match="5"):
        ms.jit(beyond)(ops.ones(SHAPE))
