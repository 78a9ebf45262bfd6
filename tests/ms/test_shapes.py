"""Functions of shapes in graphs: what they are told of each argument, and that what they answer is a constant."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mutable, nn

from boost_ext.ms.native.shapes import Shape, is_known, of_shapes

pytestmark = pytest.mark.usefixtures("graph_mode")
SEEN: list[Any] = []
MATRIX = Tensor(np.ones((2, 3), np.float32))


@of_shapes
def rank_of(x: Any, other: Any) -> int:
    SEEN.append((x, other))
    return len(x) if type(x) is Shape else -1


class Asks(nn.Cell):  # type: ignore[misc]
    """x times the rank that it is told of, if there is one. A branch of a graph needs a constant."""

    def __init__(self, other: Any = None) -> None:
        super().__init__()
        self.weight = Parameter(MATRIX, name="weight")
        self.other = other

    def construct(self, x: Tensor, y: Any) -> Tensor:
        if rank_of(x, self.weight if self.other is None else self.other) + rank_of(y, None) > 0:
            return x * 2
        return x


def asked(x: Any, y: Any, other: Any = None, dynamic: Any = None) -> tuple[np.ndarray, list[Any]]:
    SEEN.clear()
    cell = Asks(other)
    if dynamic is not None:
        cell.set_inputs(*dynamic)
    return cell(x, y).asnumpy(), list(SEEN)


def test_a_tensor_and_a_parameter_have_shapes() -> None:
    out, seen = asked(MATRIX, MATRIX)
    assert (Shape((2, 3)), Shape((2, 3))) in seen
    assert all(type(x) is Shape for x, _ in seen)
    np.testing.assert_array_equal(out, 2)


@pytest.mark.parametrize("dtype", [ms.float16, ms.float64, ms.int32])
def test_another_dtype_has_none(dtype: Any) -> None:
    out, seen = asked(Tensor(np.ones((2, 3)), dtype), MATRIX.astype(dtype))
    assert {x for x, _ in seen} == {None}
    np.testing.assert_array_equal(out, 1)


@pytest.mark.parametrize("shape", [(None, 3), None])
def test_a_shape_that_the_compiler_does_not_know_is_none(shape: Any) -> None:
    dynamic = Tensor(shape=shape, dtype=ms.float32)
    out, seen = asked(MATRIX, MATRIX, dynamic=(dynamic, dynamic))
    assert {x for x, _ in seen} == {None}
    np.testing.assert_array_equal(out, 1)


def test_constants_and_what_is_none() -> None:
    for constant in ((1, 2), [1, 2], "same", 3, 0.5, ((1, 2), 3)):
        _, seen = asked(MATRIX, (2, 3), constant)
        found = [other for x, other in seen if type(x) is Shape]
        assert found == [constant]
        assert type(found[0]) is type(constant)
        assert ((2, 3), None) in [(x, other) for x, other in seen if type(x) is tuple]
    _, seen = asked(MATRIX, mutable(3))
    assert {x for x, _ in seen} == {None, Shape((2, 3))}


def test_is_known() -> None:
    class Known(nn.Cell):  # type: ignore[misc]
        def construct(self, x: Tensor) -> Any:
            return is_known(x)

    assert Known()(MATRIX) is True
    assert Known()(MATRIX.astype(ms.float16)) is False
    assert Known()(Tensor(np.float32(1))) is True
